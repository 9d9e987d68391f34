//! Encryption at rest: AES-256-GCM under keys that are configured by name.
//!
//! A stored value is `enc:aesgcm:v1:<key name>:`, 32 random bytes, and the ciphertext with its tag.
//! The random bytes and the configured secret give every value a key of its own (HKDF-SHA256), so
//! a configured key does not wear out with the number of writes, as one with random nonces of 96
//! bits would. The key of the store is authenticated with the value: a value that is moved to
//! another key cannot be read.

mod config;
#[cfg(test)]
mod tests;

use std::fmt;

use aes_gcm::aead::{Aead, Payload};
use aes_gcm::{Aes256Gcm, KeyInit, Nonce};
use bytes::{BufMut, Bytes, BytesMut};
use hkdf::Hkdf;
use sha2::Sha256;

pub use self::config::ConfigError;
use super::{Opened, ValueTransformer};
use crate::store::Error;

/// What every encrypted value begins with, by whatever provider. No value in clear does: those are
/// JSON.
const ENCRYPTED: &[u8] = b"enc:";
const AES_GCM: &str = "enc:aesgcm:v1:";
/// Random bytes of a value.
const SALT: usize = 32;
const TAG: usize = 16;
/// Longest name of a key, in bytes.
const MAX_NAME: usize = 64;
/// Binds the derived keys to this use of a secret.
const PURPOSE: &[u8] = b"aggregated-api store value v1";

/// Which keys there are, and which one writes. Its `Debug` form shows names only.
pub struct Encryption {
    providers: Vec<Provider>,
}

#[derive(Debug)]
enum Provider {
    AesGcm(Vec<Key>),
    /// Values in clear.
    Identity,
}

struct Key {
    name: String,
    prefix: Bytes,
    secret: Hkdf<Sha256>,
}

impl fmt::Debug for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_list().entries(&self.providers).finish()
    }
}

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

// === impl Encryption ===

impl Encryption {
    /// Values are written in clear; one that is encrypted is refused with the name of its key.
    pub fn none() -> Self {
        Self {
            providers: vec![Provider::Identity],
        }
    }

    /// Reads an `EncryptionConfiguration` of `apiserver.config.k8s.io/v1` with the providers `aesgcm`
    /// and `identity`, for all resources.
    ///
    /// # Errors
    /// It is not one, or asks for what is not offered. The message names the place and never a
    /// secret.
    pub fn from_yaml(text: &str) -> Result<Self, ConfigError> {
        config::parse(text)
    }

    /// Whether new values are written in clear.
    pub fn writes_clear(&self) -> bool {
        self.writer().is_none()
    }

    /// The key that writes.
    fn writer(&self) -> Option<&Key> {
        match self.providers.first() {
            Some(Provider::AesGcm(keys)) => keys.first(),
            Some(Provider::Identity) | None => None,
        }
    }

    fn keys(&self) -> impl Iterator<Item = &Key> {
        self.providers.iter().flat_map(|provider| match provider {
            Provider::AesGcm(keys) => keys.as_slice(),
            Provider::Identity => &[],
        })
    }

    fn reads_clear(&self) -> bool {
        let clear = |provider| matches!(provider, &Provider::Identity);
        self.providers.iter().any(clear)
    }
}

impl ValueTransformer for Encryption {
    fn seal(&self, key: &str, value: Bytes) -> Result<Bytes, Error> {
        match self.writer() {
            None => Ok(value),
            Some(writer) => writer.encrypt(key, &value),
        }
    }

    fn open(&self, key: &str, stored: Bytes) -> Result<Opened, Error> {
        let writer = self.writer().map(|writer| &writer.name);
        if !stored.starts_with(ENCRYPTED) {
            if !self.reads_clear() {
                return Err(Error::Unreadable(format!(
                    "{key} is not encrypted, and the encryption configuration does not allow that; \
                     add the provider identity as the last one until the server has started once"
                )));
            }
            return Ok(Opened {
                value: stored,
                stale: writer.is_some(),
            });
        }
        for known in self.keys() {
            if let Some(sealed) = stored.strip_prefix(&known.prefix[..]) {
                return Ok(Opened {
                    value: known.decrypt(key, sealed)?,
                    stale: writer != Some(&known.name),
                });
            }
        }
        Err(Error::Unreadable(format!(
            "{key} is encrypted with {}, which the encryption configuration does not have; add it \
             behind the key that writes",
            named(&stored)
        )))
    }

    fn overhead(&self) -> usize {
        self.writer()
            .map_or(0, |_| AES_GCM.len() + MAX_NAME + 1 + SALT + TAG)
    }
}

/// With which key a value says that it is encrypted.
fn named(stored: &[u8]) -> String {
    let name = stored
        .strip_prefix(AES_GCM.as_bytes())
        .and_then(|rest| rest.split(|&byte| byte == b':').next())
        .and_then(|name| std::str::from_utf8(name).ok());
    match name {
        Some(name) => format!("the key {name:?}"),
        None => "a provider".to_owned(),
    }
}

// === impl Key ===

impl Key {
    fn new(name: String, secret: &[u8]) -> Self {
        Self {
            prefix: Bytes::from(format!("{AES_GCM}{name}:")),
            secret: Hkdf::new(None, secret),
            name,
        }
    }

    /// The cipher of the value with this salt.
    fn cipher(&self, salt: &[u8]) -> Option<Aes256Gcm> {
        let mut derived = [0; 32];
        self.secret
            .expand_multi_info(&[PURPOSE, salt], &mut derived)
            .ok()?;
        Aes256Gcm::new_from_slice(&derived).ok()
    }

    fn encrypt(&self, key: &str, value: &[u8]) -> Result<Bytes, Error> {
        let salt: [u8; SALT] = rand::random();
        let payload = Payload {
            msg: value,
            aad: key.as_bytes(),
        };
        let sealed = self
            .cipher(&salt)
            // Why this nonce: the cipher's key is used once.
            .and_then(|cipher| cipher.encrypt(&Nonce::default(), payload).ok())
            .ok_or_else(|| Error::Unreadable(format!("the value of {key} cannot be encrypted")))?;
        let mut stored = BytesMut::with_capacity(self.prefix.len() + SALT + sealed.len());
        stored.put_slice(&self.prefix);
        stored.put_slice(&salt);
        stored.put_slice(&sealed);
        Ok(stored.freeze())
    }

    fn decrypt(&self, key: &str, sealed: &[u8]) -> Result<Bytes, Error> {
        let opened = sealed.split_at_checked(SALT).and_then(|(salt, msg)| {
            let aad = key.as_bytes();
            let cipher = self.cipher(salt)?;
            cipher.decrypt(&Nonce::default(), Payload { msg, aad }).ok()
        });
        opened.map(Bytes::from).ok_or_else(|| {
            Error::Unreadable(format!(
                "{key} is encrypted with the key {:?}, but its configured secret does not open it: \
                 either the secret has changed, and must be restored under this name, or the value \
                 was damaged",
                self.name
            ))
        })
    }
}
