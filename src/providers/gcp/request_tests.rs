use crawl_api::names;
use crawl_api::proxy::Placement;
use runtime_kit::Classify;
use serde_json::{Value, json};

use super::*;
use crate::providers::Tags;

fn account(yaml: &str) -> GcpAccount {
    serde_saphyr::from_str(yaml).unwrap()
}

fn request() -> InstanceRequest {
    InstanceRequest {
        name: "proxy-xj4bnp4pahh6uqkb".into(),
        placement: Placement::default(),
        cloud_init: None,
        port: 3128,
        auth: None,
        tags: Tags::from([
            (names::TAG_CLUSTER.into(), "0d1f".into()),
            (names::TAG_PROXY_UID.into(), "77aa".into()),
        ]),
    }
}

/// The request as it goes over the wire.
fn wire(account: &GcpAccount, request: &InstanceRequest) -> Value {
    serde_json::to_value(build(account, request).unwrap().instance).unwrap()
}

/// Without any option, a request says what the reference of `instances.insert` asks for, and
/// nothing else.
#[test]
fn a_request_without_options_is_the_least_that_gives_a_reachable_machine() {
    let account = account("{project: p-1, zones: [europe-west1-b, europe-west1-c]}");
    assert_eq!(build(&account, &request()).unwrap().zone, "europe-west1-b");
    assert_eq!(
        wire(&account, &request()),
        json!({
            "name": "proxy-xj4bnp4pahh6uqkb",
            "machineType": "zones/europe-west1-b/machineTypes/e2-micro",
            "labels": {"crawl-cluster": "0d1f", "crawl-proxy-uid": "77aa"},
            "disks": [{
                "boot": true,
                "autoDelete": true,
                "initializeParams": {
                    "sourceImage": "projects/debian-cloud/global/images/family/debian-12",
                    "diskType": "zones/europe-west1-b/diskTypes/pd-standard",
                    "diskSizeGb": "10",
                },
            }],
            "networkInterfaces": [{
                "network": "global/networks/default",
                "accessConfigs": [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}],
            }],
        })
    );
}

#[test]
fn every_option_of_the_account_and_of_the_placement_has_its_field() {
    let account = account(
        "
project: p-1
zones: [europe-west1-b, us-central1-f]
machineType: e2-small
image: own-image
disk: {type: pd-balanced, sizeGigabytes: 20}
network: crawl
subnetwork: exits
networkTags: [crawl-proxy]
ipv6: true
serviceAccount: {email: m@p-1.iam.gserviceaccount.com, scopes: [scope-a, scope-b]}
spotTerminationAction: Stop
labels: {team: crawl}
",
    );
    let mut request = request();
    request.placement.zone = Some("us-central1-f".into());
    request.placement.spot = true;
    request.cloud_init = Some("#cloud-config\n".into());
    assert_eq!(
        wire(&account, &request),
        json!({
            "name": "proxy-xj4bnp4pahh6uqkb",
            "machineType": "zones/us-central1-f/machineTypes/e2-small",
            "labels": {"crawl-cluster": "0d1f", "crawl-proxy-uid": "77aa", "team": "crawl"},
            "disks": [{
                "boot": true,
                "autoDelete": true,
                "initializeParams": {
                    "sourceImage": "global/images/own-image",
                    "diskType": "zones/us-central1-f/diskTypes/pd-balanced",
                    "diskSizeGb": "20",
                },
            }],
            "networkInterfaces": [{
                "network": "global/networks/crawl",
                "subnetwork": "regions/us-central1/subnetworks/exits",
                "stackType": "IPV4_IPV6",
                "accessConfigs": [{"type": "ONE_TO_ONE_NAT", "name": "External NAT"}],
                "ipv6AccessConfigs": [{"type": "DIRECT_IPV6", "name": "External IPv6"}],
            }],
            "tags": {"items": ["crawl-proxy"]},
            "metadata": {"items": [{"key": "user-data", "value": "#cloud-config\n"}]},
            "serviceAccounts": [
                {"email": "m@p-1.iam.gserviceaccount.com", "scopes": ["scope-a", "scope-b"]},
            ],
            "scheduling": {
                "provisioningModel": "SPOT",
                "instanceTerminationAction": "STOP",
                "onHostMaintenance": "TERMINATE",
                "automaticRestart": false,
            },
        })
    );
}

#[test]
fn a_placement_comes_before_the_account_and_paths_stay_as_they_are() {
    let account = account("{project: p-1, zones: [europe-west1-b]}");
    let mut request = request();
    request.placement = Placement {
        zone: None,
        machine_type: Some("n2-standard-2".into()),
        image: Some("projects/other/global/images/squid-7".into()),
        network: Some("projects/host/global/networks/shared".into()),
        subnetwork: Some("projects/host/regions/europe-west1/subnetworks/s".into()),
        spot: true,
    };
    let wire = wire(&account, &request);
    for (at, wanted) in [
        (
            "/machineType",
            "zones/europe-west1-b/machineTypes/n2-standard-2",
        ),
        (
            "/disks/0/initializeParams/sourceImage",
            "projects/other/global/images/squid-7",
        ),
        (
            "/networkInterfaces/0/network",
            "projects/host/global/networks/shared",
        ),
        (
            "/networkInterfaces/0/subnetwork",
            "projects/host/regions/europe-west1/subnetworks/s",
        ),
        ("/scheduling/instanceTerminationAction", "DELETE"),
    ] {
        assert_eq!(wire.pointer(at), Some(&json!(wanted)), "{at}");
    }
}

#[test]
fn a_zone_that_is_not_configured_is_refused_with_those_that_are() {
    let account = account("{project: p-1, zones: [europe-west1-b, europe-west1-c]}");
    let mut request = request();
    request.placement.zone = Some("asia-east1-a".into());
    let error = build(&account, &request).unwrap_err();
    assert_eq!(error.class(), Class::Invalid);
    let message = error.to_string();
    for part in [
        "asia-east1-a",
        "europe-west1-b, europe-west1-c",
        "gcp.zones",
    ] {
        assert!(message.contains(part), "{message}");
    }
}

#[test]
fn the_identity_of_a_machine_cannot_be_overridden_by_the_labels_of_the_account() {
    let mut account = account("{project: p-1, zones: [europe-west1-b]}");
    account.labels = Tags::from([(names::TAG_PROXY_UID.into(), "other".into())]);
    let wire = wire(&account, &request());
    assert_eq!(wire["labels"]["crawl-proxy-uid"], "77aa");
}

#[test]
fn a_request_id_is_a_uuid_that_follows_from_the_request_and_nothing_else() {
    let account = account("{project: p-1, zones: [europe-west1-b]}");
    let id = |request: &InstanceRequest, after: &str| {
        let insert = build(&account, request).unwrap();
        insert.request_id(after).unwrap()
    };
    let first = id(&request(), "");
    // Why many: labels in the order of a hash map would differ between two of them.
    assert!((0..50).all(|_| id(&request(), "") == first));
    let groups: Vec<_> = first.split('-').map(str::len).collect();
    assert_eq!(groups, [8, 4, 4, 4, 12], "{first}");
    assert!(
        first.bytes().all(|b| b == b'-' || b.is_ascii_hexdigit()),
        "{first}"
    );
    assert_eq!(first.as_bytes()[14], b'8', "version: {first}");
    assert!(b"89ab".contains(&first.as_bytes()[19]), "variant: {first}");

    let mut others = vec![id(&request(), "operation-1")];
    let mut change = |edit: &dyn Fn(&mut InstanceRequest)| {
        let mut request = request();
        edit(&mut request);
        others.push(id(&request, ""));
    };
    change(&|request| request.name.push('a'));
    change(&|request| request.cloud_init = Some("x".into()));
    change(&|request| request.placement.spot = true);
    change(&|request| {
        request
            .tags
            .insert(names::TAG_PROXY_UID.into(), "other".into());
    });
    others.push(first);
    let count = others.len();
    others.sort();
    others.dedup();
    assert_eq!(others.len(), count);
}
