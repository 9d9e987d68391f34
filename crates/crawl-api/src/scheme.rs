//! The schemes a proxy endpoint can speak, shared by `Proxy` and `ProxyLease`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How a client speaks to a proxy.
#[derive(
    Clone,
    Copy,
    Debug,
    Default,
    PartialEq,
    Eq,
    Hash,
    PartialOrd,
    Ord,
    Deserialize,
    Serialize,
    JsonSchema,
)]
#[serde(rename_all = "lowercase")]
pub enum Scheme {
    /// HTTP proxy (forward and CONNECT) on a plain connection.
    #[default]
    Http,
    /// HTTP proxy behind TLS.
    Https,
    /// SOCKS5 (RFC 1928).
    Socks5,
}

impl Scheme {
    /// The scheme as it stands in a URL.
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Http => "http",
            Self::Https => "https",
            Self::Socks5 => "socks5",
        }
    }
}

impl fmt::Display for Scheme {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
