//! Where an account's API may be: credentials are sent there.

use url::{Host, Url};

/// What to do about an address that [`is_safe`] refuses.
pub(super) const REMEDY: &str = "use https, since tokens are sent there; http is for loopback";

/// Whether credentials may be sent to an address: by https, or to this machine.
pub(super) fn is_safe(endpoint: &Url) -> bool {
    let loopback = match endpoint.host() {
        Some(Host::Ipv4(ip)) => ip.is_loopback(),
        Some(Host::Ipv6(ip)) => ip.is_loopback(),
        Some(Host::Domain(name)) => name == "localhost",
        None => false,
    };
    match endpoint.scheme() {
        "https" => endpoint.has_host(),
        "http" => loopback,
        _ => false,
    }
}
