//! The signed answer of the echo target: made by the endpoint, checked by the health engine.
//!
//! The caller's nonce is in what is signed, so an answer can be neither replayed nor cached, and
//! the key is known to the two ends only, so a proxy cannot forge one.

use std::fmt;
use std::net::IpAddr;
use std::path::{Path, PathBuf};

use aws_lc_rs::hmac;
use data_encoding::HEXLOWER;
use jiff::Timestamp;
use serde::{Deserialize, Serialize};

/// What is signed starts with this, so that the key can never be used to sign anything else.
const DOMAIN: &str = "proxy-operator-echo/v1";
/// Shorter keys could be guessed.
const MIN_KEY: usize = 16;

/// Why a key cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// The file cannot be read.
    #[error("cannot read the echo key {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// What the system said.
        #[source]
        source: std::io::Error,
    },
    /// The key is too short.
    #[error(
        "the echo key has {length} bytes; at least {MIN_KEY} are needed: make one with `openssl rand -hex 32`"
    )]
    TooShort {
        /// Its length.
        length: usize,
    },
}

/// The key that the echo target and the health engine share.
#[derive(Clone)]
pub struct Key(hmac::Key);

impl fmt::Debug for Key {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Key(redacted)")
    }
}

impl Key {
    /// A key of these bytes; white space at the end does not count.
    pub fn new(bytes: &[u8]) -> Result<Self, KeyError> {
        let bytes = bytes.trim_ascii_end();
        let length = bytes.len();
        if length < MIN_KEY {
            return Err(KeyError::TooShort { length });
        }
        Ok(Self(hmac::Key::new(hmac::HMAC_SHA256, bytes)))
    }

    /// The key in a file.
    pub fn read(path: &Path) -> Result<Self, KeyError> {
        let read = std::fs::read(path);
        let bytes = read.map_err(|source| KeyError::Read {
            path: path.to_owned(),
            source,
        })?;
        Self::new(&bytes)
    }
}

/// What the echo target saw of a request.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Answer {
    /// The nonce of the request.
    pub nonce: String,
    /// Where the request came from.
    pub ip: IpAddr,
    /// When it was seen, by the target's clock.
    pub time: Timestamp,
    /// HMAC-SHA-256 over the above, in hexadecimal.
    pub signature: String,
}

/// Why an answer is not the echo target's answer to this request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Forged {
    /// It answers another request.
    #[error("it answers another request, as a cache does")]
    Nonce,
    /// The signature is missing or wrong.
    #[error("its signature is wrong: something rewrote it, or the two echo keys differ")]
    Signature,
}

impl Answer {
    /// Signs what was seen.
    pub fn sign(key: &Key, nonce: String, ip: IpAddr, time: Timestamp) -> Self {
        let tag = hmac::sign(&key.0, signed_text(&nonce, ip, time).as_bytes());
        Self {
            nonce,
            ip,
            time,
            signature: HEXLOWER.encode(tag.as_ref()),
        }
    }

    /// The address the request came from, once this is known to be the answer to `nonce`.
    pub fn verify(&self, key: &Key, nonce: &str) -> Result<IpAddr, Forged> {
        let Self {
            nonce: answered,
            ip,
            time,
            signature,
        } = self;
        let text = signed_text(answered, *ip, *time);
        let tag = HEXLOWER
            .decode(signature.as_bytes())
            .map_err(|_| Forged::Signature)?;
        hmac::verify(&key.0, text.as_bytes(), &tag).map_err(|_| Forged::Signature)?;
        if answered != nonce {
            return Err(Forged::Nonce);
        }
        Ok(*ip)
    }
}

/// The nonce has no line breaks, so two different answers never give the same text.
fn signed_text(nonce: &str, ip: IpAddr, time: Timestamp) -> String {
    format!("{DOMAIN}\n{nonce}\n{ip}\n{time}")
}

/// Whether a nonce can be signed: 16 to 128 letters, digits, dashes and underscores.
pub fn is_nonce(text: &str) -> bool {
    let fits = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_');
    (16..=128).contains(&text.len()) && text.bytes().all(fits)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answer() -> (Key, Answer) {
        let key = Key::new(b"0123456789abcdef").unwrap();
        let ip = "203.0.113.7".parse().unwrap();
        let answer = Answer::sign(&key, "nonce-of-16-char".into(), ip, Timestamp::UNIX_EPOCH);
        (key, answer)
    }

    #[test]
    fn an_answer_survives_the_wire() {
        let (key, answer) = answer();
        let wire = serde_json::to_vec(&answer).unwrap();
        let read: Answer = serde_json::from_slice(&wire).unwrap();
        let seen = read.verify(&key, "nonce-of-16-char");
        assert_eq!(seen, Ok("203.0.113.7".parse().unwrap()));
    }

    #[test]
    fn an_answer_to_another_nonce_is_refused() {
        let (key, answer) = answer();
        assert_eq!(answer.verify(&key, "another-nonce-16"), Err(Forged::Nonce));
    }

    #[test]
    fn a_changed_answer_is_refused() {
        let (key, answer) = answer();
        let nonce = answer.nonce.clone();
        for forged in [
            Answer {
                ip: "203.0.113.8".parse().unwrap(),
                ..answer.clone()
            },
            Answer {
                time: Timestamp::MAX,
                ..answer.clone()
            },
            Answer {
                nonce: "another-nonce-16".into(),
                ..answer.clone()
            },
            Answer {
                signature: "00".repeat(32),
                ..answer.clone()
            },
            Answer {
                signature: String::new(),
                ..answer.clone()
            },
        ] {
            assert_eq!(
                forged.verify(&key, &nonce),
                Err(Forged::Signature),
                "{forged:?}"
            );
        }
        let other = Key::new(b"another-key-of-16-bytes").unwrap();
        assert_eq!(answer.verify(&other, &nonce), Err(Forged::Signature));
    }

    #[test]
    fn a_short_key_is_refused_and_white_space_is_no_part_of_it() {
        assert!(matches!(
            Key::new(b"short \n"),
            Err(KeyError::TooShort { length: 5 })
        ));
        let (_, answer) = answer();
        let key = Key::new(b"0123456789abcdef\n").unwrap();
        assert!(answer.verify(&key, "nonce-of-16-char").is_ok());
    }

    #[test]
    fn nonces_are_of_limited_length_and_alphabet() {
        assert!(is_nonce("abcdefghijklmn-_"));
        for bad in [
            "",
            "short",
            &"x".repeat(129),
            "with a space 1234",
            "with\na line 12345",
        ] {
            assert!(!is_nonce(bad), "{bad:?}");
        }
    }
}
