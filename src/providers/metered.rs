//! The one wrapper around every provider: counts calls, bounds their time, says which of them cannot
//! wait, keeps the account quiet for as long as the provider asked, and lets many looks share a listing.

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use jiff::Timestamp;
use parking_lot::Mutex;
use prometheus::{IntCounterVec, Opts, Registry};
use runtime_kit::{Class, Classify, Clock};

use super::allowance::{Allowance, Exhausted, as_one, for_everybody, urgently};
use super::snapshot::{Sighting, Snapshot};
use super::{AccountState, Created, Error, Instance, InstanceRequest, Listing, Provider, Tags};

/// How long one call may take.
const CALL_TIMEOUT: Duration = Duration::from_secs(30);
/// How long an account is left alone when the provider says "too many" but not for how long.
const DEFAULT_REST: Duration = Duration::from_secs(10);

/// The counter `proxy_operator_provider_requests_total`.
#[derive(Clone, Debug)]
pub struct Requests(IntCounterVec);

impl Requests {
    /// Registers the counter.
    ///
    /// # Errors
    /// A metric of that name is registered already.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let options = Opts::new(
            "proxy_operator_provider_requests_total",
            "Calls to a provider, by operation and by ok or the class of the error.",
        );
        let counter = IntCounterVec::new(options, &["provider", "op", "result"])?;
        registry.register(Box::new(counter.clone()))?;
        Ok(Self(counter))
    }
}

/// A provider with metrics, time limits and the rest that its account asks for.
pub struct Metered {
    name: String,
    inner: Arc<dyn Provider>,
    requests: Requests,
    clock: Arc<dyn Clock>,
    allowance: Allowance,
    snapshot: Snapshot,
    quota_errors: Mutex<QuotaErrors>,
}

/// Lack of quota or stock, as far as it was told.
#[derive(Debug, Default)]
struct QuotaErrors {
    count: u64,
    last: Option<(Timestamp, String)>,
}

// === impl Metered ===

impl Metered {
    /// Wraps a provider.
    pub fn new(
        name: String,
        inner: Arc<dyn Provider>,
        requests: Requests,
        clock: Arc<dyn Clock>,
        allowance: Allowance,
    ) -> Self {
        Self {
            name,
            inner,
            requests,
            clock,
            allowance,
            snapshot: Snapshot::default(),
            quota_errors: Mutex::default(),
        }
    }

    async fn call<T>(
        &self,
        op: &'static str,
        call: impl Future<Output = Result<T, Error>> + Send,
    ) -> Result<T, Error> {
        self.allowance.awake()?;
        let result = tokio::select! {
            result = as_one(call) => result,
            () = self.clock.sleep(CALL_TIMEOUT) => Err(Error::new(
                Class::Transient,
                format!(
                    "provider {} did not answer {op} within {} s",
                    self.name,
                    CALL_TIMEOUT.as_secs()
                ),
            )),
        };
        self.record(op, result.as_ref().err());
        result
    }

    fn record(&self, op: &'static str, error: Option<&Error>) {
        if let Some(error) = error {
            if Exhausted::is_cause_of(error) {
                return;
            }
            if error.class() == Class::RateLimited {
                self.allowance.rest(error.wait().unwrap_or(DEFAULT_REST));
            }
            self.note_quota(error);
        }
        let outcome = error.map_or("ok", |error| label(error.class()));
        self.requests
            .0
            .with_label_values(&[self.name.as_str(), op, outcome])
            .inc();
    }

    /// Operations tell of quota too, and they are no failed calls.
    fn note_quota(&self, error: &Error) {
        if error.class() != Class::Quota {
            return;
        }
        let text = runtime_kit::chain(error).to_string();
        let mut noted = self.quota_errors.lock();
        noted.count += 1;
        noted.last = Some((self.clock.now(), text));
    }
}

fn label(class: Class) -> &'static str {
    match class {
        Class::NotFound => "not_found",
        Class::AlreadyExists => "already_exists",
        Class::Quota => "quota",
        Class::RateLimited => "rate_limited",
        Class::Unauthenticated => "unauthenticated",
        Class::Forbidden => "forbidden",
        Class::Invalid => "invalid",
        Class::Conflict => "conflict",
        Class::Transient => "transient",
    }
}

#[async_trait]
impl Provider for Metered {
    async fn create(&self, request: &InstanceRequest) -> Result<Created, Error> {
        self.allowance.take_create()?;
        let create = async {
            let created = self.inner.create(request).await;
            created.map_err(|error| error.without_secrets(request))
        };
        let created = urgently(self.call("create", create)).await?;
        self.snapshot.touch(&created.instance.id, &*self.clock);
        Ok(created)
    }

    async fn get(&self, id: &str) -> Result<Option<Instance>, Error> {
        self.call("get", self.inner.get(id)).await
    }

    async fn glance(&self, id: &str, tags: &Tags, age: Duration) -> Result<Sighting, Error> {
        let list = for_everybody(self.survey(tags));
        let listed = self.snapshot.find(id, age, &*self.clock, list).await;
        match listed {
            Some(instance) => Ok(Sighting::Listed(instance)),
            None => self.get(id).await.map(Sighting::Asked),
        }
    }

    async fn delete(&self, id: &str) -> Result<(), Error> {
        // Why twice: the answer may never come, and it takes effect before it comes.
        self.snapshot.touch(id, &*self.clock);
        urgently(self.call("delete", self.inner.delete(id))).await?;
        self.snapshot.touch(id, &*self.clock);
        Ok(())
    }

    async fn survey(&self, tags: &Tags) -> Result<Listing, Error> {
        let listing = self.call("list", self.inner.survey(tags)).await?;
        for unread in &listing.unread {
            self.record("list_zone", Some(&unread.error));
        }
        Ok(listing)
    }

    async fn operation_error(&self, operation: &str) -> Result<Option<Error>, Error> {
        let call = self.inner.operation_error(operation);
        let told = self.call("operation", call).await?;
        if let Some(error) = &told {
            self.note_quota(error);
        }
        Ok(told)
    }

    fn account(&self) -> AccountState {
        let QuotaErrors { count, last } = &*self.quota_errors.lock();
        AccountState {
            account: self.allowance.account().to_owned(),
            calls_left: self.allowance.left(),
            resting: self.allowance.resting(),
            quota_errors: *count,
            last_quota_error: last.clone(),
        }
    }

    async fn console(&self, id: &str) -> Result<Option<String>, Error> {
        self.call("console", self.inner.console(id)).await
    }

    fn reads_lag(&self) -> Duration {
        self.inner.reads_lag()
    }

    async fn check(&self) -> Result<(), Error> {
        self.call("check", self.inner.check()).await
    }

    fn credentials_file(&self) -> Option<&Path> {
        self.inner.credentials_file()
    }
}

#[cfg(test)]
mod tests {
    use std::sync::atomic::{AtomicUsize, Ordering};

    use runtime_kit::SteppedClock;

    use super::*;
    use crate::providers::Unread;

    /// Refuses the first call with "too many", for 7 s; then finds nothing.
    #[derive(Default)]
    struct BusyOnce(AtomicUsize);

    #[async_trait]
    impl Provider for BusyOnce {
        async fn create(&self, _: &InstanceRequest) -> Result<Created, Error> {
            Err(Error::new(Class::Quota, "no quota"))
        }

        async fn get(&self, _: &str) -> Result<Option<Instance>, Error> {
            if self.0.fetch_add(1, Ordering::Relaxed) == 0 {
                let busy = Error::new(Class::RateLimited, "too many");
                return Err(busy.retry_after(Some(Duration::from_secs(7))));
            }
            Ok(None)
        }

        async fn delete(&self, _: &str) -> Result<(), Error> {
            std::future::pending().await
        }

        async fn survey(&self, _: &Tags) -> Result<Listing, Error> {
            let busy = Error::new(Class::RateLimited, "too many");
            Ok(Listing {
                instances: Vec::new(),
                unread: vec![Unread {
                    zone: "b".into(),
                    error: busy.retry_after(Some(Duration::from_secs(3))),
                }],
            })
        }

        async fn operation_error(&self, _: &str) -> Result<Option<Error>, Error> {
            Ok(None)
        }

        async fn check(&self) -> Result<(), Error> {
            Ok(())
        }
    }

    fn metered(clock: &SteppedClock) -> (Metered, Registry) {
        let registry = Registry::new();
        let requests = Requests::register(&registry).unwrap();
        let inner = Arc::new(BusyOnce::default());
        (
            Metered::new(
                "local".into(),
                inner,
                requests,
                Arc::new(clock.clone()),
                Allowance::unlimited(Arc::new(clock.clone())),
            ),
            registry,
        )
    }

    fn text(registry: &Registry) -> String {
        prometheus::TextEncoder::new()
            .encode_to_string(&registry.gather())
            .unwrap()
    }

    #[tokio::test]
    async fn an_account_that_asked_for_rest_is_not_called_until_it_is_over() {
        let clock = SteppedClock::default();
        let (metered, registry) = metered(&clock);
        assert_eq!(
            metered.get("x").await.unwrap_err().class(),
            Class::RateLimited
        );
        clock.advance(Duration::from_secs(6));
        let held = metered.list(&Tags::new()).await.unwrap_err();
        assert_eq!(
            (held.class(), held.wait()),
            (Class::RateLimited, Some(Duration::from_secs(1)))
        );
        clock.advance(Duration::from_secs(1));
        assert_eq!(metered.get("x").await.unwrap(), None);
        let text = text(&registry);
        assert!(
            text.contains(r#"{op="get",provider="local",result="rate_limited"} 1"#),
            "{text}"
        );
        assert!(
            text.contains(r#"{op="get",provider="local",result="ok"} 1"#),
            "{text}"
        );
        assert!(!text.contains(r#"op="list""#), "{text}");
    }

    #[tokio::test]
    async fn providers_of_one_account_rest_together() {
        let clock = SteppedClock::default();
        let requests = Requests::register(&Registry::new()).unwrap();
        let account = || Allowance::unlimited(Arc::new(clock.clone()));
        let shared = account();
        let provider = |name: &str, allowance: &Allowance| {
            let inner = Arc::new(BusyOnce::default());
            let clock = Arc::new(clock.clone());
            Metered::new(
                name.into(),
                inner,
                requests.clone(),
                clock,
                allowance.clone(),
            )
        };
        let (first, second) = (provider("a", &shared), provider("b", &shared));
        let other = provider("c", &account());
        first.get("x").await.unwrap_err();
        assert_eq!(
            second.check().await.unwrap_err().wait(),
            Some(Duration::from_secs(7))
        );
        other.check().await.unwrap();
        // A shorter rest does not end a longer one.
        second.record(
            "list_zone",
            Some(&Error::new(Class::RateLimited, "").retry_after(Some(Duration::from_secs(1)))),
        );
        assert_eq!(
            first.check().await.unwrap_err().wait(),
            Some(Duration::from_secs(7))
        );
    }

    #[tokio::test]
    async fn a_zone_that_asks_for_rest_gets_it_from_the_whole_account() {
        let clock = SteppedClock::default();
        let (metered, registry) = metered(&clock);
        assert_eq!(metered.survey(&Tags::new()).await.unwrap().unread.len(), 1);
        let held = metered.check().await.unwrap_err();
        assert_eq!(held.wait(), Some(Duration::from_secs(3)));
        let text = text(&registry);
        let told = r#"{op="list_zone",provider="local",result="rate_limited"} 1"#;
        assert!(text.contains(told), "{text}");
    }

    #[tokio::test]
    async fn a_call_without_an_answer_ends_as_transient() {
        let clock = SteppedClock::default();
        let (metered, _) = metered(&clock);
        let call = metered.delete("x");
        let time = async {
            while clock.sleepers() == 0 {
                tokio::task::yield_now().await;
            }
            clock.advance(CALL_TIMEOUT);
        };
        let (result, ()) = tokio::join!(call, time);
        assert_eq!(result.unwrap_err().class(), Class::Transient);
    }
}
