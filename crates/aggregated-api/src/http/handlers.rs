//! From an authorised request to the flow that serves it.

use std::sync::Arc;
use std::time::Duration;

use http::{Method, StatusCode};
use jiff::Timestamp;
use parking_lot::Mutex;
use serde_json::{Value, json};
use tokio_util::sync::CancellationToken;

use super::body::{
    PatchFormat, check_subresource_body, delete_options, json_patch, patch_format, read_body,
};
use super::options::{ListOptions, ReadAt, WriteOptions, revision};
use super::request::ResourceRequest;
use super::response::{Answer, object, value};
use super::service::{Admitted, Served, Shared, key_of};
use super::status::ApiError;
use crate::codec::decode::{Decoded, Format, decode};
use crate::codec::negotiate::{self, Representation, View, body_format, negotiate};
use crate::codec::selector::{FieldSelector, is_path_segment};
use crate::registry::context::RequestCtx;
use crate::registry::entry::Entry;
use crate::registry::read::Reader;
use crate::registry::serving::{AnyServing, SCALE};
use crate::registry::watch::{self, WatchSource};
use crate::registry::write::{Change, Deleted, Part, Patch};
use crate::schema::declaration::Declaration;
use crate::schema::discovery::ServedSubresource;
use crate::schema::scale;
use crate::server::Draining;

/// Longest time a write may take.
const MAX_WRITE: Duration = Duration::from_secs(34);

impl Shared {
    pub(super) async fn resource(
        &self,
        request: &ResourceRequest,
        admitted: Admitted,
        warnings: &Arc<Mutex<Vec<String>>>,
    ) -> Answer {
        let Served {
            kind,
            description: served,
        } = self
            .kinds
            .get(&key_of(request))
            .ok_or_else(ApiError::unknown_resource)?;
        let declaration = kind.declaration();
        if request.namespaced && !declaration.namespaced {
            return Err(ApiError::unknown_resource());
        }
        if declaration.namespaced && !request.namespaced {
            if !request.name.is_empty() {
                return Err(ApiError::unknown_resource());
            }
            if !matches!(request.verb, "list" | "watch") {
                return Err(ApiError::method_not_allowed());
            }
        }
        let sub = served.subresource(&request.subresource);
        if !request.subresource.is_empty() {
            let sub = sub.ok_or_else(ApiError::unknown_resource)?;
            if !sub.verbs.contains(&request.verb) {
                return Err(ApiError::method_not_allowed());
            }
        } else if !served.verbs.contains(&request.verb)
            || (request.verb == "create" && !request.name.is_empty())
            || (matches!(request.verb, "update" | "patch") && request.name.is_empty())
        {
            return Err(ApiError::method_not_allowed());
        }
        if request.verb == "watch" {
            if admitted.parts.method != Method::GET {
                return Err(ApiError::method_not_allowed());
            }
            return self.watch(kind, request, admitted).await;
        }
        if !request.name.is_empty() && request.verb != "create" {
            is_path_segment(&request.name).map_err(|why| {
                let name = &request.name;
                ApiError::bad_request(format!("Name parameter invalid: {name:?}: {why}"))
            })?;
        }
        let writes = !matches!(request.verb, "get" | "list" | "deletecollection");
        let now = self.clock.elapsed();
        let mut remaining = admitted.deadline.saturating_sub(now);
        if writes {
            remaining = remaining.min(MAX_WRITE);
        }
        let handled = self.handle(&**kind, sub, request, admitted, remaining, warnings);
        tokio::select! {
            answer = handled => {
                answer.map_err(|e| e.during(request.verb, &declaration.resource))
            },
            () = self.clock.sleep(remaining) => Err(ApiError::timeout()),
        }
    }

    async fn handle(
        &self,
        kind: &dyn AnyServing,
        subresource: Option<&ServedSubresource>,
        request: &ResourceRequest,
        admitted: Admitted,
        remaining: Duration,
        warnings: &Arc<Mutex<Vec<String>>>,
    ) -> Answer {
        let declaration = kind.declaration();
        let Admitted {
            parts,
            body,
            query,
            user,
            ..
        } = admitted;
        let headers = &parts.headers;
        let mut ctx = RequestCtx {
            user,
            namespace: request.namespace.clone(),
            dry_run: false,
            now: self.clock.now(),
            clock: Arc::clone(&self.clock),
            deadline: self.clock.elapsed() + remaining,
            authorizer: Arc::clone(&self.authorizer),
            warnings: Arc::clone(warnings),
        };
        let reader = Reader {
            declaration,
            cache: kind.cache(),
            kind: kind.kind(),
        };
        let name = request.name.as_str();
        if let Some(subresource) = subresource
            && request.verb == "create"
        {
            let representation = negotiate(headers, &query, negotiate::Answer::Body)?;
            if let View::Table(_) = representation.view {
                return Err(ApiError::not_acceptable(format!(
                    "the resource {} does not support being converted to a Table",
                    declaration.resource
                )));
            }
            let options = WriteOptions::parse(&query, "CreateOptions")?;
            ctx.dry_run = options.dry_run;
            let decoded = match read_body(body).await? {
                empty if empty.is_empty() => Decoded {
                    value: json!({}),
                    duplicates: Vec::new(),
                },
                bytes => decode(&bytes, body_format(headers)?)?,
            };
            check_subresource_body(
                &decoded.value,
                &subresource.kind,
                &declaration.api_version,
                name,
            )?;
            let answer = kind
                .create_subresource(&ctx, subresource.name, name, decoded, &options)
                .await?;
            return value(StatusCode::CREATED, &answer, representation);
        }
        let part = match subresource.map(|sub| sub.name) {
            None => Part::Main,
            Some(SCALE) => Part::Scale,
            Some(_) => Part::Status,
        };
        let views = if part == Part::Scale {
            negotiate::Answer::Plain
        } else {
            negotiate::Answer::Object
        };
        match request.verb {
            "get" => {
                let representation = negotiate(headers, &query, views)?;
                let read_at = match revision(query.get("resourceVersion").unwrap_or_default())? {
                    None => ReadAt::Latest,
                    Some(0) => ReadAt::Any,
                    Some(n) => ReadAt::NotOlderThan(n),
                };
                let entry = kind.convert(&reader.get(&request.namespace, name, read_at).await?)?;
                shown(part, &entry, declaration, representation, ctx.now)
            },
            "list" => {
                let representation = negotiate(headers, &query, negotiate::Answer::List)?;
                let options = ListOptions::parse(&query, false)?;
                let page = reader.list(&request.namespace, &options).await?;
                page.convert(kind)?
                    .answer(declaration, representation, ctx.now)
            },
            "create" => {
                let representation = negotiate(headers, &query, negotiate::Answer::Object)?;
                let options = WriteOptions::parse(&query, "CreateOptions")?;
                ctx.dry_run = options.dry_run;
                let format = body_format(headers)?;
                let body = decode(&read_body(body).await?, format)?;
                let entry = kind.create(&ctx, &*self.namespaces, body, &options).await?;
                object(
                    StatusCode::CREATED,
                    &entry,
                    declaration,
                    representation,
                    ctx.now,
                )
            },
            "update" | "patch" => {
                let patching = request.verb == "patch";
                let patch_format = patching.then(|| patch_format(headers)).transpose()?;
                let representation = negotiate(headers, &query, views)?;
                let kind_name = if patching {
                    "PatchOptions"
                } else {
                    "UpdateOptions"
                };
                let options = WriteOptions::parse(&query, kind_name)?;
                ctx.dry_run = options.dry_run;
                let format = if patching {
                    Format::Json
                } else {
                    body_format(headers)?
                };
                let bytes = read_body(body).await?;
                let change = match patch_format {
                    None => Change::Replace(decode(&bytes, format)?),
                    Some(PatchFormat::Merge) => {
                        Change::Patch(Patch::Merge(decode(&bytes, format)?))
                    },
                    Some(PatchFormat::Json) => Change::Patch(Patch::Json(json_patch(&bytes)?)),
                };
                if let (Part::Scale, Change::Replace(body)) = (part, &change) {
                    let (group, version) = scale::GROUP_VERSION;
                    let api_version = format!("{group}/{version}");
                    check_subresource_body(&body.value, scale::KIND, &api_version, name)?;
                }
                let entry = kind.update(&ctx, name, part, change, &options).await?;
                shown(part, &entry, declaration, representation, ctx.now)
            },
            "delete" => {
                let representation = negotiate(headers, &query, negotiate::Answer::Object)?;
                let options = delete_options(&query, body, headers).await?;
                ctx.dry_run = options.dry_run;
                match kind.delete(&ctx, name, &options).await? {
                    Deleted::Gone(entry) => {
                        let plain = Representation {
                            view: View::Whole,
                            ..representation
                        };
                        value(StatusCode::OK, &success(declaration, &entry), plain)
                    },
                    Deleted::Pending(entry) => {
                        object(StatusCode::OK, &entry, declaration, representation, ctx.now)
                    },
                }
            },
            "deletecollection" => {
                let representation = negotiate(headers, &query, negotiate::Answer::List)?;
                let list = ListOptions::parse(&query, false)?;
                let options = delete_options(&query, body, headers).await?;
                ctx.dry_run = options.dry_run;
                let page = reader.list(&request.namespace, &list).await?;
                for entry in &page.entries {
                    entry.namespace.as_ref().clone_into(&mut ctx.namespace);
                    match kind.delete(&ctx, &entry.name, &options).await {
                        Ok(_) => {},
                        Err(gone) if gone.code() == StatusCode::NOT_FOUND => {},
                        Err(other) => return Err(other),
                    }
                }
                page.convert(kind)?
                    .answer(declaration, representation, ctx.now)
            },
            _ => Err(ApiError::method_not_allowed()),
        }
    }

    async fn watch(
        &self,
        kind: &Arc<dyn AnyServing>,
        request: &ResourceRequest,
        admitted: Admitted,
    ) -> Answer {
        let Admitted { parts, query, .. } = admitted;
        let representation = negotiate(&parts.headers, &query, negotiate::Answer::Watch)?;
        let mut options = ListOptions::parse(&query, true)?;
        if !request.name.is_empty() {
            if options
                .fields
                .exact_name()
                .is_some_and(|selected| selected != request.name)
            {
                return Err(ApiError::bad_request(
                    "fieldSelector metadata.name doesn't match requested name",
                ));
            }
            options.fields = FieldSelector::name(&request.name);
        }
        let shutdown = parts
            .extensions
            .get::<Draining>()
            .map_or_else(CancellationToken::new, |draining| draining.0.clone());
        let source = WatchSource {
            serving: Arc::clone(kind),
            clock: Arc::clone(&self.clock),
            shutdown,
        };
        watch::start(source, &request.namespace, options, representation).await
    }
}

/// An object, or its scale when that was asked for.
fn shown(
    part: Part,
    entry: &Entry,
    declaration: &Declaration,
    representation: Representation,
    now: Timestamp,
) -> Answer {
    match (part, &declaration.scaling) {
        (Part::Scale, Some(scaling)) => {
            let scale = scaling.read(&entry.value())?;
            value(StatusCode::OK, &scale, representation)
        },
        _ => object(StatusCode::OK, entry, declaration, representation, now),
    }
}

fn success(declaration: &Declaration, entry: &Entry) -> Value {
    let object = entry.value();
    json!({
        "kind": "Status",
        "apiVersion": "v1",
        "metadata": {},
        "status": "Success",
        "details": {
            "name": &*entry.name,
            "group": declaration.resource.group,
            "kind": declaration.resource.resource,
            "uid": object.pointer("/metadata/uid"),
        },
    })
}
