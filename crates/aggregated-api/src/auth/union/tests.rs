use serde_json::json;

use super::*;
use crate::auth::{
    test_client::{Calls, client, failure, json_answer},
    test_pki::{Authority, clock, request, trusting},
};

struct Server {
    client_ca: Authority,
    proxy_ca: Authority,
    authenticator: DelegatedAuthenticator,
    reviews: Calls,
}

/// The API server knows one token, `good`.
fn server() -> Server {
    let (client_ca, proxy_ca) = (Authority::new("client-ca"), Authority::new("proxy-ca"));
    let (client, reviews) = client(|call| async move {
        let known = call.body["spec"]["token"] == "good";
        let status = if known {
            json!({"authenticated": true, "user": {"username": "by-token"}})
        } else {
            json!({"authenticated": false})
        };
        json_answer(201, &json!({"spec": {"token": ""}, "status": status}))
    });
    let config = trusting(Some(&client_ca), Some(&proxy_ca));
    let authenticator = DelegatedAuthenticator::new(&config, client, Vec::new(), clock());
    Server {
        client_ca,
        proxy_ca,
        authenticator,
        reviews,
    }
}

impl Server {
    async fn user(&self, parts: &request::Parts) -> User {
        self.authenticator
            .authenticate(parts)
            .await
            .unwrap()
            .unwrap()
    }

    async fn is_refused(&self, parts: &request::Parts) -> bool {
        matches!(
            self.authenticator.authenticate(parts).await,
            Err(AuthError::Unauthenticated(_))
        )
    }
}

const SPOOFED: [(&str, &str); 2] = [
    ("X-Remote-User", "admin"),
    ("X-Remote-Group", "system:masters"),
];

#[tokio::test]
async fn spoofed_headers_without_a_certificate_are_anonymous() {
    let user = server().user(&request(None, &SPOOFED)).await;
    assert_eq!(user.name, "system:anonymous");
    assert_eq!(user.groups, ["system:unauthenticated"]);
}

#[tokio::test]
async fn spoofed_headers_with_a_users_certificate_are_that_user() {
    let server = server();
    let user = server
        .user(&request(Some(&server.client_ca.client("bob")), &SPOOFED))
        .await;
    assert_eq!(user.name, "bob");
    assert_eq!(user.groups, ["system:authenticated"]);
}

#[tokio::test]
async fn a_certificate_of_an_unknown_ca_is_refused_and_not_anonymous() {
    let server = server();
    let stranger = Authority::new("unknown").client("front-proxy-client");
    assert!(server.is_refused(&request(Some(&stranger), &SPOOFED)).await);
    assert!(server.is_refused(&request(Some(&stranger), &[])).await);
}

#[tokio::test]
async fn headers_under_a_name_that_is_not_the_front_proxys_are_ignored() {
    let server = server();
    let other = server.proxy_ca.client("other-proxy");
    assert!(server.is_refused(&request(Some(&other), &SPOOFED)).await);
    let mut headers = SPOOFED.to_vec();
    headers.push(("Authorization", "Bearer good"));
    assert_eq!(
        server.user(&request(Some(&other), &headers)).await.name,
        "by-token"
    );
}

#[tokio::test]
async fn a_user_without_groups_is_put_into_system_authenticated() {
    let server = server();
    let proxy = server.proxy_ca.client("front-proxy-client");
    let user = server
        .user(&request(
            Some(&proxy),
            &[("X-Remote-User", "system:kube-aggregator")],
        ))
        .await;
    assert_eq!(user.groups, ["system:authenticated"]);
}

#[tokio::test]
async fn the_group_is_added_once_and_never_to_the_unauthenticated() {
    let server = server();
    let proxy = server.proxy_ca.client("front-proxy-client");
    for (name, group) in [
        ("bob", "system:authenticated"),
        ("system:anonymous", "system:unauthenticated"),
    ] {
        let parts = request(
            Some(&proxy),
            &[("X-Remote-User", name), ("X-Remote-Group", group)],
        );
        assert_eq!(server.user(&parts).await.groups, [group]);
    }
}

#[tokio::test]
async fn a_request_of_the_front_proxy_asks_nobody() {
    let server = server();
    let proxy = server.proxy_ca.client("front-proxy-client");
    let parts = request(
        Some(&proxy),
        &[
            ("X-Remote-User", "bob"),
            ("Authorization", "Bearer whatever"),
        ],
    );
    assert_eq!(server.user(&parts).await.name, "bob");
    assert_eq!(server.reviews.count(), 0);
}

#[tokio::test]
async fn a_bad_token_is_refused_and_not_anonymous() {
    assert!(
        server()
            .is_refused(&request(None, &[("Authorization", "Bearer bad")]))
            .await
    );
}

#[tokio::test]
async fn without_anonymous_a_request_without_credentials_names_nobody() {
    let mut server = server();
    server.authenticator = server.authenticator.without_anonymous();
    assert_eq!(
        server
            .authenticator
            .authenticate(&request(None, &[]))
            .await
            .unwrap(),
        None
    );
}

#[tokio::test]
async fn a_token_that_could_not_be_judged_is_not_a_bad_token() {
    let (client, _) = client(|_| async { failure(403, "Forbidden") });
    let client_ca = Authority::new("client-ca");
    let config = trusting(Some(&client_ca), None);
    let authenticator = DelegatedAuthenticator::new(&config, client, Vec::new(), clock());
    let stranger = Authority::new("unknown").client("x");
    let parts = request(Some(&stranger), &[("Authorization", "Bearer good")]);
    let answer = authenticator.authenticate(&parts).await;
    assert!(
        matches!(answer, Err(AuthError::Unavailable { .. })),
        "{answer:?}"
    );
}

#[tokio::test]
async fn credentials_are_stripped_from_the_request() {
    let mut parts = request(
        None,
        &[
            ("Authorization", "Bearer good"),
            ("X-Remote-User", "admin"),
            ("Accept", "*/*"),
        ],
    );
    server().authenticator.strip_credentials(&mut parts.headers);
    assert_eq!(parts.headers.len(), 1);
}

/// The ConfigMap of authorities was not read yet.
fn unsettled() -> (Arc<DelegatedConfig>, DelegatedAuthenticator) {
    let (client, _) = client(|call| async move {
        let good = call.body["spec"]["token"] == "good";
        let user = json!({"username": "by-token"});
        json_answer(
            201,
            &json!({"status": {"authenticated": good, "user": user}}),
        )
    });
    let config = DelegatedConfig::pending(clock());
    let authenticator = DelegatedAuthenticator::new(&config, client, Vec::new(), clock());
    (config, authenticator)
}

#[tokio::test]
async fn before_the_authorities_are_known_nobody_is_anonymous_or_refused() {
    let (_, authenticator) = unsettled();
    let certificate = Authority::new("proxy-ca").client("front-proxy-client");
    for parts in [
        request(None, &[]),
        request(Some(&certificate), &SPOOFED),
        request(None, &[("Authorization", "Bearer bad")]),
    ] {
        let answer = authenticator.authenticate(&parts).await;
        assert!(
            matches!(answer, Err(AuthError::Unavailable { .. })),
            "{answer:?}"
        );
    }
}

#[tokio::test]
async fn before_the_authorities_are_known_tokens_and_probes_work() {
    let (_, authenticator) = unsettled();
    let by_token = request(None, &[("Authorization", "Bearer good")]);
    let user = authenticator.authenticate(&by_token).await.unwrap();
    assert_eq!(user.unwrap().name, "by-token");
    let mut probe = request(None, &[]);
    probe.uri = "/livez".parse().unwrap();
    let user = authenticator.authenticate(&probe).await.unwrap();
    assert_eq!(user.unwrap().name, "system:anonymous");
}
