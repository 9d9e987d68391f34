//! In which order transactions are sent to etcd, which decides concurrent ones in any order.
//!
//! Those that have a key in common are sent one after the other, in the order of [`Lanes::enter`];
//! those that only compare the key go together. All others are under way at once, so that etcd can
//! sync them to disk together.

use std::collections::HashMap;
use std::collections::hash_map::Entry;
use std::sync::Arc;

use parking_lot::Mutex;
use tokio_util::sync::CancellationToken;

use crate::store::{Compare, Op, limits::op_key};

/// The transactions under way.
#[derive(Debug, Default)]
pub(super) struct Lanes {
    state: Mutex<State>,
}

#[derive(Debug, Default)]
struct State {
    next: u64,
    keys: HashMap<Arc<str>, Lane>,
    /// All of them, for those that wait for everything.
    running: HashMap<u64, CancellationToken>,
}

/// Who uses one key.
#[derive(Debug, Default)]
struct Lane {
    /// The last transaction that changes the key, with its number.
    writer: Option<(u64, CancellationToken)>,
    /// Those after it that compare the key only.
    readers: HashMap<u64, CancellationToken>,
    users: usize,
}

/// A transaction's place in the order. Dropping it lets the next ones go.
#[derive(Debug)]
pub(super) struct Turn {
    lanes: Arc<Lanes>,
    number: u64,
    keys: Vec<Arc<str>>,
    before: Vec<CancellationToken>,
    done: CancellationToken,
}

impl Lanes {
    /// Takes a place behind all earlier transactions that it must not overtake. One without
    /// operations is behind all that are under way, so its answer says that they are decided.
    pub(super) fn enter(self: &Arc<Self>, compares: &[Compare], ops: &[Op]) -> Turn {
        let done = CancellationToken::new();
        let mut state = self.state.lock();
        let number = state.next;
        state.next += 1;
        let mut before = Vec::new();
        if ops.is_empty() {
            before.extend(state.running.values().cloned());
        }
        let mut keys = Vec::with_capacity(ops.len());
        for op in ops {
            let (Op::Put(key, _) | Op::Delete(key)) = op;
            let lane = state.keys.entry(Arc::clone(key)).or_default();
            before.extend(lane.writer.take().map(|(_, done)| done));
            before.extend(lane.readers.drain().map(|(_, done)| done));
            lane.writer = Some((number, done.clone()));
            lane.users += 1;
            keys.push(Arc::clone(key));
        }
        for compare in compares {
            let (Compare::ModRevision(key, _) | Compare::Version(key, _)) = compare;
            if ops.iter().any(|op| op_key(op) == &**key) {
                continue;
            }
            let lane = state.keys.entry(Arc::clone(key)).or_default();
            before.extend(lane.writer.iter().map(|(_, done)| done.clone()));
            lane.readers.insert(number, done.clone());
            lane.users += 1;
            keys.push(Arc::clone(key));
        }
        state.running.insert(number, done.clone());
        drop(state);
        Turn {
            lanes: Arc::clone(self),
            number,
            keys,
            before,
            done,
        }
    }
}

impl Turn {
    /// Waits until the transactions before this one have been decided.
    pub(super) async fn come(&mut self) {
        for before in self.before.drain(..) {
            before.cancelled().await;
        }
    }
}

impl Drop for Turn {
    fn drop(&mut self) {
        let mut state = self.lanes.state.lock();
        state.running.remove(&self.number);
        for key in self.keys.drain(..) {
            if let Entry::Occupied(mut entry) = state.keys.entry(key) {
                let lane = entry.get_mut();
                lane.users -= 1;
                lane.readers.remove(&self.number);
                if lane.users == 0 {
                    entry.remove();
                }
            }
        }
        drop(state);
        // Why: last, so that whoever goes on finds this one gone.
        self.done.cancel();
    }
}

#[cfg(test)]
mod tests {
    use futures::FutureExt;

    use super::*;

    fn put(key: &str) -> Op {
        Op::Put(Arc::from(key), bytes::Bytes::new())
    }

    fn seen(key: &str) -> Compare {
        Compare::Version(Arc::from(key), 1)
    }

    fn may_go(turn: &mut Turn) -> bool {
        // A drained wait would be forgotten, so look only.
        turn.before.iter().all(CancellationToken::is_cancelled)
    }

    #[test]
    fn transactions_on_one_key_go_one_after_the_other_and_others_at_once() {
        let lanes = Arc::new(Lanes::default());
        let mut first = lanes.enter(&[], &[put("a")]);
        let mut second = lanes.enter(&[], &[put("a"), put("b")]);
        let mut third = lanes.enter(&[], &[put("b")]);
        let mut other = lanes.enter(&[], &[put("c")]);
        assert!(may_go(&mut first) && may_go(&mut other));
        assert!(!may_go(&mut second) && !may_go(&mut third));
        drop(first);
        assert!(may_go(&mut second) && !may_go(&mut third));
        assert_eq!(second.come().now_or_never(), Some(()));
        drop(second);
        assert!(may_go(&mut third));
    }

    #[test]
    fn those_that_only_compare_a_key_go_together_but_not_past_a_change_of_it() {
        let lanes = Arc::new(Lanes::default());
        let mut one = lanes.enter(&[seen("epoch")], &[put("a")]);
        let mut two = lanes.enter(&[seen("epoch")], &[put("b")]);
        let mut change = lanes.enter(&[seen("epoch")], &[put("epoch")]);
        let mut after = lanes.enter(&[seen("epoch")], &[put("c")]);
        assert!(may_go(&mut one) && may_go(&mut two));
        assert!(!may_go(&mut change) && !may_go(&mut after));
        drop(two);
        assert!(!may_go(&mut change));
        drop(one);
        assert!(may_go(&mut change) && !may_go(&mut after));
        drop(change);
        assert!(may_go(&mut after));
    }

    #[test]
    fn one_without_operations_waits_for_all_before_it() {
        let lanes = Arc::new(Lanes::default());
        let running = lanes.enter(&[], &[put("a")]);
        let mut fence = lanes.enter(&[seen("never")], &[]);
        let mut later = lanes.enter(&[], &[put("b")]);
        assert!(!may_go(&mut fence) && may_go(&mut later));
        drop(running);
        assert!(may_go(&mut fence));
    }

    #[test]
    fn nothing_is_kept_of_those_that_have_ended() {
        let lanes = Arc::new(Lanes::default());
        for _ in 0..10 {
            let one = lanes.enter(&[seen("a")], &[put("b")]);
            drop(lanes.enter(&[seen("b")], &[put("a")]));
            drop(one);
        }
        let state = lanes.state.lock();
        assert!(state.keys.is_empty() && state.running.is_empty());
    }
}
