//! How many requests may be under way, after `k8s.io/apiserver/pkg/server/filters/maxinflight.go`.

use axum::body::Body;
use http::header::{CONTENT_TYPE, HeaderValue, RETRY_AFTER, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};
use tokio::sync::{Semaphore, SemaphorePermit};

use crate::auth::User;

/// Group of those who are never turned away.
const MASTERS: &str = "system:masters";

/// Most requests under way that only read, watches apart: kube-apiserver's default for
/// `--max-requests-inflight`.
const READING: usize = 400;
/// Most requests under way that may change something: its default for
/// `--max-mutating-requests-inflight`.
const MUTATING: usize = 200;

pub(super) struct InFlight {
    reading: Semaphore,
    mutating: Semaphore,
}

impl InFlight {
    pub(super) const fn new() -> Self {
        Self {
            reading: Semaphore::const_new(READING),
            mutating: Semaphore::const_new(MUTATING),
        }
    }

    /// A place for a request with this verb, empty for what is no resource, to be held until it is
    /// answered. Watches and masters need none.
    ///
    /// # Errors
    /// The answer, when there is no place left.
    pub(super) fn enter(
        &self,
        verb: &str,
        user: &User,
    ) -> Result<Option<SemaphorePermit<'_>>, Box<Response<Body>>> {
        let places = match verb {
            "watch" => return Ok(None),
            "" | "get" | "list" => &self.reading,
            _ => &self.mutating,
        };
        match places.try_acquire() {
            Ok(place) => Ok(Some(place)),
            Err(_) if user.groups.iter().any(|group| group == MASTERS) => Ok(None),
            Err(_) => Err(Box::new(too_many())),
        }
    }
}

fn too_many() -> Response<Body> {
    let mut response = Response::new(Body::from("Too many requests, please try again later.\n"));
    *response.status_mut() = StatusCode::TOO_MANY_REQUESTS;
    let headers = response.headers_mut();
    headers.insert(RETRY_AFTER, HeaderValue::from_static("1"));
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}
