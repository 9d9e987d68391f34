//! Random transactions against a model, with reopening, compaction, old snapshots and watchers that
//! resume at random revisions.

use std::collections::BTreeMap;
use std::sync::Arc;

use bytes::Bytes;
use futures::StreamExt;
use proptest::collection::vec;
use proptest::prelude::*;

use super::{Options, RedbStore};
use crate::store::{Compare, Error, Op, Outcome, Record, Revision, Store};

const KEYS: [&str; 6] = ["/a", "/a/x", "/a/y", "/b", "/b/x", "/registry/g/r/x"];

#[derive(Clone, Debug)]
enum Step {
    Txn {
        compares: Vec<(usize, bool, bool)>,
        ops: BTreeMap<usize, Option<u8>>,
    },
    Reopen,
    Compact(prop::sample::Index),
    ListAt {
        prefix: usize,
        at: prop::sample::Index,
        limit: usize,
    },
    Watch {
        prefix: usize,
        after: prop::sample::Index,
    },
}

fn step() -> impl Strategy<Value = Step> {
    let key = 0..KEYS.len();
    let compares = vec(
        (key.clone(), any::<bool>(), prop::bool::weighted(0.8)),
        0..3,
    );
    let ops = prop::collection::btree_map(key.clone(), any::<Option<u8>>(), 0..4);
    prop_oneof![
        12 => (compares, ops).prop_map(|(compares, ops)| Step::Txn { compares, ops }),
        1 => Just(Step::Reopen),
        1 => any::<prop::sample::Index>().prop_map(Step::Compact),
        3 => (key.clone(), any::<prop::sample::Index>(), 1..5_usize)
            .prop_map(|(prefix, at, limit)| Step::ListAt { prefix, at, limit }),
        2 => (key, any::<prop::sample::Index>())
            .prop_map(|(prefix, after)| Step::Watch { prefix, after }),
    ]
}

type State = BTreeMap<Arc<str>, Record>;

/// What the store should hold: the state at each revision.
struct Model {
    states: Vec<State>,
    oldest: Revision,
}

impl Model {
    fn revision(&self) -> Revision {
        u64::try_from(self.states.len() - 1).unwrap()
    }

    fn at(&self, revision: Revision) -> &State {
        &self.states[usize::try_from(revision).unwrap()]
    }

    fn apply(&mut self, ops: &[Op]) -> Revision {
        let before = self.states.last().unwrap().clone();
        let mut after = before.clone();
        let revision = self.revision() + 1;
        let mut changed = false;
        for op in ops {
            match op {
                Op::Put(key, value) => {
                    changed = true;
                    let old = after.get(key);
                    let record = Record {
                        key: Arc::clone(key),
                        value: value.clone(),
                        create_revision: old.map_or(revision, |old| old.create_revision),
                        mod_revision: revision,
                        version: old.map_or(1, |old| old.version + 1),
                    };
                    after.insert(Arc::clone(key), record);
                },
                Op::Delete(key) => changed |= after.remove(key).is_some(),
            }
        }
        if changed {
            self.states.push(after);
        }
        self.revision()
    }

    /// Revision, key, before and after of every change, in order of revision and key.
    fn changes(&self, prefix: &str, after: Revision) -> Vec<Change> {
        let mut changes = Vec::new();
        for revision in after + 1..=self.revision() {
            let (old, new) = (self.at(revision - 1), self.at(revision));
            for key in KEYS.iter().filter(|key| key.starts_with(prefix)) {
                if old.get(*key) != new.get(*key) {
                    let change = (
                        revision,
                        *key,
                        old.get(*key).cloned(),
                        new.get(*key).cloned(),
                    );
                    changes.push(change);
                }
            }
        }
        changes
    }
}

type Change = (Revision, &'static str, Option<Record>, Option<Record>);

async fn check_watch(store: &RedbStore, model: &Model, prefix: &str, after: Revision) {
    let mut watch = store.watch(prefix, after);
    if after < model.oldest {
        let first = watch.next().await.unwrap();
        assert!(matches!(first, Err(Error::Compacted { .. })), "{first:?}");
        return;
    }
    let mut seen = Vec::new();
    let mut reached = None;
    while reached != Some(model.revision()) {
        let batch = watch.next().await.unwrap().unwrap();
        reached = Some(batch.revision);
        for event in batch.events {
            let key = *KEYS.iter().find(|key| **key == &*event.key).unwrap();
            seen.push((event.revision, key, event.previous, event.current));
        }
    }
    seen.sort_by_key(|change| (change.0, change.1));
    assert_eq!(seen, model.changes(prefix, after));
}

async fn check_list(store: &RedbStore, model: &Model, prefix: &str, at: Revision, limit: usize) {
    let result = store.list(prefix, Some(at), None, Some(limit)).await;
    if at < model.oldest {
        assert!(matches!(result, Err(Error::Compacted { .. })), "{result:?}");
        return;
    }
    let listing = result.unwrap();
    let expected: Vec<_> = model
        .at(at)
        .values()
        .filter(|record| record.key.starts_with(prefix))
        .cloned()
        .collect();
    assert_eq!(listing.more, expected.len() > limit);
    assert_eq!(listing.records, expected[..expected.len().min(limit)]);
}

async fn check(steps: Vec<Step>, window_bytes: usize) {
    let folder = tempfile::tempdir().unwrap();
    let options = Options {
        window_bytes,
        reserve_bytes: 0,
        ..Options::default()
    };
    let open = || RedbStore::open(folder.path().join("db"), options).unwrap();
    let mut store = open();
    let mut model = Model {
        states: vec![State::new()],
        oldest: 0,
    };
    let up_to = |index: prop::sample::Index, model: &Model| {
        u64::try_from(index.index(model.states.len())).unwrap()
    };
    for step in steps {
        match step {
            Step::Txn { compares, ops } => {
                let now = model.at(model.revision());
                let holds = compares.iter().all(|(_, _, holds)| *holds);
                let compares = compares
                    .into_iter()
                    .map(|(key, by_version, holds)| {
                        let record = now.get(KEYS[key]);
                        let off = u64::from(!holds);
                        let key = Arc::from(KEYS[key]);
                        if by_version {
                            Compare::Version(key, record.map_or(0, |record| record.version) + off)
                        } else {
                            let revision = record.map_or(0, |record| record.mod_revision);
                            Compare::ModRevision(key, revision + off)
                        }
                    })
                    .collect();
                let ops: Vec<_> = ops
                    .into_iter()
                    .map(|(key, value)| {
                        let key = Arc::from(KEYS[key]);
                        match value {
                            Some(byte) => Op::Put(key, Bytes::from(vec![byte; 100])),
                            None => Op::Delete(key),
                        }
                    })
                    .collect();
                let outcome = store.txn(compares, ops.clone()).await.unwrap();
                let expected = if holds {
                    Outcome::Committed(model.apply(&ops))
                } else {
                    Outcome::Conflict
                };
                assert_eq!(outcome, expected);
                assert_eq!(store.revision(), model.revision());
            },
            Step::Reopen => {
                drop(store);
                store = open();
                assert_eq!(store.revision(), model.revision());
            },
            Step::Compact(index) => {
                let revision = up_to(index, &model);
                store.compact(revision).await.unwrap();
                model.oldest = model.oldest.max(revision);
            },
            Step::ListAt { prefix, at, limit } => {
                check_list(&store, &model, KEYS[prefix], up_to(at, &model), limit).await;
            },
            Step::Watch { prefix, after } => {
                check_watch(&store, &model, KEYS[prefix], up_to(after, &model)).await;
            },
        }
    }
    check_list(&store, &model, "", model.revision(), 100).await;
    check_watch(&store, &model, "", model.oldest).await;
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 48, ..ProptestConfig::default() })]

    #[test]
    fn the_store_behaves_like_the_model(
        steps in vec(step(), 1..60),
        window_bytes in prop_oneof![Just(0_usize), Just(2000), Just(1 << 20)],
    ) {
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(check(steps, window_bytes));
    }
}
