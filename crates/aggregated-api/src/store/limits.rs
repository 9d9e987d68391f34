//! The limits of a transaction, which hold on every backend so that a client sees the same ones
//! everywhere. Called by each backend's [`txn`](super::Store::txn) before anything is queued.

use super::{Compare, Error, MAX_OPERATIONS, Op, SERVED_PREFIX};

/// Up to this many keys are compared pairwise; more are sorted.
const FEW_KEYS: usize = 8;

/// The key an operation changes.
pub(super) fn op_key(op: &Op) -> &str {
    match op {
        Op::Put(key, _) | Op::Delete(key) => key,
    }
}

/// Bytes of the keys and values of a transaction, of which there may be `most`, or the limit that it
/// exceeds.
pub(super) fn check(most: usize, compares: &[Compare], ops: &[Op]) -> Result<usize, Error> {
    let count = compares.len() + ops.len();
    if count > MAX_OPERATIONS {
        return Err(Error::Limit(format!(
            "{count} operations, of which at most {MAX_OPERATIONS} are allowed; split it"
        )));
    }
    let compared = compares.iter().map(|compare| match compare {
        Compare::ModRevision(key, _) | Compare::Version(key, _) => key.len(),
    });
    let changed = ops.iter().map(|op| match op {
        Op::Put(key, value) => key.len() + value.len(),
        Op::Delete(key) => key.len(),
    });
    let bytes: usize = compared.chain(changed).sum();
    if bytes > most {
        return Err(Error::Limit(format!(
            "{bytes} bytes of keys and values, of which at most {most} are \
             allowed; store less in one object"
        )));
    }
    if let Some(key) = repeated_key(ops) {
        return Err(Error::Limit(format!(
            "key {key:?} is changed more than 1 time"
        )));
    }
    let served = ops
        .iter()
        .filter(|op| op_key(op).starts_with(SERVED_PREFIX))
        .count();
    if served > 1 {
        return Err(Error::Limit(format!(
            "{served} keys under {SERVED_PREFIX} are changed, of which at most 1 is allowed, so \
             that a watcher can resume between any two changes"
        )));
    }
    Ok(bytes)
}

fn repeated_key(ops: &[Op]) -> Option<&str> {
    if ops.len() <= FEW_KEYS {
        return ops.iter().enumerate().find_map(|(index, op)| {
            let before = ops.get(..index).unwrap_or_default();
            before
                .iter()
                .any(|other| op_key(other) == op_key(op))
                .then(|| op_key(op))
        });
    }
    let mut keys: Vec<&str> = ops.iter().map(op_key).collect();
    keys.sort_unstable();
    keys.array_windows()
        .find(|[one, other]| one == other)
        .map(|[one, _]| *one)
}
