//! `kubectl create lease` as a process against a stand-in for the lease API.

#[cfg(test)]
mod common;

use common::{Api, Fixture, URL};
use serde_json::{Value, json};

const RESOURCE: &str = "proxylease.leases.crawl.example.com";

#[tokio::test]
async fn a_named_lease_is_reported_like_any_created_object() {
    let fixture = Fixture::start(Api::default()).await;
    let done = fixture
        .create(&["shop-0", "--pool", "eu", "--ttl", "5m"])
        .await;
    assert_eq!(done.stdout, format!("{RESOURCE}/shop-0 created\n"));
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    let (sent, _) = fixture.api.lock().creates[0].clone();
    assert_eq!(
        sent["metadata"]["namespace"], "crawlers",
        "the context's namespace"
    );
    assert_eq!(
        sent["spec"],
        json!({"poolRef": {"name": "eu"}, "ttlSeconds": 300})
    );
}

#[tokio::test]
async fn only_the_url_is_printed_with_o_url() {
    let fixture = Fixture::start(Api::default()).await;
    let done = fixture.create(&["--pool", "eu", "-o", "url"]).await;
    assert_eq!(
        (done.stdout, done.stderr),
        (format!("{URL}\n"), String::new())
    );
}

#[tokio::test]
async fn a_shell_can_evaluate_o_env() {
    let fixture = Fixture::start(Api::default()).await;
    let done = fixture
        .create(&["shop-0", "--pool", "eu", "-o", "env"])
        .await;
    let script = format!(
        "{}\nprintf '%s ' \"$HTTP_PROXY\" \"$https_proxy\" \"$no_proxy\" \"$PROXY_LEASE\"",
        done.stdout
    );
    let shell = fixture
        .command("/bin/sh", &["-c", &script])
        .output()
        .await
        .expect("a shell");
    assert_eq!(
        String::from_utf8_lossy(&shell.stdout),
        format!("{URL} {URL} localhost,127.0.0.1,::1,.svc,.cluster.local shop-0 ")
    );
}

#[tokio::test]
async fn the_whole_answer_is_printed_as_json() {
    let fixture = Fixture::start(Api::default()).await;
    let done = fixture
        .create(&["shop-0", "-l", "geo=eu", "-o", "json"])
        .await;
    let object: Value = serde_json::from_str(&done.stdout).expect("JSON");
    assert_eq!(object["kind"], "ProxyLease");
    assert_eq!(object["status"]["proxyURL"], URL);
}

#[tokio::test]
async fn a_denial_ends_with_status_1_and_the_counts_on_standard_error() {
    let fixture = Fixture::start(Api {
        deny: true,
        ..Api::default()
    })
    .await;
    let done = fixture.create(&["--pool", "eu", "-o", "url"]).await;
    assert_eq!((done.code, done.stdout.as_str()), (Some(1), ""));
    assert_eq!(
        done.stderr,
        "Error from server (NoProxyAvailable): no proxy available in pool eu: 2 AtCapacity\n"
    );
    assert_eq!(
        fixture.api.lock().creates.len(),
        1,
        "a decision is not asked for twice"
    );
}

#[tokio::test]
async fn a_repeat_after_a_lost_answer_takes_one_slot() {
    let fixture = Fixture::start(Api {
        lose_create_answers: 2,
        ..Api::default()
    })
    .await;
    let done = fixture.create(&["--pool", "eu", "-o", "name"]).await;
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    let api = fixture.api.lock();
    assert_eq!((api.creates.len(), api.leases.len()), (3, 1));
    let ids: Vec<_> = api
        .creates
        .iter()
        .map(|(sent, _)| &sent["spec"]["requestID"])
        .collect();
    assert!(
        ids[0].is_string() && ids.iter().all(|id| *id == ids[0]),
        "{ids:?}"
    );
}

#[tokio::test]
async fn a_client_dry_run_sends_nothing() {
    let fixture = Fixture::start(Api::default()).await;
    let args = ["shop-0", "--pool", "eu", "--dry-run=client", "-o", "yaml"];
    let done = fixture.create(&args).await;
    assert!(
        done.stdout
            .starts_with("apiVersion: leases.crawl.example.com/v1alpha1\n")
    );
    assert!(
        done.stdout.contains("\n  name: shop-0\n"),
        "{}",
        done.stdout
    );
    assert!(fixture.api.lock().creates.is_empty());
}

#[tokio::test]
async fn a_server_dry_run_asks_and_takes_nothing() {
    let fixture = Fixture::start(Api::default()).await;
    let done = fixture
        .create(&["shop-0", "--pool", "eu", "--dry-run=server"])
        .await;
    assert_eq!(
        done.stdout,
        format!("{RESOURCE}/shop-0 created (server dry run)\n")
    );
    let api = fixture.api.lock();
    assert!(api.creates[0].1.contains("dryRun=All") && api.leases.is_empty());
}

#[tokio::test]
async fn wait_follows_the_lease_until_it_is_bound() {
    for forbid_watch in [false, true] {
        let fixture = Fixture::start(Api {
            pending: true,
            forbid_watch,
            ..Api::default()
        })
        .await;
        let creating = fixture.create(&["shop-0", "--pool", "eu", "--wait", "60s", "-o", "url"]);
        let binding = async {
            fixture
                .until("it is created", |api| !api.leases.is_empty())
                .await;
            fixture.api.lock().leases[0]["status"] = json!({"phase": "Bound", "proxyURL": URL});
        };
        let (done, ()) = tokio::join!(creating, binding);
        assert_eq!(done.stdout, format!("{URL}\n"), "{}", done.stderr);
        assert_eq!(fixture.api.lock().creates[0].0["spec"]["waitSeconds"], 60);
    }
}

#[tokio::test]
async fn a_lease_that_got_no_proxy_is_deleted_and_the_servers_reason_is_told() {
    let fixture = Fixture::start(Api {
        pending: true,
        ..Api::default()
    })
    .await;
    let creating = fixture.create(&["shop-0", "--pool", "eu", "--wait", "30s"]);
    let expiring = async {
        fixture
            .until("it is created", |api| !api.leases.is_empty())
            .await;
        fixture.api.lock().leases[0]["status"] = json!({"phase": "Expired", "conditions": [{
            "type": "Bound", "status": "False", "reason": "NoProxyAvailable",
            "message": "2 of 2 AtCapacity", "lastTransitionTime": "2026-01-01T00:00:00Z"}]});
    };
    let (done, ()) = tokio::join!(creating, expiring);
    assert_eq!(done.code, Some(1));
    assert_eq!(
        done.stderr,
        "error: lease shop-0 got no proxy: NoProxyAvailable: 2 of 2 AtCapacity\n"
    );
    assert_eq!(fixture.api.lock().deleted, ["shop-0"]);
}

#[tokio::test]
async fn an_unreachable_server_and_wrong_flags_end_with_status_1() {
    let fixture = Fixture::start(Api::default()).await;
    let refused = fixture
        .create(&["--pool", "eu", "-s", "http://127.0.0.1:1"])
        .await;
    assert_eq!(refused.code, Some(1));
    assert!(
        refused
            .stderr
            .starts_with("The connection to the server 127.0.0.1:1 was refused"),
        "{refused:?}"
    );
    let wrong = fixture.create(&["--pool", "eu", "--ttl", "1s"]).await;
    assert_eq!(wrong.code, Some(1));
    assert!(
        wrong.stderr.contains("10 to 86400 seconds"),
        "{}",
        wrong.stderr
    );
    let help = fixture.create(&["--help"]).await;
    assert_eq!(help.code, Some(0));
    assert!(help.stdout.contains("Examples:") && help.stdout.contains("kubectl create lease"));
}
