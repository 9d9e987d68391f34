//! `POST` on a named subresource.

use std::sync::Arc;

use serde_json::Value;

use super::super::capability::{CreateSubresource, Object};
use super::super::collection::Collection;
use super::super::context::RequestCtx;
use super::{MAX_CONFLICTS, check_deadline, contended, encoded};
use crate::http::status::ApiError;
use crate::store::Outcome;

impl<T: Object> Collection<T> {
    /// `POST` on a named subresource.
    pub(crate) async fn subresource_flow<S: CreateSubresource<T>>(
        &self,
        rules: &S,
        ctx: &RequestCtx,
        name: &str,
        body: Value,
    ) -> Result<S::Body, ApiError> {
        let resource = &self.declaration.resource;
        let body: S::Body = serde_json::from_value(body).map_err(|e| {
            ApiError::bad_request(format!(
                "{} in version {:?} cannot be handled as a {}: {e}",
                S::KIND,
                self.declaration.version,
                S::KIND
            ))
        })?;
        let key: Arc<str> = self.declaration.key(&ctx.namespace, name).into();
        self.cache.consistent().await?;
        for _ in 0..MAX_CONFLICTS {
            check_deadline(ctx)?;
            let entry = self
                .kind
                .get(&key)
                .ok_or_else(|| ApiError::not_found(resource, name))?;
            let planned = rules.plan(ctx, self.versions.hub(&entry)?, &body).await?;
            if ctx.dry_run {
                return Ok(planned.body);
            }
            let Some(mut parent) = planned.parent else {
                if let Some(reservation) = planned.companion.reservation {
                    reservation.committed(entry.revision);
                }
                return Ok(planned.body);
            };
            let value = encoded(&mut parent)?;
            match self
                .commit(&key, entry.revision, Some(value), planned.companion)
                .await?
            {
                Outcome::Committed(_) => return Ok(planned.body),
                Outcome::Conflict => self.cache.consistent().await?,
            }
        }
        Err(contended(resource, name))
    }
}
