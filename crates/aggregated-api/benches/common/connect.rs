//! HTTP/2 over TLS to a server on loopback, as client-go and kube-rs speak it.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use bytes::Bytes;
use devcluster::CertPair;
use http::{Request, StatusCode};
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::{self, SendRequest};
use hyper_util::rt::{TokioExecutor, TokioIo};
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// A request that takes longer has failed.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

/// A server on loopback, and how to speak TLS with it.
#[derive(Clone)]
pub(crate) struct Server {
    /// Its port.
    pub(crate) port: u16,
    /// Certificates.
    pub(crate) tls: Arc<ClientConfig>,
}

impl Server {
    /// A server whose certificate `ca` signed, shown the certificate `client` if given. PEM.
    pub(crate) fn new(port: u16, ca: &str, client: Option<&CertPair>) -> Result<Self> {
        let mut roots = RootCertStore::empty();
        roots.add(CertificateDer::from_pem_slice(ca.as_bytes()).context("cannot read a CA")?)?;
        let builder = ClientConfig::builder().with_root_certificates(roots);
        let mut tls = match client {
            None => builder.with_no_client_auth(),
            Some(pair) => {
                let cert = CertificateDer::from_pem_slice(pair.cert.as_bytes())?;
                let key = PrivateKeyDer::from_pem_slice(pair.key.as_bytes())?;
                builder.with_client_auth_cert(vec![cert], key)?
            },
        };
        tls.alpn_protocols = vec![b"h2".to_vec()];
        Ok(Self {
            port,
            tls: Arc::new(tls),
        })
    }

    /// A connection of its own.
    pub(crate) async fn connect(&self) -> Result<SendRequest<Full<Bytes>>> {
        let address = SocketAddr::from((Ipv4Addr::LOCALHOST, self.port));
        let stream = TcpStream::connect(address)
            .await
            .with_context(|| format!("cannot connect to {address}"))?;
        stream.set_nodelay(true)?;
        let name = ServerName::try_from("localhost")?;
        let stream = TlsConnector::from(Arc::clone(&self.tls))
            .connect(name, stream)
            .await?;
        let (sender, connection) =
            http2::handshake(TokioExecutor::new(), TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection broke");
            }
        });
        Ok(sender)
    }
}

/// Sends a request and reads the answer; a status that is not `good` is an error.
pub(crate) async fn send(
    sender: &mut SendRequest<Full<Bytes>>,
    request: Request<Full<Bytes>>,
    good: &[StatusCode],
) -> Result<Bytes> {
    let answered = async {
        sender.ready().await?;
        let response = sender.send_request(request).await?;
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        if !good.contains(&status) {
            let text = String::from_utf8_lossy(&body);
            bail!(
                "answered {status}: {}",
                text.chars().take(600).collect::<String>()
            );
        }
        Ok(body)
    };
    tokio::time::timeout(REQUEST_TIMEOUT, answered)
        .await
        .context("no answer in time")?
}
