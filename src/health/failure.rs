//! Why a probe failed: one variant per cause that has a remedy of its own.
//!
//! The reason goes into the Healthy condition, the text into its message. Neither ever holds
//! credentials, nor anything that differs between two probes that failed alike.

use std::net::IpAddr;

use crawl_api::conditions as reasons;

/// Why a probe failed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum Failure {
    #[error("nothing listens on the proxy's port")]
    ConnectionRefused,
    #[error("the proxy did not accept a connection in time")]
    ConnectTimeout,
    #[error("the proxy closed the connection while {0}")]
    ConnectAborted(&'static str),
    #[error("cannot connect to the proxy: {0}")]
    Connect(String),
    #[error("the proxy does not accept the credentials: check the Secret in spec.auth")]
    ProxyAuth,
    #[error("TLS to the proxy itself failed: {0}")]
    ProxyTls(String),
    #[error("the proxy does not reach the probe's target: {0}")]
    TargetUnreachable(String),
    #[error("the certificate seen through the proxy is not the target's: {0}")]
    TlsIntercepted(String),
    #[error("TLS through the proxy failed: {0}")]
    Tls(String),
    #[error("the proxy accepted the connection, but no answer came in time")]
    TimedOut,
    #[error("the answer's status is {0}, which is not among expectedStatusCodes")]
    UnexpectedStatus(u16),
    #[error("the answer is not the target's: {0}")]
    UnexpectedContent(String),
    #[error("the request came out at {seen}, not at {expected}")]
    WrongExitIp { seen: IpAddr, expected: String },
    #[error(
        "the request came out at {0}, which is the operator's own address: it went past the proxy, \
         or the proxy is behind the same address; if that is meant, say so in \
         healthCheck.expect.exitIP"
    )]
    ExitIpIsOwn(IpAddr),
    #[error("the request came out at {exit}, which is in {}, not in {expected}", seen.as_deref().unwrap_or("no known country"))]
    GeoMismatch {
        exit: IpAddr,
        seen: Option<String>,
        expected: String,
    },
    #[error("the health check cannot be carried out: {0}")]
    InvalidCheck(String),
}

impl Failure {
    /// The reason of the Healthy condition.
    pub(crate) fn reason(&self) -> &'static str {
        match self {
            Self::ConnectionRefused => reasons::REASON_CONNECTION_REFUSED,
            Self::ConnectTimeout => reasons::REASON_CONNECT_TIMEOUT,
            Self::ConnectAborted(_) => reasons::REASON_CONNECT_ABORTED,
            Self::Connect(_) => reasons::REASON_CONNECT_FAILED,
            Self::ProxyAuth => reasons::REASON_PROXY_AUTH_FAILED,
            Self::TargetUnreachable(_) => reasons::REASON_TARGET_UNREACHABLE,
            Self::TlsIntercepted(_) => reasons::REASON_TLS_INTERCEPTED,
            Self::ProxyTls(_) => reasons::REASON_PROXY_TLS_FAILED,
            Self::Tls(_) => reasons::REASON_TLS_FAILED,
            Self::TimedOut => reasons::REASON_PROBE_TIMED_OUT,
            Self::UnexpectedStatus(_) => reasons::REASON_UNEXPECTED_STATUS,
            Self::UnexpectedContent(_) => reasons::REASON_UNEXPECTED_CONTENT,
            Self::WrongExitIp { .. } => reasons::REASON_WRONG_EXIT_IP,
            Self::ExitIpIsOwn(_) => reasons::REASON_EXIT_IP_IS_OWN,
            Self::GeoMismatch { .. } => reasons::REASON_GEO_MISMATCH,
            Self::InvalidCheck(_) => reasons::REASON_INVALID_HEALTH_CHECK,
        }
    }

    /// Whether the target, or our own network, can be the cause: then a control probe tells.
    pub(crate) fn may_be_the_targets(&self) -> bool {
        match self {
            Self::ConnectionRefused
            | Self::ConnectTimeout
            | Self::ConnectAborted(_)
            | Self::Connect(_)
            | Self::ProxyTls(_)
            | Self::TargetUnreachable(_)
            | Self::TlsIntercepted(_)
            | Self::Tls(_)
            | Self::TimedOut
            | Self::UnexpectedStatus(_)
            | Self::UnexpectedContent(_) => true,
            Self::ProxyAuth
            | Self::WrongExitIp { .. }
            | Self::ExitIpIsOwn(_)
            | Self::GeoMismatch { .. }
            | Self::InvalidCheck(_) => false,
        }
    }

    /// Whether the proxy was not reached, or reached nothing, or no more than a status came of it: then
    /// traffic of others that goes through contradicts it. The rest is about who answered and where
    /// it came out, which clients may not see.
    pub(crate) fn is_about_reach(&self) -> bool {
        match self {
            Self::ConnectionRefused
            | Self::ConnectTimeout
            | Self::ConnectAborted(_)
            | Self::Connect(_)
            | Self::TargetUnreachable(_)
            | Self::TimedOut
            | Self::UnexpectedStatus(_) => true,
            Self::ProxyAuth
            | Self::ProxyTls(_)
            | Self::TlsIntercepted(_)
            | Self::Tls(_)
            | Self::UnexpectedContent(_)
            | Self::WrongExitIp { .. }
            | Self::ExitIpIsOwn(_)
            | Self::GeoMismatch { .. }
            | Self::InvalidCheck(_) => false,
        }
    }

    /// Whether something answered, which shows that traffic flows.
    pub(crate) fn is_answer(&self) -> bool {
        matches!(self, Self::UnexpectedStatus(_) | Self::UnexpectedContent(_))
    }

    /// Whether another machine, or more patience, cannot help: only a changed object can.
    pub(crate) fn is_configured(&self) -> bool {
        matches!(self, Self::ProxyAuth | Self::InvalidCheck(_))
    }
}

/// Every value of the label `result` of `proxy_operator_probes_total`.
pub(crate) const RESULTS: [&str; 17] = [
    reasons::REASON_PROBE_SUCCEEDED,
    reasons::REASON_CONNECTION_REFUSED,
    reasons::REASON_CONNECT_TIMEOUT,
    reasons::REASON_CONNECT_ABORTED,
    reasons::REASON_CONNECT_FAILED,
    reasons::REASON_PROXY_AUTH_FAILED,
    reasons::REASON_TARGET_UNREACHABLE,
    reasons::REASON_TLS_INTERCEPTED,
    reasons::REASON_TLS_FAILED,
    reasons::REASON_PROXY_TLS_FAILED,
    reasons::REASON_PROBE_TIMED_OUT,
    reasons::REASON_UNEXPECTED_STATUS,
    reasons::REASON_UNEXPECTED_CONTENT,
    reasons::REASON_WRONG_EXIT_IP,
    reasons::REASON_EXIT_IP_IS_OWN,
    reasons::REASON_GEO_MISMATCH,
    reasons::REASON_INVALID_HEALTH_CHECK,
];
