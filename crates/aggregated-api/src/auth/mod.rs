//! Who is calling, and may they: the traits the server is given, and their delegated
//! implementations.

use std::collections::BTreeMap;

/// An authenticated identity, as Kubernetes describes one.
#[derive(Clone, Debug, Default, PartialEq, Eq, Hash)]
pub struct User {
    /// Login name, such as `system:serviceaccount:<ns>:<name>`.
    pub name: String,
    /// Unique id, empty when the authenticator knows none.
    pub uid: String,
    /// Group names, in order.
    pub groups: Vec<String>,
    /// Further attributes; keys are lower case.
    pub extra: BTreeMap<String, Vec<String>>,
}

/// What an [`Authorizer`] decides on: one request, as RBAC sees it.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Attributes {
    /// A request for an API object or collection.
    Resource {
        /// `get`, `list`, `watch`, `create`, `update`, `patch`, `delete`, `deletecollection`, or a
        /// verb of the API's own.
        verb: String,
        /// API group.
        group: String,
        /// API version.
        version: String,
        /// Plural resource name.
        resource: String,
        /// Subresource, empty for the main resource.
        subresource: String,
        /// Namespace, empty at cluster scope.
        namespace: String,
        /// Object name, empty for a collection.
        name: String,
    },
    /// A request for any other path.
    NonResource {
        /// Lower-case HTTP method.
        verb: String,
        /// Request path.
        path: String,
    },
}

/// Result of an authorization.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Decision {
    /// The request may proceed.
    Allow,
    /// The request is refused, with the authorizer's reason (may be empty).
    Deny(String),
}
