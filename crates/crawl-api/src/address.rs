//! Where a proxy listens: scheme, host and port of `Proxy.spec.endpoint` and `Proxy.status.endpoint`.

use std::fmt;

use kube::KubeSchema;
use serde::{Deserialize, Serialize};

use crate::scheme::Scheme;

/// Where a proxy listens. Displayed as a URL without credentials.
#[derive(Serialize, Deserialize, KubeSchema, Clone, Debug, PartialEq, Eq, Hash)]
#[serde(rename_all = "camelCase")]
pub struct Endpoint {
    /// The protocol a client speaks to the proxy.
    #[serde(default)]
    pub scheme: Scheme,
    /// A DNS name or an IP address, without user info, port or brackets.
    #[schemars(length(min = 1, max = 253))]
    #[x_kube(
        validation = Rule::new("self.matches('^[A-Za-z0-9._:-]+$')")
            .message("host must be a DNS name or an IP address: no scheme, user info, brackets or path; credentials belong in spec.auth")
    )]
    pub host: String,
    /// The TCP port.
    #[schemars(range(min = 1, max = 65535))]
    pub port: u16,
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { scheme, host, port } = self;
        if host.contains(':') {
            write!(f, "{scheme}://[{host}]:{port}")
        } else {
            write!(f, "{scheme}://{host}:{port}")
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_endpoint_reads_as_a_url() {
        let v4 = Endpoint {
            scheme: Scheme::Http,
            host: "203.0.113.7".into(),
            port: 3128,
        };
        assert_eq!(v4.to_string(), "http://203.0.113.7:3128");
        let v6 = Endpoint {
            scheme: Scheme::Socks5,
            host: "2001:db8::7".into(),
            port: 1080,
        };
        assert_eq!(v6.to_string(), "socks5://[2001:db8::7]:1080");
    }
}
