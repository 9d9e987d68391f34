//! Accepts connections until told to stop, then lets those that are open finish.

use std::{convert::Infallible, sync::Arc, time::Duration};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::body::Incoming;
use runtime_kit::chain;
use tokio::{net::TcpListener, time::timeout};
use tokio_util::{sync::CancellationToken, task::TaskTracker};
use tower::Service;

use super::{connection::Listener, limits::Limits, tls::ServingTls};

/// Pause after a failed accept: the process is out of file descriptors, and closing one takes
/// a moment.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// How a server stops.
#[derive(Clone, Debug)]
pub struct Shutdown {
    /// Cancel it to stop. Before that, `readyz` should have been red for long enough that nobody
    /// sends new requests here.
    pub stop: CancellationToken,
    /// How long requests may take to finish afterwards; connections still open then are cut.
    pub drain: Duration,
}

/// How stopping went.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DrainReport {
    /// Connections that did not finish in time.
    pub cut: usize,
}

/// Serves `service` on `listener` until `shutdown.stop`, then drains.
///
/// Each request carries in its extensions the [`PeerAddress`](super::PeerAddress), a
/// [`Draining`](super::Draining) token, and
/// [`PeerCertificates`](crate::auth::PeerCertificates) when the client presented any. An answer
/// with `Connection: close` ends its connection, on HTTP/2 too.
pub async fn serve<S, B>(
    listener: TcpListener,
    tls: Arc<ServingTls>,
    service: S,
    limits: Limits,
    shutdown: Shutdown,
) -> DrainReport
where
    S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
    S: Clone + Send + 'static,
    S::Future: Send,
    B: Body<Data = Bytes> + Send + Unpin + 'static,
    B::Error: Into<Box<dyn std::error::Error + Send + Sync>>,
{
    let shared = Arc::new(Listener {
        tls,
        limits,
        draining: shutdown.stop.clone(),
        cut: CancellationToken::new(),
    });
    let connections = TaskTracker::new();
    loop {
        let accepted = tokio::select! {
            () = shutdown.stop.cancelled() => break,
            accepted = listener.accept() => accepted,
        };
        match accepted {
            Ok((stream, address)) => {
                let connection = Arc::clone(&shared).serve(stream, address, service.clone());
                connections.spawn(connection);
            },
            Err(err) => {
                tracing::warn!(error = %chain(&err), "cannot accept a connection");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            },
        }
    }
    // Closing the socket makes clients that still come go to another replica.
    drop(listener);
    connections.close();
    let in_time = timeout(shutdown.drain, connections.wait()).await.is_ok();
    let cut = if in_time { 0 } else { connections.len() };
    shared.cut.cancel();
    connections.wait().await;
    DrainReport { cut }
}

#[cfg(test)]
mod tests;
