//! HTTP/1.1 over TLS, one request at a time per connection, with nothing added, retried or decoded.

use std::sync::Arc;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use devcluster::CertPair;
use http::{HeaderMap, Request, Response};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http1::{SendRequest, handshake};
use hyper_util::rt::TokioIo;
use parking_lot::Mutex;
use rustls::pki_types::pem::PemObject as _;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;

/// How long an answer may take that is not a stream.
const DEADLINE: Duration = Duration::from_secs(30);

/// A whole answer.
pub(crate) struct Reply {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    pub(crate) body: Bytes,
}

/// Connections of one identity to one server.
pub(crate) struct Connections {
    port: u16,
    name: ServerName<'static>,
    tls: Arc<ClientConfig>,
    idle: Mutex<Vec<SendRequest<Full<Bytes>>>>,
}

impl Connections {
    /// To `localhost:<port>`, whose certificate is for `name` and signed by `authority` (PEM).
    pub(crate) fn new(
        port: u16,
        name: &str,
        authority: &str,
        identity: Option<&CertPair>,
    ) -> anyhow::Result<Self> {
        let mut roots = RootCertStore::empty();
        for certificate in CertificateDer::pem_slice_iter(authority.as_bytes()) {
            roots.add(certificate?)?;
        }
        let builder = ClientConfig::builder().with_root_certificates(roots);
        let tls = match identity {
            None => builder.with_no_client_auth(),
            Some(pair) => builder.with_client_auth_cert(
                CertificateDer::pem_slice_iter(pair.cert.as_bytes()).collect::<Result<_, _>>()?,
                PrivateKeyDer::from_pem_slice(pair.key.as_bytes())?,
            )?,
        };
        Ok(Self {
            port,
            name: ServerName::try_from(name.to_owned())?,
            tls: Arc::new(tls),
            idle: Mutex::default(),
        })
    }

    async fn connect(&self) -> anyhow::Result<SendRequest<Full<Bytes>>> {
        let stream = TcpStream::connect(("127.0.0.1", self.port)).await?;
        let connector = TlsConnector::from(Arc::clone(&self.tls));
        let stream = connector.connect(self.name.clone(), stream).await?;
        let (sender, connection) = handshake(TokioIo::new(stream)).await?;
        tokio::spawn(async move {
            if let Err(error) = connection.await {
                tracing::debug!(%error, "a connection ended");
            }
        });
        Ok(sender)
    }

    async fn exchange(
        &self,
        request: &Request<Bytes>,
    ) -> anyhow::Result<(SendRequest<Full<Bytes>>, Response<Incoming>)> {
        let again = || request.clone().map(Full::new);
        let pooled = self.idle.lock().pop();
        if let Some(mut sender) = pooled
            && sender.ready().await.is_ok()
        {
            // Why: the server may have closed it meanwhile; nothing was answered then.
            if let Ok(response) = sender.send_request(again()).await {
                return Ok((sender, response));
            }
        }
        let mut sender = self.connect().await.context("cannot connect")?;
        let response = sender.send_request(again()).await?;
        Ok((sender, response))
    }

    /// Sends, and reads the whole answer.
    pub(crate) async fn send(&self, request: &Request<Bytes>) -> anyhow::Result<Reply> {
        let whole = async {
            let (sender, response) = self.exchange(request).await?;
            let (parts, body) = response.into_parts();
            let body = body.collect().await.context("the body broke off")?;
            self.idle.lock().push(sender);
            Ok(Reply {
                status: parts.status.as_u16(),
                headers: parts.headers,
                body: body.to_bytes(),
            })
        };
        tokio::time::timeout(DEADLINE, whole)
            .await
            .map_err(|_| anyhow!("no answer in {DEADLINE:?}"))?
    }

    /// Sends, and returns with the head of the answer.
    pub(crate) async fn open(&self, request: &Request<Bytes>) -> anyhow::Result<Stream> {
        let (sender, response) = tokio::time::timeout(DEADLINE, self.exchange(request))
            .await
            .map_err(|_| anyhow!("no head of an answer in {DEADLINE:?}"))??;
        let (parts, body) = response.into_parts();
        Ok(Stream {
            status: parts.status.as_u16(),
            headers: parts.headers,
            body,
            buffer: Vec::new(),
            _sender: sender,
        })
    }
}

/// An answer that is still being sent.
pub(crate) struct Stream {
    pub(crate) status: u16,
    pub(crate) headers: HeaderMap,
    body: Incoming,
    buffer: Vec<u8>,
    _sender: SendRequest<Full<Bytes>>,
}

impl Stream {
    /// The next line; `None` at the end.
    pub(crate) async fn line(&mut self) -> anyhow::Result<Option<Vec<u8>>> {
        loop {
            if let Some(end) = self.buffer.iter().position(|byte| *byte == b'\n') {
                return Ok(Some(self.buffer.drain(..=end).collect()));
            }
            match self.body.frame().await {
                Some(frame) => {
                    if let Ok(data) = frame.context("the stream broke off")?.into_data() {
                        self.buffer.extend_from_slice(&data);
                    }
                },
                None if self.buffer.is_empty() => return Ok(None),
                None => return Ok(Some(std::mem::take(&mut self.buffer))),
            }
        }
    }

    /// Everything up to the end.
    pub(crate) async fn rest(mut self) -> anyhow::Result<Reply> {
        let mut body = Vec::new();
        while let Some(line) = self.line().await? {
            body.extend_from_slice(&line);
        }
        Ok(Reply {
            status: self.status,
            headers: self.headers,
            body: body.into(),
        })
    }
}
