//! The hash of a create request: tells whether an instance still is what the spec asks for.
//!
//! It covers what cannot change without a new instance, field by field, and carries a version: a
//! release that hashes differently writes another version, which is adopted and replaces nothing.

use crawl_api::proxy::Placement;
use serde::Serialize;
use sha2::{Digest, Sha256};

use crate::providers::InstanceRequest;

/// The version of the hash that this build computes.
const VERSION: &str = "v1";

/// How a stored hash compares with the wanted one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(crate) enum Drift {
    /// The instance is what is wanted.
    Same,
    /// Something was changed that needs another instance.
    Changed,
    /// Stored by another version, or not at all: nothing can be said.
    Unknown,
}

/// Why: written out field by field, so that a new field of the API does not enter by accident.
#[derive(Serialize)]
struct Hashed<'a> {
    zone: Option<&'a str>,
    machine_type: Option<&'a str>,
    image: Option<&'a str>,
    network: Option<&'a str>,
    subnetwork: Option<&'a str>,
    spot: bool,
    cloud_init: Option<&'a str>,
    port: u16,
    /// Whether there are credentials; not which, so that a rotation replaces nothing.
    auth: bool,
}

/// The versioned hash of a request, `v1:` and 16 hexadecimal digits.
pub(super) fn spec_hash(request: &InstanceRequest) -> String {
    let InstanceRequest {
        name: _,
        placement,
        cloud_init,
        port,
        auth,
        tags: _,
    } = request;
    let Placement {
        zone,
        machine_type,
        image,
        network,
        subnetwork,
        spot,
    } = placement;
    let hashed = Hashed {
        zone: zone.as_deref(),
        machine_type: machine_type.as_deref(),
        image: image.as_deref(),
        network: network.as_deref(),
        subnetwork: subnetwork.as_deref(),
        spot: *spot,
        cloud_init: cloud_init.as_deref(),
        port: *port,
        auth: auth.is_some(),
    };
    format!("{VERSION}:{}", digest(&hashed))
}

/// 16 hexadecimal digits of SHA-256 of a plain struct.
pub(crate) fn digest(hashed: &impl Serialize) -> String {
    #[expect(
        clippy::expect_used,
        reason = "strings, numbers and booleans always become JSON"
    )]
    let text = serde_json::to_vec(hashed).expect("a plain struct becomes JSON");
    data_encoding::HEXLOWER.encode(&Sha256::digest(text))[..16].to_owned()
}

/// Compares a stored hash with the wanted one.
pub(crate) fn drift(stored: Option<&str>, wanted: &str) -> Drift {
    let version = |hash: &str| hash.split_once(':').map(|(version, _)| version.to_owned());
    match stored {
        Some(stored) if stored == wanted => Drift::Same,
        Some(stored) if version(stored) == version(wanted) => Drift::Changed,
        Some(_) | None => Drift::Unknown,
    }
}

/// A hash as the value of a tag.
pub(super) fn to_tag(hash: &str) -> String {
    hash.replacen(':', "-", 1)
}

/// A hash from the value of a tag.
pub(super) fn from_tag(tag: &str) -> String {
    tag.replacen('-', ":", 1)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::health::Credentials;

    fn request() -> InstanceRequest {
        InstanceRequest {
            name: "proxy-a".into(),
            placement: Placement::default(),
            cloud_init: None,
            port: 3128,
            auth: None,
            tags: [("a".to_owned(), "b".to_owned())].into(),
        }
    }

    fn auth(password: &str) -> Credentials {
        Credentials {
            username: "u".into(),
            password: password.into(),
        }
    }

    /// Case 51: an upgrade replaces no fleet.
    #[test]
    fn the_hash_of_a_plain_request_never_changes_within_a_version() {
        // Whoever has to change this value must raise VERSION, or every fleet is replaced.
        assert_eq!(spec_hash(&request()), GOLDEN);
    }

    const GOLDEN: &str = "v1:6e44958b18f0f155";

    #[test]
    fn each_field_that_needs_another_instance_changes_the_hash() {
        let changes: [fn(&mut InstanceRequest); 9] = [
            |r| r.placement.zone = Some("x".into()),
            |r| r.placement.machine_type = Some("x".into()),
            |r| r.placement.image = Some("x".into()),
            |r| r.placement.network = Some("x".into()),
            |r| r.placement.subnetwork = Some("x".into()),
            |r| r.placement.spot = true,
            |r| r.cloud_init = Some("x".into()),
            |r| r.port = 8080,
            |r| r.auth = Some(auth("p")),
        ];
        let mut hashes = vec![spec_hash(&request())];
        for change in changes {
            let mut changed = request();
            change(&mut changed);
            hashes.push(spec_hash(&changed));
        }
        let count = hashes.len();
        hashes.sort();
        hashes.dedup();
        assert_eq!(hashes.len(), count);
    }

    #[test]
    fn names_tags_and_the_choice_of_credentials_are_not_hashed() {
        let renamed = InstanceRequest {
            name: "b".into(),
            tags: [].into(),
            ..request()
        };
        assert_eq!(spec_hash(&renamed), spec_hash(&request()));
        let with = |password| InstanceRequest {
            auth: Some(auth(password)),
            ..request()
        };
        assert_eq!(spec_hash(&with("p")), spec_hash(&with("q")));
    }

    #[test]
    fn drift_needs_two_hashes_of_one_version() {
        assert_eq!(drift(Some("v1:a"), "v1:a"), Drift::Same);
        assert_eq!(drift(Some("v1:b"), "v1:a"), Drift::Changed);
        assert_eq!(drift(Some("v0:a"), "v1:a"), Drift::Unknown);
        assert_eq!(drift(Some(""), "v1:a"), Drift::Unknown);
        assert_eq!(drift(None, "v1:a"), Drift::Unknown);
    }

    #[test]
    fn a_hash_survives_as_a_tag() {
        let hash = spec_hash(&request());
        assert_eq!(from_tag(&to_tag(&hash)), hash);
    }
}
