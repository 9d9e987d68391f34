use super::*;
use crate::auth::test_pki::{Authority, clock};

/// The data as kube-apiserver writes it.
fn data(client_ca: &str, proxy_ca: &str) -> BTreeMap<String, String> {
    [
        ("client-ca-file", client_ca),
        ("requestheader-client-ca-file", proxy_ca),
        ("requestheader-allowed-names", r#"["front-proxy-client"]"#),
        ("requestheader-username-headers", r#"["X-Remote-User"]"#),
        ("requestheader-uid-headers", r#"["X-Remote-Uid"]"#),
        ("requestheader-group-headers", r#"["X-Remote-Group"]"#),
        (
            "requestheader-extra-headers-prefix",
            r#"["X-Remote-Extra-"]"#,
        ),
    ]
    .map(|(key, value)| (key.to_owned(), value.to_owned()))
    .into()
}

fn complete() -> BTreeMap<String, String> {
    data(
        &Authority::new("client-ca").pem(),
        &Authority::new("proxy-ca").pem(),
    )
}

fn read_first(data: &BTreeMap<String, String>) -> Trust {
    read(data, &Trust::default(), &clock())
}

#[test]
fn every_key_is_read() {
    let trust = read_first(&complete());
    assert_eq!(trust.client_ca.unwrap().subjects().len(), 1);
    let proxy = trust.request_header.unwrap();
    assert_eq!(proxy.allowed_names, ["front-proxy-client"]);
    assert_eq!(proxy.username_headers, ["x-remote-user"]);
    assert_eq!(proxy.uid_headers, ["x-remote-uid"]);
    assert_eq!(proxy.group_headers, ["x-remote-group"]);
    assert_eq!(proxy.extra_prefixes, ["x-remote-extra-"]);
}

#[test]
fn absent_keys_switch_their_method_off() {
    let mut without_client_ca = complete();
    without_client_ca.remove("client-ca-file");
    let trust = read_first(&without_client_ca);
    assert!(trust.client_ca.is_none() && trust.request_header.is_some());

    let mut without_proxy_ca = complete();
    without_proxy_ca.remove("requestheader-client-ca-file");
    let trust = read_first(&without_proxy_ca);
    assert!(trust.client_ca.is_some() && trust.request_header.is_none());

    let trust = read_first(&BTreeMap::new());
    assert!(trust.client_ca.is_none() && trust.request_header.is_none());
}

#[test]
fn an_older_api_server_has_no_uid_headers() {
    let mut data = complete();
    data.remove("requestheader-uid-headers");
    assert!(
        read_first(&data)
            .request_header
            .unwrap()
            .uid_headers
            .is_empty()
    );
}

#[test]
fn what_cannot_be_used_leaves_in_force_what_was_known() {
    let good = complete();
    let before = read_first(&good);
    for (key, value) in [
        ("client-ca-file", "not a certificate"),
        (
            "requestheader-client-ca-file",
            "-----BEGIN CERTIFICATE-----\n-----END CERTIFICATE-----\n",
        ),
        ("requestheader-allowed-names", "front-proxy-client"),
        ("requestheader-username-headers", "[]"),
        ("requestheader-group-headers", r#"["no spaces"]"#),
    ] {
        let mut bad = good.clone();
        bad.insert(key.to_owned(), value.to_owned());
        assert!(before.is_same(&read(&bad, &before, &clock())), "{key}");
        let never_known = read_first(&bad);
        let both = never_known.client_ca.is_some() && never_known.request_header.is_some();
        assert!(!both, "{key}");
    }
}

#[test]
fn only_what_changed_is_replaced() {
    let good = complete();
    let before = read_first(&good);
    assert!(before.is_same(&read(&good, &before, &clock())));

    let mut renamed = good.clone();
    renamed.insert(
        "requestheader-allowed-names".to_owned(),
        r#"["a","b"]"#.to_owned(),
    );
    let after = read(&renamed, &before, &clock());
    assert!(!before.is_same(&after));
    // The bundles keep their verdicts.
    let ca = |trust: &Trust| Arc::clone(&trust.request_header.as_ref().unwrap().ca);
    assert!(Arc::ptr_eq(&ca(&before), &ca(&after)));
}

#[test]
fn a_bundle_of_two_authorities_trusts_both() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let trust = read_first(&data(&(old.pem() + &new.pem()), ""));
    let ca = trust.client_ca.unwrap();
    assert_eq!(ca.verify(&old.client("a").peer()).unwrap().common_name, "a");
    assert_eq!(ca.verify(&new.client("b").peer()).unwrap().common_name, "b");
}
