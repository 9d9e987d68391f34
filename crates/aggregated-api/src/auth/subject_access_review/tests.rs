use std::collections::BTreeMap;

use axum::body::Body;
use http::Response;
use runtime_kit::SteppedClock;
use serde_json::{Value, json};
use tokio::sync::Semaphore;

use super::*;
use crate::auth::test_client::{Call, Calls, client, failure, json_answer};

fn authorizer<A>(
    answer: impl Fn(Call) -> A + Clone + Send + Sync + 'static,
) -> (Arc<SubjectAccessReviewAuthorizer>, Calls, SteppedClock)
where
    A: Future<Output = Response<Body>> + Send,
{
    let (client, calls) = client(answer);
    let clock = SteppedClock::default();
    let authorizer = SubjectAccessReviewAuthorizer::new(client, Arc::new(clock.clone()));
    (Arc::new(authorizer), calls, clock)
}

fn status(status: &Value) -> Response<Body> {
    json_answer(201, &json!({"spec": {}, "status": status}))
}

async fn allows(_: Call) -> Response<Body> {
    status(&json!({"allowed": true}))
}

fn bob() -> User {
    User {
        name: "bob".to_owned(),
        uid: "u-1".to_owned(),
        groups: vec!["system:authenticated".to_owned()],
        extra: BTreeMap::from([(
            "authentication.kubernetes.io/credential-id".to_owned(),
            vec!["JTI=1".to_owned()],
        )]),
    }
}

fn create_in(namespace: &str) -> Attributes {
    Attributes::Resource {
        verb: "create".to_owned(),
        group: "wardle.example.com".to_owned(),
        version: "v1alpha1".to_owned(),
        resource: "flunders".to_owned(),
        subresource: "status".to_owned(),
        namespace: namespace.to_owned(),
        name: "x".to_owned(),
    }
}

fn get(path: &str) -> Attributes {
    Attributes::NonResource {
        verb: "get".to_owned(),
        path: path.to_owned(),
    }
}

#[tokio::test]
async fn the_review_says_everything_about_user_and_request() {
    let (authorizer, calls, _) = authorizer(allows);
    assert_eq!(
        authorizer
            .authorize(&bob(), &create_in("default"))
            .await
            .unwrap(),
        Decision::Allow
    );
    let call = &calls.all()[0];
    assert_eq!(
        call.path,
        "/apis/authorization.k8s.io/v1/subjectaccessreviews?"
    );
    assert_eq!(
        call.body["spec"],
        json!({
            "user": "bob", "uid": "u-1", "groups": ["system:authenticated"],
            "extra": {"authentication.kubernetes.io/credential-id": ["JTI=1"]},
            "resourceAttributes": {
                "verb": "create", "group": "wardle.example.com", "version": "v1alpha1",
                "resource": "flunders", "subresource": "status", "namespace": "default",
                "name": "x",
            },
        })
    );

    authorizer
        .authorize(&bob(), &get("/metrics"))
        .await
        .unwrap();
    let spec = &calls.all()[1].body["spec"];
    assert_eq!(
        spec["nonResourceAttributes"],
        json!({"verb": "get", "path": "/metrics"})
    );
    assert_eq!(spec.get("resourceAttributes"), None);
}

#[tokio::test]
async fn neither_allowed_nor_denied_is_a_refusal_and_denied_wins() {
    for answer in [
        json!({"allowed": false, "reason": "no rule"}),
        json!({"allowed": true, "denied": true, "reason": "no rule"}),
    ] {
        let (authorizer, ..) = authorizer(move |_| {
            let answer = status(&answer);
            async move { answer }
        });
        assert_eq!(
            authorizer
                .authorize(&bob(), &create_in("default"))
                .await
                .unwrap(),
            Decision::Deny("no rule".to_owned())
        );
    }
}

#[tokio::test]
async fn decisions_hold_for_ten_seconds_and_for_their_own_question() {
    for allowed in [true, false] {
        let (authorizer, calls, clock) =
            authorizer(move |_| async move { status(&json!({"allowed": allowed})) });
        let (user, attrs) = (bob(), create_in("default"));
        for _ in 0..3 {
            authorizer.authorize(&user, &attrs).await.unwrap();
        }
        assert_eq!(calls.count(), 1);
        authorizer
            .authorize(&user, &create_in("other"))
            .await
            .unwrap();
        authorizer
            .authorize(
                &User {
                    uid: "u-2".to_owned(),
                    ..bob()
                },
                &attrs,
            )
            .await
            .unwrap();
        assert_eq!(calls.count(), 3);
        clock.advance(Duration::from_secs(10));
        authorizer.authorize(&user, &attrs).await.unwrap();
        assert_eq!(calls.count(), 4);
    }
}

#[tokio::test]
async fn masters_and_probes_are_never_asked_about() {
    let (authorizer, calls, _) = authorizer(|_| async { failure(500, "InternalError") });
    let masters = User {
        groups: vec!["system:masters".to_owned()],
        ..bob()
    };
    assert_eq!(
        authorizer
            .authorize(&masters, &create_in("default"))
            .await
            .unwrap(),
        Decision::Allow
    );
    for path in ["/healthz", "/readyz", "/livez"] {
        let decision = authorizer
            .authorize(&User::anonymous(), &get(path))
            .await
            .unwrap();
        assert_eq!(decision, Decision::Allow);
    }
    assert_eq!(calls.count(), 0);
}

#[tokio::test(start_paused = true)]
async fn other_paths_are_asked_about() {
    let (authorizer, calls, _) = authorizer(allows);
    for path in [
        "/metrics",
        "/version",
        "/openapi/v2",
        "/apis",
        "/healthz/etcd",
    ] {
        authorizer.authorize(&bob(), &get(path)).await.unwrap();
    }
    assert_eq!(calls.count(), 5);
}

#[tokio::test]
async fn equal_questions_at_the_same_time_are_asked_once() {
    let gate = Arc::new(Semaphore::new(0));
    let held = Arc::clone(&gate);
    let (authorizer, calls, _) = authorizer(move |_| {
        let held = Arc::clone(&held);
        async move {
            held.acquire().await.unwrap().forget();
            status(&json!({"allowed": true}))
        }
    });
    let ask = || {
        let authorizer = Arc::clone(&authorizer);
        tokio::spawn(async move { authorizer.authorize(&bob(), &create_in("default")).await })
    };
    let asked: Vec<_> = (0..64).map(|_| ask()).collect();
    crate::auth::test_client::eventually("one call", || calls.count() == 1).await;
    // The one that happens to carry the call may go away; the others are still answered.
    let mut asked = asked.into_iter();
    asked.next().unwrap().abort();
    gate.add_permits(64);
    for answer in asked {
        assert_eq!(answer.await.unwrap().unwrap(), Decision::Allow);
    }
    assert_eq!(calls.count(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_passing_failure_is_tried_again() {
    let (authorizer, calls, _) = authorizer(|_| async { failure(503, "ServiceUnavailable") });
    let answer = authorizer.authorize(&bob(), &create_in("default")).await;
    assert!(
        matches!(answer, Err(AuthError::Unavailable { .. })),
        "{answer:?}"
    );
    assert_eq!(calls.count(), 5);
    // What failed is asked again by the next request.
    let answer = authorizer.authorize(&bob(), &create_in("default")).await;
    assert!(answer.is_err());
    assert_eq!(calls.count(), 10);
}

#[tokio::test]
async fn a_refusal_to_answer_is_not_tried_again() {
    let (authorizer, calls, _) = authorizer(|_| async { failure(403, "Forbidden") });
    let err = authorizer
        .authorize(&bob(), &create_in("default"))
        .await
        .unwrap_err();
    assert_eq!(calls.count(), 1);
    assert!(err.to_string().contains("SubjectAccessReview"), "{err}");
}

#[tokio::test(start_paused = true)]
async fn an_api_server_that_is_silent_costs_ten_seconds_at_most() {
    let (authorizer, ..) = authorizer(|_| std::future::pending());
    let began = tokio::time::Instant::now();
    let answer = authorizer.authorize(&bob(), &create_in("default")).await;
    assert!(
        matches!(answer, Err(AuthError::Unavailable { .. })),
        "{answer:?}"
    );
    assert!(began.elapsed() <= Duration::from_secs(10));
}

#[tokio::test]
async fn an_oversized_question_is_not_remembered() {
    let (authorizer, calls, _) = authorizer(allows);
    let attrs = get(&"x".repeat(MAX_REMEMBERED_LEN));
    for _ in 0..2 {
        authorizer.authorize(&bob(), &attrs).await.unwrap();
    }
    assert_eq!(calls.count(), 2);
}
