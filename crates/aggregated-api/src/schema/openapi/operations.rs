//! The paths of a kind and what can be done at each: one table per path.

use serde_json::{Map, Value, json};

use super::{GroupVersionDiscovery, ServedKind, definition_name, meta, reference};
use crate::http::patch_types;

/// A query parameter: name, type, description.
type Parameter = (&'static str, &'static str, &'static str);

/// What a request or an answer carries.
#[derive(Clone, Copy)]
enum Carries {
    Nothing,
    Own,
    List,
    Patch,
    DeleteOptions,
    Status,
}

/// An operation as all kinds have it.
struct Operation {
    /// Verb of discovery; a kind that lacks it lacks the operation.
    verb: &'static str,
    method: &'static str,
    action: &'static str,
    /// What the id begins with, and what follows the group-version in it.
    id: (&'static str, &'static str),
    description: &'static str,
    query: &'static [Parameter],
    takes: Carries,
    answers: (&'static str, Carries),
}

const LIST_OR_WATCH: Operation = Operation {
    verb: "list",
    method: "get",
    action: "list",
    id: ("list", ""),
    description: "list or watch objects of kind {kind}",
    query: LIST,
    takes: Carries::Nothing,
    answers: ("200", Carries::List),
};
const CREATE: Operation = Operation {
    verb: "create",
    method: "post",
    action: "post",
    id: ("create", ""),
    description: "create a {kind}",
    query: WRITE,
    takes: Carries::Own,
    answers: ("201", Carries::Own),
};
const COLLECTION: [Operation; 3] = [
    LIST_OR_WATCH,
    CREATE,
    Operation {
        verb: "deletecollection",
        method: "delete",
        action: "deletecollection",
        id: ("delete", "Collection"),
        description: "delete a collection of {kind}",
        query: DELETE,
        takes: Carries::Nothing,
        answers: ("200", Carries::List),
    },
];
const READ: Operation = Operation {
    verb: "get",
    method: "get",
    action: "get",
    id: ("read", ""),
    description: "read the specified {kind}",
    query: &[],
    takes: Carries::Nothing,
    answers: ("200", Carries::Own),
};
const REPLACE: Operation = Operation {
    verb: "update",
    method: "put",
    action: "put",
    id: ("replace", ""),
    description: "replace the specified {kind}",
    query: WRITE,
    takes: Carries::Own,
    answers: ("200", Carries::Own),
};
const PATCH: Operation = Operation {
    verb: "patch",
    method: "patch",
    action: "patch",
    id: ("patch", ""),
    description: "partially update the specified {kind}",
    query: WRITE,
    takes: Carries::Patch,
    answers: ("200", Carries::Own),
};
const SUBRESOURCE: [Operation; 4] = [
    Operation {
        description: "create {subresource} of the specified {kind}",
        ..CREATE
    },
    Operation {
        description: "read {subresource} of the specified {kind}",
        ..READ
    },
    Operation {
        description: "replace {subresource} of the specified {kind}",
        ..REPLACE
    },
    Operation {
        description: "partially update {subresource} of the specified {kind}",
        ..PATCH
    },
];
const OBJECT: [Operation; 4] = [
    READ,
    REPLACE,
    PATCH,
    Operation {
        verb: "delete",
        method: "delete",
        action: "delete",
        id: ("delete", ""),
        description: "delete a {kind}",
        query: DELETE,
        takes: Carries::DeleteOptions,
        answers: ("200", Carries::Status),
    },
];

const DRY_RUN: Parameter = (
    "dryRun",
    "string",
    "`All`: process the request, persist nothing.",
);
const WRITE: &[Parameter] = &[
    DRY_RUN,
    (
        "fieldManager",
        "string",
        "Name of the actor that makes these changes.",
    ),
    (
        "fieldValidation",
        "string",
        "What happens to unknown and duplicate fields: Ignore, Warn (default) or Strict.",
    ),
];
const LIST: &[Parameter] = &[
    (
        "allowWatchBookmarks",
        "boolean",
        "Whether a watch may send BOOKMARK events.",
    ),
    ("continue", "string", "Token of the previous page."),
    (
        "fieldSelector",
        "string",
        "Restricts the objects by their fields.",
    ),
    (
        "labelSelector",
        "string",
        "Restricts the objects by their labels.",
    ),
    ("limit", "integer", "Most objects in one page."),
    ("resourceVersion", "string", "Which state may be served."),
    (
        "resourceVersionMatch",
        "string",
        "How resourceVersion is applied: Exact or NotOlderThan.",
    ),
    (
        "sendInitialEvents",
        "boolean",
        "Whether a watch begins with the present state.",
    ),
    ("timeoutSeconds", "integer", "Duration of a watch."),
    ("watch", "boolean", "Stream changes instead of listing."),
];
const DELETE: &[Parameter] = &[
    DRY_RUN,
    (
        "gracePeriodSeconds",
        "integer",
        "Accepted and ignored: there is nothing to wait for.",
    ),
    (
        "orphanDependents",
        "boolean",
        "Deprecated: use propagationPolicy.",
    ),
    (
        "propagationPolicy",
        "string",
        "Orphan, Background (default) or Foreground.",
    ),
];

/// Adds every path of a kind.
pub(super) fn add(paths: &mut Map<String, Value>, gv: &GroupVersionDiscovery, kind: &ServedKind) {
    let declaration = &kind.declaration;
    let base = format!("/apis/{}/{}", gv.group, gv.version);
    let plural = &declaration.resource.resource;
    let (collection, scope) = if declaration.namespaced {
        let path = format!("{base}/namespaces/{{namespace}}/{plural}");
        (path, "Namespaced")
    } else {
        (format!("{base}/{plural}"), "")
    };
    let object = format!("{collection}/{{name}}");
    let mut add = |path: &str, operations: &[Operation], at: &At<'_>, verbs: &[&str]| {
        let served: Vec<_> = operations
            .iter()
            .filter(|operation| verbs.contains(&operation.verb))
            .map(|operation| (operation.method.to_owned(), at.render(operation)))
            .collect();
        if !served.is_empty() {
            let mut item = Map::from_iter(served);
            item.insert("parameters".to_owned(), parameters(path));
            paths.insert(path.to_owned(), Value::Object(item));
        }
    };
    let at = At {
        gv,
        kind,
        body: &declaration.kind,
        foreign: None,
        scope,
        suffix: String::new(),
    };
    add(&collection, &COLLECTION, &at, &kind.verbs);
    add(&object, &OBJECT, &at, &kind.verbs);
    if declaration.namespaced {
        let everywhere = At {
            scope: "",
            suffix: "ForAllNamespaces".to_owned(),
            ..at
        };
        let path = format!("{base}/{plural}");
        add(&path, &[LIST_OR_WATCH], &everywhere, &kind.verbs);
    }
    for sub in &kind.subresources {
        let at = At {
            gv,
            kind,
            body: &sub.kind,
            foreign: sub.foreign,
            scope,
            suffix: capitalised(sub.name),
        };
        let path = format!("{object}/{}", sub.name);
        add(&path, &SUBRESOURCE, &at, &sub.verbs);
    }
}

/// Where an operation stands.
struct At<'a> {
    gv: &'a GroupVersionDiscovery,
    kind: &'a ServedKind,
    /// Kind of what is written and read.
    body: &'a str,
    /// Its group and version, unless they are `gv`.
    foreign: Option<(&'static str, &'static str)>,
    /// Before the kind in ids.
    scope: &'static str,
    /// After it.
    suffix: String,
}

impl At<'_> {
    fn render(&self, operation: &Operation) -> Value {
        let Self { gv, kind, body, .. } = self;
        let kind = &kind.declaration.kind;
        let (code, answer) = operation.answers;
        let (group, version) = self.foreign.unwrap_or((&gv.group, &gv.version));
        let prefixed: String = format!("{}.{}", gv.group, gv.version)
            .split(['.', '-'])
            .map(capitalised)
            .collect();
        let (prefix, middle) = operation.id;
        let mut responses = Map::new();
        responses.insert("401".to_owned(), json!({"description": "Unauthorized"}));
        responses.insert(
            code.to_owned(),
            json!({
                "description": if code == "201" { "Created" } else { "OK" },
                "content": content(&BOTH, &self.schema(answer)),
            }),
        );
        let query: Vec<_> = operation.query.iter().map(query_parameter).collect();
        let mut rendered = json!({
            "operationId": format!("{prefix}{prefixed}{middle}{}{kind}{}", self.scope, self.suffix),
            "description": operation.description.replace("{kind}", kind).replace("{subresource}", &self.suffix.to_lowercase()),
            "tags": [format!("{}_{}", gv.group.replace(['.', '-'], ""), gv.version)],
            "parameters": query,
            "responses": responses,
            "x-kubernetes-action": operation.action,
            "x-kubernetes-group-version-kind": {"group": group, "version": version, "kind": body},
        });
        let media = match operation.takes {
            Carries::Nothing => return rendered,
            Carries::Patch => patch_types(),
            Carries::Own | Carries::List | Carries::DeleteOptions | Carries::Status => &BOTH,
        };
        rendered["requestBody"] = json!({"content": content(media, &self.schema(operation.takes))});
        rendered
    }

    fn schema(&self, carries: Carries) -> Value {
        let own = |kind: &str| reference(&definition_name(&self.gv.group, &self.gv.version, kind));
        match carries {
            Carries::Nothing => json!({}),
            Carries::Own => self.foreign.map_or_else(
                || own(self.body),
                |(group, version)| {
                    reference(&format!("io.k8s.api.{group}.{version}.{}", self.body))
                },
            ),
            Carries::List => own(&format!("{}List", self.body)),
            Carries::Patch => meta("Patch"),
            Carries::DeleteOptions => meta("DeleteOptions"),
            Carries::Status => meta("Status"),
        }
    }
}

const BOTH: [&str; 2] = ["application/json", "application/yaml"];

fn content(media: &[&str], schema: &Value) -> Map<String, Value> {
    media
        .iter()
        .map(|media| ((*media).to_owned(), json!({"schema": schema})))
        .collect()
}

fn query_parameter((name, ty, description): &Parameter) -> Value {
    json!({
        "name": name, "in": "query", "description": description,
        "schema": {"type": ty, "uniqueItems": true},
    })
}

/// The parameters that all operations at a path share.
fn parameters(path: &str) -> Value {
    let in_path = [
        ("name", "name of the object"),
        ("namespace", "namespace of the object"),
    ]
    .into_iter()
    .filter(|(name, _)| path.contains(&format!("{{{name}}}")))
    .map(|(name, description)| {
        json!({
            "name": name, "in": "path", "required": true, "description": description,
            "schema": {"type": "string", "uniqueItems": true},
        })
    });
    let pretty = ("pretty", "string", "Indent the answer for people.");
    in_path.chain([query_parameter(&pretty)]).collect()
}

fn capitalised(word: &str) -> String {
    let mut letters = word.chars();
    letters
        .next()
        .map(|first| first.to_uppercase().chain(letters).collect())
        .unwrap_or_default()
}
