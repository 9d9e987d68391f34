//! Whom the cluster trusts, read from the data of ConfigMap
//! `kube-system/extension-apiserver-authentication` and compared with what was known before.
//! Pure; [`super::config_map`] does the reading.

use std::{collections::BTreeMap, sync::Arc};

use http::HeaderName;
use runtime_kit::{Clock, chain};
use thiserror::Error;

use super::ca::{CaBundle, CaBundleError};

/// Name of the ConfigMap, for messages.
const CONFIG_MAP: &str = "kube-system/extension-apiserver-authentication";

const CLIENT_CA: &str = "client-ca-file";
pub(super) const PROXY_CA: &str = "requestheader-client-ca-file";
const ALLOWED_NAMES: &str = "requestheader-allowed-names";
const USERNAME_HEADERS: &str = "requestheader-username-headers";
const UID_HEADERS: &str = "requestheader-uid-headers";
const GROUP_HEADERS: &str = "requestheader-group-headers";
const EXTRA_PREFIXES: &str = "requestheader-extra-headers-prefix";

/// One key of the ConfigMap that cannot be used.
#[derive(Debug, Error)]
pub enum ConfigMapError {
    /// A bundle of certificates is not usable.
    #[error("key {key}")]
    Ca {
        /// Key of the ConfigMap.
        key: &'static str,
        /// What is wrong with the bundle.
        #[source]
        source: CaBundleError,
    },
    /// A list is not a JSON array of strings.
    #[error("key {key} must be a JSON array of strings")]
    List {
        /// Key of the ConfigMap.
        key: &'static str,
        /// Where it is malformed.
        #[source]
        source: serde_json::Error,
    },
    /// A header has a name that no HTTP header can have.
    #[error("key {key} names {name:?}, which is not a header name")]
    Header {
        /// Key of the ConfigMap.
        key: &'static str,
        /// The name.
        name: String,
    },
    /// The front proxy's CA is there, but not the header it puts the user into.
    #[error("key {USERNAME_HEADERS} names no header although {PROXY_CA} is set")]
    NoUsernameHeader,
}

/// How to recognise the front proxy and what it says.
#[derive(Debug)]
pub struct RequestHeaderConfig {
    /// Authorities that sign the front proxy's certificate.
    pub ca: Arc<CaBundle>,
    /// Common names it may have; empty: any.
    pub allowed_names: Vec<String>,
    /// Headers that carry the user's name, the first that is present counts.
    pub username_headers: Vec<HeaderName>,
    /// Headers that carry the user's UID.
    pub uid_headers: Vec<HeaderName>,
    /// Headers that carry groups, one each.
    pub group_headers: Vec<HeaderName>,
    /// Prefixes, lower case, of headers that carry extra attributes.
    pub extra_prefixes: Vec<String>,
}

/// Whom the cluster trusts. What is absent is switched off.
#[derive(Clone, Debug, Default)]
pub struct Trust {
    /// Authorities that sign users' client certificates.
    pub client_ca: Option<Arc<CaBundle>>,
    /// The front proxy.
    pub request_header: Option<Arc<RequestHeaderConfig>>,
}

/// Reads the ConfigMap's data. A key that is absent switches its method off; one that cannot be
/// used leaves in force what was known before, with a warning.
pub(super) fn read(
    data: &BTreeMap<String, String>,
    before: &Trust,
    clock: &Arc<dyn Clock>,
) -> Trust {
    let client_ca = read_ca(data, CLIENT_CA, before.client_ca.as_ref(), clock);
    let request_header = read_request_header(data, before.request_header.as_ref(), clock);
    Trust {
        client_ca: or_before(client_ca, before.client_ca.as_ref()),
        request_header: or_before(request_header, before.request_header.as_ref()),
    }
}

fn or_before<T>(
    read: Result<Option<Arc<T>>, ConfigMapError>,
    before: Option<&Arc<T>>,
) -> Option<Arc<T>> {
    read.unwrap_or_else(|err| {
        tracing::warn!(
            error = %chain(&err),
            "{CONFIG_MAP} cannot be used in part; what was known before stays in force"
        );
        before.cloned()
    })
}

fn read_ca(
    data: &BTreeMap<String, String>,
    key: &'static str,
    before: Option<&Arc<CaBundle>>,
    clock: &Arc<dyn Clock>,
) -> Result<Option<Arc<CaBundle>>, ConfigMapError> {
    let Some(pem) = data.get(key).filter(|pem| !pem.trim().is_empty()) else {
        return Ok(None);
    };
    // Why: the same bundle keeps its verdicts.
    if let Some(before) = before.filter(|before| before.pem() == pem) {
        return Ok(Some(Arc::clone(before)));
    }
    match CaBundle::from_pem(pem, Arc::clone(clock)) {
        Ok(bundle) => Ok(Some(Arc::new(bundle))),
        Err(source) => Err(ConfigMapError::Ca { key, source }),
    }
}

fn read_request_header(
    data: &BTreeMap<String, String>,
    before: Option<&Arc<RequestHeaderConfig>>,
    clock: &Arc<dyn Clock>,
) -> Result<Option<Arc<RequestHeaderConfig>>, ConfigMapError> {
    let Some(ca) = read_ca(data, PROXY_CA, before.map(|config| &config.ca), clock)? else {
        return Ok(None);
    };
    let config = RequestHeaderConfig {
        ca,
        allowed_names: read_list(data, ALLOWED_NAMES)?,
        username_headers: read_headers(data, USERNAME_HEADERS)?,
        uid_headers: read_headers(data, UID_HEADERS)?,
        group_headers: read_headers(data, GROUP_HEADERS)?,
        extra_prefixes: read_list(data, EXTRA_PREFIXES)?
            .into_iter()
            .map(|prefix| prefix.to_ascii_lowercase())
            .collect(),
    };
    if config.username_headers.is_empty() {
        return Err(ConfigMapError::NoUsernameHeader);
    }
    Ok(Some(Arc::new(config)))
}

fn read_list(
    data: &BTreeMap<String, String>,
    key: &'static str,
) -> Result<Vec<String>, ConfigMapError> {
    match data.get(key).filter(|list| !list.trim().is_empty()) {
        None => Ok(Vec::new()),
        Some(list) => {
            serde_json::from_str(list).map_err(|source| ConfigMapError::List { key, source })
        },
    }
}

fn read_headers(
    data: &BTreeMap<String, String>,
    key: &'static str,
) -> Result<Vec<HeaderName>, ConfigMapError> {
    read_list(data, key)?
        .into_iter()
        .map(|name| {
            HeaderName::from_bytes(name.as_bytes())
                .map_err(|_| ConfigMapError::Header { key, name })
        })
        .collect()
}

impl Trust {
    /// Whether nothing changed; bundles are the same when [`read`] took them over.
    pub(super) fn is_same(&self, other: &Self) -> bool {
        let same_client = match (&self.client_ca, &other.client_ca) {
            (None, None) => true,
            (Some(ours), Some(theirs)) => Arc::ptr_eq(ours, theirs),
            (None, Some(_)) | (Some(_), None) => false,
        };
        let same_proxy = match (&self.request_header, &other.request_header) {
            (None, None) => true,
            (Some(ours), Some(theirs)) => ours.is_same(theirs),
            (None, Some(_)) | (Some(_), None) => false,
        };
        same_client && same_proxy
    }
}

impl RequestHeaderConfig {
    fn is_same(&self, other: &Self) -> bool {
        let Self {
            ca,
            allowed_names,
            username_headers,
            uid_headers,
            group_headers,
            extra_prefixes,
        } = self;
        Arc::ptr_eq(ca, &other.ca)
            && *allowed_names == other.allowed_names
            && *username_headers == other.username_headers
            && *uid_headers == other.uid_headers
            && *group_headers == other.group_headers
            && *extra_prefixes == other.extra_prefixes
    }
}

#[cfg(test)]
mod tests;
