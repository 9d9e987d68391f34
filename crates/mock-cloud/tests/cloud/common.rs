//! What the tests share: a cloud without delays, a target that says who called, and a client that
//! speaks to a proxy byte by byte.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use mock_cloud::{
    Config, Running,
    client::Client,
    model::{CreateInstance, Instance, InstanceState, Labels, ProxyAuth},
};
use runtime_kit::SystemClock;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    time::timeout,
};

pub(crate) const ZONE: &str = "mock-a";
/// Far longer than anything here takes; only a broken test meets it.
pub(crate) const DEADLINE: Duration = Duration::from_secs(20);

pub(crate) fn without_delays() -> Config {
    Config {
        provision_delay: Some(Duration::ZERO),
        delete_delay: Some(Duration::ZERO),
        ..Config::default()
    }
}

pub(crate) async fn start(config: Config) -> Running {
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    mock_cloud::start(config, any, SystemClock::shared())
        .await
        .expect("the cloud starts")
}

pub(crate) fn request(name: &str) -> CreateInstance {
    CreateInstance {
        name: name.to_owned(),
        labels: Labels::from([("owner".to_owned(), "test".to_owned())]),
        metadata: Labels::new(),
        cloud_init: None,
        port: 3128,
        auth: None,
    }
}

pub(crate) fn with_auth(name: &str) -> CreateInstance {
    let auth = ProxyAuth {
        username: "crawler".to_owned(),
        password: "s3cret".to_owned(),
    };
    CreateInstance {
        auth: Some(auth),
        ..request(name)
    }
}

/// Creates an instance and waits until it runs.
pub(crate) async fn running(client: &Client, request: &CreateInstance) -> (Instance, SocketAddr) {
    client.create(ZONE, request).await.expect("created");
    let instance = until(async || {
        let instance = client.get(ZONE, &request.name).await.expect("found");
        (instance.state == InstanceState::Running).then_some(instance)
    })
    .await;
    let ip = instance.ip.expect("a running instance has an address");
    (instance.clone(), SocketAddr::from((ip, instance.port)))
}

/// Asks again and again until there is something, or the deadline passes.
pub(crate) async fn until<T>(mut ask: impl AsyncFnMut() -> Option<T>) -> T {
    timeout(DEADLINE, async {
        loop {
            if let Some(value) = ask().await {
                return value;
            }
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    })
    .await
    .expect("it happens before the deadline")
}

/// An HTTP target that answers every request with the caller's address and the request's head.
pub(crate) async fn target() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("listens");
    let address = listener.local_addr().expect("has an address");
    tokio::spawn(async move {
        while let Ok((mut stream, peer)) = listener.accept().await {
            tokio::spawn(async move {
                let head = read_head(&mut stream).await;
                let body = format!("{}\n{head}", peer.ip());
                let answer = format!(
                    "HTTP/1.1 200 OK\r\nContent-Length: {}\r\nConnection: close\r\n\r\n{body}",
                    body.len()
                );
                stream.write_all(answer.as_bytes()).await.expect("answers");
            });
        }
    });
    address
}

/// A target that sends back what it gets, and its end only after the client's end.
pub(crate) async fn echo_target() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0))
        .await
        .expect("listens");
    let address = listener.local_addr().expect("has an address");
    tokio::spawn(async move {
        while let Ok((mut stream, _)) = listener.accept().await {
            tokio::spawn(async move {
                let mut all = Vec::new();
                if stream.read_to_end(&mut all).await.is_ok() {
                    all.extend_from_slice(b" and good bye");
                    let _gone = stream.write_all(&all).await;
                }
            });
        }
    });
    address
}

/// Sends bytes and reads to the end.
pub(crate) async fn exchange(to: SocketAddr, bytes: &str) -> String {
    let mut stream = connect(to).await;
    stream.write_all(bytes.as_bytes()).await.expect("sends");
    let mut answer = String::new();
    timeout(DEADLINE, stream.read_to_string(&mut answer))
        .await
        .expect("in time")
        .expect("reads");
    answer
}

/// Opens a tunnel and expects the proxy to agree.
pub(crate) async fn tunnel(proxy: SocketAddr, target: SocketAddr) -> TcpStream {
    let mut stream = connect(proxy).await;
    let head = format!("CONNECT {target} HTTP/1.1\r\nHost: {target}\r\n\r\n");
    stream.write_all(head.as_bytes()).await.expect("sends");
    let answer = timeout(DEADLINE, read_head(&mut stream))
        .await
        .expect("in time");
    assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
    stream
}

pub(crate) async fn connect(to: SocketAddr) -> TcpStream {
    timeout(DEADLINE, TcpStream::connect(to))
        .await
        .expect("in time")
        .expect("connects")
}

/// Reads up to and with the empty line.
pub(crate) async fn read_head(stream: &mut TcpStream) -> String {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        match stream.read_u8().await {
            Ok(byte) => head.push(byte),
            Err(_) => break,
        }
    }
    String::from_utf8(head).expect("text")
}
