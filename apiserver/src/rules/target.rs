//! The target of a lease, reduced to the domain that sites count by.

use url::{Host, Url};

/// Why a target is not one.
#[derive(Debug, PartialEq, Eq, thiserror::Error)]
pub enum Error {
    /// It is neither a host name nor a URL with one.
    #[error("must be a host name or an http(s) URL, for example shop.example.com")]
    NoHost,
    /// A user name or password stands before the host.
    #[error("must not contain credentials")]
    Credentials,
}

/// The registrable domain of a host name or URL: what a site's owner registered, by the public
/// suffix list. An IP address, a single label (`intranet`) and a public suffix stand for
/// themselves. Ports and paths are dropped, names are lower-cased and in their ASCII form.
///
/// # Errors
/// The text contains no host.
pub fn registrable(text: &str) -> Result<String, Error> {
    let text = text.trim();
    let url = if text.contains("://") {
        Url::parse(text)
    } else if text.contains(['/', '?', '#', '\\']) {
        return Err(Error::NoHost);
    } else {
        Url::parse(&format!("http://{text}"))
    };
    let url = url.map_err(|_| Error::NoHost)?;
    if !matches!(url.scheme(), "http" | "https" | "ws" | "wss") {
        return Err(Error::NoHost);
    }
    if !url.username().is_empty() || url.password().is_some() {
        return Err(Error::Credentials);
    }
    match url.host() {
        None => Err(Error::NoHost),
        Some(Host::Ipv4(ip)) => Ok(ip.to_string()),
        Some(Host::Ipv6(ip)) => Ok(ip.to_string()),
        Some(Host::Domain(domain)) => {
            let domain = domain.strip_suffix('.').unwrap_or(domain);
            if !is_host_name(domain) {
                return Err(Error::NoHost);
            }
            Ok(psl::domain_str(domain).unwrap_or(domain).to_owned())
        },
    }
}

fn is_host_name(name: &str) -> bool {
    let allowed = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
    name.len() <= 253
        && name.split('.').all(|label| {
            (1..=63).contains(&label.len())
                && label.chars().all(allowed)
                && !label.starts_with('-')
                && !label.ends_with('-')
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_and_urls_are_reduced_to_what_was_registered() {
        for (given, domain) in [
            ("shop.example.com", "example.com"),
            ("EXAMPLE.com.", "example.com"),
            ("https://www.shop.example.co.uk/a?b=c", "example.co.uk"),
            ("shop.example.com:8443", "example.com"),
            ("bücher.example", "xn--bcher-kva.example"),
            ("user.github.io", "user.github.io"),
            ("co.uk", "co.uk"),
            ("intranet", "intranet"),
            ("http://203.0.113.7:80/", "203.0.113.7"),
            ("[2001:db8::7]", "2001:db8::7"),
        ] {
            assert_eq!(registrable(given).as_deref(), Ok(domain), "{given}");
        }
    }

    #[test]
    fn what_has_no_host_is_refused() {
        for given in [
            "",
            " ",
            "https://",
            "a b",
            "shop.example.com/path",
            "ftp://example.com",
            "-a.example",
            "a..example",
            "javascript://x",
            "a:b:c",
        ] {
            assert_eq!(registrable(given), Err(Error::NoHost), "{given:?}");
        }
        assert_eq!(
            registrable("https://u:p@example.com"),
            Err(Error::Credentials)
        );
        assert_eq!(registrable("u@example.com"), Err(Error::Credentials));
    }
}
