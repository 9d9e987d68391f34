use crawl_api::names;
use crawl_api::proxy::Placement;
use runtime_kit::Classify;
use serde_json::{Value, json};

use super::*;

fn account(yaml: &str) -> HetznerAccount {
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
fn wire(account: &HetznerAccount, request: &InstanceRequest) -> Value {
    serde_json::to_value(build(account, request).unwrap()).unwrap()
}

/// Without any option, a request says what the documentation of "Create a Server" asks for, and
/// nothing else.
#[test]
fn a_request_without_options_is_the_least_that_gives_a_reachable_server() {
    let account = account("{tokenFile: t, locations: [fsn1, nbg1]}");
    assert_eq!(
        wire(&account, &request()),
        json!({
            "name": "proxy-xj4bnp4pahh6uqkb",
            "location": "fsn1",
            "server_type": "cx23",
            "image": "debian-12",
            "labels": {"crawl-cluster": "0d1f", "crawl-proxy-uid": "77aa"},
            "public_net": {"enable_ipv4": true, "enable_ipv6": true},
            "start_after_create": true,
        })
    );
}

#[test]
fn everything_that_can_be_asked_for_is_in_the_request() {
    let account = account(
        "{tokenFile: t, locations: [fsn1, nbg1], serverType: cx33, image: ubuntu-24.04,
          sshKeys: [ops], networks: [4711], firewalls: [38, 39], ipv4: false,
          labels: {team: crawl, crawl.cluster: x}}",
    );
    let mut request = request();
    request.cloud_init = Some("#cloud-config\n".into());
    request.placement = Placement {
        zone: Some("nbg1".into()),
        machine_type: Some("cax11".into()),
        image: Some("114690387".into()),
        network: Some("4712".into()),
        ..Placement::default()
    };
    assert_eq!(
        wire(&account, &request),
        json!({
            "name": "proxy-xj4bnp4pahh6uqkb",
            "location": "nbg1",
            "server_type": "cax11",
            "image": "114690387",
            "labels": {
                "crawl-cluster": "0d1f", "crawl-proxy-uid": "77aa", "crawl.cluster": "x",
                "team": "crawl",
            },
            "user_data": "#cloud-config\n",
            "ssh_keys": ["ops"],
            "networks": [4712],
            "firewalls": [{"firewall": 38}, {"firewall": 39}],
            "public_net": {"enable_ipv4": false, "enable_ipv6": true},
            "start_after_create": true,
        })
    );
    request.placement = Placement::default();
    let wire = wire(&account, &request);
    assert_eq!(wire["server_type"], "cx33");
    assert_eq!(wire["image"], "ubuntu-24.04");
    assert_eq!(wire["networks"], json!([4711]));
}

#[test]
fn what_hetzner_cloud_does_not_have_is_refused_with_a_remedy() {
    let account = account("{tokenFile: t, locations: [fsn1]}");
    let placed = |placement: Placement| InstanceRequest {
        placement,
        ..request()
    };
    let text = |text: &str| Some(text.to_owned());
    let default = Placement::default;
    let too_long = InstanceRequest {
        cloud_init: Some("x".repeat(32 * 1024 + 1)),
        ..request()
    };
    let spot = placed(Placement {
        spot: true,
        ..default()
    });
    let zone = placed(Placement {
        zone: text("hel1"),
        ..default()
    });
    let network = placed(Placement {
        network: text("default"),
        ..default()
    });
    let subnetwork = placed(Placement {
        subnetwork: text("eu"),
        ..default()
    });
    for (request, wanted) in [
        (spot, "set placement.spot to false"),
        (zone, "use one of fsn1"),
        (network, "write the id"),
        (subnetwork, "remove placement.subnetwork"),
        (too_long, "shorten it"),
    ] {
        let error = build(&account, &request).unwrap_err();
        assert_eq!(error.class(), Class::Invalid, "{wanted}");
        assert!(error.to_string().contains(wanted), "{error}");
    }
    let longest = InstanceRequest {
        cloud_init: Some("x".repeat(32 * 1024)),
        ..request()
    };
    build(&account, &longest).unwrap();
}

#[test]
fn labels_of_the_account_never_stand_in_for_those_by_which_a_server_is_found() {
    let mut account = account("{tokenFile: t, locations: [fsn1]}");
    account.labels = Tags::from([(names::TAG_PROXY_UID.into(), "other".into())]);
    let wire = wire(&account, &request());
    assert_eq!(wire["labels"][names::TAG_PROXY_UID], "77aa");
}
