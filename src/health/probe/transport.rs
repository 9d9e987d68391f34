//! Connections: to the proxy, and TLS on top.

use std::io;

use rustls_pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

use super::exchange::Wanted;
use crate::health::failure::Failure;

/// A connection whose layers do not matter any more.
pub(super) type Io = Box<dyn Stream>;

/// What a connection can do.
pub(super) trait Stream: AsyncRead + AsyncWrite + Send + Unpin {}
impl<T: AsyncRead + AsyncWrite + Send + Unpin> Stream for T {}

/// Connects to the proxy, or to the target itself. The host is a name or an address.
pub(super) async fn connect(host: &str, port: u16) -> Result<TcpStream, Failure> {
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
        Ok(()) => Ok(stream),
        Err(error) => Err(Failure::Connect(error.to_string())),
    }
}

/// TLS to the proxy itself, for endpoints with the scheme https.
pub(super) async fn tls_to_proxy(
    tls: &TlsConnector,
    stream: TcpStream,
    host: &str,
) -> Result<Io, Failure> {
    let name = ServerName::try_from(host.to_owned())
        .map_err(|error| Failure::ProxyTls(error.to_string()))?;
    match tls.connect(name, stream).await {
        Ok(stream) => Ok(Box::new(stream)),
        Err(error) => Err(Failure::ProxyTls(error.to_string())),
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
    let cause = error
        .get_ref()
        .and_then(|inner| inner.downcast_ref::<rustls::Error>());
    match cause {
        Some(rustls::Error::InvalidCertificate(why)) => Failure::TlsIntercepted(why.to_string()),
        // What came back is no TLS at all: a page, for example.
        Some(rustls::Error::InvalidMessage(_)) => {
            Failure::UnexpectedContent("what answers through the tunnel does not speak TLS".into())
        },
        Some(other) => Failure::Tls(other.to_string()),
        None => Failure::ConnectAborted("TLS with the target was set up"),
    }
}
