//! Delegated authorization: every request is put to the cluster's API server as a
//! SubjectAccessReview, so that the cluster's RBAC governs this API too.

use std::{sync::Arc, time::Duration};

use async_trait::async_trait;
use k8s_openapi::api::authorization::v1::{
    NonResourceAttributes, ResourceAttributes, SubjectAccessReview, SubjectAccessReviewSpec,
};
use kube::Client;
use runtime_kit::Clock;

use super::{
    Attributes, AuthError, Authorizer, Decision, GROUP_MASTERS, User, cache::AnswerCache,
    delegated_call, is_always_allowed,
};

/// How long a decision holds. A revoked RoleBinding is felt within this time.
const KEEP: Duration = Duration::from_secs(10);
/// Decisions remembered.
const CAPACITY: usize = 8192;
/// Questions longer than this, in bytes, are not remembered: the caller chooses most of the text.
const MAX_REMEMBERED_LEN: usize = 10_000;

type Question = (User, Attributes);

/// Authorizes by SubjectAccessReview; needs `system:auth-delegator`.
pub struct SubjectAccessReviewAuthorizer {
    client: Client,
    cache: AnswerCache<Question, Decision>,
}

impl SubjectAccessReviewAuthorizer {
    /// Asks through `client`, whose own retries should be off; decisions age by `clock`.
    pub fn new(client: Client, clock: Arc<dyn Clock>) -> Self {
        Self {
            client,
            cache: AnswerCache::new(CAPACITY, clock),
        }
    }
}

#[async_trait]
impl Authorizer for SubjectAccessReviewAuthorizer {
    async fn authorize(&self, user: &User, attrs: &Attributes) -> Result<Decision, AuthError> {
        if user.in_group(GROUP_MASTERS) {
            return Ok(Decision::Allow);
        }
        if let Attributes::NonResource { path, .. } = attrs
            && is_always_allowed(path)
        {
            return Ok(Decision::Allow);
        }
        let client = &self.client;
        self.cache
            .get_or_ask(
                &(user, attrs),
                |(asked_user, asked_attrs)| asked_user == user && asked_attrs == attrs,
                || (user.clone(), attrs.clone()),
                |question| ask(client.clone(), question),
            )
            .await
    }
}

async fn ask(
    client: Client,
    question: Arc<Question>,
) -> Result<(Decision, Option<Duration>), AuthError> {
    let (user, attrs) = &*question;
    let review = SubjectAccessReview {
        spec: build_spec(user, attrs),
        ..Default::default()
    };
    let answer = delegated_call::post(client, "SubjectAccessReview", &review).await?;
    let status = answer.status.ok_or_else(|| AuthError::Unavailable {
        review: "SubjectAccessReview",
        cause: "the answer has no status".into(),
    })?;
    let decision = if status.allowed && !status.denied.unwrap_or(false) {
        Decision::Allow
    } else {
        if let Some(error) = status.evaluation_error.filter(|error| !error.is_empty()) {
            tracing::debug!(user = %user.name, %error, "the authorizer could not evaluate all of its rules");
        }
        Decision::Deny(status.reason.unwrap_or_default())
    };
    let keep = (length(user, attrs) <= MAX_REMEMBERED_LEN).then_some(KEEP);
    Ok((decision, keep))
}

fn build_spec(user: &User, attrs: &Attributes) -> SubjectAccessReviewSpec {
    let mut spec = SubjectAccessReviewSpec {
        user: Some(user.name.clone()),
        uid: non_empty(&user.uid),
        groups: (!user.groups.is_empty()).then(|| user.groups.clone()),
        extra: (!user.extra.is_empty()).then(|| user.extra.clone()),
        ..Default::default()
    };
    match attrs {
        Attributes::Resource {
            verb,
            group,
            version,
            resource,
            subresource,
            namespace,
            name,
        } => {
            spec.resource_attributes = Some(ResourceAttributes {
                verb: non_empty(verb),
                group: non_empty(group),
                version: non_empty(version),
                resource: non_empty(resource),
                subresource: non_empty(subresource),
                namespace: non_empty(namespace),
                name: non_empty(name),
                ..Default::default()
            });
        },
        Attributes::NonResource { verb, path } => {
            spec.non_resource_attributes = Some(NonResourceAttributes {
                verb: non_empty(verb),
                path: non_empty(path),
            });
        },
    }
    spec
}

fn non_empty(text: &str) -> Option<String> {
    (!text.is_empty()).then(|| text.to_owned())
}

fn length(user: &User, attrs: &Attributes) -> usize {
    let user_len = user.name.len()
        + user.uid.len()
        + user.groups.iter().map(String::len).sum::<usize>()
        + user
            .extra
            .iter()
            .map(|(key, values)| key.len() + values.iter().map(String::len).sum::<usize>())
            .sum::<usize>();
    let attrs_len = match attrs {
        Attributes::Resource {
            verb,
            group,
            version,
            resource,
            subresource,
            namespace,
            name,
        } => [verb, group, version, resource, subresource, namespace, name]
            .iter()
            .map(|text| text.len())
            .sum(),
        Attributes::NonResource { verb, path } => verb.len() + path.len(),
    };
    user_len + attrs_len
}

#[cfg(test)]
mod tests;
