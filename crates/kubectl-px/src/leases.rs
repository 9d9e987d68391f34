//! The calls to the lease API, with the rules about repeating them.
//!
//! A create is repeated when its answer was lost: the object carries a name or a request id, so a
//! repeat takes no second slot. Everything the server decided is final.

use std::sync::Arc;
use std::time::Duration;

use crawl_api::lease::{
    LEASE_GROUP, LEASE_VERSION, LeasePhase, LeaseRenewal, LeaseRenewalStatus, ProxyLease,
};
use crawl_api::report::LeaseReport;
use futures::StreamExt;
use kube::api::{DeleteParams, DynamicObject, PostParams, Preconditions, WatchParams};
use kube::core::WatchEvent;
use kube::{Api, Resource};
use runtime_kit::backoff::BackoffPolicy;
use runtime_kit::{Class, Classify, Clock};
use serde_json::Value;

use crate::failure::{Failure, was_refused};
use crate::kube_flags::Session;

const ATTEMPTS: u32 = 4;
const RETRY: BackoffPolicy = BackoffPolicy {
    base: Duration::from_millis(500),
    max: Duration::from_secs(5),
};
/// How much longer than asked for the server may take to say that a wait is over.
const WAIT_SLACK: Duration = Duration::from_secs(10);

/// A lease as the server answered it.
#[derive(Debug, Clone)]
pub(crate) struct Lease {
    /// Everything in the answer, for printing.
    pub(crate) object: DynamicObject,
    /// The part this program understands.
    pub(crate) typed: ProxyLease,
}

impl Lease {
    fn new(object: DynamicObject) -> Result<Self, Failure> {
        let name = object.metadata.name.clone().unwrap_or_default();
        let typed = serde_json::to_value(&object)
            .and_then(serde_json::from_value)
            .map_err(|error| Failure::Unusable {
                name,
                lacks: format!("fields that cannot be read: {error}"),
            })?;
        Ok(Self { object, typed })
    }

    /// Name of the lease.
    pub(crate) fn name(&self) -> &str {
        self.object.metadata.name.as_deref().unwrap_or_default()
    }

    /// Namespace of the lease.
    pub(crate) fn namespace(&self) -> &str {
        self.object
            .metadata
            .namespace
            .as_deref()
            .unwrap_or_default()
    }

    /// Uid of the lease.
    pub(crate) fn uid(&self) -> Option<&str> {
        self.object.metadata.uid.as_deref()
    }

    /// URL to use as the proxy.
    pub(crate) fn proxy_url(&self) -> Result<&str, Failure> {
        let status = self.typed.status.as_ref();
        status
            .and_then(|status| status.proxy_url.as_deref())
            .ok_or_else(|| Failure::Unusable {
                name: self.name().to_owned(),
                lacks: "no status.proxyURL".to_owned(),
            })
    }

    fn phase(&self) -> LeasePhase {
        self.typed
            .status
            .as_ref()
            .map(|status| status.phase)
            .unwrap_or_default()
    }

    /// What the server says about the lease's state.
    fn reason(&self) -> String {
        let conditions = self
            .typed
            .status
            .iter()
            .flat_map(|status| &status.conditions);
        conditions
            .filter(|condition| condition.type_ == "Bound")
            .map(|condition| format!("{}: {}", condition.reason, condition.message))
            .next()
            .unwrap_or_else(|| format!("it is {:?}", self.phase()))
    }
}

/// The leases of one namespace.
#[derive(Clone)]
pub(crate) struct Leases {
    api: Api<DynamicObject>,
    request_timeout: Option<Duration>,
    server: String,
    clock: Arc<dyn Clock>,
}

impl Leases {
    /// Those the session's flags select.
    pub(crate) fn new(session: &Session, clock: Arc<dyn Clock>) -> Self {
        let resource = kube::api::ApiResource::erase::<ProxyLease>(&());
        let client = session.client.clone();
        Self {
            api: Api::namespaced_with(client, &session.namespace, &resource),
            request_timeout: session.request_timeout,
            server: session.server.clone(),
            clock,
        }
    }

    /// Creates the lease. The answer may still be Pending when it asked to wait.
    pub(crate) async fn create(
        &self,
        manifest: &Value,
        params: &PostParams,
    ) -> Result<Lease, Failure> {
        let object: DynamicObject = serde_json::from_value(manifest.clone())
            .map_err(|error| Failure::Usage(format!("the lease cannot be built: {error}")))?;
        self.repeated(async || self.api.create(params, &object).await)
            .await
            .map_err(|failure| self.explained(failure, "post"))
            .and_then(Lease::new)
    }

    /// Waits until the lease is Bound, for a little longer than `wait`. A lease that got no proxy
    /// is deleted before the failure is returned.
    pub(crate) async fn wait_until_bound(
        &self,
        lease: Lease,
        wait: Duration,
    ) -> Result<Lease, Failure> {
        let name = lease.name().to_owned();
        let limit = self.clock.sleep(wait.saturating_add(WAIT_SLACK));
        let waited = tokio::select! {
            result = self.follow_until_decided(lease) => result,
            () = limit => {
                let reason = format!("the server has not decided within {}s", wait.as_secs());
                Err(Failure::NotBound { name: name.clone(), reason })
            },
        };
        if waited.is_err()
            && let Err(error) = self.release(&name, None).await
        {
            let text = format!("lease {name} is left behind until it expires: {error}");
            crate::terminal::warn(&text);
        }
        waited
    }

    async fn follow_until_decided(&self, mut lease: Lease) -> Result<Lease, Failure> {
        loop {
            match lease.phase() {
                LeasePhase::Bound => return Ok(lease),
                LeasePhase::Pending => {},
                LeasePhase::Expired | LeasePhase::Revoked => {
                    let (name, reason) = (lease.name().to_owned(), lease.reason());
                    return Err(Failure::NotBound { name, reason });
                },
            }
            self.wait_for_change(&lease).await;
            let name = lease.name().to_owned();
            lease = match self.bounded(self.api.get(&name)).await {
                Ok(object) => Lease::new(object)?,
                Err(failure) if is_lost_answer(&failure) => lease,
                Err(failure) => return Err(self.explained(failure, "get")),
            };
        }
    }

    fn explained(&self, failure: Failure, verb: &str) -> Failure {
        let resource = format!("{}.{LEASE_GROUP}", ProxyLease::plural(&()));
        failure.in_request(&self.server, verb, &resource)
    }

    /// Returns when the lease may have changed; at once is allowed, too late is not.
    async fn wait_for_change(&self, lease: &Lease) {
        let version = lease
            .object
            .metadata
            .resource_version
            .as_deref()
            .unwrap_or("0");
        let params = WatchParams::default().fields(&format!("metadata.name={}", lease.name()));
        if let Ok(events) = self.api.watch(&params, version).await {
            let mut events = events.boxed();
            if matches!(
                events.next().await,
                Some(Ok(WatchEvent::Added(_)
                    | WatchEvent::Modified(_)
                    | WatchEvent::Deleted(_)))
            ) {
                return;
            }
        }
        // Why: who may not watch, or lost the watch, looks every second.
        self.clock.sleep(Duration::from_secs(1)).await;
    }

    /// Extends the lease by its ttl.
    pub(crate) async fn renew(&self, name: &str) -> Result<LeaseRenewalStatus, Failure> {
        let renewal = LeaseRenewal {
            api_version: format!("{LEASE_GROUP}/{LEASE_VERSION}"),
            kind: "LeaseRenewal".to_owned(),
            ..LeaseRenewal::default()
        };
        let params = PostParams::default();
        let call = self
            .api
            .create_subresource("renew", name, &params, &renewal);
        let answer: LeaseRenewal = self
            .bounded(call)
            .await
            .map_err(|failure| self.explained(failure, "post"))?;
        answer.status.ok_or_else(|| Failure::Unusable {
            name: name.to_owned(),
            lacks: "no status in the renewal".to_owned(),
        })
    }

    /// Says how a request through the proxy of a lease went.
    pub(crate) async fn report(&self, name: &str, report: &LeaseReport) -> Result<(), Failure> {
        let params = PostParams::default();
        let call = self.api.create_subresource("report", name, &params, report);
        let answered: Result<LeaseReport, Failure> = self.bounded(call).await;
        answered
            .map(drop)
            .map_err(|failure| self.explained(failure, "post"))
    }

    /// Deletes the lease; one that is gone already, or belongs to somebody else by now, is fine.
    pub(crate) async fn release(&self, name: &str, uid: Option<&str>) -> Result<(), Failure> {
        let preconditions = uid.map(|uid| Preconditions {
            uid: Some(uid.to_owned()),
            resource_version: None,
        });
        let params = DeleteParams {
            preconditions,
            ..DeleteParams::default()
        };
        match self
            .repeated(async || self.api.delete(name, &params).await)
            .await
        {
            Ok(_) => Ok(()),
            Err(Failure::Request(error))
                if matches!(error.class(), Class::NotFound | Class::Conflict) =>
            {
                Ok(())
            },
            Err(failure) => Err(self.explained(failure, "delete")),
        }
    }

    /// Repeats a call whose answer was lost.
    async fn repeated<T>(
        &self,
        call: impl AsyncFn() -> Result<T, kube::Error>,
    ) -> Result<T, Failure> {
        let mut attempt = 1;
        loop {
            match Box::pin(self.bounded(call())).await {
                Err(failure) if attempt < ATTEMPTS && is_lost_answer(&failure) => {
                    self.clock.sleep(RETRY.delay(attempt)).await;
                    attempt += 1;
                },
                result => return result,
            }
        }
    }

    async fn bounded<T>(
        &self,
        call: impl Future<Output = Result<T, kube::Error>>,
    ) -> Result<T, Failure> {
        let Some(limit) = self.request_timeout else {
            return call.await.map_err(Failure::Request);
        };
        tokio::select! {
            answer = call => answer.map_err(Failure::Request),
            () = self.clock.sleep(limit) => Err(Failure::TimedOut(limit.as_secs())),
        }
    }
}

/// Whether the server may have acted, or could not yet: a repeat is safe and may help.
pub(crate) fn is_lost_answer(failure: &Failure) -> bool {
    match failure {
        Failure::Request(kube::Error::Api(status)) => {
            matches!(status.code, 429 | 500 | 502 | 503 | 504)
        },
        Failure::Request(error @ (kube::Error::Service(_) | kube::Error::HyperError(_))) => {
            !was_refused(error)
        },
        Failure::TimedOut(_) => true,
        Failure::Request(_)
        | Failure::Refused(_)
        | Failure::Usage(_)
        | Failure::Configure(_)
        | Failure::NotBound { .. }
        | Failure::Unusable { .. }
        | Failure::Output(_)
        | Failure::System { .. } => false,
    }
}

/// `proxylease.leases.crawl.example.com`, as kubectl names the resource.
pub(crate) fn resource_name() -> String {
    format!("{}.{LEASE_GROUP}", ProxyLease::kind(&()).to_lowercase())
}
