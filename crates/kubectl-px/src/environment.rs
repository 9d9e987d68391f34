//! The environment variables that make a program use a proxy.
//!
//! Both cases are set, because programs disagree on which they read. What must not go through the
//! proxy stays direct: loopback, cluster names, the API server, and what the user already excludes.

use crate::leases::Lease;

/// Hosts that bypass the proxy, from flags and the environment.
#[derive(Debug, Clone, Default, clap::Args)]
pub(crate) struct BypassFlags {
    /// Hosts that bypass the proxy, comma-separated, besides loopback, cluster names and the API
    /// server; default: what the environment excludes already.
    #[arg(long, value_name = "HOSTS", env = "no_proxy", hide_env = true)]
    no_proxy: Option<String>,

    /// The same, as others write it; not a flag to be used.
    #[arg(long = "no-proxy-upper", env = "NO_PROXY", hide = true)]
    no_proxy_upper: Option<String>,
}

const ALWAYS_DIRECT: [&str; 5] = ["localhost", "127.0.0.1", "::1", ".svc", ".cluster.local"];

impl BypassFlags {
    fn hosts(&self, api_server: Option<&str>) -> String {
        let own = self
            .no_proxy
            .as_deref()
            .or(self.no_proxy_upper.as_deref())
            .unwrap_or_default();
        let mut hosts: Vec<&str> = Vec::new();
        let given = own
            .split(',')
            .map(str::trim)
            .filter(|host| !host.is_empty());
        for host in given.chain(ALWAYS_DIRECT).chain(api_server) {
            if !hosts.contains(&host) {
                hosts.push(host);
            }
        }
        hosts.join(",")
    }
}

/// The variables for a lease whose proxy is at `url`, in the order they are printed.
pub(crate) fn build_variables(
    lease: &Lease,
    url: &str,
    bypass: &BypassFlags,
    api_server: Option<&str>,
) -> Vec<(&'static str, String)> {
    let direct = bypass.hosts(api_server);
    vec![
        ("HTTP_PROXY", url.to_owned()),
        ("HTTPS_PROXY", url.to_owned()),
        ("http_proxy", url.to_owned()),
        ("https_proxy", url.to_owned()),
        ("NO_PROXY", direct.clone()),
        ("no_proxy", direct),
        ("PROXY_LEASE", lease.name().to_owned()),
        ("PROXY_LEASE_NAMESPACE", lease.namespace().to_owned()),
    ]
}

/// `export NAME=value` lines that a POSIX shell can evaluate.
pub(crate) fn render_exports(variables: &[(&'static str, String)]) -> String {
    let mut lines: Vec<_> = variables
        .iter()
        .map(|(name, value)| format!("export {name}={}", quote(value)))
        .collect();
    lines.push(String::new());
    lines.join("\n")
}

/// Why: the URL comes from a server; unquoted, the shell would run what it contains.
fn quote(value: &str) -> String {
    let plain = |c: char| c.is_ascii_alphanumeric() || "-._~:/@,%+".contains(c);
    if !value.is_empty() && value.chars().all(plain) {
        value.to_owned()
    } else {
        format!("'{}'", value.replace('\'', r"'\''"))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_excluded_already_stay_excluded_and_none_is_named_twice() {
        let bypass = BypassFlags {
            no_proxy: Some("intranet.example.com, localhost".to_owned()),
            no_proxy_upper: Some("ignored".to_owned()),
        };
        assert_eq!(
            bypass.hosts(Some("10.0.0.1")),
            "intranet.example.com,localhost,127.0.0.1,::1,.svc,.cluster.local,10.0.0.1"
        );
    }

    #[test]
    fn what_a_shell_would_interpret_is_quoted() {
        let variables = [
            ("A", "http://203.0.113.7:3128".to_owned()),
            ("B", "http://x/$(id)'".to_owned()),
        ];
        assert_eq!(
            render_exports(&variables),
            "export A=http://203.0.113.7:3128\nexport B='http://x/$(id)'\\'''\n"
        );
    }
}
