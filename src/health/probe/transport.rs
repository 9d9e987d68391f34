//! Connections: to the proxy, and TLS on top.

use std::pin::Pin;
use std::task::{Context, Poll};
use std::{io, iter};

use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::exchange::Wanted;
use crate::health::failure::Failure;

/// A connection whose layers do not matter any more.
pub(super) type Io = Box<dyn Stream>;

/// What a connection can do.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Bytes of a connection that are read, whatever they are: the head of an answer, its body, TLS, or
/// a flood that never becomes an answer.
const MAX_BYTES: usize = 1024 * 1024;

/// A connection of which no more than [`MAX_BYTES`] are read.
pub(super) struct Bounded {
    stream: TcpStream,
    left: usize,
}

/// Somebody sends without end.
#[derive(Clone, Copy, Debug, thiserror::Error)]
#[error("more than 1 MiB came")]
struct TooMuch;

// === impl Bounded ===

impl AsyncRead for Bounded {
    fn poll_read(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        into: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.left == 0 {
            return Poll::Ready(Err(io::Error::other(TooMuch)));
        }
        let before = into.filled().len();
        let done = Pin::new(&mut self.stream).poll_read(context, into);
        let read = into.filled().len() - before;
        self.left = self.left.saturating_sub(read);
        done
    }
}

impl AsyncWrite for Bounded {
    fn poll_write(
        mut self: Pin<&mut Self>,
        context: &mut Context<'_>,
        bytes: &[u8],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(context, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(context)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, context: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(context)
    }
}

/// The failure behind an error, when it is that too much came.
pub(super) fn too_much(error: &(dyn std::error::Error + 'static)) -> Option<Failure> {
    let came = iter::successors(Some(error), |error| error.source()).any(|error| {
        let error = error.downcast_ref::<io::Error>();
        let inner = error.and_then(io::Error::get_ref);
        inner.is_some_and(|inner| inner.downcast_ref::<TooMuch>().is_some())
    });
    came.then(|| Failure::UnexpectedContent("more than 1 MiB was sent".into()))
}

/// Connects to the proxy, or to the target itself. The host is a name or an address.
pub(super) async fn connect(host: &str, port: u16) -> Result<Bounded, Failure> {
    let stream = TcpStream::connect((host, port)).await.map_err(|error| {
        if error.kind() == io::ErrorKind::ConnectionRefused {
            Failure::ConnectionRefused
        } else if error.kind() == io::ErrorKind::TimedOut {
            Failure::ConnectTimeout
        } else {
            Failure::Connect(error.to_string())
        }
    })?;
    match stream.set_nodelay(true) {
        Ok(()) => Ok(Bounded {
            stream,
            left: MAX_BYTES,
        }),
        Err(error) => Err(Failure::Connect(error.to_string())),
    }
}

/// TLS to the proxy itself, for endpoints with the scheme https.
pub(super) async fn tls_to_proxy(
    tls: &TlsConnector,
    stream: Bounded,
    host: &str,
) -> Result<Io, Failure> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|error| Failure::ProxyTls(error.to_string()))?;
    match tls.connect(name, stream).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => Err(proxy_tls_failure(&error, host)),
    }
}

fn proxy_tls_failure(error: &io::Error, host: &str) -> Failure {
    match rustls_error(error) {
        Some(rustls::Error::InvalidCertificate(why)) => Failure::ProxyTls(format!(
            "its certificate is not accepted: {why}; it has to name {host} and to come from an \
             authority of the system's, or of --proxy-ca-file"
        )),
        Some(rustls::Error::InvalidMessage(_)) => Failure::ProxyTls(
            "what answers does not speak TLS: is https the scheme of this endpoint".into(),
        ),
        Some(other) => Failure::ProxyTls(other.to_string()),
        None => too_much(error).unwrap_or(Failure::ConnectAborted("TLS with it was set up")),
    }
}

/// TLS to the target, through whatever leads there.
pub(super) async fn tls_to_target(
    tls: &TlsConnector,
    through: Io,
    wanted: &Wanted,
) -> Result<Io, Failure> {
    match tls.connect(wanted.server_name()?, through).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => Err(tls_failure(&error)),
    }
}

fn tls_failure(error: &io::Error) -> Failure {
    match rustls_error(error) {
        Some(rustls::Error::InvalidCertificate(why)) => Failure::TlsIntercepted(why.to_string()),
        // What came back is no TLS at all: a page, for example.
        Some(rustls::Error::InvalidMessage(_)) => {
            Failure::UnexpectedContent("what answers through the tunnel does not speak TLS".into())
        },
        Some(other) => Failure::Tls(other.to_string()),
        None => {
            too_much(error).unwrap_or(Failure::ConnectAborted("TLS with the target was set up"))
        },
    }
}

fn rustls_error(error: &io::Error) -> Option<&rustls::Error> {
    error.get_ref()?.downcast_ref()
}
