use runtime_kit::SteppedClock;
use serde_json::{Value, json};

use super::*;
use crate::auth::{
    test_client::{Calls, client, failure, json_answer},
    test_pki::request,
};

fn reviewer(audiences: &[&str], status: Value) -> (TokenReviewAuthenticator, Calls, SteppedClock) {
    let (client, calls) = client(move |_| {
        let answer = json_answer(201, &json!({"spec": {"token": ""}, "status": status}));
        async move { answer }
    });
    let clock = SteppedClock::default();
    let audiences = audiences
        .iter()
        .map(|&audience| audience.to_owned())
        .collect();
    (
        TokenReviewAuthenticator::new(client, audiences, Arc::new(clock.clone())),
        calls,
        clock,
    )
}

const BEARER: [(&str, &str); 1] = [("Authorization", "Bearer t0ken")];

#[tokio::test]
async fn the_review_carries_token_and_audience_and_names_the_user() {
    let (reviewer, calls, _) = reviewer(
        &["leases"],
        json!({
            "authenticated": true,
            "audiences": ["leases"],
            "user": {
                "username": "system:serviceaccount:a:b", "uid": "1", "groups": ["g"],
                "extra": {"authentication.kubernetes.io/pod-name": ["p"]},
            },
        }),
    );
    let user = reviewer
        .authenticate(&request(None, &BEARER))
        .await
        .unwrap()
        .unwrap();
    assert_eq!(user.name, "system:serviceaccount:a:b");
    assert_eq!(
        (user.uid.as_str(), user.groups),
        ("1", vec!["g".to_owned()])
    );
    assert_eq!(user.extra["authentication.kubernetes.io/pod-name"], ["p"]);
    let call = &calls.all()[0];
    assert_eq!(call.path, "/apis/authentication.k8s.io/v1/tokenreviews?");
    assert_eq!(
        call.body["spec"],
        json!({"token": "t0ken", "audiences": ["leases"]})
    );
}

#[tokio::test]
async fn a_token_for_another_audience_is_refused_also_when_the_server_checks_none() {
    for audiences in [json!(["other"]), Value::Null] {
        let (reviewer, ..) = reviewer(
            &["leases"],
            json!({
                "authenticated": true, "audiences": audiences, "user": {"username": "bob"},
            }),
        );
        let refused = reviewer.authenticate(&request(None, &BEARER)).await;
        assert!(
            matches!(refused, Err(AuthError::Unauthenticated(_))),
            "{refused:?}"
        );
    }
}

#[tokio::test]
async fn answers_are_remembered_for_ten_seconds_whether_good_or_bad() {
    for authenticated in [true, false] {
        let (reviewer, calls, clock) = reviewer(
            &[],
            json!({"authenticated": authenticated, "user": {"username": "bob"}}),
        );
        for _ in 0..3 {
            let answer = reviewer.authenticate(&request(None, &BEARER)).await;
            assert_eq!(answer.is_ok(), authenticated);
        }
        assert_eq!(calls.count(), 1);
        clock.advance(Duration::from_secs(10));
        let answer = reviewer.authenticate(&request(None, &BEARER)).await;
        assert_eq!(answer.is_ok(), authenticated);
        assert_eq!(calls.count(), 2);
    }
}

#[tokio::test]
async fn an_answer_that_could_not_be_had_is_not_remembered() {
    let (client, calls) = client(|_| async { failure(403, "Forbidden") });
    let clock = Arc::new(SteppedClock::default());
    let reviewer = TokenReviewAuthenticator::new(client, Vec::new(), clock);
    for asked in 1..=2 {
        let answer = reviewer.authenticate(&request(None, &BEARER)).await;
        assert!(
            matches!(answer, Err(AuthError::Unavailable { .. })),
            "{answer:?}"
        );
        assert_eq!(calls.count(), asked);
    }
}

#[test]
fn tokens_are_found_where_clients_put_them() {
    let token = |name, value| bearer_token(&request(None, &[(name, value)]).headers);
    assert_eq!(token("Authorization", "Bearer abc").as_deref(), Some("abc"));
    assert_eq!(token("Authorization", "bearer abc").as_deref(), Some("abc"));
    assert_eq!(
        token(
            "Sec-WebSocket-Protocol",
            "base64url.bearer.authorization.k8s.io.YWJj, v5.channel"
        )
        .as_deref(),
        Some("abc")
    );
    assert_eq!(token("Authorization", "Basic abc"), None);
    assert_eq!(token("Authorization", "Bearer "), None);
    assert_eq!(token("Accept", "*/*"), None);
}
