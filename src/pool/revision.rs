//! The revision of a template: a hash of what a member cannot take on without another machine.
//!
//! A member carries the hash of the template that it was created from
//! ([`names::ANNOTATION_TEMPLATE_HASH`](crawl_api::names::ANNOTATION_TEMPLATE_HASH)). It is
//! versioned like the spec hash of a Proxy: a release that hashes differently adopts the members it
//! finds. What is not hashed is written into members: see [`applied`](super::applied). Pure.

use crawl_api::proxy::{Auth, CloudInit, Mode, Placement, ProxySpec};
use serde::Serialize;

/// The version of the hash that this build computes.
const VERSION: &str = "v1";

/// Why: written out field by field, so that a new field of the API does not enter by accident.
#[derive(Serialize)]
struct Hashed<'a> {
    mode: Mode,
    provider: Option<&'a str>,
    machine: Option<Instance<'a>>,
}

/// What the operator runs; of an External proxy it runs nothing.
#[derive(Serialize)]
struct Instance<'a> {
    zone: Option<&'a str>,
    machine_type: Option<&'a str>,
    image: Option<&'a str>,
    network: Option<&'a str>,
    subnetwork: Option<&'a str>,
    spot: bool,
    cloud_init: Option<&'a str>,
    cloud_init_secret: Option<(&'a str, &'a str)>,
    port: u16,
    auth_secret: Option<&'a str>,
    auth_generate: bool,
    allowed_cidrs: &'a [String],
}

/// The revision of a template's spec, `v1:` and 16 hexadecimal digits.
///
/// The pool's `placements` are no part of it: they say where new members go.
pub(super) fn revision(spec: &ProxySpec) -> String {
    let ProxySpec {
        mode,
        provider,
        placement,
        cloud_init,
        port,
        auth,
        scheme: _, // alone it asks for nothing but other probes
        endpoint: _,
        exit: _,
        max_leases: _,
        health_check: _,
        cordoned: _,
        drain: _,
        paused: _,
        drain_timeout_seconds: _,
        provisioning_timeout_seconds: _,
        unhealthy_timeout_seconds: _,
        deletion_policy: _,
        allowed_targets: _,
        denied_targets: _,
    } = spec;
    let placement = placement.clone().unwrap_or_default();
    let cloud_init = cloud_init.clone().unwrap_or_default();
    let auth = auth.clone().unwrap_or_default();
    let machine = match mode {
        Mode::Managed => Some(instance(&placement, &cloud_init, *port, &auth)),
        Mode::External => None,
    };
    let hashed = Hashed {
        mode: *mode,
        provider: provider.as_deref(),
        machine,
    };
    format!("{VERSION}:{}", crate::proxy::digest(&hashed))
}

fn instance<'a>(
    placement: &'a Placement,
    cloud_init: &'a CloudInit,
    port: u16,
    auth: &'a Auth,
) -> Instance<'a> {
    let Placement {
        zone,
        machine_type,
        image,
        network,
        subnetwork,
        spot,
    } = placement;
    let CloudInit { inline, secret_ref } = cloud_init;
    let Auth {
        secret_ref: auth_secret,
        generate,
        rotate_seconds: _,
        allowed_cidrs,
    } = auth;
    Instance {
        zone: zone.as_deref(),
        machine_type: machine_type.as_deref(),
        image: image.as_deref(),
        network: network.as_deref(),
        subnetwork: subnetwork.as_deref(),
        spot: *spot,
        cloud_init: inline.as_deref(),
        cloud_init_secret: secret_ref
            .as_ref()
            .map(|secret| (secret.name.as_str(), secret.key.as_str())),
        port,
        auth_secret: auth_secret.as_ref().map(|secret| secret.name.as_str()),
        auth_generate: *generate,
        allowed_cidrs,
    }
}

#[cfg(test)]
mod tests {
    use crawl_api::proxy::SecretRef;

    use super::*;

    fn plain() -> ProxySpec {
        ProxySpec::managed("local")
    }

    #[test]
    fn the_revision_of_a_plain_template_never_changes_within_a_version() {
        // Whoever has to change this value must raise VERSION, or every fleet is replaced.
        assert_eq!(revision(&plain()), GOLDEN);
    }

    const GOLDEN: &str = "v1:a89d23116781d352";

    #[test]
    fn what_needs_another_machine_changes_the_revision_and_nothing_else_does() {
        let machine: [fn(&mut ProxySpec); 6] = [
            |spec| spec.provider = Some("other".into()),
            |spec| spec.port = 8080,
            |spec| spec.placement.get_or_insert_default().spot = true,
            |spec| spec.cloud_init.get_or_insert_default().inline = Some("x".into()),
            |spec| spec.auth.get_or_insert_default().generate = true,
            |spec| {
                spec.auth.get_or_insert_default().secret_ref = Some(SecretRef { name: "s".into() });
            },
        ];
        let mut all = vec![revision(&plain())];
        for change in machine {
            let mut spec = plain();
            change(&mut spec);
            all.push(revision(&spec));
        }
        let count = all.len();
        all.sort();
        all.dedup();
        assert_eq!(all.len(), count);

        let in_place: [fn(&mut ProxySpec); 6] = [
            |spec| spec.max_leases = 9,
            |spec| spec.cordoned = true,
            |spec| spec.health_check.interval_seconds = 9,
            |spec| spec.drain_timeout_seconds = 9,
            |spec| spec.allowed_targets = vec!["example.com".into()],
            |spec| spec.placement = Some(Placement::default()),
        ];
        for change in in_place {
            let mut spec = plain();
            change(&mut spec);
            assert_eq!(revision(&spec), revision(&plain()));
        }
    }
}
