//! The names of instances: known before anything is created, the same after every crash.

use data_encoding::BASE32_NOPAD;
use sha2::{Digest, Sha256};

/// How much of the digest is in a name: 80 bits.
const DIGEST_CHARACTERS: usize = 16;

/// The name of the instance of a Proxy: the prefix and 16 characters of the SHA-256 of its UID in
/// base32 (RFC 4648, lower case, unpadded).
pub(super) fn instance_name(prefix: &str, uid: &str) -> String {
    let mut digest = BASE32_NOPAD
        .encode(&Sha256::digest(uid))
        .to_ascii_lowercase();
    digest.truncate(DIGEST_CHARACTERS);
    format!("{prefix}{digest}")
}

/// A value that every provider takes as a tag: lower-case letters, digits and inner dashes, at most
/// 63. Names of Kubernetes begin with a letter or digit already.
pub(super) fn tag_value(text: &str) -> String {
    let safe = |c: char| {
        if c.is_ascii_lowercase() || c.is_ascii_digit() {
            c
        } else {
            '-'
        }
    };
    let value: String = text.chars().take(63).map(safe).collect();
    value.trim_end_matches('-').to_owned()
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    fn matches_pattern(name: &str) -> bool {
        name.strip_prefix("proxy-").is_some_and(|digest| {
            digest.len() == 16
                && digest
                    .chars()
                    .all(|c| c.is_ascii_lowercase() || ('2'..='7').contains(&c))
        })
    }

    #[test]
    fn ten_thousand_uids_have_ten_thousand_well_formed_names() {
        let uid = |n: u32| format!("{n:08x}-5c1d-4b9e-9d0e-0123456789ab");
        let names: HashSet<_> = (0..10_000)
            .map(|n| instance_name("proxy-", &uid(n)))
            .collect();
        assert_eq!(names.len(), 10_000);
        assert!(names.iter().all(|name| matches_pattern(name)), "{names:?}");
    }

    #[test]
    fn a_name_follows_from_the_uid_alone() {
        // SHA-256("abc") starts with ba7816bf8f01cfea4141; base32 by hand from RFC 4648.
        assert_eq!(instance_name("proxy-", "abc"), "proxy-xj4bnp4pahh6uqkb");
        assert_eq!(
            instance_name("proxy-", "abc"),
            instance_name("proxy-", "abc")
        );
    }

    #[test]
    fn tags_hold_what_every_provider_takes() {
        assert_eq!(tag_value("eu.Shop_1"), "eu--hop-1");
        assert_eq!(tag_value(&"a".repeat(100)).len(), 63);
        // A value that was cut ends with a letter or digit, too.
        let cut = format!("{}.shop", "a".repeat(62));
        assert_eq!(tag_value(&cut), "a".repeat(62));
    }
}
