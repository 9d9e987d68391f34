//! A store in a few lines, in which transactions wait until the test decides them, in any order.

use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;
use std::time::Duration;

use aggregated_api::registry::capability::Companion;
use aggregated_api::store::{Compare, Op};
use futures::FutureExt;
use runtime_kit::SteppedClock;
use runtime_kit::clock::Clock;

use crate::allocator::facts::Fate;
use crate::allocator::leases::LeaseKey;
use crate::allocator::ordered::SchemeSet;
use crate::allocator::record::{self, GrantsRecord};
use crate::allocator::testing;
use crate::allocator::want::{Candidates, Want};
use crate::allocator::{Allocator, Answer, Denial, NewLease, Release, Slot, Stage, Stored};

pub(super) const TTL: Duration = Duration::from_mins(1);

/// A lease as it is stored.
#[derive(Clone, Debug)]
pub(super) struct LeaseRow {
    pub(super) key: LeaseKey,
    pub(super) proxy: Arc<str>,
    pub(super) target: Option<Arc<str>>,
    pub(super) renewals: i64,
}

/// What a transaction does to the lease it is about.
pub(super) enum LeaseOp {
    Put(LeaseRow),
    Remove(Arc<str>),
    None,
}

pub(super) struct Pending {
    companion: Companion,
    lease: LeaseOp,
}

pub(super) struct World {
    pub(super) allocator: Arc<Allocator>,
    pub(super) clock: SteppedClock,
    pub(super) records: HashMap<Arc<str>, (u64, GrantsRecord)>,
    pub(super) leases: BTreeMap<Arc<str>, LeaseRow>,
    pub(super) pending: Vec<Pending>,
    pub(super) names: u32,
}

pub(super) fn want(target: Option<&str>) -> Want {
    let schemes = [
        crawl_api::scheme::Scheme::Http,
        crawl_api::scheme::Scheme::Https,
    ];
    Want {
        candidates: Candidates::Pool(testing::pool()),
        target: target.map(Into::into),
        schemes: schemes.iter().collect::<SchemeSet>(),
    }
}

impl Pending {
    /// The proxy on which the transaction grants, if it does.
    pub(super) fn granted_on(&self) -> Option<Arc<str>> {
        match &self.lease {
            LeaseOp::Put(row) => Some(Arc::clone(&row.proxy)),
            LeaseOp::Remove(_) | LeaseOp::None => None,
        }
    }
}

impl World {
    pub(super) fn new() -> Self {
        let clock = SteppedClock::default();
        Self {
            allocator: Allocator::new(Arc::new(clock.clone())),
            clock,
            records: HashMap::new(),
            leases: BTreeMap::new(),
            pending: Vec::new(),
            names: 0,
        }
    }

    pub(super) fn new_lease(&mut self) -> NewLease {
        self.names += 1;
        let name: Arc<str> = format!("lease-{}", self.names).into();
        let key = LeaseKey {
            namespace: "crawlers".into(),
            name: Arc::clone(&name),
            uid: name,
        };
        NewLease {
            key,
            ttl: TTL,
            pod_uid: None,
            request: None,
        }
    }

    /// Plans a grant; its transaction waits. `None`: something is unsettled.
    pub(super) fn plan_grant(&mut self, want: &Want) -> Option<Result<Slot, Denial>> {
        let lease = self.new_lease();
        match self.allocator.grant(want, &lease).now_or_never()?.unwrap() {
            Answer::Denied(denial) => Some(Err(denial)),
            Answer::Exists => panic!("names are new"),
            Answer::Granted(slot, companion) => {
                let row = LeaseRow {
                    key: lease.key,
                    proxy: Arc::clone(&slot.facts.uid),
                    target: want.target.clone(),
                    renewals: 0,
                };
                self.pending.push(Pending {
                    companion,
                    lease: LeaseOp::Put(row),
                });
                Some(Ok(*slot))
            },
        }
    }

    /// Plans the end of a lease; its transaction waits.
    pub(super) fn plan_release(&mut self, uid: &Arc<str>) {
        if let Some(Ok(Release::Slot(companion))) = self.allocator.release(uid).now_or_never() {
            self.pending.push(Pending {
                companion,
                lease: LeaseOp::Remove(Arc::clone(uid)),
            });
        }
    }

    /// Plans that a record follows its proxy.
    pub(super) fn plan_limits(&mut self, uid: &str) {
        if let Some(Ok(Some(companion))) = self.allocator.limits(uid).now_or_never() {
            self.pending.push(Pending {
                companion,
                lease: LeaseOp::None,
            });
        }
    }

    /// Decides a waiting transaction. `reported`: whether the one who asked is still there to hear.
    pub(super) fn decide(&mut self, at: usize, reported: bool) -> bool {
        let Pending { companion, lease } = self.pending.remove(at);
        let Companion {
            compares,
            ops,
            reservation,
        } = companion;
        let holds = compares.iter().all(|compare| match compare {
            Compare::Version(key, version) => {
                self.records.get(key).map_or(0, |(version, _)| *version) == *version
            },
            Compare::ModRevision(..) => panic!("grants compare versions"),
        });
        let lease_holds = match &lease {
            LeaseOp::Put(_) | LeaseOp::None => true,
            LeaseOp::Remove(uid) => self.leases.contains_key(uid),
        };
        if holds && lease_holds {
            for op in ops {
                match op {
                    Op::Put(key, value) => {
                        let next = GrantsRecord::decode(&value).unwrap();
                        let version = self.records.get(&key).map_or(0, |(version, _)| *version);
                        self.records.insert(key, (version + 1, next));
                    },
                    Op::Delete(key) => drop(self.records.remove(&key)),
                }
            }
            match lease {
                LeaseOp::Put(row) => {
                    self.leases.insert(Arc::clone(&row.key.uid), row);
                },
                LeaseOp::Remove(uid) => {
                    self.leases.remove(&uid);
                },
                LeaseOp::None => {},
            }
            if reported && let Some(reservation) = reservation {
                reservation.committed(1);
            }
        }
        holds && lease_holds
    }

    /// Decides all that waits, oldest first, and reads again what is in doubt.
    pub(super) fn settle(&mut self) {
        while !self.pending.is_empty() {
            self.decide(0, true);
        }
        self.doubts();
    }

    /// What the task `doubts` does.
    pub(super) fn doubts(&mut self) {
        loop {
            let (records, leases) = self.allocator.take_doubts();
            if records.is_empty() && leases.is_empty() {
                return;
            }
            for uid in records {
                let stored = self.records.get(&record::key(&uid));
                let stored = stored.map(|(version, record)| (record.clone(), *version));
                for grant in self.allocator.reload(&uid, stored) {
                    let row = self
                        .leases
                        .get(&grant.lease_uid)
                        .expect("a holder has a lease");
                    self.allocator.adopt(Self::stored(row));
                }
            }
            for key in leases {
                match self.leases.get(&key.uid) {
                    Some(row) => self.allocator.adopt(Self::stored(row)),
                    None => self.allocator.absent(&key),
                }
            }
        }
    }

    /// What the task `expiry` does, for all that is due.
    pub(super) fn expire(&mut self) {
        for tracked in self.allocator.due(usize::MAX) {
            self.plan_release(&tracked.key.uid);
        }
        self.settle();
    }

    /// A crash: what waits is lost, and memory is rebuilt from the store.
    pub(super) fn crash(&mut self, proxies: &[crate::allocator::facts::ProxyFacts]) {
        self.pending.clear();
        self.allocator = Allocator::new(Arc::new(self.clock.clone()));
        for (key, (version, record)) in &self.records {
            let uid: Arc<str> = key.strip_prefix(record::PREFIX).unwrap().into();
            self.allocator.load(&uid, record.clone(), *version);
        }
        for row in self.leases.values() {
            self.allocator.adopt(Self::stored(row));
        }
        for facts in proxies {
            self.allocator.observe_proxy(facts.clone());
        }
    }

    pub(super) fn stored(row: &LeaseRow) -> Stored {
        Stored {
            key: row.key.clone(),
            stage: Stage::Bound(Arc::clone(&row.proxy)),
            target: row.target.clone(),
            ttl: TTL,
            renewed_at: Some(jiff::Timestamp::from_second(row.renewals).unwrap())
                .filter(|_| row.renewals > 0),
            pod_uid: None,
            request: None,
            shown: Fate::Keep,
        }
    }

    pub(super) fn now(&self) -> Duration {
        self.clock.elapsed()
    }
}
