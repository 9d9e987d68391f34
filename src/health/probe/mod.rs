//! One probe: a fresh connection through the proxy, one request, and a judgement of its answer.
//!
//! Called by [`super::watch`], never twice at once for one proxy. Nothing of a probe is kept: no
//! connection, no TLS session.

mod exchange;
mod judge;
mod socks5;
mod transport;

use std::net::IpAddr;
use std::sync::Arc;

use crawl_api::proxy::HealthCheck;
use crawl_api::scheme::Scheme;
use data_encoding::HEXLOWER;
use runtime_kit::Clock;
use rustls::ClientConfig;
use tokio_rustls::TlsConnector;
use url::Url;

use super::config::Echo;
use super::failure::Failure;
use super::target::{Credentials, Target};

/// Carries out probes. Clones share their settings.
#[derive(Clone)]
pub(crate) struct Prober {
    tls: TlsConnector,
    echo: Option<Arc<Echo>>,
    clock: Arc<dyn Clock>,
}

/// What a successful probe learnt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Learnt {
    /// The address the request came out at, when the target told.
    pub(crate) exit_ip: Option<IpAddr>,
    /// What a person should know although it succeeded.
    pub(crate) remark: String,
}

/// How a URL is asked.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Question {
    /// As it is; the status code decides.
    Plain,
    /// With this nonce, which the answer must carry, signed.
    Echo { nonce: String },
}

impl Prober {
    pub(super) fn new(mut tls: ClientConfig, echo: Option<Echo>, clock: Arc<dyn Clock>) -> Self {
        // Why: a resumed session would prove less than a whole handshake does.
        tls.resumption = rustls::client::Resumption::disabled();
        Self {
            tls: TlsConnector::from(Arc::new(tls)),
            echo: echo.map(Arc::new),
            clock,
        }
    }

    /// The URLs a proxy is probed with, in turn: its own, or the echo target, or the default. The
    /// echo target joins its own when only it can tell what `expect.exitIP` asks for.
    pub(super) fn urls(&self, check: &HealthCheck) -> Result<Vec<Url>, Failure> {
        let echo = self.echo.as_ref().map(|echo| echo.url.clone());
        let expects_exit = check.expect.as_ref().is_some_and(|e| e.exit_ip.is_some());
        if !check.has_own_targets()
            && let Some(echo) = echo
        {
            return Ok(vec![echo]);
        }
        let mut urls = Vec::new();
        for text in check.targets() {
            let url = Url::parse(text)
                .map_err(|error| Failure::InvalidCheck(format!("{text:?} is no URL: {error}")))?;
            urls.push(url);
        }
        if let Some(echo) = echo
            && expects_exit
            && !urls.contains(&echo)
        {
            urls.push(echo);
        }
        Ok(urls)
    }

    /// Probes once, within the timeout of the health check.
    pub(super) async fn probe(&self, target: &Target, url: &Url) -> Result<Learnt, Failure> {
        let Target {
            endpoint,
            credentials,
            check,
            ..
        } = target;
        let question = self.question(url);
        let mut time_is_up = self.clock.sleep(check.timeout());
        let stream = tokio::select! {
            connected = transport::connect(endpoint) => connected?,
            () = &mut time_is_up => return Err(Failure::ConnectTimeout),
        };
        let asking = Box::pin(self.ask(
            stream,
            endpoint.scheme,
            credentials.as_ref(),
            target,
            url,
            &question,
        ));
        let answer = tokio::select! {
            answered = asking => answered?,
            () = &mut time_is_up => return Err(Failure::TimedOut),
        };
        judge::judge(&question, self.echo.as_deref(), check, url, &answer)
    }

    fn question(&self, url: &Url) -> Question {
        match &self.echo {
            Some(echo) if echo.url == *url => Question::Echo {
                nonce: HEXLOWER.encode(&rand::random::<[u8; 24]>()),
            },
            Some(_) | None => Question::Plain,
        }
    }

    async fn ask(
        &self,
        stream: tokio::net::TcpStream,
        scheme: Scheme,
        credentials: Option<&Credentials>,
        target: &Target,
        url: &Url,
        question: &Question,
    ) -> Result<exchange::Answer, Failure> {
        let mut url = url.clone();
        if let Question::Echo { nonce } = question {
            url.query_pairs_mut().append_pair("nonce", nonce);
        }
        let wanted = exchange::Wanted::new(url)?;
        let proxy: transport::Io = match scheme {
            Scheme::Http | Scheme::Socks5 => Box::new(stream),
            Scheme::Https => {
                transport::tls_to_proxy(&self.tls, stream, &target.endpoint.host).await?
            },
        };
        match (scheme, wanted.is_https()) {
            (Scheme::Socks5, https) => {
                let through = socks5::connect(proxy, &wanted, credentials).await?;
                let through = if https {
                    transport::tls_to_target(&self.tls, through, &wanted).await?
                } else {
                    through
                };
                exchange::get(through, &wanted, exchange::Form::Origin).await
            },
            (Scheme::Http | Scheme::Https, true) => {
                let tunnel = exchange::tunnel(proxy, &wanted, credentials).await?;
                let through = transport::tls_to_target(&self.tls, tunnel, &wanted).await?;
                exchange::get(through, &wanted, exchange::Form::Origin).await
            },
            (Scheme::Http | Scheme::Https, false) => {
                exchange::get(proxy, &wanted, exchange::Form::Absolute(credentials)).await
            },
        }
    }
}
