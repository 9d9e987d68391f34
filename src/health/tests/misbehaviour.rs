//! Proxies that break the protocols they should speak, or speak them without end.

use std::net::{IpAddr, Ipv6Addr};
use std::time::Duration;

use crawl_api::address::Endpoint;
use crawl_api::proxy::Expectations;
use crawl_api::scheme::Scheme;

use super::{Config, Target, World, endpoint, evil, expecting, target, target_at, until};

const PAGE: &str = "http://target.test/page";
const BEHIND_TLS: &str = "https://target.test/";

/// Lets each decide, one after the other.
async fn each_has_its_reason(cases: Vec<(&str, Target, &str)>) {
    let mut world = World::new().await;
    for (what, target, reason) in cases {
        let uid = target.uid.clone();
        let verdict = world.decide(target).await;
        assert_eq!(
            (verdict.healthy, verdict.reason.as_str()),
            (Some(false), reason),
            "{what}: {}",
            verdict.message
        );
        world.engine.remove(&uid);
        world.targets -= 1;
        until(async || world.clock.sleepers() == 0).await;
    }
}

/// What the answer to a plain request for a page may look like.
#[tokio::test]
async fn answers_that_are_not_http_are_nobodys_content() {
    let mut cases = Vec::new();
    for (what, answer) in [
        ("HTTP/0.9", "<html>welcome</html>"),
        ("another protocol", "ICY 200 OK\r\n\r\n"),
        ("HTTP/2", "PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n"),
        ("no status", "HTTP/1.1 OK\r\n\r\n"),
        ("a status of two digits", "HTTP/1.1 20 OK\r\n\r\n"),
        ("a NUL", "HTTP/1.1 200 OK\r\nserver: a\0b\r\n\r\n"),
        (
            "a negative length",
            "HTTP/1.1 200 OK\r\ncontent-length: -1\r\n\r\nx",
        ),
        (
            "a length of 2^64",
            "HTTP/1.1 200 OK\r\ncontent-length: 18446744073709551616\r\n\r\nx",
        ),
        (
            "two lengths",
            "HTTP/1.1 200 OK\r\ncontent-length: 1\r\ncontent-length: 2\r\n\r\nxx",
        ),
        (
            "a chunk of no size",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\nzz\r\n",
        ),
        (
            "a chunk of 2^64 bytes",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n10000000000000000\r\n",
        ),
    ] {
        let at = endpoint(evil::answering(answer).await);
        cases.push((what, target_at("one", at, PAGE), "UnexpectedContent"));
    }
    each_has_its_reason(cases).await;
}

#[tokio::test]
async fn what_comes_without_end_is_cut_and_is_nobodys_content() {
    let ok = "HTTP/1.1 200 OK\r\n";
    let mut cases = Vec::new();
    for (what, first, again) in [
        ("a line", ok, "x"),
        ("a value", "HTTP/1.1 200 OK\r\nserver: ", "x"),
        ("fields", ok, "a: b\r\n"),
        ("interim answers", "", "HTTP/1.1 100 Continue\r\n\r\n"),
        (
            "early hints",
            "",
            "HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n",
        ),
        (
            "an extension of a chunk",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n1;",
            "x",
        ),
        (
            "trailers",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n0\r\n",
            "a: b\r\n",
        ),
    ] {
        let at = endpoint(evil::flooding(first, again).await);
        let tunnel = target_at("tunnel", at.clone(), BEHIND_TLS);
        cases.push((what, target_at("page", at, PAGE), "UnexpectedContent"));
        // Chunks are no part of the answer to a CONNECT (RFC 9110, section 9.3.6), but of what
        // should be TLS.
        cases.push((what, tunnel, "UnexpectedContent"));
    }
    each_has_its_reason(cases).await;
}

/// A body is taken as it comes: nothing unpacks it, so nothing small becomes large.
#[tokio::test]
async fn a_body_without_end_is_read_to_the_limit_and_judged_whether_packed_or_not() {
    let mut cases = Vec::new();
    for (what, first) in [
        ("plain", "HTTP/1.1 200 OK\r\n\r\n"),
        (
            "packed",
            "HTTP/1.1 200 OK\r\ncontent-encoding: gzip\r\n\r\n\x1f\x08",
        ),
        (
            "chunks of a byte",
            "HTTP/1.1 200 OK\r\ntransfer-encoding: chunked\r\n\r\n",
        ),
    ] {
        let at = evil::flooding(first, "1\r\nx\r\n").await;
        let mut target = target_at("one", endpoint(at), PAGE);
        target.check.expect = Some(Expectations {
            body_regex: Some("price".into()),
            ..Expectations::default()
        });
        cases.push((what, target, "UnexpectedContent"));
    }
    each_has_its_reason(cases).await;
}

#[tokio::test]
async fn what_is_no_tunnel_is_told_from_a_target_that_is_not_reached() {
    let refuses = |answer| async move { endpoint(evil::answering(answer).await) };
    let switches = refuses("HTTP/1.1 101 Switching Protocols\r\nupgrade: x\r\n\r\n").await;
    let redirects = refuses("HTTP/1.1 302 Found\r\nlocation: https://target.test/\r\n\r\n").await;
    let unavailable = refuses("HTTP/1.1 503 Service Unavailable\r\n\r\n").await;
    let page = endpoint(evil::hasty("<html>please log in</html>").await);
    let alert = endpoint(evil::hasty("\u{15}\u{3}\u{3}\0\u{2}\u{2}\u{28}").await);
    let cut = endpoint(evil::answering("HTTP/1.1 200 OK\r\n\r\n").await);
    let cases = vec![
        (
            "101",
            target_at("one", switches, BEHIND_TLS),
            "TargetUnreachable",
        ),
        // No redirect is followed, so there is no loop of them.
        (
            "302",
            target_at("one", redirects.clone(), BEHIND_TLS),
            "TargetUnreachable",
        ),
        (
            "302 to a page",
            target_at("one", redirects, PAGE),
            "UnexpectedStatus",
        ),
        (
            "503",
            target_at("one", unavailable, BEHIND_TLS),
            "TargetUnreachable",
        ),
        (
            "a page at once",
            target_at("one", page, BEHIND_TLS),
            "UnexpectedContent",
        ),
        (
            "a TLS alert",
            target_at("one", alert, BEHIND_TLS),
            "TLSFailed",
        ),
        (
            "the end",
            target_at("one", cut, BEHIND_TLS),
            "ConnectAborted",
        ),
    ];
    each_has_its_reason(cases).await;
}

/// The certificate is good and trusted, and another target's.
#[tokio::test]
async fn a_certificate_for_another_name_is_an_interception() {
    let mut world = World::new().await;
    let at = evil::intercepting(world.files.path()).await;
    let verdict = world
        .decide(target_at("one", endpoint(at), BEHIND_TLS))
        .await;
    assert_eq!(verdict.reason, "TLSIntercepted", "{}", verdict.message);
}

#[tokio::test]
async fn socks5_that_is_none_is_nobodys_content() {
    let mut cases = Vec::new();
    for (what, greeting, request, reason) in [
        (
            "SOCKS4",
            b"\x04\0".as_slice(),
            b"".as_slice(),
            "UnexpectedContent",
        ),
        (
            "another way to authenticate",
            b"\x05\x01",
            b"",
            "ProxyAuthFailed",
        ),
        (
            "a password that was not offered",
            b"\x05\x02",
            b"",
            "ProxyAuthFailed",
        ),
        (
            "a version that changes",
            b"\x05\0",
            b"\x04\0\0\x01",
            "UnexpectedContent",
        ),
        (
            "an address of no kind",
            b"\x05\0",
            b"\x05\0\0\x09",
            "UnexpectedContent",
        ),
        (
            "half an answer",
            b"\x05\0",
            b"\x05\0\0\x01\0",
            "ConnectAborted",
        ),
        (
            "a name that is cut off",
            b"\x05\0",
            b"\x05\0\0\x03\xffabc",
            "ConnectAborted",
        ),
        (
            "a code that does not exist",
            b"\x05\0",
            b"\x05\x63\0\x01",
            "TargetUnreachable",
        ),
        (
            "a page in place of the target",
            b"\x05\0",
            b"\x05\0\0\x01\0\0\0\0\0\0<html>",
            "UnexpectedContent",
        ),
    ] {
        let at = Endpoint {
            scheme: Scheme::Socks5,
            ..endpoint(evil::socks5_answering(greeting, request).await)
        };
        cases.push((what, target("one", at), reason));
    }
    each_has_its_reason(cases).await;
}

/// Whoever sends a little and then nothing more is waited for no longer than timeoutSeconds.
#[tokio::test]
async fn whoever_stalls_in_the_middle_runs_out_of_time() {
    for (what, scheme, bytes, url) in [
        ("a status", Scheme::Http, b"HTTP/1.1 2".as_slice(), PAGE),
        ("a head", Scheme::Http, b"HTTP/1.1 200 OK\r\nserver:", PAGE),
        (
            "a body",
            Scheme::Http,
            b"HTTP/1.1 200 OK\r\ncontent-length: 9\r\n\r\nx",
            PAGE,
        ),
        (
            "a tunnel",
            Scheme::Http,
            b"HTTP/1.1 200 OK\r\n\r\n",
            BEHIND_TLS,
        ),
        ("TLS", Scheme::Https, b"\x16\x03\x03", PAGE),
        ("a greeting", Scheme::Socks5, b"\x05", PAGE),
        ("an answer", Scheme::Socks5, b"\x05\0\x05\0\0\x01", PAGE),
    ] {
        let mut world = World::new().await;
        let (address, mut connections) = evil::stalling(bytes).await;
        let at = Endpoint {
            scheme,
            ..endpoint(address)
        };
        world.add(target_at("one", at, url)).await;
        world.clock.advance(Duration::from_secs(1));
        connections.recv().await.expect("it is probed");
        until(async || world.clock.sleepers() == 1).await;
        world.clock.advance(Duration::from_secs(5));
        world.told().await;
        let verdict = world.engine.verdict("one").unwrap();
        assert_eq!(
            verdict.reason, "ProbeTimedOut",
            "{what}: {}",
            verdict.message
        );
    }
}

#[tokio::test]
async fn an_exit_may_be_an_ipv6_address() {
    let here = IpAddr::from(Ipv6Addr::LOCALHOST);
    let mut world = World::with_echo_at(here, 16, Config::default()).await;
    let at = endpoint(evil::honest(None, here).await);
    let mut expected = target("expected", at.clone());
    // In another notation than the echo target's.
    expected.check.expect = Some(expecting("0:0:0:0:0:0:0:1"));
    let verdict = world.decide(expected).await;
    assert_eq!(
        (verdict.healthy, verdict.exit_ip.as_deref()),
        (Some(true), Some("::1")),
        "{}",
        verdict.message
    );
    let mut elsewhere = target("elsewhere", at);
    elsewhere.check.expect = Some(expecting("2001:db8::1"));
    assert_eq!(world.decide(elsewhere).await.reason, "WrongExitIP");
}
