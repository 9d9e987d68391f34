//! One connection from the handshake to its end.

use std::{
    convert::Infallible,
    io,
    net::SocketAddr,
    pin::{Pin, pin},
    sync::Arc,
    time::Duration,
};

use bytes::Bytes;
use http::{Request, Response};
use http_body::Body;
use hyper::{
    body::Incoming,
    server::conn::{http1, http2},
    service::service_fn,
};
use hyper_util::rt::{TokioExecutor, TokioIo, TokioTimer};
use runtime_kit::chain;
use tokio::{
    net::TcpStream,
    time::{sleep, timeout},
};
use tokio_rustls::{TlsAcceptor, server::TlsStream};
use tokio_util::sync::CancellationToken;
use tower::{Service, ServiceExt};

use super::{
    limits::Limits,
    tls::ServingTls,
    tracked::{Activity, TrackedBody},
};
use crate::auth::PeerCertificates;

/// A connection that was told to end and has no business left gets this long to say goodbye.
const FAREWELL: Duration = Duration::from_secs(5);
/// Headers of one HTTP/1.1 request. A front proxy sends one per group of the user.
const MAX_HEADERS: usize = 2048;

type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// Address of the TCP peer, in the extensions of every request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PeerAddress(pub SocketAddr);

/// Cancelled when the server starts to drain, in the extensions of every request. Watches, which
/// have no end of their own, end themselves when it is.
#[derive(Clone, Debug)]
pub struct Draining(pub CancellationToken);

/// What all connections of a listener share.
pub(super) struct Listener {
    pub(super) tls: Arc<ServingTls>,
    pub(super) limits: Limits,
    pub(super) draining: CancellationToken,
    /// Cancelled when the time for draining is over.
    pub(super) cut: CancellationToken,
}

impl Listener {
    /// Serves one connection to its end. What goes wrong on it is the peer's matter: it is logged
    /// for debugging and ends here.
    pub(super) async fn serve<S, B>(
        self: Arc<Self>,
        stream: TcpStream,
        address: SocketAddr,
        service: S,
    ) where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
        S: Clone + Send + 'static,
        S::Future: Send,
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        let shaken = tokio::select! {
            () = self.draining.cancelled() => return,
            shaken = timeout(self.limits.handshake_timeout, self.shake_hands(stream)) => shaken,
        };
        let ended = match shaken {
            Ok(Ok(stream)) => self.serve_http(stream, address, service).await,
            Ok(Err(err)) => {
                tracing::debug!(error = %chain(&err), %address, "TLS handshake failed");
                return;
            },
            Err(_) => {
                tracing::debug!(%address, "TLS handshake took too long");
                return;
            },
        };
        if let Err(err) = ended {
            tracing::debug!(error = %chain(&err), %address, "connection ended");
        }
    }

    async fn shake_hands(&self, stream: TcpStream) -> io::Result<TlsStream<TcpStream>> {
        stream.set_nodelay(true)?;
        TlsAcceptor::from(self.tls.current()).accept(stream).await
    }

    async fn serve_http<S, B>(
        &self,
        stream: TlsStream<TcpStream>,
        address: SocketAddr,
        service: S,
    ) -> hyper::Result<()>
    where
        S: Service<Request<Incoming>, Response = Response<B>, Error = Infallible>,
        S: Clone + Send + 'static,
        S::Future: Send,
        B: Body<Data = Bytes> + Send + Unpin + 'static,
        B::Error: Into<BoxError>,
    {
        let (_, session) = stream.get_ref();
        // Why: by ALPN and not by the first bytes, for which there would be no timeout.
        let is_h2 = session.alpn_protocol() == Some(b"h2");
        let certificates = session.peer_certificates().and_then(|chain| {
            PeerCertificates::new(chain.iter().map(|cert| cert.clone().into_owned()).collect())
        });
        let activity = Activity::new();
        let service = {
            let (activity, draining) = (Arc::clone(&activity), self.draining.clone());
            service_fn(move |mut request: Request<Incoming>| {
                let in_flight = activity.begin();
                let extensions = request.extensions_mut();
                extensions.insert(PeerAddress(address));
                extensions.insert(Draining(draining.clone()));
                if let Some(certificates) = &certificates {
                    extensions.insert(certificates.clone());
                }
                let answer = service.clone().oneshot(request);
                async move {
                    if is_h2 {
                        // Why: hyper looks for a reset only when a request waits. One that was taken back
                        // would be worked on all the same, and a client could queue up any amount of work.
                        tokio::task::yield_now().await;
                    }
                    let Ok(mut response) = answer.await;
                    if is_h2 {
                        in_flight.close_if_asked(response.headers_mut());
                    }
                    Ok::<_, Infallible>(response.map(|body| TrackedBody::new(body, in_flight)))
                }
            })
        };
        let io = TokioIo::new(stream);
        if is_h2 {
            let connection = self.http2().serve_connection(io, service);
            self.drive(connection, &activity, http2::Connection::graceful_shutdown)
                .await
        } else {
            let connection = self.http1().serve_connection(io, service);
            self.drive(connection, &activity, http1::Connection::graceful_shutdown)
                .await
        }
    }

    fn http2(&self) -> http2::Builder<TokioExecutor> {
        let limits = &self.limits;
        let streams = limits.max_concurrent_streams;
        let mut builder = http2::Builder::new(TokioExecutor::new());
        builder
            .timer(TokioTimer::new())
            .max_concurrent_streams(streams)
            .initial_stream_window_size(limits.stream_window)
            .initial_connection_window_size(limits.connection_window())
            .max_frame_size(limits.stream_window)
            .max_header_list_size(limits.max_header_bytes)
            .keep_alive_interval(limits.ping_interval)
            .keep_alive_timeout(limits.ping_timeout)
            // Why: a kube-apiserver whose clients all go away cancels all of its streams at once;
            // the default of 20 takes that for an attack and ends the connection.
            .max_pending_accept_reset_streams(usize::try_from(streams).unwrap_or(usize::MAX));
        builder
    }

    fn http1(&self) -> http1::Builder {
        let limits = &self.limits;
        let mut builder = http1::Builder::new();
        builder
            .timer(TokioTimer::new())
            .header_read_timeout(limits.header_read_timeout)
            .max_headers(MAX_HEADERS)
            .max_buf_size(usize::try_from(limits.max_header_bytes).unwrap_or(usize::MAX));
        builder
    }

    /// Polls the connection until it ends: by itself, because it is idle or a response asked for
    /// it, or because the server drains, which ends it after the requests it has.
    async fn drive<C>(
        &self,
        connection: C,
        activity: &Activity,
        begin_shutdown: impl FnOnce(Pin<&mut C>),
    ) -> hyper::Result<()>
    where
        C: Future<Output = hyper::Result<()>>,
    {
        let mut connection = pin!(connection);
        tokio::select! {
            ended = connection.as_mut() => return ended,
            () = self.draining.cancelled() => {},
            () = activity.close.notified() => {},
            () = activity.idle_for(self.limits.idle_timeout) => {},
        }
        begin_shutdown(connection.as_mut());
        let farewell = FAREWELL.min(self.limits.idle_timeout);
        let forgotten = async {
            sleep(farewell).await;
            activity.idle_for(farewell).await;
        };
        tokio::select! {
            ended = connection.as_mut() => ended,
            () = self.cut.cancelled() => Ok(()),
            () = forgotten => Ok(()),
        }
    }
}
