//! Counts the requests of one connection, so that an idle connection can be told from one that
//! streams a watch, and turns `Connection: close` into a GOAWAY on HTTP/2.

use std::{
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, AtomicUsize, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use bytes::Bytes;
use http::{HeaderMap, header};
use http_body::{Body, Frame, SizeHint};
use tokio::{sync::Notify, time::Instant};

/// What one connection is doing.
#[derive(Debug)]
pub(super) struct Activity {
    since: Instant,
    in_flight: AtomicUsize,
    /// When the last request ended, milliseconds after `since`.
    idle_from: AtomicU64,
    /// The connection should end after the requests it has.
    pub(super) close: Notify,
}

impl Activity {
    pub(super) fn new() -> Arc<Self> {
        Arc::new(Self {
            since: Instant::now(),
            in_flight: AtomicUsize::new(0),
            idle_from: AtomicU64::new(0),
            close: Notify::new(),
        })
    }

    pub(super) fn begin(self: &Arc<Self>) -> InFlight {
        self.in_flight.fetch_add(1, Ordering::AcqRel);
        InFlight(Arc::clone(self))
    }

    /// Completes when nothing has been asked for as long as `limit`.
    pub(super) async fn idle_for(&self, limit: Duration) {
        loop {
            let idle_from = if self.in_flight.load(Ordering::Acquire) > 0 {
                Instant::now()
            } else {
                self.since + Duration::from_millis(self.idle_from.load(Ordering::Acquire))
            };
            let until = idle_from + limit;
            if Instant::now() >= until {
                return;
            }
            tokio::time::sleep_until(until).await;
        }
    }
}

/// One request that has not ended.
pub(super) struct InFlight(Arc<Activity>);

impl InFlight {
    /// Takes `Connection: close` out of an HTTP/2 answer, where it may not stand, and ends the
    /// connection instead.
    pub(super) fn close_if_asked(&self, headers: &mut HeaderMap) {
        if let Some(value) = headers.remove(header::CONNECTION)
            && value.as_bytes().eq_ignore_ascii_case(b"close")
        {
            self.0.close.notify_one();
        }
    }
}

impl Drop for InFlight {
    fn drop(&mut self) {
        let millis = u64::try_from(self.0.since.elapsed().as_millis()).unwrap_or(u64::MAX);
        self.0.idle_from.store(millis, Ordering::Release);
        self.0.in_flight.fetch_sub(1, Ordering::AcqRel);
    }
}

/// A response body that keeps its request in flight until it has been sent.
pub(super) struct TrackedBody<B> {
    body: B,
    _in_flight: InFlight,
}

impl<B> TrackedBody<B> {
    pub(super) fn new(body: B, in_flight: InFlight) -> Self {
        Self {
            body,
            _in_flight: in_flight,
        }
    }
}

impl<B: Body<Data = Bytes> + Unpin> Body for TrackedBody<B> {
    type Data = Bytes;
    type Error = B::Error;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, B::Error>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}
