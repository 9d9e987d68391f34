//! Requests that come through the aggregator: kube-apiserver has authenticated the caller and
//! says who it is in headers. They are believed only from a peer whose certificate the front
//! proxy's CA signed, because anybody in the pod network can send headers.

use std::{borrow::Cow, collections::BTreeMap, sync::Arc};

use async_trait::async_trait;
use http::{HeaderMap, HeaderName, HeaderValue, request};

use super::{
    AuthError, Authenticator, PeerCertificates, User, config_map::DelegatedConfig,
    trust::RequestHeaderConfig,
};

/// Authenticates by the front proxy's certificate and headers.
#[derive(Debug)]
pub struct FrontProxy {
    config: Arc<DelegatedConfig>,
}

impl FrontProxy {
    /// Trusts whom `config` trusts at the time of each request.
    pub fn new(config: Arc<DelegatedConfig>) -> Self {
        Self { config }
    }
}

#[async_trait]
impl Authenticator for FrontProxy {
    async fn authenticate(&self, req: &request::Parts) -> Result<Option<User>, AuthError> {
        let Some(peer) = req.extensions.get::<PeerCertificates>() else {
            return Ok(None);
        };
        let trust = self.config.trust();
        let Some(config) = trust.request_header.as_deref() else {
            return Ok(None);
        };
        let subject = config.ca.verify(peer).map_err(AuthError::Unauthenticated)?;
        let name = &subject.common_name;
        if !config.allowed_names.is_empty() && !config.allowed_names.contains(name) {
            return Err(AuthError::unauthenticated(format!(
                "the certificate of {name:?} is not one of the front proxy's \
                 (requestheader-allowed-names)"
            )));
        }
        read_user(config, &req.headers)
    }

    fn strip_credentials(&self, headers: &mut HeaderMap) {
        let trust = self.config.trust();
        let Some(config) = trust.request_header.as_deref() else {
            return;
        };
        let named = [
            &config.username_headers,
            &config.uid_headers,
            &config.group_headers,
        ]
        .into_iter();
        for name in named.flatten() {
            headers.remove(name);
        }
        let extras: Vec<HeaderName> = headers
            .keys()
            .filter(|name| extra_key(config, name).is_some())
            .cloned()
            .collect();
        for name in extras {
            headers.remove(name);
        }
    }
}

fn read_user(config: &RequestHeaderConfig, headers: &HeaderMap) -> Result<Option<User>, AuthError> {
    let Some(name) = first(headers, &config.username_headers)? else {
        return Ok(None);
    };
    let mut user = User {
        name,
        uid: first(headers, &config.uid_headers)?.unwrap_or_default(),
        groups: Vec::new(),
        extra: BTreeMap::new(),
    };
    for header in &config.group_headers {
        for value in headers
            .get_all(header)
            .iter()
            .filter(|value| !value.is_empty())
        {
            user.groups.push(text(header, value)?);
        }
    }
    for header in headers.keys() {
        let Some(escaped) = extra_key(config, header) else {
            continue;
        };
        let values = user
            .extra
            .entry(unescape(escaped).into_owned())
            .or_default();
        for value in headers.get_all(header) {
            values.push(text(header, value)?);
        }
    }
    Ok(Some(user))
}

/// The first non-empty value; of a header that is repeated only the first value counts.
fn first(headers: &HeaderMap, names: &[HeaderName]) -> Result<Option<String>, AuthError> {
    names
        .iter()
        .find_map(|name| {
            let value = headers.get(name).filter(|value| !value.is_empty())?;
            Some(text(name, value))
        })
        .transpose()
}

/// What follows the prefix of an extra header; header names are lower case here.
fn extra_key<'h>(config: &RequestHeaderConfig, header: &'h HeaderName) -> Option<&'h str> {
    config
        .extra_prefixes
        .iter()
        .find_map(|prefix| header.as_str().strip_prefix(prefix.as_str()))
}

/// Why: `HeaderValue::to_str` refuses UTF-8, which user names may contain; and replacing what is
/// not UTF-8 would make one user of two.
fn text(header: &HeaderName, value: &HeaderValue) -> Result<String, AuthError> {
    std::str::from_utf8(value.as_bytes())
        .map(str::to_owned)
        .map_err(|_| AuthError::unauthenticated(format!("header {header} is not UTF-8")))
}

/// Percent-decodes a key. One with a bad escape is kept as it is.
fn unescape(key: &str) -> Cow<'_, str> {
    if !key.contains('%') {
        return Cow::Borrowed(key);
    }
    decode(key.as_bytes())
        .and_then(|bytes| String::from_utf8(bytes).ok())
        .map_or(Cow::Borrowed(key), Cow::Owned)
}

fn decode(escaped: &[u8]) -> Option<Vec<u8>> {
    let mut bytes = Vec::with_capacity(escaped.len());
    let mut rest = escaped;
    while let Some((&byte, tail)) = rest.split_first() {
        if byte != b'%' {
            bytes.push(byte);
            rest = tail;
            continue;
        }
        let (digits, tail) = tail.split_at_checked(2)?;
        bytes.push(
            data_encoding::HEXLOWER_PERMISSIVE
                .decode(digits)
                .ok()?
                .pop()?,
        );
        rest = tail;
    }
    Some(bytes)
}

#[cfg(test)]
mod tests;
