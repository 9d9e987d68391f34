//! The block `hetzner` of the providers file, and what is wrong with one before any call is made.

use std::path::PathBuf;

use serde::Deserialize;
use url::Url;

use crate::providers::{Tags, endpoint};

/// An account at Hetzner Cloud: a project and what its servers are like. The keys are described in
/// `docs/providers/hetzner.md`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct HetznerAccount {
    /// The file with the project's token.
    pub token_file: PathBuf,
    /// The locations that may hold servers, at least one; the first is for proxies that name none.
    pub locations: Vec<String>,
    /// Where the API is; the public one when absent.
    #[serde(default)]
    pub endpoint: Option<Url>,
    /// The server type for proxies that name none.
    #[serde(default = "default_server_type")]
    pub server_type: String,
    /// The image for proxies that name none.
    #[serde(default = "default_image")]
    pub image: String,
    /// Names or numbers of the SSH keys that may log in. Without any, Hetzner Cloud sets a password
    /// for root, which nobody gets to see.
    #[serde(default)]
    pub ssh_keys: Vec<String>,
    /// Numbers of the private networks of proxies that name none.
    #[serde(default)]
    pub networks: Vec<u64>,
    /// Numbers of the firewalls in front of servers.
    #[serde(default)]
    pub firewalls: Vec<u64>,
    /// Whether servers have a public IPv4 address, which costs extra.
    #[serde(default = "yes")]
    pub ipv4: bool,
    /// Whether servers have a public IPv6 network.
    #[serde(default = "yes")]
    pub ipv6: bool,
    /// Labels of every server, beside those by which it is found.
    #[serde(default)]
    pub labels: Tags,
}

fn default_server_type() -> String {
    "cx23".into()
}

fn default_image() -> String {
    "debian-12".into()
}

fn yes() -> bool {
    true
}

// === impl HetznerAccount ===

impl HetznerAccount {
    /// What is wrong with the block, and what to do about it.
    ///
    /// # Errors
    /// The first problem and its remedy.
    pub(in crate::providers) fn check(&self) -> Result<(), (String, &'static str)> {
        let Self {
            token_file,
            locations,
            endpoint: url,
            server_type,
            image,
            ssh_keys,
            networks,
            firewalls,
            ipv4,
            ipv6,
            labels,
        } = self;
        if token_file.as_os_str().is_empty() {
            let remedy = "name the file that holds the project's API token";
            return Err(("hetzner.tokenFile is empty".into(), remedy));
        }
        check_locations(locations)?;
        if let Some(url) = url
            && !endpoint::is_safe(url)
        {
            let what = format!("hetzner.endpoint {url} cannot be used");
            return Err((what, endpoint::REMEDY));
        }
        let texts = [("serverType", server_type), ("image", image)];
        let keys = ssh_keys.iter().map(|key| ("sshKeys", key));
        for (key, text) in texts.into_iter().chain(keys) {
            if text.trim().is_empty() {
                let remedy = "give it a value, or leave the key out";
                return Err((format!("hetzner.{key} has an empty value"), remedy));
            }
        }
        if networks.contains(&0) || firewalls.contains(&0) {
            let remedy = "write the numbers that the console shows";
            return Err((
                "hetzner.networks or hetzner.firewalls has a 0".into(),
                remedy,
            ));
        }
        if !ipv4 && !ipv6 {
            let remedy = "let one of them be true: a proxy without a public address has no exit";
            return Err(("hetzner.ipv4 and hetzner.ipv6 are false".into(), remedy));
        }
        check_labels(labels)
    }
}

fn check_locations(locations: &[String]) -> Result<(), (String, &'static str)> {
    if locations.is_empty() {
        let remedy = "name at least one location, for example fsn1";
        return Err(("hetzner.locations is empty".into(), remedy));
    }
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    for (index, location) in locations.iter().enumerate() {
        if location.is_empty() || !location.bytes().all(inner) {
            let remedy = "write locations like fsn1";
            return Err((format!("hetzner.locations has {location:?}"), remedy));
        }
        let mut earlier = locations.iter().take(index);
        if earlier.any(|earlier| earlier == location) {
            let remedy = "name each location once";
            return Err((format!("hetzner.locations has {location} twice"), remedy));
        }
    }
    Ok(())
}

fn check_labels(labels: &Tags) -> Result<(), (String, &'static str)> {
    for (key, value) in labels {
        if !is_label(key) || !(value.is_empty() || is_label(value)) {
            let remedy = "use at most 63 letters, digits, and inner dashes, underscores and dots";
            return Err((format!("hetzner.labels has {key:?}: {value:?}"), remedy));
        }
        if key.starts_with("crawl-") {
            let remedy = "labels that begin with crawl- are the operator's: use another name";
            return Err((format!("hetzner.labels has {key:?}"), remedy));
        }
    }
    Ok(())
}

/// The rule for names and values of labels.
fn is_label(text: &str) -> bool {
    let edge = |c: char| c.is_ascii_alphanumeric();
    let inner = |b: u8| b.is_ascii_alphanumeric() || b"-_.".contains(&b);
    text.len() <= 63 && text.starts_with(edge) && text.ends_with(edge) && text.bytes().all(inner)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn account(more: &str) -> HetznerAccount {
        let yaml = format!("{{tokenFile: t, locations: [fsn1, nbg1], {more}}}");
        serde_saphyr::from_str(&yaml).unwrap()
    }

    #[test]
    fn what_is_left_out_has_a_default() {
        let account = account("");
        account.check().unwrap();
        assert_eq!(account.server_type, "cx23");
        assert_eq!(account.image, "debian-12");
        assert!(account.ipv4 && account.ipv6);
    }

    #[test]
    fn every_fault_has_a_remedy() {
        for (more, what) in [
            ("endpoint: 'http://example.com'", "hetzner.endpoint"),
            ("serverType: ' '", "hetzner.serverType"),
            ("image: ''", "hetzner.image"),
            ("sshKeys: ['']", "hetzner.sshKeys"),
            ("networks: [0]", "hetzner.networks"),
            ("ipv4: false, ipv6: false", "hetzner.ipv4"),
            ("labels: {team: -x}", "hetzner.labels"),
            ("labels: {'a b': x}", "hetzner.labels"),
            ("labels: {crawl-cluster: x}", "hetzner.labels"),
        ] {
            let (problem, remedy) = account(more).check().unwrap_err();
            assert!(problem.starts_with(what), "{more}: {problem}");
            assert!(!remedy.is_empty(), "{more}");
        }
        for locations in ["[]", "[FSN1]", "[fsn1, fsn1]", "['']"] {
            let yaml = format!("{{tokenFile: t, locations: {locations}}}");
            let account: HetznerAccount = serde_saphyr::from_str(&yaml).unwrap();
            let (problem, _) = account.check().unwrap_err();
            assert!(problem.starts_with("hetzner.locations"), "{problem}");
        }
    }
}
