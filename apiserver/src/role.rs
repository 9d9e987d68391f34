//! Which of several replicas decides: the allocator. Used by [`crate::app`] where replicas share a
//! store.
//!
//! All replicas serve reads and watches; grants need one order, so one of them decides. Who that is
//! stands in the store. The key [`EPOCH`] changes when another replica takes over, and every
//! transaction of the allocator compares it: a deposed one cannot write, whatever it believes, and no
//! clock is trusted for that. The key [`HOLDER`] is written each second by the allocator; a standby
//! takes over when it has seen it unchanged for a while, by its own clock.

use std::convert::Infallible;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use aggregated_api::http::status::ApiError;
use aggregated_api::store::{
    Batch, Compare, Error, Listing, Mark, Op, Outcome, Record, Revision, Store,
};
use async_trait::async_trait;
use bytes::Bytes;
use futures::future::{Either, Ready, ready};
use futures::stream::BoxStream;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER};
use http::{Method, Request, Response, StatusCode};
use runtime_kit::admin::ReadyFlag;
use runtime_kit::clock::Clock;
use tower::Service;

/// Key that changes with each takeover.
const EPOCH: &str = "/internal/allocator/epoch";
/// Key that the allocator writes while it lives.
const HOLDER: &str = "/internal/allocator/holder";
/// Between two signs of life, and two looks at them.
const BEAT: Duration = Duration::from_secs(1);
/// An allocator that gave no sign of life for this long is taken for dead.
const PATIENCE: Duration = Duration::from_secs(4);

/// What a replica answers to a write while another one decides.
const STANDING_BY: &str =
    "another replica of lease-apiserver decides on leases; this one only reads";

/// Another replica decides from now on: what this process knows is not kept up any more.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("another replica has taken over")]
pub struct Deposed;

fn unavailable(message: impl Into<String>) -> Error {
    Error::Unavailable {
        message: message.into(),
        source: None,
    }
}

/// The version of [`EPOCH`] that this process wrote; 0: none.
type Epoch = Arc<AtomicU64>;

/// A store to which only the allocator's changes go. It takes one operation of each transaction.
pub struct FencedStore {
    inner: Arc<dyn Store>,
    key: Arc<str>,
    epoch: Epoch,
}

/// A replica that would decide.
pub struct Candidate {
    store: Arc<dyn Store>,
    epoch: Epoch,
    /// Of this process and no other.
    identity: Bytes,
    clock: Arc<dyn Clock>,
}

/// Puts a fence around a store; the candidate's election opens it. `name` is told to the others.
pub fn fence(
    store: Arc<dyn Store>,
    name: &str,
    clock: Arc<dyn Clock>,
) -> (Arc<FencedStore>, Candidate) {
    let epoch = Epoch::default();
    let fenced = FencedStore {
        inner: Arc::clone(&store),
        key: EPOCH.into(),
        epoch: Arc::clone(&epoch),
    };
    let candidate = Candidate {
        store,
        epoch,
        identity: format!("{name}_{:016x}", rand::random::<u64>()).into(),
        clock,
    };
    (Arc::new(fenced), candidate)
}

// === impl FencedStore ===

#[async_trait]
impl Store for FencedStore {
    async fn get(&self, key: &str) -> Result<Option<Record>, Error> {
        self.inner.get(key).await
    }

    async fn list(
        &self,
        prefix: &str,
        at: Option<Revision>,
        from: Option<&str>,
        limit: Option<usize>,
    ) -> Result<Listing, Error> {
        self.inner.list(prefix, at, from, limit).await
    }

    async fn txn(&self, mut compares: Vec<Compare>, ops: Vec<Op>) -> Result<Outcome, Error> {
        if ops.is_empty() {
            return self.inner.txn(compares, ops).await;
        }
        let epoch = self.epoch.load(Ordering::Acquire);
        if epoch == 0 {
            return Err(unavailable(STANDING_BY));
        }
        compares.push(Compare::Version(Arc::clone(&self.key), epoch));
        let outcome = self.inner.txn(compares, ops).await?;
        if outcome == Outcome::Conflict {
            let now = self.inner.get(EPOCH).await?;
            if now.is_none_or(|now| now.version != epoch) {
                return Err(unavailable(Deposed.to_string()));
            }
        }
        Ok(outcome)
    }

    fn watch(&self, prefix: &str, after: Revision) -> BoxStream<'static, Result<Batch, Error>> {
        self.inner.watch(prefix, after)
    }

    fn revision(&self) -> Revision {
        self.inner.revision()
    }

    async fn current_revision(&self) -> Result<Revision, Error> {
        self.inner.current_revision().await
    }

    async fn compact(&self, revision: Revision) -> Result<(), Error> {
        self.inner.compact(revision).await
    }

    async fn mark(&self, mark: Mark) -> Result<(), Error> {
        self.inner.mark(mark).await
    }

    async fn marks(&self) -> Result<Vec<Mark>, Error> {
        self.inner.marks().await
    }

    fn size_bytes(&self) -> u64 {
        self.inner.size_bytes()
    }

    fn max_transaction_bytes(&self) -> usize {
        self.inner.max_transaction_bytes() - EPOCH.len()
    }
}

// === impl Candidate ===

/// The sign of life that was seen last, and when it was seen to be new.
type Seen = Option<(Revision, Duration)>;

impl Candidate {
    /// Returns when this replica decides. `ready` says meanwhile who does.
    pub async fn campaign(&self, ready: &ReadyFlag) {
        let mut seen = None;
        loop {
            match self.attempt(&mut seen).await {
                Ok(None) => return,
                Ok(Some(holder)) => ready.set_unready(format!(
                    "{holder} decides on leases; this replica serves reads and stands by"
                )),
                Err(error) => {
                    // Why: while the store was away, nobody could give a sign of life.
                    seen = None;
                    let error = runtime_kit::chain(&error).to_string();
                    tracing::warn!(error, "whether another replica decides cannot be read");
                    ready.set_unready(error);
                },
            }
            self.clock.sleep(BEAT).await;
        }
    }

    /// Takes over if nobody decides; else tells who does.
    async fn attempt(&self, seen: &mut Seen) -> Result<Option<String>, Error> {
        let (holder, epoch) = (self.store.get(HOLDER).await?, self.store.get(EPOCH).await?);
        let epoch_version = epoch.as_ref().map_or(0, |record| record.version);
        let is_ours = |record: &Option<Record>| {
            record
                .as_ref()
                .is_some_and(|record| record.value == self.identity)
        };
        if is_ours(&holder) && is_ours(&epoch) {
            // An earlier attempt whose answer was lost.
            self.epoch.store(epoch_version, Ordering::Release);
            return Ok(None);
        }
        if let Some(holder) = &holder {
            let now = self.clock.elapsed();
            let since = match seen {
                Some((revision, since)) if *revision == holder.mod_revision => *since,
                _ => now,
            };
            *seen = Some((holder.mod_revision, since));
            if now.saturating_sub(since) < PATIENCE {
                return Ok(Some(String::from_utf8_lossy(&holder.value).into_owned()));
            }
        }
        let [epoch_key, holder_key] = [EPOCH, HOLDER].map(Arc::<str>::from);
        let compares = vec![
            Compare::Version(Arc::clone(&epoch_key), epoch_version),
            Compare::ModRevision(
                Arc::clone(&holder_key),
                holder.map_or(0, |record| record.mod_revision),
            ),
        ];
        let ops = vec![
            Op::Put(epoch_key, self.identity.clone()),
            Op::Put(holder_key, self.identity.clone()),
        ];
        match self.store.txn(compares, ops).await? {
            Outcome::Committed(_) => {
                self.epoch.store(epoch_version + 1, Ordering::Release);
                Ok(None)
            },
            Outcome::Conflict => Ok(Some("another replica".to_owned())),
        }
    }

    /// Gives signs of life until another replica has taken over.
    pub async fn hold(&self) -> Deposed {
        loop {
            self.clock.sleep(BEAT).await;
            let alive = Op::Put(HOLDER.into(), self.identity.clone());
            match self.store.txn(vec![self.still()], vec![alive]).await {
                Ok(Outcome::Committed(_)) => {},
                Ok(Outcome::Conflict) => return Deposed,
                Err(error) => {
                    let error = runtime_kit::chain(&error).to_string();
                    tracing::warn!(
                        error,
                        "no sign of life could be given to the other replicas"
                    );
                },
            }
        }
    }

    /// Lets another replica take over at once. Nothing is written after this.
    pub async fn resign(&self) {
        let compares = vec![self.still()];
        self.epoch.store(0, Ordering::Release);
        let gone = vec![Op::Delete(HOLDER.into())];
        if let Err(error) = self.store.txn(compares, gone).await {
            let error = runtime_kit::chain(&error).to_string();
            tracing::warn!(error, "the other replicas wait until they miss this one");
        }
    }

    fn still(&self) -> Compare {
        Compare::Version(EPOCH.into(), self.epoch.load(Ordering::Acquire))
    }
}

/// Refuses writes until it is opened, so that a replica that stands by says so.
#[derive(Clone, Debug)]
pub struct Gate<S> {
    service: S,
    open: Arc<AtomicBool>,
}

impl<S> Gate<S> {
    /// Lets reads through, and writes too when `open`.
    pub fn new(service: S, open: Arc<AtomicBool>) -> Self {
        Self { service, open }
    }
}

impl<S, B, R> Service<Request<B>> for Gate<S>
where
    S: Service<Request<B>, Response = Response<R>, Error = Infallible>,
    R: From<Vec<u8>>,
{
    type Response = Response<R>;
    type Error = Infallible;
    type Future = Either<S::Future, Ready<Result<Response<R>, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        self.service.poll_ready(cx)
    }

    fn call(&mut self, request: Request<B>) -> Self::Future {
        let reads = [Method::GET, Method::HEAD].contains(request.method());
        if reads || self.open.load(Ordering::Acquire) {
            return Either::Left(self.service.call(request));
        }
        let error = ApiError::service_unavailable(STANDING_BY).retry_after(1);
        let mut response = Response::new(R::from(error.to_json()));
        *response.status_mut() = StatusCode::SERVICE_UNAVAILABLE;
        let headers = response.headers_mut();
        headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
        headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
        Either::Right(ready(Ok(response)))
    }
}

#[cfg(test)]
mod tests {
    use aggregated_api::store::redb::{Options, RedbStore};
    use futures::FutureExt;
    use runtime_kit::SteppedClock;
    use runtime_kit::admin::Health;

    use super::*;

    struct Replica {
        fenced: Arc<FencedStore>,
        candidate: Arc<Candidate>,
        clock: SteppedClock,
    }

    impl Replica {
        fn on(store: &Arc<RedbStore>, name: &str) -> Self {
            let clock = SteppedClock::default();
            let store: Arc<dyn Store> = Arc::<RedbStore>::clone(store);
            let (fenced, candidate) = fence(store, name, Arc::new(clock.clone()));
            Self {
                fenced,
                candidate: Arc::new(candidate),
                clock,
            }
        }

        async fn put(&self, value: &'static str) -> Result<Outcome, Error> {
            let op = Op::Put(Arc::from("key"), Bytes::from_static(value.as_bytes()));
            self.fenced.txn(Vec::new(), vec![op]).await
        }

        /// One look at who decides; `None`: this one does.
        async fn look(&self, seen: &mut Seen) -> Option<String> {
            self.candidate.attempt(seen).await.unwrap()
        }

        async fn beat(&self) -> Option<Deposed> {
            let hold = self.candidate.hold();
            tokio::pin!(hold);
            assert_eq!(hold.as_mut().now_or_never(), None);
            self.clock.advance(BEAT);
            let revision = self.fenced.revision();
            for _ in 0..100_000 {
                if let Some(deposed) = hold.as_mut().now_or_never() {
                    return Some(deposed);
                }
                if self.fenced.revision() > revision {
                    return None;
                }
                tokio::task::yield_now().await;
            }
            panic!("neither a sign of life nor an end")
        }
    }

    fn store() -> Arc<RedbStore> {
        Arc::new(RedbStore::in_memory(Options::default()).unwrap())
    }

    fn refused(result: Result<Outcome, Error>) -> String {
        match result {
            Err(error @ Error::Unavailable { .. }) => error.to_string(),
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn the_first_one_decides_and_the_others_only_read_while_it_lives() {
        let store = store();
        let (one, two) = (Replica::on(&store, "one"), Replica::on(&store, "two"));
        assert!(refused(one.put("early").await).contains("another replica"));
        assert_eq!(one.look(&mut None).await, None);
        assert!(matches!(one.put("x").await, Ok(Outcome::Committed(_))));
        let mut seen = None;
        for _ in 0..10 {
            let holder = two.look(&mut seen).await.expect("one decides");
            assert!(holder.starts_with("one_"), "{holder}");
            two.clock.advance(PATIENCE / 2);
            assert_eq!(one.beat().await, None);
        }
        assert!(refused(two.put("y").await).contains("another replica"));
        let read = two.fenced.get("key").await.unwrap().unwrap();
        assert_eq!(&read.value[..], b"x");
    }

    #[tokio::test]
    async fn one_that_is_silent_is_replaced_and_cannot_write_any_more() {
        let store = store();
        let (one, two) = (Replica::on(&store, "one"), Replica::on(&store, "two"));
        assert_eq!(one.look(&mut None).await, None);
        let mut seen = None;
        assert!(two.look(&mut seen).await.is_some());
        two.clock.advance(BEAT * 3);
        assert!(two.look(&mut seen).await.is_some());
        two.clock.advance(BEAT);
        assert_eq!(two.look(&mut seen).await, None);
        assert!(refused(one.put("late").await).contains("taken over"));
        assert!(matches!(two.put("x").await, Ok(Outcome::Committed(_))));
        assert_eq!(one.beat().await, Some(Deposed));
        // A conflict of its own is nobody's takeover.
        let absent = Compare::Version(Arc::from("key"), 0);
        let put = Op::Put(Arc::from("key"), Bytes::new());
        let outcome = two.fenced.txn(vec![absent], vec![put]).await;
        assert_eq!(outcome.unwrap(), Outcome::Conflict);
    }

    #[tokio::test]
    async fn one_that_resigns_is_replaced_at_once() {
        let store = store();
        let (one, two) = (Replica::on(&store, "one"), Replica::on(&store, "two"));
        assert_eq!(one.look(&mut None).await, None);
        one.candidate.resign().await;
        assert_eq!(two.look(&mut None).await, None);
        // One that comes too late takes nothing back.
        one.candidate.resign().await;
        assert!(matches!(two.put("x").await, Ok(Outcome::Committed(_))));
        assert!(one.look(&mut None).await.is_some());
    }

    #[tokio::test]
    async fn an_election_whose_answer_was_lost_is_noticed() {
        let store = store();
        let one = Replica::on(&store, "one");
        assert_eq!(one.look(&mut None).await, None);
        one.candidate.epoch.store(0, Ordering::Release);
        assert_eq!(one.look(&mut None).await, None);
        assert!(matches!(one.put("x").await, Ok(Outcome::Committed(_))));
    }

    #[tokio::test]
    async fn of_many_that_campaign_one_decides_and_readiness_names_it() {
        let store = store();
        let replicas: Vec<_> = (0..8)
            .map(|n| Replica::on(&store, &format!("r{n}")))
            .collect();
        let health = Health::new();
        let campaigns = replicas.iter().map(|replica| {
            let ready = health.ready_flag("allocator", "not known yet");
            let candidate = Arc::clone(&replica.candidate);
            tokio::spawn(async move {
                candidate.campaign(&ready).await;
                ready.set_ready();
            })
        });
        let campaigns: Vec<_> = campaigns.collect();
        let told = async {
            loop {
                let unready = health.ready().err().unwrap_or_default();
                let named = |(_, why): &(String, String)| why.contains("decides on leases");
                if unready.len() == 7 && unready.iter().all(named) {
                    break;
                }
                for replica in &replicas {
                    replica.clock.advance(Duration::from_millis(10));
                }
                tokio::task::yield_now().await;
            }
        };
        let patience = Duration::from_secs(30);
        tokio::time::timeout(patience, told).await.unwrap();
        let mut deciding = 0;
        for replica in &replicas {
            deciding += usize::from(replica.put("x").await.is_ok());
        }
        assert_eq!(deciding, 1);
        for campaign in campaigns {
            campaign.abort();
        }
    }

    #[tokio::test]
    async fn a_gate_lets_reads_through_and_says_why_it_refuses_a_write() {
        let open = Arc::new(AtomicBool::new(false));
        let service = tower::service_fn(|_: Request<()>| {
            ready(Ok::<_, Infallible>(Response::new(b"through".to_vec())))
        });
        let mut gate = Gate::new(service, Arc::clone(&open));
        let mut ask = |method: Method| {
            let request = Request::builder().method(method).body(()).unwrap();
            gate.call(request)
        };
        let read = ask(Method::GET).await.unwrap();
        assert_eq!(read.body(), b"through");
        for method in [Method::POST, Method::PUT, Method::PATCH, Method::DELETE] {
            let refused = ask(method).await.unwrap();
            assert_eq!(refused.status(), StatusCode::SERVICE_UNAVAILABLE);
            assert_eq!(refused.headers()[RETRY_AFTER], "1");
            let text = String::from_utf8_lossy(refused.body());
            assert!(text.contains("\"kind\":\"Status\""), "{text}");
            assert!(text.contains("another replica"), "{text}");
        }
        open.store(true, Ordering::Release);
        assert_eq!(ask(Method::POST).await.unwrap().body(), b"through");
    }
}
