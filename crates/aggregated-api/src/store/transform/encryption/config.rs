//! The configuration file: upstream's `EncryptionConfiguration`, as far as it applies.
//!
//! Shape and checks are those of k8s.io/apiserver (`pkg/apis/apiserver/v1` and
//! `pkg/apis/apiserver/validation/validation_encryption.go`). A server of this library encrypts all
//! it stores, so there is one entry, for `*.*`.

use base64::Engine;
use base64::engine::general_purpose::STANDARD;
use serde::Deserialize;
use serde::de::IgnoredAny;

use super::{Encryption, Key, MAX_NAME, Provider};

const API_VERSION: &str = "apiserver.config.k8s.io/v1";
const KIND: &str = "EncryptionConfiguration";
/// Lengths of secrets, in bytes.
const LENGTHS: [usize; 3] = [16, 24, 32];

/// What is wrong with an encryption configuration; never contains a secret.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

#[derive(Deserialize)]
#[serde(deny_unknown_fields, rename_all = "camelCase")]
struct File {
    api_version: String,
    kind: String,
    resources: Vec<Resources>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Resources {
    resources: Vec<String>,
    providers: Vec<Entry>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Entry {
    aesgcm: Option<Keys>,
    identity: Option<Identity>,
    aescbc: Option<IgnoredAny>,
    secretbox: Option<IgnoredAny>,
    kms: Option<IgnoredAny>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Keys {
    keys: Vec<NamedSecret>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct NamedSecret {
    name: String,
    secret: String,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Identity {}

fn refused<T>(what: impl Into<String>) -> Result<T, ConfigError> {
    Err(ConfigError(what.into()))
}

/// See [`Encryption::from_yaml`].
pub(super) fn parse(text: &str) -> Result<Encryption, ConfigError> {
    let File {
        api_version,
        kind,
        resources,
    } = serde_saphyr::from_str(text).map_err(|error| unreadable(&error))?;
    if api_version != API_VERSION || kind != KIND {
        return refused(format!(
            "it is {api_version} {kind}, and must be {API_VERSION} {KIND}"
        ));
    }
    let [entry] = resources.as_slice() else {
        return refused("resources: must have one entry, since all that is stored is encrypted");
    };
    if entry.resources != ["*.*"] {
        return refused(
            "resources[0].resources: must be [\"*.*\"], since all that is stored is encrypted",
        );
    }
    if entry.providers.is_empty() {
        return refused("resources[0].providers: name at least one provider");
    }
    let mut providers = Vec::new();
    let mut names: Vec<&str> = Vec::new();
    for (index, entry) in entry.providers.iter().enumerate() {
        let place = format!("resources[0].providers[{index}]");
        providers.push(provider(&place, entry, &mut names)?);
    }
    Ok(Encryption { providers })
}

fn provider<'a>(
    place: &str,
    entry: &'a Entry,
    names: &mut Vec<&'a str>,
) -> Result<Provider, ConfigError> {
    let others = [
        ("aescbc", &entry.aescbc),
        ("secretbox", &entry.secretbox),
        ("kms", &entry.kms),
    ];
    for (other, value) in others {
        if value.is_some() {
            return refused(format!(
                "{place}: {other} is not offered; there are aesgcm and identity"
            ));
        }
    }
    let keys = match (&entry.aesgcm, &entry.identity) {
        (Some(Keys { keys }), None) => keys,
        (None, Some(Identity {})) => return Ok(Provider::Identity),
        (None, None) | (Some(_), Some(_)) => {
            return refused(format!(
                "{place}: must have one of aesgcm and identity (written as identity: {{}})"
            ));
        },
    };
    if keys.is_empty() {
        return refused(format!("{place}.aesgcm.keys: name at least one key"));
    }
    let mut read = Vec::new();
    for (index, NamedSecret { name, secret }) in keys.iter().enumerate() {
        let place = format!("{place}.aesgcm.keys[{index}]");
        if name.is_empty() || name.len() > MAX_NAME || name.contains(':') {
            return refused(format!(
                "{place}.name: must have 1 to {MAX_NAME} bytes, and no colon"
            ));
        }
        if names.contains(&name.as_str()) {
            return refused(format!("{place}.name: another key has the name {name:?}"));
        }
        names.push(name);
        let Ok(secret) = STANDARD.decode(secret) else {
            return refused(format!(
                "{place}.secret: of the key {name:?} is not base64 (standard alphabet, padded)"
            ));
        };
        if !LENGTHS.contains(&secret.len()) {
            return refused(format!(
                "{place}.secret: of the key {name:?} has {} bytes, and must have 32 (or 16, or 24)",
                secret.len()
            ));
        }
        read.push(Key::new(name.clone(), &secret));
    }
    Ok(Provider::AesGcm(read))
}

/// Where and why the file has not the shape. The parser's text is used only where it tells names of
/// fields, since otherwise it may quote a secret.
fn unreadable(error: &serde_saphyr::Error) -> ConfigError {
    let line = error.location().map_or(1, |location| location.line());
    let text = error.without_snippet().to_string();
    let first = text.lines().next().unwrap_or_default();
    let named = ["unknown field", "missing field"]
        .into_iter()
        .find_map(|start| {
            let field = first.split_once(start)?.1.split('`').nth(1)?;
            Some(format!("{start} {field:?}"))
        });
    let why = named.unwrap_or_else(|| format!("this is not the YAML of an {KIND}"));
    ConfigError(format!("line {line}: {why}"))
}
