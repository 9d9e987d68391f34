//! The block `gcp` of the providers file, and what is wrong with one before any call is made.

use std::path::PathBuf;

use serde::Deserialize;
use url::Url;

use crate::providers::{Tags, endpoint};

/// An account at Compute Engine: a project and what its machines are like. The keys are described
/// in `docs/providers/gcp.md`.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct GcpAccount {
    /// The id of the project.
    pub project: String,
    /// The zones that may hold machines, at least one; the first is for proxies that name none.
    pub zones: Vec<String>,
    /// A credentials file; application default credentials when absent.
    #[serde(default)]
    pub credentials_file: Option<PathBuf>,
    /// Where the API is; the public one when absent.
    #[serde(default)]
    pub endpoint: Option<Url>,
    /// The machine type for proxies that name none.
    #[serde(default = "default_machine_type")]
    pub machine_type: String,
    /// The image for proxies that name none.
    #[serde(default = "default_image")]
    pub image: String,
    /// The boot disk.
    #[serde(default)]
    pub disk: Disk,
    /// The network for proxies that name none.
    #[serde(default = "default_network")]
    pub network: String,
    /// The subnetwork for proxies that name none.
    #[serde(default)]
    pub subnetwork: Option<String>,
    /// Network tags, which firewall rules name.
    #[serde(default)]
    pub network_tags: Vec<String>,
    /// Whether machines have an external IPv6 address too.
    #[serde(default)]
    pub ipv6: bool,
    /// The identity that machines have; none when absent.
    #[serde(default)]
    pub service_account: Option<ServiceAccount>,
    /// What becomes of a spot machine that is taken back.
    #[serde(default)]
    pub spot_termination_action: TerminationAction,
    /// Labels of every machine, beside those by which it is found.
    #[serde(default)]
    pub labels: Tags,
}

/// The boot disk of machines.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase", default)]
pub struct Disk {
    /// The disk type.
    #[serde(rename = "type")]
    pub type_: String,
    /// The size in GB, as Compute Engine counts them.
    pub size_gigabytes: u16,
}

/// The identity of machines.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
pub struct ServiceAccount {
    /// Its address.
    pub email: String,
    /// What tokens of the machine are good for.
    #[serde(default = "default_scopes")]
    pub scopes: Vec<String>,
}

/// What becomes of a spot machine that is taken back.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
pub enum TerminationAction {
    /// It is deleted.
    #[default]
    Delete,
    /// It is stopped, and the operator deletes it.
    Stop,
}

fn default_machine_type() -> String {
    "e2-micro".into()
}

fn default_image() -> String {
    "projects/debian-cloud/global/images/family/debian-12".into()
}

fn default_network() -> String {
    "default".into()
}

fn default_scopes() -> Vec<String> {
    vec!["https://www.googleapis.com/auth/cloud-platform".into()]
}

impl Default for Disk {
    fn default() -> Self {
        Self {
            type_: "pd-standard".into(),
            size_gigabytes: 10,
        }
    }
}

/// The smallest boot disk that the public images fit on.
const MIN_DISK_GIGABYTES: u16 = 10;

// === impl GcpAccount ===

impl GcpAccount {
    /// What is wrong with the block, and what to do about it.
    ///
    /// # Errors
    /// The first problem and its remedy.
    pub(in crate::providers) fn check(&self) -> Result<(), (String, &'static str)> {
        let Self {
            project,
            zones,
            credentials_file: _,
            endpoint,
            machine_type,
            image,
            disk,
            network,
            subnetwork,
            network_tags,
            ipv6: _,
            service_account,
            spot_termination_action: _,
            labels,
        } = self;
        let project_id =
            |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b"-.:".contains(&b);
        if project.is_empty() || !project.bytes().all(project_id) {
            let remedy = "write the project's id, as `gcloud projects list` shows it";
            return Err((format!("gcp.project {project:?} is no project id"), remedy));
        }
        if zones.is_empty() {
            let remedy = "name at least one zone, for example europe-west1-b";
            return Err(("gcp.zones is empty".into(), remedy));
        }
        for (index, zone) in zones.iter().enumerate() {
            if !is_resource_name(zone) || !zone.contains('-') {
                let remedy = "write zones like europe-west1-b";
                return Err((format!("gcp.zones has {zone:?}"), remedy));
            }
            if zones.iter().take(index).any(|earlier| earlier == zone) {
                let remedy = "name each zone once";
                return Err((format!("gcp.zones has {zone} twice"), remedy));
            }
        }
        if let Some(url) = endpoint
            && !endpoint::is_safe(url)
        {
            let what = format!("gcp.endpoint {url} cannot be used");
            return Err((what, endpoint::REMEDY));
        }
        if disk.size_gigabytes < MIN_DISK_GIGABYTES {
            let remedy = "give it 10 or more";
            let what = format!(
                "gcp.disk.sizeGigabytes {} is too small",
                disk.size_gigabytes
            );
            return Err((what, remedy));
        }
        let email = service_account.as_ref().map(|account| &account.email);
        let texts = [
            ("machineType", Some(machine_type)),
            ("image", Some(image)),
            ("disk.type", Some(&disk.type_)),
            ("network", Some(network)),
            ("subnetwork", subnetwork.as_ref()),
            ("serviceAccount.email", email),
        ];
        for (key, text) in texts {
            if text.is_some_and(|text| text.trim().is_empty()) {
                let remedy = "give it a value, or leave the key out";
                return Err((format!("gcp.{key} is empty"), remedy));
            }
        }
        if let Some(tag) = network_tags.iter().find(|tag| !is_resource_name(tag)) {
            let remedy = "use lower-case letters, digits and inner dashes, beginning with a letter";
            return Err((format!("gcp.networkTags has {tag:?}"), remedy));
        }
        for (key, value) in labels {
            let inner =
                |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-' || b == b'_';
            let begins = key.starts_with(|c: char| c.is_ascii_lowercase());
            let fits = |text: &str| text.len() <= 63 && text.bytes().all(inner);
            if !begins || !fits(key) || !fits(value) {
                let remedy = "use at most 63 lower-case letters, digits, dashes and underscores";
                return Err((format!("gcp.labels has {key:?}: {value:?}"), remedy));
            }
            if key.starts_with("crawl-") {
                let remedy = "labels that begin with crawl- are the operator's: use another name";
                return Err((format!("gcp.labels has {key:?}"), remedy));
            }
        }
        Ok(())
    }
}

/// The naming rule of RFC 1035, as Compute Engine applies it.
fn is_resource_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    text.len() <= 63
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && text.bytes().all(inner)
        && !text.ends_with('-')
}
