//! What a request is about, after `k8s.io/apiserver/pkg/endpoints/request`.

use http::Method;

use super::options::{ListOptions, Query};
use crate::auth::Attributes;
use crate::codec::selector::{FieldSelector, is_path_segment};

/// A request for an API object or collection.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResourceRequest {
    /// Lower-case verb as RBAC knows it.
    pub verb: &'static str,
    /// API group.
    pub group: String,
    /// API version.
    pub version: String,
    /// Namespace, empty when the path has none.
    pub namespace: String,
    /// Whether the path has a namespace.
    pub namespaced: bool,
    /// Plural resource name.
    pub resource: String,
    /// Object name, empty for a collection.
    pub name: String,
    /// Subresource, empty for the main resource; further segments are kept, joined by slashes.
    pub subresource: String,
    /// Whether the deprecated prefix `watch/` makes it a watch.
    pub watch_prefix: bool,
}

/// A request, by path and method.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RequestInfo {
    /// For an API object or collection.
    Resource(ResourceRequest),
    /// For anything else: discovery, OpenAPI, health.
    Other,
}

impl RequestInfo {
    /// Reads method, decoded path and query.
    pub fn parse(method: &Method, path: &str, query: &Query) -> Self {
        let parts: Vec<_> = path.trim_matches('/').split('/').collect();
        let ["apis", group, version, rest @ ..] = parts.as_slice() else {
            return Self::Other;
        };
        let (watch_prefix, rest) = match rest {
            ["watch", rest @ ..] => (true, rest),
            rest => (false, rest),
        };
        let (namespace, namespaced, rest) = match rest {
            ["namespaces", namespace, rest @ ..] if !rest.is_empty() => (*namespace, true, rest),
            rest => ("", false, rest),
        };
        let [resource, rest @ ..] = rest else {
            return Self::Other;
        };
        let name = rest.first().copied().unwrap_or_default();
        let subresource = rest.get(1..).unwrap_or_default().join("/");
        let collection = name.is_empty();
        // Upstream's GET of a name is no watch, whatever the query says.
        let watching = collection && query.flag("watch");
        let verb = match *method {
            // As upstream, whatever the method: a DELETE there is a refused watch, and deletes nothing.
            _ if watch_prefix => "watch",
            Method::POST => "create",
            Method::PUT => "update",
            Method::PATCH => "patch",
            Method::DELETE if collection => "deletecollection",
            Method::DELETE => "delete",
            Method::GET | Method::HEAD if watching => "watch",
            Method::GET | Method::HEAD if collection => "list",
            Method::GET | Method::HEAD => "get",
            _ => "",
        };
        Self::Resource(ResourceRequest {
            verb,
            group: (*group).to_owned(),
            version: (*version).to_owned(),
            namespace: namespace.to_owned(),
            namespaced,
            resource: (*resource).to_owned(),
            name: name.to_owned(),
            subresource,
            watch_prefix,
        })
    }

    /// What the authorizer is asked.
    pub fn attributes(&self, method: &Method, path: &str, query: &Query) -> Attributes {
        match self {
            Self::Other => Attributes::NonResource {
                verb: method.as_str().to_lowercase(),
                path: path.to_owned(),
            },
            Self::Resource(request) => {
                let mut name = request.name.clone();
                // A list or watch of one name is authorised for that name.
                if name.is_empty()
                    && !request.watch_prefix
                    && matches!(request.verb, "list" | "watch")
                    && let Some(selected) = selected_name(query)
                {
                    name = selected;
                }
                let first = request.subresource.split('/').next();
                Attributes::Resource {
                    verb: request.verb.to_owned(),
                    group: request.group.clone(),
                    version: request.version.clone(),
                    resource: request.resource.clone(),
                    subresource: first.unwrap_or_default().to_owned(),
                    namespace: request.namespace.clone(),
                    name,
                }
            },
        }
    }
}

/// The one name that a collection is narrowed to; none when any option of the query cannot be read.
fn selected_name(query: &Query) -> Option<String> {
    ListOptions::check_form(query).ok()?;
    let fields = FieldSelector::parse(query.get("fieldSelector")?).ok()?;
    let name = fields.exact_name()?;
    is_path_segment(name).ok()?;
    Some(name.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(method: &Method, uri: &str) -> RequestInfo {
        let (path, query) = uri.split_once('?').unwrap_or((uri, ""));
        RequestInfo::parse(method, path, &Query::parse(query))
    }

    fn summary(info: &RequestInfo) -> String {
        match info {
            RequestInfo::Other => "other".to_owned(),
            RequestInfo::Resource(r) => {
                format!(
                    "{} {}/{} ns={} name={} sub={}",
                    r.verb, r.group, r.resource, r.namespace, r.name, r.subresource
                )
            },
        }
    }

    #[test]
    fn paths_and_methods_become_verbs_and_resources() {
        for (method, uri, expected) in [
            (Method::GET, "/apis", "other"),
            (Method::GET, "/apis/g/v1", "other"),
            (Method::GET, "/healthz", "other"),
            (Method::GET, "/apis/g/v1/ks", "list g/ks ns= name= sub="),
            (
                Method::GET,
                "/apis/g/v1/ks?watch=true",
                "watch g/ks ns= name= sub=",
            ),
            (
                Method::GET,
                "/apis/g/v1/ks?watch=0",
                "list g/ks ns= name= sub=",
            ),
            (
                Method::GET,
                "/apis/g/v1/watch/namespaces/n/ks",
                "watch g/ks ns=n name= sub=",
            ),
            (
                Method::GET,
                "/apis/g/v1/watch/namespaces/n/ks/x",
                "watch g/ks ns=n name=x sub=",
            ),
            (
                Method::DELETE,
                "/apis/g/v1/watch/namespaces/n/ks/x",
                "watch g/ks ns=n name=x sub=",
            ),
            (
                Method::GET,
                "/apis/g/v1/namespaces/n/ks/x?watch=true",
                "get g/ks ns=n name=x sub=",
            ),
            (
                Method::GET,
                "/apis/g/v1/namespaces/n/ks/x",
                "get g/ks ns=n name=x sub=",
            ),
            (
                Method::POST,
                "/apis/g/v1/namespaces/n/ks/x/renew",
                "create g/ks ns=n name=x sub=renew",
            ),
            (
                Method::PUT,
                "/apis/g/v1/namespaces/n/ks/x",
                "update g/ks ns=n name=x sub=",
            ),
            (
                Method::DELETE,
                "/apis/g/v1/namespaces/n/ks",
                "deletecollection g/ks ns=n name= sub=",
            ),
            (
                Method::DELETE,
                "/apis/g/v1/namespaces/n/ks/x",
                "delete g/ks ns=n name=x sub=",
            ),
        ] {
            assert_eq!(summary(&parse(&method, uri)), expected, "{method} {uri}");
        }
    }

    // Outcomes of `NewRequestInfo` of k8s.io/apiserver/pkg/endpoints/request/requestinfo.go.
    #[test]
    fn a_list_or_watch_of_one_name_is_authorised_for_that_name() {
        let collection = "/apis/g/v1/namespaces/n/ks";
        let one = "fieldSelector=metadata.name%3Dx";
        for (method, path, query, expected) in [
            (
                Method::GET,
                collection,
                format!("watch=1&{one}"),
                ("watch", "x"),
            ),
            (Method::GET, collection, one.to_owned(), ("list", "x")),
            (
                Method::GET,
                collection,
                format!("{one}&limit=a"),
                ("list", ""),
            ),
            (Method::GET, collection, format!("{one}%2Fy"), ("list", "")),
            (
                Method::DELETE,
                collection,
                one.to_owned(),
                ("deletecollection", ""),
            ),
            (
                Method::GET,
                "/apis/g/v1/watch/namespaces/n/ks",
                one.to_owned(),
                ("watch", ""),
            ),
        ] {
            let query = Query::parse(&query);
            let info = RequestInfo::parse(&method, path, &query);
            let Attributes::Resource { verb, name, .. } = info.attributes(&method, path, &query)
            else {
                panic!("a resource request");
            };
            assert_eq!((verb.as_str(), name.as_str()), expected, "{query:?}");
        }
    }

    #[test]
    fn what_is_below_a_subresource_is_authorised_for_it() {
        let query = Query::default();
        let path = "/apis/g/v1/namespaces/n/ks/x/status/more";
        let info = RequestInfo::parse(&Method::GET, path, &query);
        let Attributes::Resource { subresource, .. } = info.attributes(&Method::GET, path, &query)
        else {
            panic!("a resource request");
        };
        assert_eq!(subresource, "status");
    }
}
