//! Traffic through the instances: where it comes out, what is forwarded, what is refused.

use std::{collections::HashSet, net::SocketAddr, time::Duration};

use crate::common::{
    DEADLINE, ZONE, connect, echo_target, exchange, read_head, request, running, start, target,
    tunnel, with_auth, without_delays,
};
use mock_cloud::{faults::Behaviour, model::CreateInstance};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

fn get(target: SocketAddr, headers: &str) -> String {
    format!(
        "GET http://{target}/path?q=1 HTTP/1.1\r\nHost: other\r\n{headers}Connection: close\r\n\r\n"
    )
}

#[tokio::test]
async fn a_forwarded_request_comes_from_the_instances_address() {
    let cloud = start(without_delays()).await;
    let (instance, proxy) = running(&cloud.client(), &request("one")).await;
    let target = target().await;
    let answer = exchange(
        proxy,
        &get(target, "X-Mine: 1\r\nProxy-Connection: keep-alive\r\n"),
    )
    .await;
    let (_, body) = answer.split_once("\r\n\r\n").expect("head and body");
    let (exit, head) = body.split_once('\n').expect("address and head");
    assert_eq!(exit, instance.ip.expect("address").to_string());
    assert!(head.starts_with("GET /path?q=1 HTTP/1.1\r\n"), "{head}");
    let head = head.to_ascii_lowercase();
    assert!(
        head.contains(&format!("host: {target}\r\n")),
        "the URL's host counts: {head}"
    );
    assert!(head.contains("x-mine: 1"), "{head}");
    assert!(!head.contains("proxy-connection"), "{head}");
    cloud.stop().await;
}

#[tokio::test]
async fn a_tunnel_comes_from_the_instances_address_and_passes_on_half_closes() {
    let cloud = start(without_delays()).await;
    let (instance, proxy) = running(&cloud.client(), &request("one")).await;
    let mut stream = tunnel(proxy, target().await).await;
    stream
        .write_all(b"GET / HTTP/1.1\r\n\r\n")
        .await
        .expect("sends");
    let mut answer = String::new();
    stream.read_to_string(&mut answer).await.expect("reads");
    assert!(
        answer.contains(&instance.ip.expect("address").to_string()),
        "{answer}"
    );

    let mut stream = tunnel(proxy, echo_target().await).await;
    stream.write_all(b"hello").await.expect("sends");
    stream.shutdown().await.expect("closes one half");
    let mut answer = String::new();
    timeout(DEADLINE, stream.read_to_string(&mut answer))
        .await
        .expect("in time")
        .expect("reads");
    assert_eq!(answer, "hello and good bye");
    cloud.stop().await;
}

/// Says `bytes` and reads as many as are expected in answer.
async fn says(stream: &mut TcpStream, bytes: &[u8], expected: &[u8]) {
    stream.write_all(bytes).await.expect("sends");
    let mut answer = vec![0; expected.len()];
    timeout(DEADLINE, stream.read_exact(&mut answer))
        .await
        .expect("in time")
        .expect("reads");
    assert_eq!(answer, expected);
}

/// A SOCKS5 request (RFC 1928, section 4) to connect to an IPv4 address.
fn socks5_request(target: SocketAddr) -> Vec<u8> {
    let std::net::IpAddr::V4(ip) = target.ip() else {
        unreachable!("targets are on 127.0.0.1");
    };
    [
        &[5, 1, 0, 1],
        ip.octets().as_slice(),
        &target.port().to_be_bytes(),
    ]
    .concat()
}

const SOCKS5_CONNECTED: &[u8] = &[5, 0, 0, 1, 0, 0, 0, 0, 0, 0];

#[tokio::test]
async fn the_same_port_speaks_socks5_and_comes_out_at_the_instances_address() {
    let cloud = start(without_delays()).await;
    let (instance, proxy) = running(&cloud.client(), &request("one")).await;
    let target = target().await;
    let by_name = {
        let mut request = vec![5, 1, 0, 3, 9];
        request.extend_from_slice(b"localhost");
        request.extend_from_slice(&target.port().to_be_bytes());
        request
    };
    for request in [socks5_request(target), by_name] {
        let mut stream = connect(proxy).await;
        says(&mut stream, &[5, 1, 0], &[5, 0]).await;
        says(&mut stream, &request, SOCKS5_CONNECTED).await;
        stream
            .write_all(b"GET / HTTP/1.1\r\n\r\n")
            .await
            .expect("sends");
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.expect("reads");
        let ip = instance.ip.expect("address").to_string();
        assert!(answer.contains(&ip), "{answer}");
    }
    cloud.stop().await;
}

#[tokio::test]
async fn over_socks5_credentials_are_asked_for_and_failures_have_their_codes() {
    let cloud = start(without_delays()).await;
    let client = cloud.client();
    let (_, proxy) = running(&client, &with_auth("one")).await;
    let target = target().await;
    // Who offers no password is refused (RFC 1928, section 3).
    says(&mut connect(proxy).await, &[5, 1, 0], &[5, 0xff]).await;
    for (password, refused) in [("wrong", 1), ("s3cret", 0)] {
        let mut stream = connect(proxy).await;
        says(&mut stream, &[5, 2, 0, 2], &[5, 2]).await;
        let mut given = vec![1, 7];
        given.extend_from_slice(b"crawler");
        given.push(u8::try_from(password.len()).expect("short"));
        given.extend_from_slice(password.as_bytes());
        says(&mut stream, &given, &[1, refused]).await;
        if refused == 0 {
            says(&mut stream, &socks5_request(target), SOCKS5_CONNECTED).await;
        }
    }
    let (_, open) = running(&client, &request("two")).await;
    let closed = {
        let listener = tokio::net::TcpListener::bind(("127.0.0.1", 0)).await;
        listener.expect("binds").local_addr().expect("has one")
    };
    let mut bind = socks5_request(target);
    bind[1] = 2;
    let mut unknown = socks5_request(target);
    unknown[3] = 9;
    for (request, code) in [(socks5_request(closed), 4), (bind, 7), (unknown, 8)] {
        let mut stream = connect(open).await;
        says(&mut stream, &[5, 1, 0], &[5, 0]).await;
        says(&mut stream, &request, &[5, code]).await;
    }
    cloud.stop().await;
}

#[tokio::test]
async fn a_hundred_tunnels_run_side_by_side() {
    let cloud = start(without_delays()).await;
    let (_, proxy) = running(&cloud.client(), &request("one")).await;
    let target = echo_target().await;
    let mut open = Vec::new();
    for _ in 0..100 {
        open.push(tunnel(proxy, target).await);
    }
    let mut tasks = tokio::task::JoinSet::new();
    for (index, mut stream) in open.into_iter().enumerate() {
        tasks.spawn(async move {
            let text = format!("tunnel {index}");
            stream.write_all(text.as_bytes()).await.expect("sends");
            stream.shutdown().await.expect("closes one half");
            let mut answer = String::new();
            stream.read_to_string(&mut answer).await.expect("reads");
            assert_eq!(answer, format!("{text} and good bye"));
        });
    }
    timeout(DEADLINE, tasks.join_all()).await.expect("in time");
    cloud.stop().await;
}

#[tokio::test]
async fn every_instance_has_an_address_of_its_own() {
    let cloud = start(without_delays()).await;
    let client = cloud.client();
    let mut addresses = HashSet::new();
    for index in 0..20 {
        let (instance, _) = running(&client, &request(&format!("p-{index}"))).await;
        assert!(addresses.insert(instance.ip), "{instance:?}");
    }
    cloud.stop().await;
}

#[tokio::test]
async fn a_proxy_with_credentials_asks_for_them_on_requests_and_on_tunnels() {
    let cloud = start(without_delays()).await;
    let (_, proxy) = running(&cloud.client(), &with_auth("one")).await;
    let target = target().await;
    // "crawler:wrong" and "crawler:s3cret".
    for headers in ["", "Proxy-Authorization: Basic Y3Jhd2xlcjp3cm9uZw==\r\n"] {
        let answer = exchange(proxy, &get(target, headers)).await;
        assert!(answer.starts_with("HTTP/1.1 407 "), "{answer}");
        assert!(
            answer
                .to_ascii_lowercase()
                .contains("proxy-authenticate: basic realm=")
        );
        let mut stream = connect(proxy).await;
        let head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n{headers}\r\n");
        stream.write_all(head.as_bytes()).await.expect("sends");
        assert!(read_head(&mut stream).await.starts_with("HTTP/1.1 407 "));
    }
    let good = "Proxy-Authorization: basic Y3Jhd2xlcjpzM2NyZXQ=\r\n";
    let answer = exchange(proxy, &get(target, good)).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(
        !answer.contains("Y3Jhd2xlcjpzM2NyZXQ="),
        "the target must not see it: {answer}"
    );
    cloud.stop().await;
}

#[tokio::test]
async fn a_target_that_refuses_is_a_502_and_a_request_for_no_proxy_a_400() {
    let cloud = start(without_delays()).await;
    let (_, proxy) = running(&cloud.client(), &request("one")).await;
    let nobody = SocketAddr::from(([127, 0, 0, 1], 1));
    let answer = exchange(proxy, &get(nobody, "")).await;
    assert!(answer.starts_with("HTTP/1.1 502 "), "{answer}");
    let answer = exchange(
        proxy,
        "GET / HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    )
    .await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    cloud.stop().await;
}

#[tokio::test]
async fn a_head_without_end_is_cut_off() {
    let cloud = start(without_delays()).await;
    let (_, proxy) = running(&cloud.client(), &request("one")).await;
    let mut stream = connect(proxy).await;
    stream
        .write_all(b"GET http://x/ HTTP/1.1\r\nX-Huge: ")
        .await
        .expect("sends");
    let sent = timeout(DEADLINE, async {
        let mut sent = 0;
        while stream.write_all(&[b'x'; 1024]).await.is_ok() {
            sent += 1024;
        }
        sent
    });
    let sent = sent.await.expect("the proxy stops reading");
    // The rest is what the sockets of both sides hold.
    assert!(sent < 16 * 1024 * 1024, "{sent}");
    cloud.stop().await;
}

#[tokio::test]
async fn a_deleted_instance_refuses_and_its_tunnels_are_cut() {
    let cloud = start(without_delays()).await;
    let client = cloud.client();
    let (_, proxy) = running(&client, &request("one")).await;
    let mut stream = tunnel(proxy, echo_target().await).await;
    client.delete(ZONE, "one").await.expect("deleted");
    let refused = TcpStream::connect(proxy)
        .await
        .expect_err("refuses at once");
    assert_eq!(refused.kind(), std::io::ErrorKind::ConnectionRefused);
    let mut rest = Vec::new();
    let read = timeout(DEADLINE, stream.read_to_end(&mut rest))
        .await
        .expect("in time");
    assert!(read.is_err() || rest.is_empty(), "{read:?} {rest:?}");
    cloud.stop().await;
}

/// Whether connecting never ends. The first attempts may find a place in the kernel's queue.
async fn swallows(proxy: SocketAddr) -> bool {
    let mut connected = Vec::new();
    for _ in 0..5 {
        let attempt = timeout(Duration::from_millis(500), TcpStream::connect(proxy)).await;
        match attempt {
            Err(_) => return true,
            Ok(stream) => connected.push(stream.expect("nothing refuses")),
        }
    }
    false
}

#[tokio::test]
async fn misbehaving_proxies_do_what_they_were_told_until_told_otherwise() {
    let cloud = start(without_delays()).await;
    let client = cloud.client();
    let (instance, proxy) = running(&client, &request("one")).await;
    let target = target().await;
    let set = async |behaviour: Behaviour| {
        client
            .set_behaviour(ZONE, "one", &behaviour)
            .await
            .expect("set");
    };

    set(Behaviour::CaptivePortal).await;
    let answer = exchange(proxy, &get(target, "")).await;
    assert!(
        answer.starts_with("HTTP/1.1 200 ") && answer.contains("guest network"),
        "{answer}"
    );

    let mut tunnelled = tunnel(proxy, target).await;
    tunnelled.write_all(b"hello").await.expect("sends");
    tunnelled.shutdown().await.expect("closes one half");
    let mut answer = String::new();
    tunnelled.read_to_string(&mut answer).await.expect("reads");
    assert!(answer.contains("guest network"), "{answer}");

    set(Behaviour::WrongExit { ip: None }).await;
    let answer = exchange(proxy, &get(target, "")).await;
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    assert!(
        !answer.contains(&instance.ip.expect("address").to_string()),
        "{answer}"
    );

    set(Behaviour::RejectAuth).await;
    assert!(
        exchange(proxy, &get(target, ""))
            .await
            .starts_with("HTTP/1.1 407 ")
    );

    set(Behaviour::BlackHole).await;
    assert!(swallows(proxy).await, "a client got through");

    set(Behaviour::Dead).await;
    TcpStream::connect(proxy).await.expect_err("refuses");

    set(Behaviour::Normal).await;
    let answer = exchange(proxy, &get(target, "")).await;
    assert!(
        answer.contains(&instance.ip.expect("address").to_string()),
        "{answer}"
    );
    cloud.stop().await;
}

#[tokio::test]
async fn ports_may_differ_per_instance() {
    let cloud = start(without_delays()).await;
    let wanted = CreateInstance {
        port: 18_080,
        ..request("one")
    };
    let (instance, proxy) = running(&cloud.client(), &wanted).await;
    assert_eq!((instance.port, proxy.port()), (18_080, 18_080));
    assert!(
        exchange(proxy, &get(target().await, ""))
            .await
            .starts_with("HTTP/1.1 200 ")
    );
    cloud.stop().await;
}
