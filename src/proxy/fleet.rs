//! Takes the snapshot of the fleet that [`super::budget`] judges, and remembers what the
//! objects do not show yet, or not any more.
//!
//! What is remembered may be lost: a restarted operator may begin one replacement more per fleet,
//! and counts creates from zero.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use crawl_api::names;
use crawl_api::pool::ProxyPool;
use crawl_api::proxy::Proxy;
use jiff::Timestamp;
use kube::ResourceExt;
use kube::runtime::reflector::{ObjectRef, Store};
use parking_lot::Mutex;
use runtime_kit::Clock;

use super::budget::{self, Creates, Fleet, Member, Withheld};

/// How long the objects may take until they show what was begun.
const SETTLE: Duration = Duration::from_secs(30);

/// What is asked of the budgets.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Request {
    /// To replace an instance that works.
    Replace,
    /// To replace one that fails.
    Remediate {
        /// cloud-init failed on it.
        bootstrap_failed: bool,
    },
    /// To create one.
    Create,
}

/// The proxies and pools, and the books of every fleet.
pub(super) struct Fleets {
    proxies: Store<Proxy>,
    pools: Store<ProxyPool>,
    books: Mutex<HashMap<Scope, Book>>,
}

/// Who shares a budget: the members of a pool, by its UID, or a namespace's other proxies.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
struct Scope {
    namespace: Option<String>,
    pool: Option<String>,
}

/// Times are monotonic.
#[derive(Debug, Default)]
struct Book {
    /// Replacements that were granted, by UID.
    begun: BTreeMap<String, Duration>,
    /// Losses, by UID, with the time on the wall for [`names::ANNOTATION_RESUME`].
    lost: BTreeMap<String, (Duration, Timestamp)>,
    asked: Vec<(Duration, String)>,
    failed: Vec<(Duration, String)>,
}

// === impl Fleets ===

impl Fleets {
    pub(super) fn new(proxies: Store<Proxy>, pools: Store<ProxyPool>) -> Self {
        Self {
            proxies,
            pools,
            books: Mutex::default(),
        }
    }

    /// Grants or refuses, and books what it grants. One at a time, so that two passes do not share
    /// the last place of a budget.
    pub(super) fn ask(
        &self,
        proxy: &Proxy,
        request: Request,
        clock: &dyn Clock,
    ) -> Result<(), Withheld> {
        let scope = Scope::of(proxy);
        let pool = self.pool_of(proxy);
        let uid = proxy.uid().unwrap_or_default();
        let (now, elapsed) = (clock.now(), clock.elapsed());
        let mut books = self.books.lock();
        let book = books.entry(scope.clone()).or_default();
        book.prune(elapsed);
        let fleet = self.snapshot(&scope, pool.as_deref());
        let begun: Vec<_> = book.begun.keys().cloned().collect();
        match request {
            Request::Replace => budget::disruption(&fleet, &uid, &begun)?,
            Request::Remediate { bootstrap_failed } => {
                let setbacks = proxy
                    .status
                    .as_ref()
                    .map(|status| status.setbacks.as_slice());
                let setbacks = setbacks.unwrap_or_default();
                if bootstrap_failed {
                    let resumed = resumed_until(proxy, pool.as_deref());
                    budget::bootstrap(setbacks, proxy.metadata.generation, resumed)?;
                }
                budget::remediation(&fleet, &uid, &begun, setbacks, now)?;
            },
            Request::Create => {
                let resumed = resumed_until(proxy, pool.as_deref());
                if Member::of(proxy, resumed).lost {
                    budget::recreation(&fleet, &self.made_up_for(book, pool.as_deref()))?;
                }
                let own = |list: &[(Duration, String)]| {
                    list.iter()
                        .filter(|(_, by)| scope.pool.is_some() || *by == uid)
                        .map(|(at, _)| elapsed.saturating_sub(*at))
                        .collect()
                };
                let creates = Creates {
                    asked: own(&book.asked),
                    failed: own(&book.failed),
                    limit: pool
                        .as_ref()
                        .and_then(|pool| pool.spec.limits.as_ref()?.creates_per_hour),
                };
                budget::creation(&fleet, &creates)?;
                book.asked.push((elapsed, uid));
                return Ok(());
            },
        }
        book.begun.insert(uid, elapsed);
        Ok(())
    }

    /// A proxy by name.
    pub(super) fn proxy(&self, reference: &ObjectRef<Proxy>) -> Option<Arc<Proxy>> {
        self.proxies.get(reference)
    }

    /// The proxies of a provider.
    pub(super) fn of_provider(&self, name: &str) -> Vec<Arc<Proxy>> {
        let mut proxies = self.proxies.state();
        proxies.retain(|proxy| proxy.spec.provider.as_deref() == Some(name));
        proxies
    }

    /// The object shows by now that its replacement has begun.
    pub(super) fn shown(&self, proxy: &Proxy) {
        self.edit(proxy, |book, uid| {
            book.begun.remove(&uid);
        });
    }

    /// A create was refused, or its instance never came up.
    pub(super) fn create_failed(&self, proxy: &Proxy, elapsed: Duration) {
        self.edit(proxy, |book, uid| book.failed.push((elapsed, uid)));
    }

    /// An instance is gone without our doing.
    pub(super) fn lost(&self, proxy: &Proxy, clock: &dyn Clock) {
        let (elapsed, now) = (clock.elapsed(), clock.now());
        self.edit(proxy, |book, uid| {
            book.lost.insert(uid, (elapsed, now));
        });
    }

    fn edit(&self, proxy: &Proxy, change: impl FnOnce(&mut Book, String)) {
        let mut books = self.books.lock();
        let book = books.entry(Scope::of(proxy)).or_default();
        change(book, proxy.uid().unwrap_or_default());
    }

    fn snapshot(&self, scope: &Scope, pool: Option<&ProxyPool>) -> Fleet {
        let members = self.proxies.state();
        let members = members
            .iter()
            .filter(|peer| peer.is_managed() && peer.metadata.deletion_timestamp.is_none())
            .filter(|peer| Scope::of(peer) == *scope)
            .map(|peer| Member::of(peer, resumed_until(peer, pool)))
            .collect();
        let namespace = scope.namespace.as_deref().unwrap_or_default();
        let name = match pool {
            Some(pool) => format!("pool {}", pool.name_any()),
            None => format!("namespace {namespace}"),
        };
        Fleet { name, members }
    }

    /// The losses in the book that nobody took note of.
    fn made_up_for(&self, book: &Book, pool: Option<&ProxyPool>) -> Vec<String> {
        let proxies = self.proxies.state();
        let noted = |uid: &str, at: Timestamp| {
            let proxy = proxies
                .iter()
                .find(|proxy| proxy.uid().as_deref() == Some(uid));
            let until = proxy.and_then(|proxy| resumed_until(proxy, pool));
            until.is_some_and(|until| at <= until)
        };
        book.lost
            .iter()
            .filter(|(uid, (_, at))| !noted(uid, *at))
            .map(|(uid, _)| uid.clone())
            .collect()
    }

    fn pool_of(&self, proxy: &Proxy) -> Option<Arc<ProxyPool>> {
        self.pools.get(&crate::pool::owner(proxy)?)
    }
}

// === impl Scope ===

impl Scope {
    fn of(proxy: &Proxy) -> Self {
        Self {
            namespace: proxy.namespace(),
            pool: crate::pool::controller(proxy).map(|owner| owner.uid.clone()),
        }
    }
}

// === impl Book ===

impl Book {
    fn prune(&mut self, elapsed: Duration) {
        let within = |at: Duration, window: Duration| elapsed.saturating_sub(at) < window;
        self.begun.retain(|_, at| within(*at, SETTLE));
        self.lost
            .retain(|_, (at, _)| within(*at, budget::LOSS_WINDOW));
        self.asked
            .retain(|(at, _)| within(*at, budget::CREATES_WINDOW));
        self.failed
            .retain(|(at, _)| within(*at, budget::FAILED_CREATES_WINDOW));
    }
}

/// Up to when losses were taken note of, by the annotation of the proxy or of its pool.
fn resumed_until(proxy: &Proxy, pool: Option<&ProxyPool>) -> Option<Timestamp> {
    let of = |annotations: &BTreeMap<String, String>| {
        annotations.get(names::ANNOTATION_RESUME)?.parse().ok()
    };
    let pool = pool.and_then(|pool| of(pool.annotations()));
    of(proxy.annotations()).max(pool)
}

/// The members of a pool for which something is withheld, to be looked at when the pool changes.
pub fn withheld_members(proxies: &Store<Proxy>, pool: &ProxyPool) -> Vec<ObjectRef<Proxy>> {
    let uid = pool.uid();
    let withheld = |proxy: &Proxy| {
        proxy.condition(crawl_api::conditions::WITHHELD).is_some()
            && crate::pool::controller(proxy).map(|owner| &owner.uid) == uid.as_ref()
    };
    let all = proxies.state();
    let members = all.iter().filter(|proxy| withheld(proxy));
    members
        .map(|proxy| ObjectRef::from_obj(proxy.as_ref()))
        .collect()
}

#[cfg(test)]
#[path = "fleet_tests.rs"]
mod tests;
