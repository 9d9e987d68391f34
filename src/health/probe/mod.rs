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
use std::time::Duration;

use crawl_api::proxy::{Expectations, HealthCheck};
use crawl_api::scheme::Scheme;
use data_encoding::HEXLOWER;
use runtime_kit::Clock;
use rustls::ClientConfig;
use tokio_rustls::TlsConnector;
use url::{Host, Url};

use super::config::{Echo, Tls};
use super::failure::Failure;
use super::geo::{GeoIp, Location};
use super::target::{Credentials, Target};

/// Carries out probes. Clones share their settings.
#[derive(Clone)]
pub(crate) struct Prober {
    /// To targets, through whatever leads there.
    tls: TlsConnector,
    /// To proxies themselves.
    proxy_tls: TlsConnector,
    known: Arc<Known>,
    clock: Arc<dyn Clock>,
}

/// What answers are judged with.
pub(super) struct Known {
    pub(super) echo: Option<Echo>,
    pub(super) geoip: Option<Arc<GeoIp>>,
}

/// What a target answered to us directly.
pub(super) struct Direct {
    question: Question,
    answer: Result<exchange::Answer, Failure>,
}

/// What a successful probe learnt.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Learnt {
    /// The address the request came out at, when the target told.
    pub(crate) exit_ip: Option<IpAddr>,
    /// Where that is, as far as known.
    pub(crate) location: Location,
    /// The reason of the Healthy condition.
    pub(crate) reason: &'static str,
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
    pub(super) fn new(tls: Tls, known: Known, clock: Arc<dyn Clock>) -> Self {
        let Tls { targets, proxies } = tls;
        let connector = |mut config: ClientConfig| {
            // Why: a resumed session would prove less than a whole handshake does.
            config.resumption = rustls::client::Resumption::disabled();
            TlsConnector::from(Arc::new(config))
        };
        Self {
            tls: connector(targets),
            proxy_tls: connector(proxies),
            known: Arc::new(known),
            clock,
        }
    }

    /// The URLs a proxy is probed with, in turn: its own, or the echo targets, or the default. The
    /// echo targets join its own when only they can tell what is expected of the exit.
    pub(super) fn urls(&self, check: &HealthCheck) -> Result<Vec<Url>, Failure> {
        let echo = self.known.echo.as_ref().map(|echo| echo.urls.as_slice());
        let expects = |about: fn(&Expectations) -> bool| check.expect.as_ref().is_some_and(about);
        if !check.has_own_targets()
            && !expects(Expectations::is_about_body)
            && let Some(echo) = echo
        {
            return Ok(echo.to_vec());
        }
        let mut urls = Vec::new();
        for text in check.targets() {
            let url = Url::parse(text)
                .map_err(|error| Failure::InvalidCheck(format!("{text:?} is no URL: {error}")))?;
            urls.push(url);
        }
        if expects(Expectations::is_about_exit) {
            for echo in echo.unwrap_or_default() {
                if !urls.contains(echo) {
                    urls.push(echo.clone());
                }
            }
        }
        Ok(urls)
    }

    /// Whether a URL is an echo target's.
    pub(super) fn is_echo(&self, url: &Url) -> bool {
        let echo = self.known.echo.as_ref();
        echo.is_some_and(|echo| echo.urls.contains(url))
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
            connected = transport::connect(&endpoint.host, endpoint.port) => connected?,
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
        judge::judge(&question, &self.known, check, url, &answer)
    }

    /// Asks a URL without any proxy.
    pub(super) async fn ask_directly(&self, url: &Url, timeout: Duration) -> Direct {
        let question = self.question(url);
        let answer = tokio::select! {
            answered = Box::pin(self.fetch(url, &question)) => answered,
            () = self.clock.sleep(timeout) => Err(Failure::TimedOut),
        };
        Direct { question, answer }
    }

    /// Judges such an answer by what a check asks of the target; what it asks of the exit is not
    /// about us.
    pub(super) fn judge_direct(
        &self,
        direct: &Direct,
        url: &Url,
        check: &HealthCheck,
    ) -> Result<Learnt, Failure> {
        let Direct { question, answer } = direct;
        let mut check = check.clone();
        if let Some(expect) = &mut check.expect {
            expect.exit_ip = None;
            expect.country = None;
        }
        judge::judge(
            question,
            &self.known,
            &check,
            url,
            answer.as_ref().map_err(Clone::clone)?,
        )
    }

    fn question(&self, url: &Url) -> Question {
        if self.is_echo(url) {
            Question::Echo {
                nonce: HEXLOWER.encode(&rand::random::<[u8; 24]>()),
            }
        } else {
            Question::Plain
        }
    }

    async fn fetch(&self, url: &Url, question: &Question) -> Result<exchange::Answer, Failure> {
        let wanted = wanted(url, question)?;
        let host = match wanted.host() {
            Host::Domain(name) => name.clone(),
            Host::Ipv4(ip) => ip.to_string(),
            Host::Ipv6(ip) => ip.to_string(),
        };
        let stream: transport::Io = Box::new(transport::connect(&host, wanted.port()).await?);
        let stream = if wanted.is_https() {
            transport::tls_to_target(&self.tls, stream, &wanted).await?
        } else {
            stream
        };
        exchange::get(stream, &wanted, exchange::Form::Origin).await
    }

    async fn ask(
        &self,
        stream: transport::Bounded,
        scheme: Scheme,
        credentials: Option<&Credentials>,
        target: &Target,
        url: &Url,
        question: &Question,
    ) -> Result<exchange::Answer, Failure> {
        let wanted = wanted(url, question)?;
        let proxy: transport::Io = match scheme {
            Scheme::Http | Scheme::Socks5 => Box::new(stream),
            Scheme::Https => {
                transport::tls_to_proxy(&self.proxy_tls, stream, &target.endpoint.host).await?
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

fn wanted(url: &Url, question: &Question) -> Result<exchange::Wanted, Failure> {
    let mut url = url.clone();
    if let Question::Echo { nonce } = question {
        url.query_pairs_mut().append_pair("nonce", nonce);
    }
    exchange::Wanted::new(url)
}
