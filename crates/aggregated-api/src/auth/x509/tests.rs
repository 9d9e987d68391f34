use rcgen::DnType;

use super::*;
use crate::auth::test_pki::{Authority, client_params, request, trusting};

#[tokio::test]
async fn the_subject_of_a_client_certificate_is_the_user() {
    let ca = Authority::new("client-ca");
    let mut params = client_params("kubernetes-admin");
    params
        .distinguished_name
        .push(DnType::OrganizationName, "system:masters");
    // The same attribute by number, because a name of this library holds each type once.
    params
        .distinguished_name
        .push(DnType::CustomDnType(vec![2, 5, 4, 10]), "ops");
    params.distinguished_name.push(
        DnType::CustomDnType(vec![1, 3, 6, 1, 4, 1, 57683, 2]),
        "a-uid",
    );
    let certificate = ca.issue(&params);
    let authenticator = ClientCertificate::new(trusting(Some(&ca), None));
    let user = authenticator
        .authenticate(&request(Some(&certificate), &[]))
        .await
        .unwrap();
    let user = user.unwrap();
    assert_eq!(user.name, "kubernetes-admin");
    assert_eq!(user.groups, ["system:masters", "ops"]);
    assert_eq!(user.uid, "a-uid");
    let id = &user.extra["authentication.kubernetes.io/credential-id"][0];
    assert_eq!(
        id.strip_prefix("X509SHA256=").map(str::len),
        Some(64),
        "{id}"
    );
}

#[tokio::test]
async fn without_a_client_ca_certificates_say_nothing() {
    let certificate = Authority::new("some-ca").client("bob");
    let authenticator = ClientCertificate::new(trusting(None, None));
    let user = authenticator
        .authenticate(&request(Some(&certificate), &[]))
        .await
        .unwrap();
    assert_eq!(user, None);
}

#[tokio::test]
async fn a_certificate_of_another_ca_is_refused() {
    let certificate = Authority::new("some-ca").client("bob");
    let authenticator = ClientCertificate::new(trusting(Some(&Authority::new("client-ca")), None));
    let refused = authenticator
        .authenticate(&request(Some(&certificate), &[]))
        .await;
    assert!(
        matches!(refused, Err(AuthError::Unauthenticated(_))),
        "{refused:?}"
    );
}
