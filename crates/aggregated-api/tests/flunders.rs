//! The generic flows, request by request, against a server in this process. Expected answers are
//! those of `k8s.io/apiserver` and, for schema features, of CustomResourceDefinitions.

mod common;

use std::io::Read;

use axum::body::Body;
use common::{COLLECTION, Server};
use http::Request;
use http_body_util::BodyExt;
use serde_json::{Value, json};

const ALL: &str = "/apis/wardle.example.com/v1alpha1/flunders";
const META_LIST: &str = "application/json;as=PartialObjectMetadataList;g=meta.k8s.io;v=v1";
const TABLE: &str = "application/json;as=Table;v=v1;g=meta.k8s.io";

fn item(name: &str) -> String {
    format!("{COLLECTION}/{name}")
}

#[tokio::test]
async fn a_create_answers_with_the_stored_object() {
    let server = Server::start().await;
    let created = server
        .create(
            "a",
            json!({"metadata": {"uid": "mine", "generation": 7}, "status": {"word": "x"}}),
        )
        .await;
    assert_eq!(created["kind"], "Flunder");
    assert_eq!(created["metadata"]["namespace"], "ns");
    assert_eq!(created["metadata"]["generation"], 1);
    assert_ne!(created["metadata"]["uid"], "mine");
    assert_eq!(created["spec"]["count"], 3, "defaulted");
    assert!(created.get("status").is_none(), "a create has no status");
    let (status, got) = server.call("GET", &item("a"), None).await;
    assert_eq!((status, got), (200, created));
}

#[tokio::test]
async fn refusals_are_statuses_with_code_reason_and_details() {
    let server = Server::start().await;
    server.create("a", json!({})).await;
    let flunder = |name: &str, spec: Value| Some(json!({"metadata": {"name": name}, "spec": spec}));
    let big = "x".repeat(4 * 1024 * 1024);
    let elsewhere = COLLECTION.replace("/ns/", "/nowhere/");
    let going = COLLECTION.replace("/ns/", "/going/");
    for (method, path, body, code, reason, message) in [
        (
            "GET",
            item("b"),
            None,
            404,
            "NotFound",
            r#"flunders.wardle.example.com "b" not found"#,
        ),
        (
            "POST",
            COLLECTION.to_owned(),
            flunder("a", json!({})),
            409,
            "AlreadyExists",
            r#"flunders.wardle.example.com "a" already exists"#,
        ),
        (
            "POST",
            COLLECTION.to_owned(),
            flunder("c", json!({"count": 10})),
            422,
            "Invalid",
            r#"Flunder.wardle.example.com "c" is invalid: spec.count: Invalid value: 10: spec.count in body should be less than or equal to 9"#,
        ),
        (
            "POST",
            COLLECTION.to_owned(),
            flunder("c", json!({"reference": "bad"})),
            422,
            "Invalid",
            r#"Flunder.wardle.example.com "c" is invalid: spec.reference: Invalid value: "bad": must not be bad"#,
        ),
        (
            "POST",
            COLLECTION.to_owned(),
            flunder("C_", json!({})),
            422,
            "Invalid",
            "metadata.name",
        ),
        (
            "POST",
            COLLECTION.to_owned(),
            Some(json!({"spec": {}})),
            422,
            "Invalid",
            "metadata.name: Required value: name or generateName is required",
        ),
        (
            "POST",
            COLLECTION.to_owned(),
            Some(
                json!({"kind": "Fischer", "apiVersion": "wardle.example.com/v1alpha1", "metadata": {"name": "x"}}),
            ),
            400,
            "BadRequest",
            "cannot be handled as a Flunder",
        ),
        (
            "POST",
            COLLECTION.to_owned(),
            Some(
                json!({"apiVersion": "wardle.example.com/v2", "kind": "Flunder", "metadata": {"name": "x"}}),
            ),
            400,
            "BadRequest",
            "does not match the expected API version",
        ),
        (
            "POST",
            COLLECTION.to_owned(),
            Some(json!({"metadata": {"name": "x", "namespace": "other"}, "spec": {}})),
            400,
            "BadRequest",
            "does not match the namespace sent on the request",
        ),
        (
            "POST",
            COLLECTION.to_owned(),
            Some(json!([1])),
            400,
            "BadRequest",
            "must be of type Flunder",
        ),
        (
            "POST",
            COLLECTION.to_owned(),
            flunder("x", json!({"reference": big})),
            413,
            "RequestEntityTooLarge",
            "Request entity too large: limit is 3145728",
        ),
        (
            "POST",
            format!("{COLLECTION}?fieldValidation=Strict"),
            flunder("x", json!({"nope": 1})),
            400,
            "BadRequest",
            r#"strict decoding error: unknown field "spec.nope""#,
        ),
        (
            "POST",
            format!("{COLLECTION}?dryRun=x"),
            flunder("x", json!({})),
            422,
            "Invalid",
            "CreateOptions",
        ),
        (
            "POST",
            elsewhere,
            flunder("x", json!({})),
            404,
            "NotFound",
            r#"namespaces "nowhere" not found"#,
        ),
        (
            "POST",
            going,
            flunder("x", json!({})),
            403,
            "Forbidden",
            "because it is being terminated",
        ),
        (
            "POST",
            ALL.to_owned(),
            flunder("x", json!({})),
            405,
            "MethodNotAllowed",
            "does not allow this method",
        ),
        (
            "POST",
            item("a"),
            flunder("a", json!({})),
            405,
            "MethodNotAllowed",
            "does not allow this method",
        ),
        (
            "GET",
            COLLECTION.replace("flunders", "nope"),
            None,
            404,
            "NotFound",
            "could not find the requested resource",
        ),
        (
            "GET",
            format!("{}/nope", item("a")),
            None,
            404,
            "NotFound",
            "could not find the requested resource",
        ),
        (
            "GET",
            format!("{COLLECTION}?fieldSelector=spec.x%3D1"),
            None,
            400,
            "BadRequest",
            "\"spec.x\" is not a known field selector: only \"metadata.name\", \"metadata.namespace\"",
        ),
        (
            "GET",
            format!("{COLLECTION}?resourceVersion=abc"),
            None,
            400,
            "BadRequest",
            "invalid resource version",
        ),
        (
            "GET",
            format!("{COLLECTION}?timeout=foo"),
            None,
            400,
            "BadRequest",
            "invalid timeout specified in the request URL",
        ),
        (
            "DELETE",
            item("b"),
            None,
            404,
            "NotFound",
            r#"flunders.wardle.example.com "b" not found"#,
        ),
        (
            "DELETE",
            item("a"),
            Some(json!({"preconditions": {"uid": "other"}})),
            409,
            "Conflict",
            "the UID in the precondition",
        ),
        (
            "PUT",
            item("a"),
            flunder("a", json!({})),
            422,
            "Invalid",
            "metadata.resourceVersion: Invalid value: 0: must be specified for an update",
        ),
        (
            "PUT",
            item("a"),
            Some(json!({"metadata": {"name": "z", "resourceVersion": "1"}, "spec": {}})),
            400,
            "BadRequest",
            "does not match the name on the URL (a)",
        ),
        (
            "PATCH",
            item("a"),
            Some(json!({"metadata": {"resourceVersion": "99"}})),
            409,
            "Conflict",
            "the object has been modified",
        ),
    ] {
        let what = format!("{method} {path}");
        let (status, answer) = server.call(method, &path, body).await;
        assert_eq!(
            (status, &answer["kind"]),
            (code, &json!("Status")),
            "{what}: {answer}"
        );
        assert_eq!(answer["code"], code, "{what}");
        assert_eq!(answer["reason"], reason, "{what}: {answer}");
        assert!(
            answer["message"].as_str().unwrap().contains(message),
            "{what}: {answer}"
        );
    }
}

#[tokio::test]
async fn unsupported_media_types_are_named_with_the_supported_ones() {
    let server = Server::start().await;
    server.create("a", json!({})).await;
    for (method, path, content, accept, code, message) in [
        (
            "PATCH",
            item("a"),
            "application/strategic-merge-patch+json",
            "*/*",
            415,
            "accepted media types include: application/json-patch+json, application/merge-patch+json",
        ),
        (
            "PATCH",
            item("a"),
            "application/apply-patch+yaml",
            "*/*",
            415,
            "accepted media types",
        ),
        (
            "POST",
            COLLECTION.to_owned(),
            "text/plain",
            "*/*",
            415,
            "accepted media types include: application/json",
        ),
        (
            "GET",
            item("a"),
            "",
            "text/html",
            406,
            "only the following media types are accepted",
        ),
    ] {
        let request = Request::builder()
            .method(method)
            .uri(&path)
            .header("x-test-user", "bob")
            .header("content-type", content)
            .header("accept", accept)
            .body(Body::from("{}"))
            .unwrap();
        let response = server.send(request).await;
        assert_eq!(response.status().as_u16(), code, "{method} {content}");
        let body = response.into_body().collect().await.unwrap().to_bytes();
        let answer: Value = serde_json::from_slice(&body).unwrap();
        assert!(
            answer["message"].as_str().unwrap().contains(message),
            "{answer}"
        );
    }
}

#[tokio::test]
async fn warnings_arrive_as_quoted_headers_and_unknown_fields_are_dropped() {
    let server = Server::start().await;
    let body = json!({"metadata": {"name": "a"}, "spec": {"reference": "warn", "nope": 1}});
    let request = Request::builder()
        .method("POST")
        .uri(COLLECTION)
        .header("x-test-user", "bob")
        .header("audit-id", "given")
        .body(Body::from(body.to_string()))
        .unwrap();
    let response = server.send(request).await;
    assert_eq!(response.status(), 201);
    let warnings: Vec<_> = response
        .headers()
        .get_all("warning")
        .iter()
        .map(|v| v.to_str().unwrap())
        .collect();
    assert_eq!(
        warnings,
        [
            r#"299 - "unknown field \"spec.nope\"""#,
            r#"299 - "take \"care\"""#
        ]
    );
    assert_eq!(response.headers()["audit-id"], "given");
    assert_eq!(response.headers()["cache-control"], "no-cache, private");
    let (_, stored) = server.call("GET", &item("a"), None).await;
    assert!(stored["spec"].get("nope").is_none());
}

#[tokio::test]
async fn a_dry_run_answers_like_the_real_thing_and_persists_nothing() {
    let server = Server::start().await;
    let body = json!({"metadata": {"name": "a"}, "spec": {}});
    let (status, answer) = server
        .call("POST", &format!("{COLLECTION}?dryRun=All"), Some(body))
        .await;
    assert_eq!(status, 201);
    assert!(answer["metadata"].get("resourceVersion").is_none());
    assert!(answer["metadata"]["uid"].is_string());
    assert_eq!(server.call("GET", &item("a"), None).await.0, 404);
    server.create("b", json!({})).await;
    assert_eq!(
        server
            .call("DELETE", &format!("{}?dryRun=All", item("b")), None)
            .await
            .0,
        200
    );
    assert_eq!(server.call("GET", &item("b"), None).await.0, 200);
}

#[tokio::test]
async fn updates_keep_what_the_server_owns_and_count_spec_changes() {
    let server = Server::start().await;
    let created = server.create("a", json!({})).await;
    let mut next = created.clone();
    next["spec"]["reference"] = json!("new");
    next["status"] = json!({"word": "forged"});
    next["metadata"]["creationTimestamp"] = json!("2001-01-01T00:00:00Z");
    let (status, updated) = server.call("PUT", &item("a"), Some(next.clone())).await;
    assert_eq!(status, 200, "{updated}");
    assert_eq!(updated["metadata"]["generation"], 2);
    assert_eq!(
        updated["metadata"]["creationTimestamp"],
        created["metadata"]["creationTimestamp"]
    );
    assert!(updated.get("status").is_none());
    let (status, _) = server.call("PUT", &item("a"), Some(next)).await;
    assert_eq!(status, 409, "a stale resourceVersion");

    let label = json!({"metadata": {"labels": {"k": "v"}}});
    let (_, labelled) = server.call("PATCH", &item("a"), Some(label.clone())).await;
    assert_eq!(
        labelled["metadata"]["generation"], 2,
        "metadata are no spec"
    );
    let (_, again) = server.call("PATCH", &item("a"), Some(label)).await;
    assert_eq!(again, labelled, "a change without an effect writes nothing");
    let (_, nulled) = server
        .call(
            "PATCH",
            &item("a"),
            Some(json!({"metadata": {"labels": null}})),
        )
        .await;
    assert!(nulled["metadata"].get("labels").is_none(), "{nulled}");
}

#[tokio::test]
async fn a_json_patch_is_applied_in_order_and_its_tests_are_kept() {
    let server = Server::start().await;
    server.create("a", json!({})).await;
    let patch = |ops: Value| {
        Request::builder()
            .method("PATCH")
            .uri(item("a"))
            .header("x-test-user", "bob")
            .header("content-type", "application/json-patch+json")
            .body(Body::from(ops.to_string()))
            .unwrap()
    };
    let good = json!([{"op": "test", "path": "/spec/reference", "value": "r"}, {"op": "replace", "path": "/spec/count", "value": 5}]);
    assert_eq!(server.send(patch(good)).await.status(), 200);
    let failing = json!([{"op": "test", "path": "/spec/reference", "value": "other"}]);
    assert_eq!(server.send(patch(failing)).await.status(), 422);
    assert_eq!(
        server.send(patch(json!({"no": "list"}))).await.status(),
        400
    );
    assert_eq!(
        server.call("GET", &item("a"), None).await.1["spec"]["count"],
        5
    );
}

#[tokio::test]
async fn a_delete_names_the_uid_and_the_second_one_is_404() {
    let server = Server::start().await;
    let created = server.create("a", json!({})).await;
    let (status, answer) = server.call("DELETE", &item("a"), None).await;
    assert_eq!(status, 200);
    assert_eq!(answer["status"], "Success");
    assert_eq!(answer["details"]["uid"], created["metadata"]["uid"]);
    assert_eq!(answer["details"]["kind"], "flunders");
    assert_eq!(server.call("DELETE", &item("a"), None).await.0, 404);
}

#[tokio::test]
async fn a_create_right_after_an_acknowledged_delete_finds_the_name_free() {
    let server = Server::start().await;
    for _ in 0..200 {
        server.create("a", json!({})).await;
        assert_eq!(server.call("DELETE", &item("a"), None).await.0, 200);
    }
}

#[tokio::test]
async fn finalizers_hold_a_deleted_object_until_the_last_one_is_removed() {
    let server = Server::start().await;
    server
        .create("a", json!({"metadata": {"finalizers": ["x.y/z"]}}))
        .await;
    let (status, pending) = server.call("DELETE", &item("a"), None).await;
    assert_eq!((status, &pending["kind"]), (200, &json!("Flunder")));
    assert!(pending["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(pending["metadata"]["generation"], 2);
    let (_, again) = server.call("DELETE", &item("a"), None).await;
    assert_eq!(again, pending, "repeating it changes nothing");
    let more = json!({"metadata": {"finalizers": ["x.y/z", "a.b/c"]}});
    assert_eq!(server.call("PATCH", &item("a"), Some(more)).await.0, 422);
    let none = json!({"metadata": {"finalizers": null}});
    assert_eq!(server.call("PATCH", &item("a"), Some(none)).await.0, 200);
    assert_eq!(server.call("GET", &item("a"), None).await.0, 404);
}

#[tokio::test]
async fn foreground_deletion_waits_for_the_garbage_collector() {
    let server = Server::start().await;
    server.create("a", json!({})).await;
    let (_, pending) = server
        .call(
            "DELETE",
            &item("a"),
            Some(json!({"propagationPolicy": "Foreground"})),
        )
        .await;
    assert_eq!(
        pending["metadata"]["finalizers"],
        json!(["foregroundDeletion"])
    );
}

#[tokio::test]
async fn generated_names_are_made_here_and_both_fields_are_answered() {
    let server = Server::start().await;
    let body = json!({"metadata": {"generateName": "g-"}, "spec": {}});
    let (status, answer) = server.call("POST", COLLECTION, Some(body)).await;
    assert_eq!(status, 201);
    assert_eq!(answer["metadata"]["generateName"], "g-");
    assert_eq!(answer["metadata"]["name"].as_str().unwrap().len(), 7);
}

#[tokio::test]
async fn pages_are_one_snapshot() {
    let server = Server::start().await;
    for name in ["a", "b", "c", "d", "e"] {
        server.create(name, json!({})).await;
    }
    let (_, first) = server
        .call("GET", &format!("{COLLECTION}?limit=2"), None)
        .await;
    assert_eq!(first["metadata"]["remainingItemCount"], 3);
    server.create("aa", json!({})).await;
    server.call("DELETE", &item("d"), None).await;
    let mut names: Vec<String> = Vec::new();
    let mut page = first.clone();
    loop {
        let items = page["items"].as_array().unwrap();
        names.extend(
            items
                .iter()
                .map(|i| i["metadata"]["name"].as_str().unwrap().to_owned()),
        );
        assert_eq!(
            page["metadata"]["resourceVersion"],
            first["metadata"]["resourceVersion"]
        );
        let Some(token) = page["metadata"]["continue"].as_str() else {
            break;
        };
        page = server
            .call(
                "GET",
                &format!("{COLLECTION}?limit=2&continue={token}"),
                None,
            )
            .await
            .1;
    }
    assert_eq!(names, ["a", "b", "c", "d", "e"]);

    let revision = first["metadata"]["resourceVersion"].as_str().unwrap();
    let exact = format!("{COLLECTION}?resourceVersion={revision}&resourceVersionMatch=Exact");
    assert_eq!(
        server.call("GET", &exact, None).await.1["items"]
            .as_array()
            .unwrap()
            .len(),
        5
    );
}

#[tokio::test]
async fn an_outlived_continue_token_is_gone_and_offers_another() {
    let server = Server::start().await;
    for name in ["a", "b", "c"] {
        server.create(name, json!({})).await;
    }
    let (_, first) = server
        .call("GET", &format!("{COLLECTION}?limit=1"), None)
        .await;
    let token = first["metadata"]["continue"].as_str().unwrap();
    server.create("bb", json!({})).await;
    // Why: a cache that is not past the page's revision can still answer with it.
    server.call("GET", COLLECTION, None).await;
    server.store.compact(server.store.revision()).await.unwrap();
    let path = format!("{COLLECTION}?limit=1&continue={token}");
    let (status, gone) = server.call("GET", &path, None).await;
    assert_eq!((status, &gone["reason"]), (410, &json!("Expired")));
    let token = gone["metadata"]["continue"].as_str().unwrap();
    let (status, rest) = server
        .call("GET", &format!("{COLLECTION}?continue={token}"), None)
        .await;
    assert_eq!(status, 200);
    let names: Vec<_> = rest["items"]
        .as_array()
        .unwrap()
        .iter()
        .map(|i| &i["metadata"]["name"])
        .collect();
    assert_eq!(names, ["b", "bb", "c"]);
}

#[tokio::test]
async fn a_future_revision_is_waited_for_and_then_refused() {
    let server = Server::start().await;
    let (status, answer) = server
        .call("GET", &format!("{COLLECTION}?resourceVersion=999999"), None)
        .await;
    assert_eq!((status, &answer["reason"]), (504, &json!("Timeout")));
    assert_eq!(
        answer["details"]["causes"][0]["reason"],
        "ResourceVersionTooLarge"
    );
}

#[tokio::test]
async fn lists_and_tables_and_metadata_show_the_same_objects() {
    let server = Server::start().await;
    server
        .create("a", json!({"metadata": {"labels": {"k": "v"}}}))
        .await;
    server.create("b", json!({})).await;
    let (_, list) = server
        .call("GET", &format!("{ALL}?labelSelector=k%3Dv"), None)
        .await;
    assert_eq!(list["kind"], "FlunderList");
    assert_eq!(list["items"].as_array().unwrap().len(), 1);
    let table = server.get_as(COLLECTION, TABLE).await;
    assert_eq!(table["kind"], "Table");
    assert_eq!(table["rows"][1]["cells"][0], "b");
    assert_eq!(table["rows"][1]["object"]["kind"], "PartialObjectMetadata");
    assert_eq!(
        table["metadata"]["resourceVersion"],
        list["metadata"]["resourceVersion"]
    );
    let metadata = server.get_as(COLLECTION, META_LIST).await;
    assert_eq!(metadata["kind"], "PartialObjectMetadataList");
    assert_eq!(metadata["items"][0]["kind"], "PartialObjectMetadata");
    assert!(metadata["items"][0].get("spec").is_none());
    let empty = server
        .get_as(
            "/apis/wardle.example.com/v1alpha1/namespaces/other/flunders",
            "application/json",
        )
        .await;
    assert_eq!(empty["items"], json!([]));
    assert!(
        empty["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .parse::<u64>()
            .unwrap()
            > 0
    );
}

#[tokio::test]
async fn large_answers_are_compressed_for_those_who_accept_it() {
    let server = Server::start().await;
    let annotation = json!({"metadata": {"annotations": {"a": "x".repeat(100_000)}}});
    server.create("a", annotation.clone()).await;
    let request = |encoding: &str| {
        Request::builder()
            .uri(COLLECTION)
            .header("x-test-user", "bob")
            .header("accept-encoding", encoding)
            .body(Body::empty())
            .unwrap()
    };
    let small = server.send(request("gzip")).await;
    assert!(
        !small.headers().contains_key("content-encoding"),
        "below 128 KiB"
    );
    server.create("b", annotation).await;
    let plain = server.send(request("identity")).await;
    assert!(!plain.headers().contains_key("content-encoding"));
    let plain = plain.into_body().collect().await.unwrap().to_bytes();
    let packed = server.send(request("deflate, gzip;q=0.8")).await;
    assert_eq!(packed.headers()["content-encoding"], "gzip");
    assert_eq!(packed.headers()["vary"], "Accept-Encoding");
    let packed = packed.into_body().collect().await.unwrap().to_bytes();
    assert!(packed.len() < plain.len() / 10);
    let mut unpacked = Vec::new();
    flate2::read::GzDecoder::new(&packed[..])
        .read_to_end(&mut unpacked)
        .unwrap();
    assert_eq!(unpacked, plain);
}

#[tokio::test]
async fn a_watch_from_a_list_sees_each_change_once_with_its_revision() {
    let server = Server::start().await;
    server.create("before", json!({})).await;
    let (_, list) = server.call("GET", COLLECTION, None).await;
    let from = list["metadata"]["resourceVersion"].as_str().unwrap();
    let mut events = server
        .watch(
            &format!("{COLLECTION}?watch=1&resourceVersion={from}"),
            "application/json",
        )
        .await;
    let created = server.create("a", json!({})).await;
    let (_, patched) = server
        .call("PATCH", &item("a"), Some(json!({"spec": {"count": 1}})))
        .await;
    server.call("DELETE", &item("a"), None).await;
    let added = events.next().await.unwrap();
    assert_eq!(added, json!({"type": "ADDED", "object": created}));
    let modified = events.next().await.unwrap();
    assert_eq!(modified, json!({"type": "MODIFIED", "object": patched}));
    let deleted = events.next().await.unwrap();
    assert_eq!(deleted["type"], "DELETED");
    let number = |v: &Value| {
        v["metadata"]["resourceVersion"]
            .as_str()
            .unwrap()
            .parse::<u64>()
            .unwrap()
    };
    assert!(number(&deleted["object"]) > number(&patched));
}

#[tokio::test]
async fn a_watch_list_ends_its_initial_events_with_an_annotated_bookmark() {
    let server = Server::start().await;
    server.create("a", json!({})).await;
    server.create("b", json!({})).await;
    let path = format!(
        "{COLLECTION}?watch=1&sendInitialEvents=true&resourceVersionMatch=NotOlderThan&allowWatchBookmarks=true"
    );
    let mut events = server.watch(&path, "application/json").await;
    assert_eq!(events.next_summary().await, "ADDED a");
    assert_eq!(events.next_summary().await, "ADDED b");
    let bookmark = events.next().await.unwrap();
    assert_eq!(bookmark["type"], "BOOKMARK");
    assert_eq!(bookmark["object"]["kind"], "Flunder");
    assert_eq!(
        bookmark["object"]["metadata"]["annotations"]["k8s.io/initial-events-end"],
        "true"
    );
    server.create("c", json!({})).await;
    assert_eq!(events.next_summary().await, "ADDED c");

    let none = path.replace("/ns/", "/other/");
    let mut empty = server.watch(&none, "application/json").await;
    assert_eq!(
        empty.next().await.unwrap()["type"],
        "BOOKMARK",
        "also for no objects at all"
    );
}

#[tokio::test]
async fn a_selector_turns_leaving_and_entering_into_deletions_and_additions() {
    let server = Server::start().await;
    server.create("a", json!({})).await;
    let path = format!("{COLLECTION}?watch=1&labelSelector=k%3Dv&resourceVersion=1");
    let mut events = server.watch(&path, "application/json").await;
    let label = |v: Value| Some(json!({"metadata": {"labels": {"k": v}}}));
    server.call("PATCH", &item("a"), label(json!("v"))).await;
    assert_eq!(events.next_summary().await, "ADDED a");
    let (_, left) = server
        .call("PATCH", &item("a"), label(json!("other")))
        .await;
    let deleted = events.next().await.unwrap();
    assert_eq!(deleted["type"], "DELETED");
    assert_eq!(
        deleted["object"]["metadata"]["labels"]["k"], "v",
        "the state that matched"
    );
    assert_eq!(
        deleted["object"]["metadata"]["resourceVersion"], left["metadata"]["resourceVersion"],
        "at the revision of the change"
    );
}

#[tokio::test]
async fn watches_end_in_time_and_too_old_ones_are_told() {
    let server = Server::start().await;
    let created = server.create("a", json!({})).await;
    let from = created["metadata"]["resourceVersion"].as_str().unwrap();
    let mut events = server
        .watch(
            &format!("{COLLECTION}?watch=1&resourceVersion={from}&timeoutSeconds=1"),
            "application/json",
        )
        .await;
    assert_eq!(events.next().await, None, "a clean end");

    for n in 0..3 {
        server.create(&format!("x{n}"), json!({})).await;
    }
    let revision = server.store.revision();
    server.store.compact(revision - 1).await.unwrap();
    let again = Server::on(std::sync::Arc::clone(&server.store)).await;
    let mut old = again
        .watch(
            &format!("{COLLECTION}?watch=1&resourceVersion=1"),
            "application/json",
        )
        .await;
    let error = old.next().await.unwrap();
    assert_eq!(error["type"], "ERROR");
    assert_eq!(
        (&error["object"]["code"], &error["object"]["reason"]),
        (&json!(410), &json!("Expired"))
    );
    assert_eq!(old.next().await, None);
}

#[tokio::test]
async fn a_watch_resumes_across_a_restart_of_the_server() {
    let server = Server::start().await;
    let created = server.create("a", json!({})).await;
    let from = created["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .to_owned();
    server.create("b", json!({})).await;
    let again = Server::on(std::sync::Arc::clone(&server.store)).await;
    let mut events = again
        .watch(
            &format!("{COLLECTION}?watch=1&resourceVersion={from}"),
            "application/json",
        )
        .await;
    assert_eq!(events.next_summary().await, "ADDED b");
}

#[tokio::test]
async fn a_collection_is_deleted_with_its_selector() {
    let server = Server::start().await;
    server
        .create("a", json!({"metadata": {"labels": {"k": "v"}}}))
        .await;
    server.create("b", json!({})).await;
    let (status, list) = server
        .call("DELETE", &format!("{COLLECTION}?labelSelector=k"), None)
        .await;
    assert_eq!((status, list["items"].as_array().unwrap().len()), (200, 1));
    assert_eq!(server.call("GET", &item("a"), None).await.0, 404);
    assert_eq!(server.call("GET", &item("b"), None).await.0, 200);
}

#[tokio::test]
async fn a_subresource_changes_its_parent_and_answers_with_its_own_kind() {
    let server = Server::start().await;
    server.create("a", json!({})).await;
    let path = format!("{}/poke", item("a"));
    let (status, answer) = server
        .call("POST", &path, Some(json!({"word": "hi"})))
        .await;
    assert_eq!(
        (status, &answer["kind"], &answer["word"]),
        (201, &json!("FlunderPoke"), &json!("hi"))
    );
    assert_eq!(
        server.call("GET", &item("a"), None).await.1["status"]["word"],
        "hi"
    );
    let strict = format!("{path}?fieldValidation=Strict");
    let (status, refused) = server.call("POST", &strict, Some(json!({"nope": 1}))).await;
    assert_eq!(status, 400);
    assert_eq!(
        refused["message"],
        r#"FlunderPoke in version "v1alpha1" cannot be handled as a FlunderPoke: strict decoding error: unknown field "nope""#
    );
    assert_eq!(server.call("GET", &path, None).await.0, 405);
    for (other, why) in [
        (json!({"kind": "Other"}), "must be of type FlunderPoke"),
        (
            json!({"apiVersion": "example.com/v1"}),
            "the API version in the data (example.com/v1) does not match",
        ),
        (
            json!({"metadata": {"name": "b"}}),
            "name in URL does not match name in FlunderPoke object",
        ),
    ] {
        let (status, refused) = server.call("POST", &path, Some(other)).await;
        assert_eq!(status, 400);
        let message = refused["message"].as_str().unwrap();
        assert!(message.contains(why), "{message}");
    }
    let same = json!({
        "apiVersion": "wardle.example.com/v1alpha1", "kind": "FlunderPoke",
        "metadata": {"name": "a"}, "word": "ho",
    });
    let dry = format!("{path}?dryRun=All");
    assert_eq!(server.call("POST", &dry, Some(same)).await.0, 201);
    assert_eq!(
        server.call("GET", &item("a"), None).await.1["status"]["word"],
        "hi"
    );
    assert_eq!(
        server
            .call("POST", &format!("{}/poke", item("b")), None)
            .await
            .0,
        404
    );
}

#[tokio::test]
async fn the_body_of_a_subresource_is_validated_by_its_schema() {
    let server = Server::start().await;
    server.create("a", json!({})).await;
    let path = format!("{}/poke", item("a"));
    for (body, field, why) in [
        (json!({"word": "much too long"}), "word", "Too long"),
        (json!({"word": 7}), "word", "must be of type string"),
        (
            json!({"spec": {"count": -1}}),
            "spec.count",
            "greater than or equal to 0",
        ),
        (
            json!({"spec": {"volume": "Medium"}}),
            "spec.volume",
            r#"supported values: "Low", "High""#,
        ),
    ] {
        let (status, refused) = server.call("POST", &path, Some(body)).await;
        assert_eq!((status, &refused["reason"]), (422, &json!("Invalid")));
        assert_eq!(refused["details"]["kind"], "FlunderPoke");
        assert_eq!(refused["details"]["causes"][0]["field"], field);
        let message = refused["message"].as_str().unwrap();
        assert!(
            message.starts_with(r#"FlunderPoke.wardle.example.com "a" is invalid: "#)
                && message.contains(why),
            "{message}"
        );
    }
    let (status, answer) = server
        .call("POST", &path, Some(json!({"spec": {"volume": null}})))
        .await;
    assert_eq!((status, &answer["spec"]["count"]), (201, &json!(3)));
}

#[tokio::test]
async fn discovery_says_what_is_served_in_both_forms() {
    let server = Server::start().await;
    let (_, legacy) = server
        .call("GET", "/apis/wardle.example.com/v1alpha1", None)
        .await;
    assert_eq!(legacy["kind"], "APIResourceList");
    let flunders = &legacy["resources"][0];
    assert_eq!(flunders["name"], "flunders");
    assert_eq!(
        flunders["verbs"],
        json!([
            "create",
            "delete",
            "deletecollection",
            "get",
            "list",
            "patch",
            "update",
            "watch"
        ])
    );
    assert_eq!(legacy["resources"][1]["name"], "flunders/poke");
    assert_eq!(legacy["resources"][1]["verbs"], json!(["create"]));

    let accept = "application/json;g=apidiscovery.k8s.io;v=v2;as=APIGroupDiscoveryList";
    let request = || {
        Request::builder()
            .uri("/apis")
            .header("x-test-user", "bob")
            .header("accept", accept)
    };
    let response = server.send(request().body(Body::empty()).unwrap()).await;
    assert_eq!(response.headers()["content-type"], accept);
    let etag = response.headers()["etag"].clone();
    let body = response.into_body().collect().await.unwrap().to_bytes();
    let document: Value = serde_json::from_slice(&body).unwrap();
    let resource = &document["items"][0]["versions"][0]["resources"][0];
    assert_eq!(resource["responseKind"]["kind"], "Flunder");
    assert_eq!(resource["subresources"][0]["subresource"], "poke");
    let known = request()
        .header("if-none-match", etag)
        .body(Body::empty())
        .unwrap();
    assert_eq!(server.send(known).await.status(), 304);
}

#[tokio::test]
async fn openapi_declares_exactly_the_patch_types_that_work() {
    let server = Server::start().await;
    let (_, index) = server.call("GET", "/openapi/v3", None).await;
    let url = index["paths"]["apis/wardle.example.com/v1alpha1"]["serverRelativeURL"]
        .as_str()
        .unwrap();
    let (status, document) = server.call("GET", url, None).await;
    assert_eq!(status, 200);
    let path = "/apis/wardle.example.com/v1alpha1/namespaces/{namespace}/flunders/{name}";
    let patch = &document["paths"][path]["patch"];
    assert_eq!(patch["x-kubernetes-group-version-kind"]["kind"], "Flunder");
    let names: Vec<_> = patch["parameters"]
        .as_array()
        .unwrap()
        .iter()
        .map(|p| &p["name"])
        .collect();
    assert!(names.contains(&&json!("fieldValidation")));
    let types: Vec<_> = patch["requestBody"]["content"]
        .as_object()
        .unwrap()
        .keys()
        .collect();
    assert_eq!(
        types,
        [
            "application/json-patch+json",
            "application/merge-patch+json"
        ]
    );
    // Every reference leads somewhere, in both documents.
    let (_, v2) = server.call("GET", "/openapi/v2", None).await;
    for (document, root) in [(&document, "/components/schemas"), (&v2, "/definitions")] {
        let text = document.to_string();
        let marker = format!("\"#{root}/");
        let schemas = document.pointer(root).and_then(Value::as_object).unwrap();
        assert!(text.contains(&marker));
        for reference in text.split(&marker).skip(1) {
            let name = reference.split('"').next().unwrap();
            assert!(schemas.contains_key(name), "{root}: {name}");
        }
    }
}
