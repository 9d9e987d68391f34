//! Each way in which a proxy can be good or bad, and what the verdict says of it.

use std::net::{Ipv4Addr, Ipv6Addr, SocketAddr};
use std::time::Duration;

use crawl_api::address::Endpoint;
use crawl_api::proxy::Expectations;
use crawl_api::scheme::Scheme;
use mock_cloud::faults::Behaviour;
use tokio::net::{TcpSocket, TcpStream};

use super::{
    PROXIES, World, auth, credentials, endpoint, evil, expecting, target, target_at, until,
};

#[tokio::test]
async fn a_good_proxy_is_healthy_and_its_exit_is_learnt() {
    let mut world = World::new().await;
    let at = world
        .instance("good", Some(auth("s3cret")), Behaviour::Normal)
        .await;
    let mut good = target("good", at.clone());
    good.credentials = Some(credentials("s3cret"));
    let verdict = world.decide(good).await;
    assert_eq!(
        (verdict.healthy, verdict.reason.as_str()),
        (Some(true), "ProbeSucceeded")
    );
    assert_eq!(verdict.exit_ip, Some(at.host));
    assert!(verdict.latency.is_some());
}

#[tokio::test]
async fn without_an_echo_target_of_its_own_a_proxy_is_healthy_and_its_exit_unknown() {
    let mut world = World::new().await;
    let at = world.instance("good", None, Behaviour::Normal).await;
    let url = format!("https://{}/generate_204", world.echo);
    let verdict = world.decide(target_at("good", at, &url)).await;
    assert_eq!((verdict.healthy, verdict.exit_ip), (Some(true), None));
}

#[tokio::test]
async fn an_expected_exit_is_checked_at_the_echo_target_besides_own_urls() {
    let mut world = World::new().await;
    let at = world.instance("good", None, Behaviour::Normal).await;
    let url = format!("https://{}/generate_204", world.echo);
    let mut expected = target_at("good", at.clone(), &url);
    expected.check.expect = Some(expecting(&at.host));
    world.decide(expected).await;
    // The second probe goes to the echo target, and tells the exit.
    world.probe_again().await;
    world.told().await;
    assert_eq!(world.engine.verdict("good").unwrap().exit_ip, Some(at.host));
}

/// Cases 7 and 8 among others: a page in place of nothing, an injected script, a certificate of
/// somebody between.
#[tokio::test]
async fn every_evil_proxy_is_unhealthy_with_a_reason_of_its_own() {
    let mut world = World::new().await;
    let page = "http://target.test/generate_204";
    let https = "https://target.test/";
    let files = tempfile::tempdir().unwrap();

    let portal = world
        .instance("portal", None, Behaviour::CaptivePortal)
        .await;
    let locked = world
        .instance("locked", Some(auth("s3cret")), Behaviour::Normal)
        .await;
    let dead = world.instance("dead", None, Behaviour::Dead).await;
    let elsewhere = world
        .instance("elsewhere", None, Behaviour::WrongExit { ip: None })
        .await;
    let good = world.instance("good", None, Behaviour::Normal).await;
    let intercepting = endpoint(evil::intercepting(files.path()).await);
    let closing = endpoint(evil::answering("").await);
    let no_http = endpoint(evil::answering("SSH-2.0-OpenSSH_9.2\r\n\r\n").await);
    let forbidding = endpoint(evil::answering("HTTP/1.1 403 Forbidden\r\n\r\n").await);
    let redirecting =
        endpoint(evil::answering("HTTP/1.1 302 Found\r\nLocation: /login\r\n\r\n").await);

    let page_in_tunnel = endpoint(evil::tunnelling("<html>please log in</html>").await);
    let closed_tunnel = endpoint(evil::tunnelling("").await);
    let endless = endpoint(evil::flooding("HTTP/1.1 200 OK\r\n\r\n", "x").await);
    let injecting = evil::answering("HTTP/1.1 200 OK\r\nContent-Length: 13\r\n\r\nhello<script>");
    let injecting = endpoint(injecting.await);
    let own_exit = evil::honest(None, Ipv4Addr::LOCALHOST.into()).await;
    let signature = "00".repeat(32);
    let forging = evil::forging(
        world.files.path(),
        format!(
            r#"{{"nonce":"NONCE","ip":"192.0.2.7","time":"2026-01-01T00:00:00Z","signature":"{signature}"}}"#
        ),
    );
    let forging = endpoint(forging.await);
    let replaying = evil::forging(world.files.path(), world.echo_answer()).await;
    let https_endpoint = |address| Endpoint {
        scheme: Scheme::Https,
        ..endpoint(address)
    };
    let untrusted_tls = https_endpoint(evil::tls(files.path()).await);
    // An authority for targets is none for proxies, and the other way round.
    let target_authority = https_endpoint(evil::tls(world.files.path()).await);
    let proxies = world.files.path().join(PROXIES);
    let proxy_authority = endpoint(evil::intercepting(&proxies).await);
    let plain = https_endpoint(evil::stalling(b"HTTP/1.1 400 Bad Request\r\n\r\n").await.0);
    let socks = |address: SocketAddr| Endpoint {
        scheme: Scheme::Socks5,
        ..endpoint(address)
    };
    let socks_methods = socks(evil::socks5_answering(&[5, 0xff], &[]).await);
    let socks_refusing = socks(evil::socks5_answering(&[5, 0], &[5, 2, 0, 1]).await);
    let not_socks = socks(evil::socks5_answering(b"HTTP/1.1 400 Bad", &[]).await);
    let mut hashed = target_at(
        "injecting-hash",
        injecting.clone(),
        "http://target.test/a.js",
    );
    hashed.check.expect = Some(Expectations {
        // What `printf hello | sha256sum` says.
        body_sha256: Some(
            "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824".into(),
        ),
        ..Expectations::default()
    });
    let mut matched = target_at("injecting-regex", injecting, "http://target.test/a.js");
    matched.check.expect = Some(Expectations {
        body_regex: Some("^hello$".into()),
        ..Expectations::default()
    });

    let mut wrong_password = target("wrong-password", locked.clone());
    wrong_password.credentials = Some(credentials("n0t-it"));
    let mut wrong_exit = target("wrong-exit", elsewhere.clone());
    wrong_exit.check.expect = Some(expecting(&elsewhere.host));
    let mut broken = target("broken-check", good.clone());
    broken.check.expect = Some(expecting("somewhere"));

    for (target, reason) in vec![
        (target("portal-echo", portal.clone()), "UnexpectedContent"),
        (target_at("portal-page", portal, page), "UnexpectedContent"),
        (target("no-password", locked.clone()), "ProxyAuthFailed"),
        (
            target_at("no-password-page", locked, page),
            "ProxyAuthFailed",
        ),
        (wrong_password, "ProxyAuthFailed"),
        (target("dead", dead), "ConnectionRefused"),
        (wrong_exit, "WrongExitIP"),
        (broken, "InvalidHealthCheck"),
        (
            target("intercepting", intercepting.clone()),
            "TLSIntercepted",
        ),
        (
            target_at("intercepting-page", intercepting, https),
            "TLSIntercepted",
        ),
        (target("closing", closing.clone()), "ConnectAborted"),
        (target_at("closing-page", closing, page), "ConnectAborted"),
        (target_at("no-http", no_http, page), "UnexpectedContent"),
        (target("forbidding", forbidding), "TargetUnreachable"),
        (
            target_at("redirecting", redirecting, page),
            "UnexpectedStatus",
        ),
        (
            target("page-in-tunnel", page_in_tunnel),
            "UnexpectedContent",
        ),
        (target("closed-tunnel", closed_tunnel), "ConnectAborted"),
        (target_at("endless", endless, page), "UnexpectedContent"),
        (hashed, "UnexpectedContent"),
        (matched, "UnexpectedContent"),
        (target("own-exit", endpoint(own_exit)), "ExitIPIsOwn"),
        (target("forging", forging), "UnexpectedContent"),
        (
            target("replaying", endpoint(replaying)),
            "UnexpectedContent",
        ),
        (target("untrusted-tls", untrusted_tls), "ProxyTLSFailed"),
        (
            target("target-authority", target_authority),
            "ProxyTLSFailed",
        ),
        (target("proxy-authority", proxy_authority), "TLSIntercepted"),
        (target("no-tls", plain), "ProxyTLSFailed"),
        (target("socks-methods", socks_methods), "ProxyAuthFailed"),
        (
            target("socks-refusing", socks_refusing),
            "TargetUnreachable",
        ),
        (target("not-socks", not_socks), "UnexpectedContent"),
        (
            target_at("unknown-name", good, "https://no-such-name.invalid/"),
            "TargetUnreachable",
        ),
    ] {
        let uid = target.uid.clone();
        let verdict = world.decide(target).await;
        assert_eq!(verdict.healthy, Some(false), "{uid}");
        assert_eq!(verdict.reason, reason, "{uid}: {}", verdict.message);
        assert!(!verdict.message.contains("s3cret") && !verdict.message.contains("n0t-it"));
        world.engine.remove(&uid);
        world.targets -= 1;
        until(async || world.clock.sleepers() == 0).await;
    }
}

#[tokio::test]
async fn a_proxy_that_hangs_fails_when_the_time_of_the_probe_is_up() {
    let mut world = World::new().await;
    let (address, mut connections) = evil::hanging().await;
    world.add(target("hanging", endpoint(address))).await;
    world.clock.advance(Duration::from_secs(1));
    connections.recv().await.expect("it is probed");
    until(async || world.clock.sleepers() == 1).await;
    world.clock.advance(Duration::from_secs(5));
    world.told().await;
    assert_eq!(
        world.engine.verdict("hanging").unwrap().reason,
        "ProbeTimedOut"
    );
}

#[tokio::test]
async fn a_port_that_does_not_accept_fails_as_a_connect_timeout() {
    let mut world = World::new().await;
    let socket = TcpSocket::new_v4().unwrap();
    socket
        .bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0)))
        .unwrap();
    let full = socket.listen(1).unwrap();
    let address = full.local_addr().unwrap();
    // The kernel keeps two; it does not answer a third.
    let _queue = [
        TcpStream::connect(address).await,
        TcpStream::connect(address).await,
    ];
    world.add(target("full", endpoint(address))).await;
    let World {
        clock,
        transitions,
        engine,
        ..
    } = &mut world;
    until(async || {
        clock.advance(Duration::from_secs(1));
        transitions.try_recv().is_ok()
    })
    .await;
    assert_eq!(engine.verdict("full").unwrap().reason, "ConnectTimeout");
}

#[tokio::test]
async fn socks5_endpoints_are_probed_with_their_credentials() {
    let mut world = World::new().await;
    let mut at = endpoint(evil::socks5("s3cret").await);
    at.scheme = Scheme::Socks5;
    let mut good = target("good", at.clone());
    good.credentials = Some(credentials("s3cret"));
    let verdict = world.decide(good).await;
    assert_eq!(
        (verdict.healthy, verdict.exit_ip.as_deref()),
        (Some(true), Some(evil::SOCKS_EXIT.to_string().as_str()))
    );
    let mut bad = target("bad", at);
    bad.credentials = Some(credentials("wrong"));
    assert_eq!(world.decide(bad).await.reason, "ProxyAuthFailed");
}

#[tokio::test]
async fn a_proxy_that_is_spoken_to_in_tls_is_healthy_with_a_certificate_that_is_trusted() {
    let mut world = World::new().await;
    let mut at = endpoint(evil::tls(&world.files.path().join(PROXIES)).await);
    at.scheme = Scheme::Https;
    let verdict = world.decide(target("tls", at)).await;
    assert_eq!(
        (verdict.healthy, verdict.exit_ip),
        (Some(true), Some(evil::SOCKS_EXIT.to_string())),
        "{}",
        verdict.message
    );
}

#[tokio::test]
async fn an_endpoint_may_be_an_ipv6_address() {
    let mut world = World::new().await;
    let at = evil::honest(Some(evil::SOCKS_EXIT), Ipv6Addr::LOCALHOST.into()).await;
    let verdict = world.decide(target("v6", endpoint(at))).await;
    assert_eq!(verdict.healthy, Some(true), "{}", verdict.message);
}

#[tokio::test]
async fn the_operators_own_address_is_accepted_by_who_expects_it() {
    let mut world = World::new().await;
    let at = endpoint(evil::honest(None, Ipv4Addr::LOCALHOST.into()).await);
    let mut expected = target("expected", at);
    expected.check.expect = Some(expecting("127.0.0.1"));
    assert_eq!(world.decide(expected).await.healthy, Some(true));
}

/// Case 9: a port that accepts is not a proxy that works.
#[tokio::test]
async fn a_connection_that_is_accepted_is_never_enough() {
    let mut world = World::new().await;
    let at = endpoint(evil::answering("").await);
    let verdict = world.decide(target("accepts", at)).await;
    assert_eq!(
        (verdict.healthy, verdict.reason.as_str()),
        (Some(false), "ConnectAborted")
    );
}

/// Case 11: both ways of asking carry the credentials.
#[tokio::test]
async fn credentials_are_sent_with_connect_and_with_a_plain_request() {
    let mut world = World::new().await;
    let at = world
        .instance("locked", Some(auth("p@ss:w/rd%")), Behaviour::Normal)
        .await;
    let page = world.plain_target().await;
    for (uid, url) in [("tunnel", None), ("plain", Some(page))] {
        let mut target = target(uid, at.clone());
        target.credentials = Some(credentials("p@ss:w/rd%"));
        target.check.probes = url.into_iter().collect();
        let verdict = world.decide(target).await;
        assert_eq!(verdict.healthy, Some(true), "{uid}: {}", verdict.message);
    }
}
