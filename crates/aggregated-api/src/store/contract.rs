//! What every backend must do, as checks that a backend's tests run against it. [`run`] opens a
//! fresh store for each check; a check that does not hold panics with its name.
//!
//! A fresh store may begin at any revision; while a check runs, nobody else uses its backend.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "a check fails by panicking"
)]

mod history;
mod transactions;
mod watching;

use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures::stream::BoxStream;
use futures::{FutureExt, StreamExt};

use super::{Batch, Compare, Error, Event, Listing, Mark, Op, Outcome, Record, Revision, Store};

/// How long a check may take before it counts as hanging.
const PATIENCE: Duration = Duration::from_mins(1);

type Checked = Pin<Box<dyn Future<Output = ()> + Send>>;
type Check = (&'static str, fn(Arc<dyn Store>) -> Checked);

macro_rules! checks {
    ($($module:ident::$name:ident),+ $(,)?) => {
        [$({
            fn check(store: Arc<dyn Store>) -> Checked {
                Box::pin($module::$name(store))
            }
            (stringify!($name), check)
        }),+]
    };
}

/// Runs every check, each on an empty store of its own that `open` makes. Panics with the names of
/// those that do not hold.
pub async fn run<F, S>(open: F)
where
    F: AsyncFn() -> S,
    S: Store,
{
    let checks: [Check; 29] = checks![
        transactions::a_new_store_is_empty,
        transactions::a_put_makes_a_record_and_the_next_one_counts_it_up,
        transactions::a_key_deleted_and_put_again_begins_anew,
        transactions::a_compare_that_fails_changes_nothing_and_takes_no_revision,
        transactions::a_compare_with_zero_holds_only_while_the_key_is_absent,
        transactions::all_compares_must_hold,
        transactions::a_transaction_without_effect_takes_no_revision,
        transactions::internal_keys_ride_along_in_the_revision_of_the_served_one,
        transactions::transactions_are_decided_in_the_order_of_their_first_poll,
        transactions::a_caller_may_queue_puts_that_build_on_each_other,
        transactions::concurrent_increments_are_never_lost,
        transactions::a_caller_that_goes_away_does_not_undo_its_transaction,
        transactions::one_without_operations_is_decided_after_all_before_it,
        transactions::the_limits_refuse_what_exceeds_them_and_name_the_number,
        transactions::a_transaction_at_the_limits_is_accepted,
        history::a_list_is_in_key_order_and_holds_the_prefix_only,
        history::a_list_in_pages_gives_every_record_once,
        history::a_list_at_a_revision_shows_the_state_of_then,
        history::pages_at_one_revision_are_one_snapshot,
        history::a_revision_that_has_not_happened_is_refused,
        history::compaction_keeps_the_latest_values_and_newer_history,
        history::a_long_history_is_compacted_whole,
        history::marks_are_remembered_until_their_revision_is_compacted,
        watching::a_watch_from_the_start_replays_everything_in_order,
        watching::a_watch_shows_only_its_prefix_but_all_progress,
        watching::a_watch_resumes_without_gap_or_repeat_while_others_write,
        watching::a_watch_from_compacted_or_future_history_is_refused,
        watching::a_watcher_that_does_not_read_holds_nobody_up_and_misses_nothing,
        watching::an_event_carries_the_records_before_and_after,
    ];
    let mut failed = Vec::new();
    for (name, check) in checks {
        let store: Arc<dyn Store> = Arc::new(open().await);
        let outcome = tokio::time::timeout(
            PATIENCE,
            std::panic::AssertUnwindSafe(check(store)).catch_unwind(),
        )
        .await;
        match outcome {
            Ok(Ok(())) => {},
            Ok(Err(_)) => failed.push(name.to_owned()),
            Err(_) => failed.push(format!("{name} (still running after {PATIENCE:?})")),
        }
    }
    assert!(
        failed.is_empty(),
        "the store breaks its contract: {}",
        failed.join(", ")
    );
}

fn key(name: &str) -> Arc<str> {
    Arc::from(name)
}

fn put(name: &str, value: &str) -> Op {
    Op::Put(key(name), Bytes::copy_from_slice(value.as_bytes()))
}

fn delete(name: &str) -> Op {
    Op::Delete(key(name))
}

/// Commits without compares.
async fn commit(store: &dyn Store, ops: Vec<Op>) -> Revision {
    match store
        .txn(Vec::new(), ops)
        .await
        .expect("the transaction is accepted")
    {
        Outcome::Committed(revision) => revision,
        Outcome::Conflict => panic!("a transaction without compares met a conflict"),
    }
}

async fn get(store: &dyn Store, name: &str) -> Option<Record> {
    store.get(name).await.expect("the key can be read")
}

async fn list(store: &dyn Store, prefix: &str, at: Option<Revision>) -> Listing {
    store
        .list(prefix, at, None, None)
        .await
        .expect("the list can be read")
}

/// Keys and values of a list.
fn pairs(listing: &Listing) -> Vec<(String, String)> {
    listing
        .records
        .iter()
        .map(|record| {
            (
                record.key.to_string(),
                String::from_utf8_lossy(&record.value).into_owned(),
            )
        })
        .collect()
}

fn owned(pairs: &[(&str, &str)]) -> Vec<(String, String)> {
    pairs
        .iter()
        .map(|(key, value)| ((*key).to_owned(), (*value).to_owned()))
        .collect()
}

/// Reads a watch until it has delivered everything up to a revision.
async fn read_until(
    watch: &mut BoxStream<'static, Result<Batch, Error>>,
    revision: Revision,
) -> Vec<Event> {
    let mut events = Vec::new();
    let mut reached = 0;
    while reached < revision {
        let batch = watch
            .next()
            .await
            .expect("the watch goes on")
            .expect("the watch works");
        assert!(batch.revision >= reached, "progress never goes back");
        for event in &batch.events {
            assert!(event.revision > reached, "an event came after its progress");
            assert!(
                event.revision <= batch.revision,
                "an event is ahead of its batch"
            );
        }
        assert!(
            batch.events.is_sorted_by_key(|event| event.revision),
            "events are in order"
        );
        reached = batch.revision;
        events.extend(batch.events);
    }
    events
}
