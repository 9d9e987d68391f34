//! The lease rules through the whole server in process: HTTP in, a store in memory, a clock that
//! moves when told to.

#![allow(
    clippy::unwrap_used,
    clippy::expect_used,
    clippy::panic,
    reason = "test code"
)]

mod in_process;

use std::collections::BTreeSet;
use std::time::Duration;

use in_process::{Caller, Server, lease};
use runtime_kit::Clock;
use serde_json::{Value, json};

const CRAWLER: Caller = Caller::named("system:serviceaccount:crawlers:crawler");
const OTHER: Caller = Caller::named("system:serviceaccount:crawlers:other");

#[tokio::test]
async fn a_name_is_an_idempotency_key_for_its_holder_and_spec() {
    let server = Server::start().await;
    server.proxy("a", 5);
    let spec = json!({"target": "shop.example.com"});
    let (code, first) = server.create(&CRAWLER, &lease("shop", &spec)).await;
    assert_eq!(
        (code, &first["status"]["phase"]),
        (201, &json!("Bound")),
        "{first}"
    );

    let (code, again) = server.create(&CRAWLER, &lease("shop", &spec)).await;
    assert_eq!(code, 201, "{again}");
    assert_eq!(again["metadata"]["uid"], first["metadata"]["uid"]);
    let same_site = json!({"target": "https://www.example.com/"});
    let (code, same) = server.create(&CRAWLER, &lease("shop", &same_site)).await;
    assert_eq!(
        code, 201,
        "another spelling of the same target is the same spec: {same}"
    );

    let other_spec = json!({"target": "shop.example.com", "ttlSeconds": 60});
    let (code, refused) = server.create(&CRAWLER, &lease("shop", &other_spec)).await;
    assert_eq!((code, &refused["reason"]), (409, &json!("AlreadyExists")));
    let (code, refused) = server.create(&OTHER, &lease("shop", &spec)).await;
    assert_eq!((code, &refused["reason"]), (409, &json!("AlreadyExists")));
    assert_eq!(server.active(), 1);

    // Over an expired one a new one is made.
    server.clock.advance(Duration::from_mins(5));
    server
        .until("the lease to expire", async || {
            server
                .get("shop")
                .await
                .filter(|lease| lease["status"]["phase"] == "Expired")
        })
        .await;
    let (code, anew) = server.create(&CRAWLER, &lease("shop", &spec)).await;
    assert_eq!(code, 201);
    assert_ne!(anew["metadata"]["uid"], first["metadata"]["uid"]);
    assert_eq!(anew["status"]["phase"], "Bound");
}

#[tokio::test]
async fn a_spec_is_kept_in_the_words_it_was_given_in() {
    let server = Server::start().await;
    server.proxy("a", 5);
    let spec = json!({"target": "https://www.shop.example.co.uk/a"});
    let (_, made) = server.create(&CRAWLER, &lease("shop", &spec)).await;
    assert_eq!(made["spec"]["target"], spec["target"], "{made}");
    assert_eq!(made["status"]["target"], "example.co.uk");

    // The manifest again changes nothing, nor do other words for the same.
    let (code, same) = server.patch(&CRAWLER, "shop", &json!({"spec": spec})).await;
    assert_eq!((code, &same), (200, &made));
    let other_words = json!({"spec": {"target": "example.co.uk"}});
    let (code, same) = server.patch(&CRAWLER, "shop", &other_words).await;
    assert_eq!((code, &same), (200, &made));
    let other_site = json!({"spec": {"target": "example.com"}});
    assert_eq!(server.patch(&CRAWLER, "shop", &other_site).await.0, 422);
}

#[tokio::test]
async fn a_request_id_makes_creates_with_generated_names_repeatable() {
    let server = Server::start().await;
    server.proxy("a", 5);
    let generated = |id: &str, ttl: u32| {
        let mut lease = lease("", &json!({"requestID": id, "ttlSeconds": ttl}));
        lease["metadata"] = json!({"generateName": "shop-"});
        lease
    };
    let (code, first) = server.create(&CRAWLER, &generated("r1", 60)).await;
    assert_eq!(code, 201, "{first}");
    let (_, again) = server.create(&CRAWLER, &generated("r1", 60)).await;
    assert_eq!(again["metadata"]["name"], first["metadata"]["name"]);
    let (_, other) = server.create(&CRAWLER, &generated("r2", 60)).await;
    assert_ne!(other["metadata"]["name"], first["metadata"]["name"]);
    let (code, reused) = server.create(&CRAWLER, &generated("r1", 61)).await;
    assert_eq!(
        (code, &reused["reason"]),
        (409, &json!("RequestIDReused")),
        "{reused}"
    );
    let text = reused["message"].as_str().unwrap();
    assert!(
        text.contains("\"r1\"") && text.contains("another spec"),
        "{text}"
    );
    let (_, foreign) = server.create(&OTHER, &generated("r1", 60)).await;
    assert_ne!(foreign["metadata"]["name"], first["metadata"]["name"]);
    assert_eq!(server.active(), 3);

    let name = first["metadata"]["name"].as_str().unwrap();
    assert_eq!(server.delete(&CRAWLER, name).await.0, 200);
    let (_, anew) = server.create(&CRAWLER, &generated("r1", 60)).await;
    assert_ne!(anew["metadata"]["uid"], first["metadata"]["uid"]);
}

#[tokio::test]
async fn sixty_four_clients_share_thirty_slots_and_no_slot_twice() {
    let server = Server::start().await;
    for name in ["a", "b", "c"] {
        server.proxy(name, 10);
    }
    let creates = (0..64).map(|number| {
        let server = server.clone();
        tokio::spawn(async move {
            server
                .create(&CRAWLER, &lease(&format!("lease-{number}"), &json!({})))
                .await
        })
    });
    let mut tokens = BTreeSet::new();
    let mut denied = 0;
    for create in creates.collect::<Vec<_>>() {
        let (code, body) = create.await.unwrap();
        if code == 201 {
            let proxy = body["status"]["proxy"]["name"].as_str().unwrap().to_owned();
            let token = body["status"]["lastToken"].as_i64().unwrap();
            assert!(tokens.insert((proxy, token)), "one token, one grant");
        } else {
            assert_eq!(body["reason"], "NoProxyAvailable", "{body}");
            denied += 1;
        }
    }
    assert_eq!((tokens.len(), denied), (30, 34));
    assert_eq!(server.active(), 30);
}

#[tokio::test]
async fn cancelled_requests_leave_no_slot_without_a_lease_and_no_lease_without_a_slot() {
    let server = Server::start().await;
    server.proxy("a", 40);
    for number in 0..40_u32 {
        let body = lease(&format!("lease-{number}"), &json!({}));
        let create = server.create(&CRAWLER, &body);
        // Dropped after a number of steps that differs each time.
        let mut create = Box::pin(create);
        for _ in 0..=number % 8 {
            if futures::poll!(&mut create).is_ready() {
                break;
            }
            tokio::task::yield_now().await;
        }
        drop(create);
    }
    server
        .until("memory and store to agree", async || {
            let stored = server.list().await.len();
            (stored == server.active() && server.recorded().await == stored).then_some(())
        })
        .await;
    // Everything still works, and all slots can be had.
    for lease in server.list().await {
        let name = lease["metadata"]["name"].as_str().unwrap();
        assert_eq!(server.delete(&CRAWLER, name).await.0, 200);
    }
    for number in 0..40 {
        let (code, body) = server
            .create(&CRAWLER, &lease(&format!("new-{number}"), &json!({})))
            .await;
        assert_eq!(code, 201, "{body}");
    }
}

#[tokio::test]
async fn nothing_is_granted_after_the_view_says_that_a_proxy_accepts_no_more() {
    for round in 0..5_u32 {
        let server = Server::start().await;
        server.proxy("a", 64);
        let clients: Vec<_> = (0..64)
            .map(|client| {
                let server = server.clone();
                tokio::spawn(async move {
                    for number in 0..20 {
                        let name = format!("lease-{client}-{number}");
                        let (code, _) = server.create(&CRAWLER, &lease(&name, &json!({}))).await;
                        if code == 201 && number % 2 == 0 {
                            server.delete(&CRAWLER, &name).await;
                        }
                    }
                })
            })
            .collect();
        for _ in 0..round * 40 {
            tokio::task::yield_now().await;
        }
        server.drain("a", 7);
        let refusing = server
            .until("the view to show the drain", async || {
                let view = server.view("a").await?;
                (view["status"]["accepting"] == false).then_some(view)
            })
            .await;
        assert_eq!(refusing["status"]["observedProxyResourceVersion"], "7");
        let published: u64 = revision(&refusing);
        for client in clients {
            client.await.unwrap();
        }
        for (created, name) in server.created().await {
            assert!(
                created < published,
                "{name} was granted at {created}, after {published}"
            );
        }
        server
            .until("the view to count what is left", async || {
                let view = server.view("a").await?;
                let left = server.list().await.len();
                (view["status"]["active"] == json!(left)).then_some(())
            })
            .await;
    }
}

fn revision(object: &Value) -> u64 {
    object["metadata"]["resourceVersion"]
        .as_str()
        .unwrap()
        .parse()
        .unwrap()
}

#[tokio::test]
async fn the_first_lease_of_a_quiet_proxy_is_counted_at_once_and_the_next_within_five_seconds() {
    let server = Server::start().await;
    server.proxy("a", 10);
    let shows = async |active: u32| {
        server
            .until("the view to count the leases", async || {
                let view = server.view("a").await?;
                (view["status"]["active"] == active).then_some(())
            })
            .await;
    };
    shows(0).await;
    server.clock.advance(Duration::from_secs(5));
    // Nobody moves the clock: what follows is not the interval.
    server.create(&CRAWLER, &lease("first", &json!({}))).await;
    shows(1).await;
    for name in ["second", "third"] {
        server.create(&CRAWLER, &lease(name, &json!({}))).await;
    }
    server.clock.advance(Duration::from_secs(5));
    shows(3).await;
}

#[tokio::test]
async fn a_lease_that_is_not_renewed_expires_and_is_removed_a_minute_later() {
    let server = Server::start().await;
    server.proxy("a", 1);
    server
        .create(&CRAWLER, &lease("x", &json!({"ttlSeconds": 60})))
        .await;
    server.clock.advance(Duration::from_secs(59));
    let (code, renewed) = server.renew(&CRAWLER, "x").await;
    assert_eq!(
        (code, &renewed["status"]["remainingSeconds"]),
        (201, &json!(60)),
        "{renewed}"
    );
    server.clock.advance(Duration::from_secs(59));
    assert_eq!(server.get("x").await.unwrap()["status"]["phase"], "Bound");

    let (code, denied) = server.create(&CRAWLER, &lease("y", &json!({}))).await;
    assert_eq!((code, &denied["reason"]), (409, &json!("NoProxyAvailable")));
    assert_eq!(denied["details"]["retryAfterSeconds"], 1);
    assert_eq!(denied["details"]["kind"], "proxyleases");
    assert_eq!(denied["details"]["causes"][0]["reason"], "AtCapacity");

    // Who waits exactly as long as told succeeds.
    server.clock.advance(Duration::from_secs(1));
    let (code, granted) = server.create(&CRAWLER, &lease("y", &json!({}))).await;
    assert_eq!(code, 201, "{granted}");
    let expired = server.get("x").await.unwrap();
    assert_eq!(expired["status"]["phase"], "Expired");
    assert_eq!(condition(&expired, "Bound")["reason"], "NotRenewed");
    let (code, refused) = server.renew(&CRAWLER, "x").await;
    assert_eq!((code, &refused["reason"]), (409, &json!("LeaseExpired")));

    server.clock.advance(Duration::from_mins(1));
    server
        .until("the expired lease to go", async || {
            server.get("x").await.is_none().then_some(())
        })
        .await;
}

/// Waits until the view of a proxy shows this time of the last report of success.
async fn shows_report(server: &Server, name: &str, at: jiff::Timestamp) {
    server
        .until("the view to show the report", async || {
            let view = server.view(name).await?;
            (view["status"]["lastSuccessReportTime"] == at.to_string()).then_some(())
        })
        .await;
}

#[tokio::test]
async fn a_report_of_success_is_shown_by_the_view_of_the_proxy() {
    let server = Server::start().await;
    server.proxy("a", 1);
    server.create(&CRAWLER, &lease("x", &json!({}))).await;
    let (code, answer) = server
        .report(&CRAWLER, "x", &json!({"result": "OK", "httpStatus": 403}))
        .await;
    assert_eq!(code, 201, "{answer}");
    assert_eq!(answer["kind"], "LeaseReport");
    assert_eq!(answer["metadata"]["name"], "x");
    assert_eq!(answer["spec"]["httpStatus"], 403);
    let reported = server.clock.now();
    server.clock.advance(Duration::from_secs(5));
    shows_report(&server, "a", reported).await;
    let labels = [("result", "OK"), ("status", "4xx")];
    let requests = server.counted("lease_apiserver_reported_requests_total", &labels);
    assert!((requests - 1.0).abs() < f64::EPSILON, "{requests}");
    assert_eq!(
        server.get("x").await.unwrap()["status"]["renewedAt"],
        Value::Null,
        "a report is no renewal"
    );

    // A process that starts later knows nothing of it, and takes nothing back.
    let server = server.restarted(Duration::from_secs(5)).await;
    server.proxy("a", 2);
    server
        .until("the view to show the new slots", async || {
            (server.view("a").await?["status"]["max"] == 2).then_some(())
        })
        .await;
    shows_report(&server, "a", reported).await;
}

#[tokio::test]
async fn a_client_that_reports_every_second_costs_a_write_every_fifteen_seconds() {
    let server = Server::start().await;
    server.proxy("a", 1);
    let counts = async |active: u32| {
        server
            .until("the view to count the leases", async || {
                (server.view("a").await?["status"]["active"] == active).then_some(())
            })
            .await;
        server.clock.advance(Duration::from_secs(5));
    };
    counts(0).await;
    server.create(&CRAWLER, &lease("x", &json!({}))).await;
    counts(1).await;
    let before = server.views_written("a").await;
    let begun = server.clock.now();
    for second in 0..60_u64 {
        let (code, _) = server.report(&CRAWLER, "x", &json!({"result": "OK"})).await;
        assert_eq!(code, 201);
        let step = Duration::from_secs(second / 15 * 15);
        shows_report(&server, "a", begun + step).await;
        server.clock.advance(Duration::from_secs(1));
    }
    assert_eq!(server.views_written("a").await - before, 4);
}

#[tokio::test]
async fn counts_of_a_renewal_show_success_and_are_summed() {
    let server = Server::start().await;
    server.proxy("a", 1);
    server.create(&CRAWLER, &lease("x", &json!({}))).await;
    let counted =
        |labels: &[(&str, &str)]| server.counted("lease_apiserver_reported_requests_total", labels);
    let failed = json!({"spec": {"errors": 3, "bytes": 100}});
    assert_eq!(server.renew_with(&CRAWLER, "x", &failed).await.0, 201);
    server.clock.advance(Duration::from_secs(20));
    let mixed = json!({"spec": {"ok": 40, "errors": 1, "bytes": 900}});
    let (code, renewed) = server.renew_with(&CRAWLER, "x", &mixed).await;
    assert_eq!(
        (
            code,
            &renewed["spec"],
            &renewed["status"]["remainingSeconds"]
        ),
        (201, &mixed["spec"], &json!(300))
    );
    // Failures alone show nothing, so this is the first time that is shown.
    let reported = server.clock.now();
    server.clock.advance(Duration::from_secs(5));
    shows_report(&server, "a", reported).await;
    let totals = [
        counted(&[("result", "OK")]),
        counted(&[("result", "Error")]),
        server.counted("lease_apiserver_reported_bytes_total", &[]),
    ];
    assert_eq!(totals.map(|total| total.to_string()), ["40", "4", "1000"]);

    for (spec, field) in [
        (json!({"ok": -1}), "spec.ok"),
        (json!({"errors": 1_000_000_001}), "spec.errors"),
        (json!({"bytes": "many"}), "spec.bytes"),
    ] {
        let (code, refused) = server
            .renew_with(&CRAWLER, "x", &json!({"spec": spec}))
            .await;
        assert_eq!((code, &refused["reason"]), (422, &json!("Invalid")));
        assert_eq!(refused["details"]["causes"][0]["field"], field);
    }
}

#[tokio::test]
async fn only_the_holder_of_a_bound_lease_reports_and_only_what_is_known() {
    let server = Server::start().await;
    server.proxy("a", 1);
    let ok = json!({"result": "OK"});
    assert_eq!(server.report(&CRAWLER, "x", &ok).await.0, 404);
    let short = json!({"ttlSeconds": 60});
    server.create(&CRAWLER, &lease("x", &short)).await;
    let waits = json!({"waitSeconds": 300});
    server.create(&CRAWLER, &lease("waits", &waits)).await;

    let (code, refused) = server.report(&OTHER, "x", &ok).await;
    assert_eq!((code, &refused["reason"]), (403, &json!("Forbidden")));
    let text = refused["message"].as_str().unwrap();
    assert!(text.contains("cannot report on") && text.contains("manage"));
    let (code, refused) = server.report(&CRAWLER, "waits", &ok).await;
    assert_eq!((code, &refused["reason"]), (409, &json!("LeasePending")));

    for later in ["RateLimited", "Banned", "ok"] {
        let (code, refused) = server
            .report(&CRAWLER, "x", &json!({"result": later}))
            .await;
        assert_eq!(code, 422, "{refused}");
        let text = refused["message"].as_str().unwrap();
        let supported = "spec.result: Unsupported value: ";
        assert!(
            text.contains(supported) && text.contains(r#"supported values: "OK", "Error""#),
            "{text}"
        );
    }
    for (spec, field) in [
        (json!({}), "spec.result"),
        (json!({"result": "OK", "httpStatus": 99}), "spec.httpStatus"),
        (
            json!({"result": "OK", "httpStatus": 600}),
            "spec.httpStatus",
        ),
    ] {
        let (code, refused) = server.report(&CRAWLER, "x", &spec).await;
        assert_eq!(code, 422, "{refused}");
        assert_eq!(refused["details"]["causes"][0]["field"], field);
    }

    // Neither a dry run nor a failure shows success.
    assert_eq!(server.report(&CRAWLER, "x?dryRun=All", &ok).await.0, 201);
    let error = json!({"result": "Error"});
    assert_eq!(server.report(&CRAWLER, "x", &error).await.0, 201);
    server.clock.advance(Duration::from_secs(20));
    let manager = Caller::named("manager");
    assert_eq!(server.report(&manager, "x", &ok).await.0, 201);
    let reported = server.clock.now();
    server.clock.advance(Duration::from_secs(5));
    shows_report(&server, "a", reported).await;
    let counted = |result| {
        server.counted(
            "lease_apiserver_reported_requests_total",
            &[("result", result)],
        )
    };
    assert_eq!(
        [counted("OK"), counted("Error")].map(|total| total.to_string()),
        ["1", "1"]
    );

    server.clock.advance(Duration::from_secs(40));
    server
        .until("the lease to expire", async || {
            (server.get("x").await?["status"]["phase"] == "Expired").then_some(())
        })
        .await;
    let (code, refused) = server.report(&CRAWLER, "x", &ok).await;
    assert_eq!((code, &refused["reason"]), (409, &json!("LeaseExpired")));
}

fn condition(lease: &Value, type_: &str) -> Value {
    let conditions = lease["status"]["conditions"].as_array().unwrap();
    conditions
        .iter()
        .find(|c| c["type"] == type_)
        .cloned()
        .unwrap_or_default()
}

#[tokio::test]
async fn a_waiting_lease_is_bound_when_a_slot_is_free_and_expires_when_none_was() {
    let server = Server::start().await;
    server.proxy("a", 1);
    server.create(&CRAWLER, &lease("x", &json!({}))).await;
    let waits = |name: &str| lease(name, &json!({"waitSeconds": 30}));
    for name in ["first", "second"] {
        let (code, pending) = server.create(&CRAWLER, &waits(name)).await;
        assert_eq!(
            (code, &pending["status"]["phase"]),
            (201, &json!("Pending"))
        );
        assert_eq!(condition(&pending, "Bound")["reason"], "Waiting");
    }
    let (code, refused) = server.renew(&CRAWLER, "first").await;
    assert_eq!((code, &refused["reason"]), (409, &json!("LeasePending")));

    server.delete(&CRAWLER, "x").await;
    let bound = server
        .until("the first to be bound", async || {
            server
                .get("first")
                .await
                .filter(|lease| lease["status"]["phase"] == "Bound")
        })
        .await;
    assert_eq!(condition(&bound, "Bound")["status"], "True");
    assert_eq!(bound["status"]["lastToken"], 2);
    assert_eq!(
        server.get("second").await.unwrap()["status"]["phase"],
        "Pending"
    );

    server.clock.advance(Duration::from_secs(30));
    let over = server
        .until("the wait of the second to end", async || {
            server
                .get("second")
                .await
                .filter(|lease| lease["status"]["phase"] == "Expired")
        })
        .await;
    assert_eq!(condition(&over, "Bound")["reason"], "WaitTimedOut");
    assert_eq!(
        server.get("first").await.unwrap()["status"]["phase"],
        "Bound"
    );
}

#[tokio::test]
async fn only_the_holder_or_who_may_manage_touches_a_lease() {
    let server = Server::start().await;
    server.proxy("a", 5);
    server.create(&CRAWLER, &lease("x", &json!({}))).await;
    let (code, refused) = server.delete(&OTHER, "x").await;
    assert_eq!((code, &refused["reason"]), (403, &json!("Forbidden")));
    assert!(
        refused["message"].as_str().unwrap().contains("manage"),
        "{refused}"
    );
    assert_eq!(server.renew(&OTHER, "x").await.0, 403);
    let label = json!({"metadata": {"labels": {"a": "b"}}});
    assert_eq!(server.patch(&OTHER, "x", &label).await.0, 403);
    assert_eq!(server.patch(&CRAWLER, "x", &label).await.0, 200);
    let manager = Caller::named("manager");
    assert_eq!(server.patch(&manager, "x", &label).await.0, 200);
    let collector = Caller::named("system:serviceaccount:kube-system:generic-garbage-collector");
    assert_eq!(server.delete(&collector, "x").await.0, 200);
}

#[tokio::test]
async fn a_lease_that_is_being_deleted_holds_no_slot() {
    let server = Server::start().await;
    server.proxy("a", 1);
    let mut held = lease("x", &json!({}));
    held["metadata"]["finalizers"] = json!(["example.com/audit"]);
    server.create(&CRAWLER, &held).await;
    assert_eq!(server.delete(&CRAWLER, "x").await.0, 200);
    assert!(server.get("x").await.unwrap()["metadata"]["deletionTimestamp"].is_string());
    assert_eq!(server.active(), 0);
    let released = server
        .until("the lease to say that it is over", async || {
            server
                .get("x")
                .await
                .filter(|lease| lease["status"]["phase"] == "Revoked")
        })
        .await;
    assert_eq!(condition(&released, "Bound")["status"], "False");
    assert_eq!(condition(&released, "Bound")["reason"], "Released");
    assert_eq!(
        server.create(&CRAWLER, &lease("y", &json!({}))).await.0,
        201
    );
    assert_eq!(server.renew(&CRAWLER, "x").await.0, 409);
    let done = json!({"metadata": {"finalizers": null}});
    assert_eq!(server.patch(&CRAWLER, "x", &done).await.0, 200);
    assert!(server.get("x").await.is_none());
    assert_eq!(server.active(), 1);
}

#[tokio::test]
async fn the_status_is_the_servers_and_a_dry_run_takes_nothing() {
    let server = Server::start().await;
    server.proxy("a", 1);
    let mut forged = lease("x", &json!({}));
    forged["status"] = json!({"phase": "Bound", "exitIP": "192.0.2.1"});
    let (code, dry) = server.create_at(&CRAWLER, &forged, "?dryRun=All").await;
    assert_eq!(
        (code, &dry["status"]["phase"]),
        (201, &json!("Bound")),
        "{dry}"
    );
    assert_eq!(dry["status"]["lastToken"], Value::Null);
    assert_eq!(server.active(), 0);
    let (_, created) = server.create(&CRAWLER, &forged).await;
    assert_ne!(created["status"]["exitIP"], "192.0.2.1");
    assert_eq!(
        server
            .create_at(&CRAWLER, &lease("y", &json!({})), "?dryRun=All")
            .await
            .0,
        409
    );
    let (code, _) = server
        .patch(&CRAWLER, "x", &json!({"status": {"phase": "Expired"}}))
        .await;
    assert_eq!(code, 200);
    assert_eq!(server.get("x").await.unwrap()["status"]["phase"], "Bound");
}

#[tokio::test]
async fn a_pod_owns_its_lease_and_a_restarted_one_takes_it_over() {
    let server = Server::start().await;
    server.proxy("a", 5);
    server.pod("worker-0", "uid-0");
    server.pod("worker-0b", "uid-1");
    let first = CRAWLER.in_pod("worker-0", "uid-0");
    let spec = json!({"ttlSeconds": 86400});
    let (code, mine) = server.create(&first, &lease("x", &spec)).await;
    assert_eq!(code, 201, "{mine}");
    assert_eq!(
        mine["metadata"]["ownerReferences"],
        json!([
            {"apiVersion": "v1", "kind": "Pod", "name": "worker-0", "uid": "uid-0"}
        ])
    );
    let second = CRAWLER.in_pod("worker-0b", "uid-1");
    let (code, taken) = server.create(&second, &lease("x", &spec)).await;
    assert_eq!(code, 201, "{taken}");
    assert_eq!(taken["metadata"]["uid"], mine["metadata"]["uid"]);
    assert_eq!(taken["status"]["holder"]["podUID"], "uid-1");
    assert_eq!(taken["metadata"]["ownerReferences"][0]["uid"], "uid-1");
    assert_eq!(server.active(), 1);

    let gone = CRAWLER.in_pod("worker-9", "uid-9");
    let (code, refused) = server.create(&gone, &lease("y", &json!({}))).await;
    assert_eq!(code, 403, "{refused}");

    // A dispatcher leases for a worker; a pod that is not there cannot own.
    let mut for_worker = lease("z", &json!({}));
    let owner = |uid: &str| {
        json!([
            {"apiVersion": "v1", "kind": "Pod", "name": "worker-0", "uid": uid}
        ])
    };
    for_worker["metadata"]["ownerReferences"] = owner("uid-0");
    let (code, leased) = server.create(&OTHER, &for_worker).await;
    assert_eq!(
        (code, &leased["status"]["holder"]["podUID"]),
        (201, &json!("uid-0"))
    );
    for_worker["metadata"] = json!({"name": "w", "ownerReferences": owner("uid-7")});
    let (code, refused) = server.create(&OTHER, &for_worker).await;
    assert_eq!(code, 422);
    assert_eq!(
        refused["details"]["causes"][0]["field"],
        "metadata.ownerReferences[0]"
    );
}

#[tokio::test]
async fn after_a_restart_a_lease_shows_the_end_that_it_has() {
    let server = Server::start().await;
    server.proxy("a", 5);
    let hour = json!({"ttlSeconds": 3600});
    server.create(&CRAWLER, &lease("bare", &json!({}))).await;
    server.create(&CRAWLER, &lease("renewed", &hour)).await;
    server.create(&CRAWLER, &lease("drained", &hour)).await;
    server.clock.advance(Duration::from_secs(10));
    assert_eq!(server.renew(&CRAWLER, "renewed").await.0, 201);
    let token = server.get("bare").await.unwrap()["status"]["lastToken"].clone();

    let server = server.restarted(Duration::from_mins(10)).await;
    let ends = async |name: &str, seconds: i64| {
        let end = server.clock.now() + jiff::SignedDuration::from_secs(seconds);
        server
            .until("the lease to show its end", async || {
                let lease = server.get(name).await?;
                (lease["status"]["expiresAt"] == end.to_string()).then_some(lease)
            })
            .await
    };
    let bare = ends("bare", 300).await;
    assert_eq!(bare["status"]["phase"], "Bound");
    assert_eq!(bare["status"]["lastToken"], token);
    ends("renewed", 3600).await;
    ends("drained", 3600).await;
    // A drain cuts it, and takes no more than that from it.
    server.drain("a", 7);
    ends("drained", 900).await;
    ends("bare", 300).await;
}
