//! `kubectl px lease hold` as a process against a stand-in for the lease API.

#[cfg(test)]
mod common;

use common::{Api, Finished, Fixture, URL, finish, send};
use nix::sys::signal::Signal;

async fn hold(fixture: &Fixture, command: &[&str]) -> Finished {
    finish(fixture.hold(&[&["--pool", "eu", "--"], command].concat())).await
}

fn assert_released(fixture: &Fixture) {
    let api = fixture.api.lock();
    assert!(api.leases.is_empty(), "no lease is left");
    assert_eq!(api.deleted.len(), 1);
}

#[tokio::test]
async fn the_command_finds_the_proxy_in_its_environment_and_its_status_is_passed_on() {
    let fixture = Fixture::start(Api::default()).await;
    let script = "printf '%s ' $HTTP_PROXY $HTTPS_PROXY $http_proxy $https_proxy $NO_PROXY; exit 3";
    let done = hold(&fixture, &["/bin/sh", "-c", script]).await;
    let direct = "localhost,127.0.0.1,::1,.svc,.cluster.local";
    assert_eq!(done.stdout, format!("{URL} {URL} {URL} {URL} {direct} "));
    assert_eq!((done.code, done.stderr.as_str()), (Some(3), ""));
    assert_released(&fixture);
}

#[tokio::test]
async fn a_command_that_cannot_be_started_gives_the_lease_back() {
    for (program, code) in [("no-such-program-anywhere", 127), ("/etc/passwd", 126)] {
        let fixture = Fixture::start(Api::default()).await;
        let done = hold(&fixture, &[program]).await;
        assert_eq!(done.code, Some(code), "{}", done.stderr);
        assert!(done.stderr.contains(program), "{}", done.stderr);
        assert_released(&fixture);
    }
}

#[tokio::test]
async fn a_killed_command_gives_128_and_the_signal() {
    let fixture = Fixture::start(Api::default()).await;
    let done = hold(&fixture, &["/bin/sh", "-c", "kill -KILL $$"]).await;
    assert_eq!(done.code, Some(137));
    assert_released(&fixture);
}

#[tokio::test]
async fn signals_reach_the_command_which_decides_what_they_mean() {
    for (signal, name) in [(Signal::SIGTERM, "TERM"), (Signal::SIGHUP, "HUP")] {
        let fixture = Fixture::start(Api::default()).await;
        let started = fixture.path("started");
        let script = format!("trap 'exit 7' {name}; : >{started}; while :; do sleep 0.05; done");
        let child = fixture.hold(&["--pool", "eu", "--", "/bin/sh", "-c", &script]);
        fixture.until_file("started").await;
        send(&child, signal);
        let done = finish(child).await;
        assert_eq!(done.code, Some(7), "{}", done.stderr);
        assert_released(&fixture);
    }
}

#[tokio::test]
async fn the_lease_is_renewed_for_as_long_as_the_command_runs() {
    let fixture = Fixture::start(Api {
        ttl: 2,
        ..Api::default()
    })
    .await;
    let stop = fixture.path("stop");
    let script = format!("until [ -e {stop} ]; do sleep 0.05; done");
    let child = fixture.hold(&["--pool", "eu", "--", "/bin/sh", "-c", &script]);
    fixture
        .until("it is renewed", |api| api.renewals >= 2)
        .await;
    std::fs::write(&stop, "").expect("written");
    let done = finish(child).await;
    assert_eq!((done.code, done.stderr.as_str()), (Some(0), ""));
    assert_released(&fixture);
}

#[tokio::test]
async fn a_lost_lease_ends_the_command_when_asked_to() {
    let fixture = Fixture::start(Api {
        ttl: 2,
        renewal_fails_with: Some(404),
        ..Api::default()
    })
    .await;
    let args = [
        "--pool",
        "eu",
        "--on-loss=terminate",
        "--",
        "/bin/sh",
        "-c",
        "exec sleep 60",
    ];
    let done = finish(fixture.hold(&args)).await;
    assert_eq!(done.code, Some(143));
    assert!(
        done.stderr
            .contains("is lost, its proxy may be used by others"),
        "{}",
        done.stderr
    );
}

#[tokio::test]
async fn a_lost_lease_is_only_told_by_default() {
    let fixture = Fixture::start(Api {
        ttl: 2,
        renewal_fails_with: Some(404),
        ..Api::default()
    })
    .await;
    let stop = fixture.path("stop");
    let script = format!("until [ -e {stop} ]; do sleep 0.05; done; exit 5");
    let child = fixture.hold(&["--pool", "eu", "--", "/bin/sh", "-c", &script]);
    fixture
        .until("a renewal fails", |api| api.renewals >= 1)
        .await;
    std::fs::write(&stop, "").expect("written");
    let done = finish(child).await;
    assert_eq!(done.code, Some(5));
}

#[tokio::test]
async fn a_renewal_that_fails_for_a_moment_is_no_loss() {
    let fixture = Fixture::start(Api {
        ttl: 10,
        renewal_fails_with: Some(503),
        ..Api::default()
    })
    .await;
    let stop = fixture.path("stop");
    let script = format!("until [ -e {stop} ]; do sleep 0.05; done");
    let child = fixture.hold(&["--pool", "eu", "--", "/bin/sh", "-c", &script]);
    fixture
        .until("a renewal fails", |api| api.renewals >= 1)
        .await;
    fixture.api.lock().renewal_fails_with = None;
    fixture
        .until("it is renewed", |api| api.renewals >= 2)
        .await;
    std::fs::write(&stop, "").expect("written");
    let done = finish(child).await;
    assert_eq!(done.code, Some(0));
    assert!(
        done.stderr.contains("cannot renew lease"),
        "{}",
        done.stderr
    );
    assert!(!done.stderr.contains("is lost"), "{}", done.stderr);
}

#[tokio::test]
async fn a_signal_while_waiting_for_a_proxy_gives_the_place_back() {
    let fixture = Fixture::start(Api {
        pending: true,
        ..Api::default()
    })
    .await;
    let child = fixture.hold(&["--pool", "eu", "--wait", "5m", "--", "true"]);
    fixture
        .until("it is waiting", |api| !api.leases.is_empty())
        .await;
    send(&child, Signal::SIGTERM);
    let done = finish(child).await;
    assert_eq!(done.code, Some(143), "{}", done.stderr);
    assert_released(&fixture);
}

#[tokio::test]
async fn without_a_lease_the_command_does_not_run() {
    let fixture = Fixture::start(Api {
        deny: true,
        ..Api::default()
    })
    .await;
    let ran = fixture.path("ran");
    let done = hold(&fixture, &["/bin/sh", "-c", &format!(": >{ran}")]).await;
    assert_eq!(done.code, Some(1));
    assert!(
        done.stderr
            .starts_with("Error from server (NoProxyAvailable): "),
        "{}",
        done.stderr
    );
    assert!(!std::path::Path::new(&ran).exists());
}

#[tokio::test]
async fn a_script_reports_how_its_requests_went() {
    let fixture = Fixture::start(Api::default()).await;
    fixture.create(&["shop-0", "--pool", "eu"]).await;
    let report = async |args: &[&str]| fixture.px(&[&["lease", "report"], args].concat()).await;
    let done = report(&["shop-0", "--result", "OK", "--http-status", "403"]).await;
    assert_eq!(
        (done.code, done.stdout.as_str(), done.stderr.as_str()),
        (
            Some(0),
            "proxylease.leases.crawl.example.com/shop-0 reported\n",
            ""
        )
    );
    let done = report(&["shop-0", "--result", "Error"]).await;
    assert_eq!(done.code, Some(0), "{}", done.stderr);
    assert_eq!(
        fixture.api.lock().reports,
        [
            serde_json::json!({"result": "OK", "httpStatus": 403}),
            serde_json::json!({"result": "Error"})
        ]
    );
    let done = report(&["gone", "--result", "OK"]).await;
    assert_eq!((done.code, done.stdout.as_str()), (Some(1), ""));
    assert!(done.stderr.contains("NotFound"), "{}", done.stderr);
}
