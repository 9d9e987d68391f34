use super::*;
use crate::auth::{
    test_pki::{Authority, client_params, clock, expired, front_proxy, request, trusting},
    trust::Trust,
};

async fn authenticate(
    config: &Arc<DelegatedConfig>,
    parts: &request::Parts,
) -> Result<Option<User>, AuthError> {
    FrontProxy::new(Arc::clone(config))
        .authenticate(parts)
        .await
}

#[tokio::test]
async fn the_front_proxys_headers_name_the_user() {
    let ca = Authority::new("proxy-ca");
    let parts = request(
        Some(&ca.client("front-proxy-client")),
        &[
            ("X-Remote-User", "system:serviceaccount:crawlers:shop"),
            ("X-Remote-Uid", "7f0c"),
            ("X-Remote-Group", "system:serviceaccounts"),
            ("X-Remote-Group", "system:serviceaccounts:crawlers"),
            (
                "X-Remote-Extra-Authentication.kubernetes.io%2fpod-Name",
                "shop-0",
            ),
            ("X-Remote-Extra-Scopes", "a"),
            ("X-Remote-Extra-Scopes", "b"),
        ],
    );
    let user = authenticate(&trusting(None, Some(&ca)), &parts)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(
        user,
        User {
            name: "system:serviceaccount:crawlers:shop".to_owned(),
            uid: "7f0c".to_owned(),
            groups: vec![
                "system:serviceaccounts".to_owned(),
                "system:serviceaccounts:crawlers".to_owned(),
            ],
            extra: BTreeMap::from([
                (
                    "authentication.kubernetes.io/pod-name".to_owned(),
                    vec!["shop-0".to_owned()]
                ),
                ("scopes".to_owned(), vec!["a".to_owned(), "b".to_owned()]),
            ]),
        }
    );
}

#[tokio::test]
async fn headers_without_a_certificate_name_nobody() {
    let config = trusting(None, Some(&Authority::new("proxy-ca")));
    let parts = request(
        None,
        &[
            ("X-Remote-User", "admin"),
            ("X-Remote-Group", "system:masters"),
        ],
    );
    assert_eq!(authenticate(&config, &parts).await.unwrap(), None);
}

#[tokio::test]
async fn a_certificate_of_an_unknown_ca_is_refused() {
    let config = trusting(None, Some(&Authority::new("proxy-ca")));
    // The same name does not make it the same authority.
    let impostor = Authority::new("proxy-ca");
    let parts = request(
        Some(&impostor.client("front-proxy-client")),
        &[("X-Remote-User", "admin")],
    );
    let refused = authenticate(&config, &parts).await;
    assert!(
        matches!(refused, Err(AuthError::Unauthenticated(_))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn a_trusted_certificate_outside_the_allowed_names_names_nobody() {
    let ca = Authority::new("proxy-ca");
    let parts = request(
        Some(&ca.client("somebody-else")),
        &[("X-Remote-User", "admin")],
    );
    let refused = authenticate(&trusting(None, Some(&ca)), &parts).await;
    assert!(
        matches!(refused, Err(AuthError::Unauthenticated(_))),
        "{refused:?}"
    );
}

#[tokio::test]
async fn without_allowed_names_any_name_is_the_front_proxys() {
    let ca = Authority::new("proxy-ca");
    let trust = Trust {
        client_ca: None,
        request_header: Some(front_proxy(ca.bundle(), &[])),
    };
    let config = DelegatedConfig::fixed(trust, clock());
    let parts = request(Some(&ca.client("whoever")), &[("X-Remote-User", "bob")]);
    assert_eq!(
        authenticate(&config, &parts).await.unwrap().unwrap().name,
        "bob"
    );
}

#[tokio::test]
async fn an_expired_certificate_and_one_for_servers_are_refused() {
    let ca = Authority::new("proxy-ca");
    let config = trusting(None, Some(&ca));
    let old = ca.issue(&expired(client_params("front-proxy-client")));
    let for_servers = ca.server("front-proxy-client");
    for certificate in [old, for_servers] {
        let parts = request(Some(&certificate), &[("X-Remote-User", "admin")]);
        let refused = authenticate(&config, &parts).await;
        assert!(
            matches!(refused, Err(AuthError::Unauthenticated(_))),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn a_rotated_ca_takes_effect_at_the_next_request() {
    let (old, new) = (Authority::new("old"), Authority::new("new"));
    let config = trusting(None, Some(&old));
    let old_request = request(
        Some(&old.client("front-proxy-client")),
        &[("X-Remote-User", "bob")],
    );
    let new_request = request(
        Some(&new.client("front-proxy-client")),
        &[("X-Remote-User", "bob")],
    );
    assert!(authenticate(&config, &old_request).await.is_ok());
    assert!(authenticate(&config, &new_request).await.is_err());

    config.replace(Trust {
        client_ca: None,
        request_header: Some(front_proxy(new.bundle(), &["front-proxy-client"])),
    });

    assert!(authenticate(&config, &old_request).await.is_err());
    assert_eq!(
        authenticate(&config, &new_request)
            .await
            .unwrap()
            .unwrap()
            .name,
        "bob"
    );
}

#[tokio::test]
async fn a_request_of_the_front_proxy_without_a_user_is_left_to_others() {
    let ca = Authority::new("proxy-ca");
    let parts = request(
        Some(&ca.client("front-proxy-client")),
        &[("X-Remote-User", ""), ("X-Remote-Group", "g")],
    );
    assert_eq!(
        authenticate(&trusting(None, Some(&ca)), &parts)
            .await
            .unwrap(),
        None
    );
}

#[tokio::test]
async fn user_names_are_utf8_and_nothing_else() {
    let ca = Authority::new("proxy-ca");
    let config = trusting(None, Some(&ca));
    let mut parts = request(Some(&ca.client("front-proxy-client")), &[]);
    parts.headers.insert(
        "x-remote-user",
        HeaderValue::from_bytes("Zoë".as_bytes()).unwrap(),
    );
    assert_eq!(
        authenticate(&config, &parts).await.unwrap().unwrap().name,
        "Zoë"
    );

    parts
        .headers
        .insert("x-remote-user", HeaderValue::from_bytes(b"Zo\xeb").unwrap());
    assert!(authenticate(&config, &parts).await.is_err());
}

#[test]
fn extra_keys_with_bad_escapes_are_kept() {
    for (escaped, key) in [
        (
            "authentication.kubernetes.io%2fpod-uid",
            "authentication.kubernetes.io/pod-uid",
        ),
        ("a%2Fb", "a/b"),
        ("a%zzb", "a%zzb"),
        ("a%2", "a%2"),
        ("%", "%"),
        ("a%ff", "a%ff"),
        ("plain", "plain"),
    ] {
        assert_eq!(unescape(escaped), key);
    }
}

#[test]
fn all_identity_headers_are_stripped() {
    let config = trusting(None, Some(&Authority::new("proxy-ca")));
    let mut parts = request(
        None,
        &[
            ("X-Remote-User", "u"),
            ("X-Remote-Uid", "i"),
            ("X-Remote-Group", "g"),
            ("X-Remote-Extra-Scopes", "s"),
            ("Accept", "application/json"),
        ],
    );
    FrontProxy::new(config).strip_credentials(&mut parts.headers);
    assert_eq!(
        parts
            .headers
            .keys()
            .map(HeaderName::as_str)
            .collect::<Vec<_>>(),
        ["accept"]
    );
}
