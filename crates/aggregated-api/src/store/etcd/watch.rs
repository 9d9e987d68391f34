//! Watches: one stream to etcd each, opened again where it was cut.
//!
//! etcd tells of changes under the watched prefix only. That a watch has all changes up to some
//! other revision it says when asked; it is asked as soon as a reader waits for that, and within a
//! tenth of a second otherwise.

use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use tokio::time::Instant;

use super::Shared;
use super::client::{WatchLink, unavailable};
use super::keys::{signed, unsigned};
use super::wire::{
    self, EventType, WatchCommand, WatchCreateRequest, WatchProgressRequest, WatchRequest,
    WatchResponse,
};
use crate::store::{Batch, Error, Event, Revision};

/// Between two questions for progress while a reader waits: etcd does not answer one while it still
/// collects what the watch has missed.
const URGENT: Duration = Duration::from_millis(10);
/// Before the first question when nobody waits.
const IDLE: Duration = Duration::from_millis(100);
/// First and longest pause before a cut watch is opened again.
const PAUSES: (Duration, Duration) = (Duration::from_millis(50), Duration::from_secs(2));

/// One watch, between two batches.
struct Watcher {
    shared: Arc<Shared>,
    prefix: String,
    /// Everything up to here has been delivered.
    after: Revision,
    seen: tokio::sync::watch::Receiver<Revision>,
    wanted: tokio::sync::watch::Receiver<Revision>,
    link: Option<Link>,
    /// A first batch has been delivered.
    greeted: bool,
    ended: bool,
    /// Before the next attempt to connect.
    pause: Duration,
}

struct Link {
    stream: WatchLink,
    /// etcd's revision when it was opened.
    opened_at: Revision,
    /// Events of an answer whose rest has not come yet.
    pending: Vec<wire::Event>,
    /// Last time it was asked for progress, or opened, or had something.
    asked: Instant,
}

/// See [`Store::watch`](crate::store::Store::watch). The first batch comes at once, empty when the
/// watcher has missed nothing.
pub(super) fn stream(
    shared: Arc<Shared>,
    prefix: &str,
    after: Revision,
) -> impl Stream<Item = Result<Batch, Error>> + Send + 'static {
    let watcher = Watcher {
        seen: shared.timeline.subscribe(),
        wanted: shared.wanted.subscribe(),
        shared,
        prefix: prefix.to_owned(),
        after,
        link: None,
        greeted: false,
        ended: false,
        pause: PAUSES.0,
    };
    futures::stream::unfold(watcher, |mut watcher| async move {
        if watcher.ended {
            return None;
        }
        let shared = Arc::clone(&watcher.shared);
        let next = tokio::select! {
            next = watcher.next() => next,
            () = shared.timeline.ended() => {
                shared.timeline.check().and(Err(unavailable("the store has ended")))
            },
        };
        watcher.ended = next.is_err();
        Some((next, watcher))
    })
}

/// What a watch waits for.
enum Woken {
    Answer(Option<Result<WatchResponse, tonic::Status>>),
    AskForProgress,
    LookAgain,
}

impl Watcher {
    async fn next(&mut self) -> Result<Batch, Error> {
        loop {
            let Some(link) = &mut self.link else {
                match self.open().await {
                    Ok(()) => {},
                    Err(Error::Unavailable { message, source }) => {
                        let error = Error::Unavailable { message, source };
                        let why = runtime_kit::chain(&error).to_string();
                        self.rest(&why).await;
                    },
                    Err(error) => return Err(error),
                }
                continue;
            };
            if !self.greeted && link.opened_at <= self.after {
                return Ok(self.batch(self.after, Vec::new()));
            }
            let seen = *self.seen.borrow_and_update();
            let wanted = *self.wanted.borrow_and_update();
            let interval = if self.after < wanted.max(link.opened_at) {
                Some(URGENT)
            } else if self.after < seen {
                Some(IDLE)
            } else {
                None
            };
            let due = interval.map(|interval| link.asked + interval);
            let woken = tokio::select! {
                answer = next_answer(&mut link.stream) => Woken::Answer(answer),
                () = sleep_until(due) => Woken::AskForProgress,
                Ok(()) = self.wanted.changed() => Woken::LookAgain,
                Ok(()) = self.seen.changed(), if due.is_none() => Woken::LookAgain,
            };
            match woken {
                Woken::LookAgain => {},
                Woken::AskForProgress => {
                    link.asked = Instant::now();
                    let command = WatchCommand::Progress(WatchProgressRequest {});
                    let request = WatchRequest {
                        command: Some(command),
                    };
                    if link.stream.commands.try_send(request).is_err() {
                        tracing::debug!("etcd does not take what a watch asks for");
                    }
                },
                Woken::Answer(Some(Ok(answer))) => {
                    if let Some(batch) = self.take(answer).await? {
                        return Ok(batch);
                    }
                },
                Woken::Answer(Some(Err(status))) => self.cut(&status.to_string()).await,
                Woken::Answer(None) => self.cut("etcd ended the stream").await,
            }
        }
    }

    fn batch(&mut self, revision: Revision, events: Vec<Event>) -> Batch {
        self.greeted = true;
        self.after = revision;
        Batch { revision, events }
    }

    async fn cut(&mut self, why: &str) {
        self.link = None;
        self.shared.client.watch_cut();
        self.rest(why).await;
    }

    /// Waits a little before the next attempt, longer each time.
    async fn rest(&mut self, why: &str) {
        tracing::warn!(
            prefix = self.prefix,
            why,
            "a watch of etcd was cut, opening it again"
        );
        let jitter = self.pause.mul_f64(rand::random_range(0.5..1.0));
        tokio::time::sleep(jitter).await;
        self.pause = (self.pause * 2).min(PAUSES.1);
    }

    async fn open(&mut self) -> Result<(), Error> {
        let (oldest, current) = self.shared.agreed_oldest().await?;
        if self.after < oldest {
            return Err(Error::Compacted {
                asked: self.after,
                oldest,
            });
        }
        if self.after > current {
            return Err(Error::Future {
                asked: self.after,
                current,
            });
        }
        let (key, range_end) = self.shared.keys.range(&self.prefix);
        let create = WatchCreateRequest {
            key,
            range_end,
            start_revision: signed(self.after + 1),
            prev_kv: true,
            fragment: true,
        };
        let request = WatchRequest {
            command: Some(WatchCommand::Create(create)),
        };
        let mut stream = self.shared.client.watch(request).await?;
        let created = tokio::time::timeout(self.shared.client.timeout(), next_answer(&mut stream));
        match created.await {
            Ok(Some(Ok(answer))) if answer.created && !answer.canceled => {},
            Ok(Some(Ok(answer))) => {
                self.refused(&answer)?;
                return Err(unavailable(format!(
                    "etcd refused a watch: {}",
                    answer.cancel_reason
                )));
            },
            Ok(Some(Err(status))) => {
                self.shared.client.watch_cut();
                return Err(Error::Unavailable {
                    message: "etcd refused a watch".to_owned(),
                    source: Some(status.into()),
                });
            },
            Ok(None) | Err(_) => {
                self.shared.client.watch_cut();
                return Err(unavailable("etcd does not answer to a watch"));
            },
        }
        self.link = Some(Link {
            stream,
            opened_at: current,
            pending: Vec::new(),
            asked: Instant::now(),
        });
        Ok(())
    }

    /// The error of an answer that says that the history is gone.
    fn refused(&self, answer: &WatchResponse) -> Result<(), Error> {
        if answer.compact_revision > 0 {
            return Err(Error::Compacted {
                asked: self.after,
                oldest: unsigned(answer.compact_revision),
            });
        }
        Ok(())
    }

    /// What an answer delivers, if anything.
    async fn take(&mut self, answer: WatchResponse) -> Result<Option<Batch>, Error> {
        if answer.canceled {
            self.refused(&answer)?;
            self.cut(&answer.cancel_reason).await;
            return Ok(None);
        }
        let Some(link) = &mut self.link else {
            return Ok(None);
        };
        self.pause = PAUSES.0;
        let revision = unsigned(answer.header.unwrap_or_default().revision);
        let progress = answer.events.is_empty() && link.pending.is_empty() && !answer.fragment;
        link.pending.extend(answer.events);
        if answer.fragment {
            return Ok(None);
        }
        if progress {
            // A member that lags behind what is known tells nothing new.
            if revision <= self.after {
                return Ok(None);
            }
            self.shared.timeline.saw(revision);
            return Ok(Some(self.batch(revision, Vec::new())));
        }
        link.asked = Instant::now();
        let pending = std::mem::take(&mut link.pending);
        let mut events = Vec::with_capacity(pending.len());
        for event in pending {
            let event = self.event(event)?;
            if event.revision > self.after {
                events.push(event);
            }
        }
        let Some(last) = events.last().map(|event| event.revision) else {
            return Ok(None);
        };
        self.shared.timeline.saw(last);
        Ok(Some(self.batch(last, events)))
    }

    fn event(&self, event: wire::Event) -> Result<Event, Error> {
        let put = event.kind() == EventType::Put;
        let (Some(kv), previous) = (event.kv, event.prev_kv) else {
            return Err(Error::Corrupt(
                "etcd sent an event without a key".to_owned(),
            ));
        };
        let revision = unsigned(kv.mod_revision);
        let begins = put && kv.version == 1;
        if previous.is_none() && !begins {
            // The compaction has overtaken this watch: the change is there, what it changed is not.
            return Err(Error::Compacted {
                asked: self.after,
                oldest: revision,
            });
        }
        let keys = &self.shared.keys;
        Ok(Event {
            revision,
            key: keys.key(&kv.key)?,
            current: put.then(|| keys.record(kv)).transpose()?,
            previous: previous.map(|kv| keys.record(kv)).transpose()?,
        })
    }
}

async fn next_answer(stream: &mut WatchLink) -> Option<Result<WatchResponse, tonic::Status>> {
    stream.answers.message().await.transpose()
}

async fn sleep_until(due: Option<Instant>) {
    match due {
        Some(due) => tokio::time::sleep_until(due).await,
        None => std::future::pending().await,
    }
}
