//! What may be answered from a listing, and what may not.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use jiff::Timestamp;
use runtime_kit::{Class, SteppedClock};

use super::*;
use crate::providers::{InstanceState, Tags, Unread};

const AGE: Duration = Duration::from_secs(5);

fn instance(id: &str) -> Instance {
    Instance {
        id: id.into(),
        name: format!("proxy-{id}"),
        tags: Tags::new(),
        created: Timestamp::UNIX_EPOCH,
        state: InstanceState::Running,
        ip: Some("127.1.2.3".into()),
        port: None,
        zone: "a".into(),
    }
}

struct Site {
    snapshot: Snapshot,
    clock: SteppedClock,
    listings: AtomicUsize,
    there: Vec<&'static str>,
}

impl Site {
    fn with(there: &[&'static str]) -> Self {
        Self {
            snapshot: Snapshot::default(),
            clock: SteppedClock::default(),
            listings: AtomicUsize::new(0),
            there: there.to_vec(),
        }
    }

    async fn finds(&self, id: &str) -> bool {
        let list = async {
            self.listings.fetch_add(1, Ordering::Relaxed);
            Ok(Listing {
                instances: self.there.iter().map(|id| instance(id)).collect(),
                unread: vec![Unread {
                    zone: "b".into(),
                    error: Error::new(Class::Transient, "b does not answer"),
                }],
            })
        };
        let found = self.snapshot.find(id, AGE, &self.clock, list).await;
        found.is_some_and(|found| found.id == id)
    }

    fn listings(&self) -> usize {
        self.listings.load(Ordering::Relaxed)
    }
}

#[tokio::test]
async fn one_instance_alone_is_asked_for_and_never_listed() {
    let site = Site::with(&["1"]);
    for _ in 0..10 {
        assert!(!site.finds("1").await);
        site.clock.advance(Duration::from_secs(1));
    }
    assert_eq!(site.listings(), 0);
}

#[tokio::test]
async fn many_share_one_listing_for_as_long_as_an_answer_may_be_old() {
    let site = Site::with(&["1", "2", "3"]);
    assert!(!site.finds("1").await);
    for id in ["2", "3", "1"] {
        assert!(site.finds(id).await, "{id}");
    }
    site.clock.advance(AGE);
    assert!(site.finds("2").await);
    assert_eq!(site.listings(), 1);
    site.clock.advance(Duration::from_millis(1));
    assert!(!site.finds("2").await, "too old, and nobody else looks");
    assert!(site.finds("3").await);
    assert_eq!(site.listings(), 2);
}

#[tokio::test]
async fn what_a_listing_does_not_show_has_to_be_asked_for() {
    let site = Site::with(&["1"]);
    assert!(!site.finds("1").await);
    assert!(!site.finds("in a zone that was not read").await);
    assert!(!site.finds("gone").await);
    assert_eq!(site.listings(), 1);
}

#[tokio::test]
async fn what_was_created_or_deleted_since_has_to_be_asked_for() {
    let site = Site::with(&["1", "2"]);
    assert!(!site.finds("1").await);
    assert!(site.finds("2").await);
    site.snapshot.touch("2", &site.clock);
    assert!(!site.finds("2").await);
    assert!(site.finds("1").await);
    // The next listing was begun later, and speaks of it.
    site.clock.advance(AGE + Duration::from_secs(1));
    assert!(!site.finds("1").await);
    assert!(site.finds("2").await);
    assert_eq!(site.listings(), 2);
}

#[tokio::test]
async fn a_listing_that_fails_is_not_tried_again_at_once() {
    let snapshot = Snapshot::default();
    let clock = SteppedClock::default();
    let tries = Arc::new(AtomicUsize::new(0));
    for id in ["1", "2", "3", "4"] {
        let list = async {
            tries.fetch_add(1, Ordering::Relaxed);
            Err(Error::new(Class::Transient, "no answer"))
        };
        assert_eq!(snapshot.find(id, AGE, &clock, list).await, None);
    }
    assert_eq!(tries.load(Ordering::Relaxed), 1);
}

#[tokio::test]
async fn a_listing_that_took_longer_than_it_may_be_old_answers_nobody() {
    let snapshot = Snapshot::default();
    let clock = SteppedClock::default();
    let slow = || async {
        clock.advance(AGE * 2);
        Ok(Listing {
            instances: vec![instance("1"), instance("2")],
            unread: Vec::new(),
        })
    };
    assert_eq!(snapshot.find("1", AGE, &clock, slow()).await, None);
    assert_eq!(snapshot.find("2", AGE, &clock, slow()).await, None);
}
