//! Stand-ins for tests that run a server in process: identities by header, and an authorizer with
//! a list.

use async_trait::async_trait;
use http::{HeaderMap, request};
use parking_lot::Mutex;

use super::{Attributes, AuthError, Authenticator, Authorizer, Decision, User};

/// Header that names the user for [`HeaderIdentity`].
pub const USER_HEADER: &str = "x-test-user";
/// Header that names a group, repeatable, for [`HeaderIdentity`].
pub const GROUP_HEADER: &str = "x-test-group";

/// Every request is this user's.
#[derive(Clone, Debug)]
pub struct FixedIdentity(pub User);

#[async_trait]
impl Authenticator for FixedIdentity {
    async fn authenticate(&self, _req: &request::Parts) -> Result<Option<User>, AuthError> {
        Ok(Some(self.0.clone()))
    }
}

/// The user that the request claims to be in [`USER_HEADER`] and [`GROUP_HEADER`]; believed
/// without any proof.
#[derive(Clone, Copy, Debug, Default)]
pub struct HeaderIdentity;

#[async_trait]
impl Authenticator for HeaderIdentity {
    async fn authenticate(&self, req: &request::Parts) -> Result<Option<User>, AuthError> {
        let values = |name| {
            req.headers
                .get_all(name)
                .iter()
                .filter_map(|value| value.to_str().ok())
        };
        Ok(values(USER_HEADER).next().map(|name| User {
            name: name.to_owned(),
            groups: values(GROUP_HEADER).map(str::to_owned).collect(),
            ..User::default()
        }))
    }

    fn strip_credentials(&self, headers: &mut HeaderMap) {
        headers.remove(USER_HEADER);
        headers.remove(GROUP_HEADER);
    }
}

/// What a rule of [`ListAuthorizer`] looks at; `None` matches anything.
#[derive(Clone, Debug, Default)]
pub struct Pattern {
    /// User name.
    pub user: Option<String>,
    /// Verb.
    pub verb: Option<String>,
    /// Plural resource name; a path for a request that is not for an API object.
    pub resource: Option<String>,
    /// Namespace.
    pub namespace: Option<String>,
}

impl Pattern {
    /// Matches what `user` does.
    pub fn user(user: &str) -> Self {
        Self {
            user: Some(user.to_owned()),
            ..Self::default()
        }
    }

    /// Narrows to one verb.
    pub fn verb(mut self, verb: &str) -> Self {
        self.verb = Some(verb.to_owned());
        self
    }

    /// Narrows to one resource or path.
    pub fn resource(mut self, resource: &str) -> Self {
        self.resource = Some(resource.to_owned());
        self
    }

    fn matches(&self, user: &User, attrs: &Attributes) -> bool {
        let (verb, resource, namespace) = match attrs {
            Attributes::Resource {
                verb,
                resource,
                namespace,
                ..
            } => (verb, resource, &**namespace),
            Attributes::NonResource { verb, path } => (verb, path, ""),
        };
        let fits = |wanted: &Option<String>, value: &str| {
            wanted.as_deref().is_none_or(|wanted| wanted == value)
        };
        fits(&self.user, &user.name)
            && fits(&self.verb, verb)
            && fits(&self.resource, resource)
            && fits(&self.namespace, namespace)
    }
}

/// Decides by the first rule that matches, and remembers what it was asked.
#[derive(Debug)]
pub struct ListAuthorizer {
    rules: Vec<(Pattern, Decision)>,
    otherwise: Decision,
    asked: Mutex<Vec<(User, Attributes)>>,
}

impl ListAuthorizer {
    /// Allows what no rule refuses.
    pub fn allow_all() -> Self {
        Self::otherwise(Decision::Allow)
    }

    /// Refuses what no rule allows.
    pub fn deny_all() -> Self {
        Self::otherwise(Decision::Deny(String::new()))
    }

    fn otherwise(otherwise: Decision) -> Self {
        Self {
            rules: Vec::new(),
            otherwise,
            asked: Mutex::default(),
        }
    }

    /// Adds a rule that allows.
    pub fn allow(mut self, pattern: Pattern) -> Self {
        self.rules.push((pattern, Decision::Allow));
        self
    }

    /// Adds a rule that refuses, with its reason.
    pub fn deny(mut self, pattern: Pattern, reason: &str) -> Self {
        self.rules
            .push((pattern, Decision::Deny(reason.to_owned())));
        self
    }

    /// What was asked so far, in order.
    pub fn asked(&self) -> Vec<(User, Attributes)> {
        self.asked.lock().clone()
    }
}

#[async_trait]
impl Authorizer for ListAuthorizer {
    async fn authorize(&self, user: &User, attrs: &Attributes) -> Result<Decision, AuthError> {
        self.asked.lock().push((user.clone(), attrs.clone()));
        let rule = self
            .rules
            .iter()
            .find(|(pattern, _)| pattern.matches(user, attrs));
        Ok(rule.map_or_else(|| self.otherwise.clone(), |(_, decision)| decision.clone()))
    }
}
