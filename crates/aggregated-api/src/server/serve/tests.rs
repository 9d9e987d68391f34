//! Real sockets on loopback. Limits are shortened where their passing is waited for.

use std::{
    net::SocketAddr,
    path::Path,
    sync::atomic::{AtomicUsize, Ordering},
};

use axum::{Router, body::Body, extract::Request as AxumRequest, routing::get};
use http::{HeaderMap, StatusCode, Version};
use http_body_util::{BodyExt, Empty};
use hyper::client::conn::{http1, http2};
use hyper_util::rt::{TokioExecutor, TokioIo};
use parking_lot::Mutex;
use runtime_kit::tls::{KeyPairFiles, ReloadingCertificate};
use rustls::{
    ClientConfig, RootCertStore, SignatureScheme, client::ResolvesClientCert, sign::CertifiedKey,
};
use rustls_pki_types::ServerName;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    sync::{Barrier, Notify},
    task::JoinHandle,
};
use tokio_rustls::{TlsConnector, client::TlsStream};

use super::*;
use crate::{
    auth::{
        DelegatedConfig, PeerCertificates, Trust,
        test_client::eventually,
        test_pki::{Authority, Issued, trusting},
    },
    server::{Draining, PeerAddress},
};

/// No wait in these tests is longer; none is meant to be long.
const DEADLINE: Duration = Duration::from_secs(20);

struct Server {
    address: SocketAddr,
    ca: Authority,
    certificate: Arc<ReloadingCertificate>,
    clients: Arc<DelegatedConfig>,
    folder: tempfile::TempDir,
    stop: CancellationToken,
    done: JoinHandle<DrainReport>,
}

struct Setup {
    clients: Arc<DelegatedConfig>,
    limits: Limits,
    drain: Duration,
}

impl Default for Setup {
    fn default() -> Self {
        Self {
            clients: trusting(None, None),
            limits: Limits::default(),
            drain: DEADLINE,
        }
    }
}

impl Setup {
    async fn start(self, app: Router) -> Server {
        let ca = Authority::new("serving-ca");
        let folder = tempfile::tempdir().unwrap();
        write_pair(folder.path(), &ca.server("localhost"));
        let certificate = ReloadingCertificate::load(KeyPairFiles {
            certificate: folder.path().join("tls.crt"),
            key: folder.path().join("tls.key"),
        })
        .await
        .unwrap();
        let resolver = Arc::clone(&certificate);
        let tls = ServingTls::new(resolver, Arc::clone(&self.clients)).unwrap();
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let stop = CancellationToken::new();
        let (followed, stopped) = (Arc::clone(&tls), stop.clone());
        tokio::spawn(async move { followed.run(stopped).await });
        let shutdown = Shutdown {
            stop: stop.clone(),
            drain: self.drain,
        };
        let done = tokio::spawn(serve(listener, tls, app, self.limits, shutdown));
        Server {
            address,
            ca,
            certificate,
            clients: self.clients,
            folder,
            stop,
            done,
        }
    }
}

fn write_pair(folder: &Path, pair: &Issued) {
    std::fs::write(folder.join("tls.crt"), &pair.pem).unwrap();
    std::fs::write(folder.join("tls.key"), &pair.key_pem).unwrap();
}

/// Says who the peer is.
fn app() -> Router {
    Router::new().route(
        "/",
        get(async |request: AxumRequest| {
            let extensions = request.extensions();
            assert!(
                extensions
                    .get::<PeerAddress>()
                    .unwrap()
                    .0
                    .ip()
                    .is_loopback()
            );
            let chain = extensions.get::<PeerCertificates>();
            chain.map_or("no certificate", |_| "a certificate")
        }),
    )
}

/// A client certificate resolver that remembers which authorities the server asked for.
#[derive(Debug)]
struct Asked {
    subjects: Mutex<Vec<Vec<u8>>>,
    identity: Option<Arc<CertifiedKey>>,
}

impl ResolvesClientCert for Asked {
    fn resolve(&self, hints: &[&[u8]], _: &[SignatureScheme]) -> Option<Arc<CertifiedKey>> {
        *self.subjects.lock() = hints.iter().map(|&hint| hint.to_vec()).collect();
        self.identity.clone()
    }

    fn has_certs(&self) -> bool {
        true
    }
}

struct Connected {
    stream: TlsStream<TcpStream>,
    /// DER subjects of the authorities the server asked for.
    asked_for: Vec<Vec<u8>>,
}

impl Server {
    async fn connect(&self, alpn: &[&str], identity: Option<&Issued>) -> Connected {
        self.connect_with(alpn, identity, rustls::DEFAULT_VERSIONS)
            .await
    }

    async fn connect_with(
        &self,
        alpn: &[&str],
        identity: Option<&Issued>,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> Connected {
        let identity = identity.map(|issued| {
            let provider = rustls::crypto::aws_lc_rs::default_provider();
            let key = provider
                .key_provider
                .load_private_key(issued.key())
                .unwrap();
            Arc::new(CertifiedKey::new(vec![issued.certificate.clone()], key))
        });
        let (mut config, asked) = self.client_config(identity, versions);
        config.alpn_protocols = alpn
            .iter()
            .map(|protocol| protocol.as_bytes().to_vec())
            .collect();
        let tcp = TcpStream::connect(self.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        let stream = TlsConnector::from(Arc::new(config))
            .connect(name, tcp)
            .await
            .unwrap();
        let asked_for = asked.subjects.lock().clone();
        Connected { stream, asked_for }
    }

    fn client_config(
        &self,
        identity: Option<Arc<CertifiedKey>>,
        versions: &[&'static rustls::SupportedProtocolVersion],
    ) -> (ClientConfig, Arc<Asked>) {
        let mut roots = RootCertStore::empty();
        roots.add(self.ca.certificate()).unwrap();
        let asked = Arc::new(Asked {
            subjects: Mutex::default(),
            identity,
        });
        let resolver = Arc::clone(&asked);
        let provider = Arc::new(rustls::crypto::aws_lc_rs::default_provider());
        let config = ClientConfig::builder_with_provider(provider)
            .with_protocol_versions(versions)
            .unwrap()
            .with_root_certificates(roots)
            .with_client_cert_resolver(resolver);
        (config, asked)
    }

    async fn h2(&self) -> H2 {
        let stream = self.connect(&["h2"], None).await.stream;
        let (sender, connection) = http2::handshake(TokioExecutor::new(), TokioIo::new(stream))
            .await
            .unwrap();
        H2 {
            sender,
            connection: tokio::spawn(connection),
        }
    }

    async fn stop(self) -> DrainReport {
        self.stop.cancel();
        within("the server to stop", self.done).await.unwrap()
    }
}

struct H2 {
    sender: http2::SendRequest<Empty<Bytes>>,
    connection: JoinHandle<hyper::Result<()>>,
}

impl H2 {
    async fn get(&mut self, path: &str) -> Response<Incoming> {
        within("an answer", self.sender.send_request(get_request(path)))
            .await
            .unwrap()
    }
}

fn get_request(path: &str) -> Request<Empty<Bytes>> {
    Request::builder()
        .uri(format!("https://localhost{path}"))
        .body(Empty::new())
        .unwrap()
}

async fn within<F: Future>(what: &str, future: F) -> F::Output {
    timeout(DEADLINE, future)
        .await
        .unwrap_or_else(|_| panic!("{what} took over {DEADLINE:?}"))
}

/// Sends one HTTP/1.1 request.
async fn get_h1(stream: TlsStream<TcpStream>, headers: HeaderMap) -> (StatusCode, String) {
    let (mut sender, connection) = http1::handshake(TokioIo::new(stream)).await.unwrap();
    let connection = tokio::spawn(connection);
    let mut request = Request::builder().uri("/").header("host", "localhost");
    request.headers_mut().unwrap().extend(headers);
    let request = request.body(Empty::<Bytes>::new()).unwrap();
    let response = within("an answer", sender.send_request(request))
        .await
        .unwrap();
    let (head, body) = response.into_parts();
    let text = String::from_utf8(body.collect().await.unwrap().to_bytes().to_vec()).unwrap();
    connection.abort();
    (head.status, text)
}

async fn text(response: Response<Incoming>) -> String {
    let bytes = within("the body", response.into_body().collect())
        .await
        .unwrap()
        .to_bytes();
    String::from_utf8(bytes.to_vec()).unwrap()
}

/// Waits until the server closes, with or without a word.
async fn closes(mut stream: impl tokio::io::AsyncRead + Unpin) {
    let mut rest = Vec::new();
    drop(within("the server to close", stream.read_to_end(&mut rest)).await);
}

#[tokio::test]
async fn a_client_without_a_certificate_is_served() {
    let server = Setup::default().start(app()).await;
    let stream = server.connect(&["http/1.1"], None).await.stream;
    let answer = get_h1(stream, HeaderMap::new()).await;
    assert_eq!(answer, (StatusCode::OK, "no certificate".to_owned()));
}

#[tokio::test]
async fn a_certificate_of_an_unknown_ca_completes_the_handshake_in_either_version() {
    let clients = trusting(Some(&Authority::new("client-ca")), None);
    let server = Setup {
        clients,
        ..Setup::default()
    }
    .start(app())
    .await;
    let stranger = Authority::new("unknown").client("stranger");
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let connected = server
            .connect_with(&["http/1.1"], Some(&stranger), &[version])
            .await;
        let answer = get_h1(connected.stream, HeaderMap::new()).await;
        assert_eq!(answer, (StatusCode::OK, "a certificate".to_owned()));
    }
}

/// The elements of a DER sequence, with their headers.
fn elements(der: &[u8]) -> Vec<&[u8]> {
    let (mut rest, mut found) = (contents(der), Vec::new());
    while !rest.is_empty() {
        let (element, tail) = rest.split_at(rest.len() - after(rest).len());
        found.push(element);
        rest = tail;
    }
    found
}

/// Length of the header, and of what follows it.
fn lengths(der: &[u8]) -> (usize, usize) {
    match usize::from(der[1]) {
        short @ 0..0x80 => (2, short),
        long => {
            let octets = &der[2..2 + long - 0x80];
            let length = octets
                .iter()
                .fold(0, |length, &octet| length << 8 | usize::from(octet));
            (2 + octets.len(), length)
        },
    }
}

fn contents(der: &[u8]) -> &[u8] {
    let (header, length) = lengths(der);
    &der[header..header + length]
}

fn after(der: &[u8]) -> &[u8] {
    let (header, length) = lengths(der);
    &der[header + length..]
}

fn sequence(elements: &[&[u8]]) -> Vec<u8> {
    let contents = elements.concat();
    let length = u16::try_from(contents.len()).unwrap().to_be_bytes();
    [&[0x30, 0x82], &length[..], &contents].concat()
}

#[tokio::test]
async fn a_version_1_certificate_completes_the_handshake() {
    let mut old = Authority::new("client-ca").client("old");
    let outer = elements(&old.certificate);
    // Version and extensions are what version 1 has not. The signature no longer fits, which is
    // not the handshake's business.
    let inner = elements(outer[0]);
    let inner = sequence(&inner[1..inner.len() - 1]);
    old.certificate = sequence(&[&inner, outer[1], outer[2]]).into();

    let server = Setup::default().start(app()).await;
    let stream = server.connect(&["http/1.1"], Some(&old)).await.stream;
    let answer = get_h1(stream, HeaderMap::new()).await;
    assert_eq!(answer, (StatusCode::OK, "a certificate".to_owned()));
}

#[tokio::test]
async fn a_client_that_does_not_hold_the_key_is_not_taken_for_the_owner() {
    let server = Setup::default().start(app()).await;
    let ca = Authority::new("client-ca");
    let (owner, thief) = (ca.client("owner"), ca.client("thief"));
    let provider = rustls::crypto::aws_lc_rs::default_provider();
    let key = provider.key_provider.load_private_key(thief.key()).unwrap();
    let stolen = Arc::new(CertifiedKey::new(vec![owner.certificate], key));
    for version in [&rustls::version::TLS12, &rustls::version::TLS13] {
        let config = server
            .client_config(Some(Arc::clone(&stolen)), &[version])
            .0;
        let tcp = TcpStream::connect(server.address).await.unwrap();
        let name = ServerName::try_from("localhost").unwrap();
        // In TLS 1.3 the client has done its part when the server refuses: it learns when reading.
        let refused = match TlsConnector::from(Arc::new(config))
            .connect(name, tcp)
            .await
        {
            Err(err) => err,
            Ok(mut stream) => within("the alert", stream.read_u8()).await.unwrap_err(),
        };
        assert!(refused.to_string().contains("alert"), "{refused}");
    }
}

#[tokio::test]
async fn the_server_asks_for_both_authorities_and_follows_their_rotation() {
    let (client_ca, old, new) = (
        Authority::new("client-ca"),
        Authority::new("old-proxy-ca"),
        Authority::new("new-ca"),
    );
    let clients = trusting(Some(&client_ca), Some(&old));
    let server = Setup {
        clients,
        ..Setup::default()
    }
    .start(app())
    .await;
    let subject = |ca: &Authority| ca.bundle().subjects()[0].as_ref().to_vec();
    let asked_for = server.connect(&[], None).await.asked_for;
    assert_eq!(asked_for, [subject(&client_ca), subject(&old)]);

    server.clients.replace(Trust {
        client_ca: Some(new.bundle()),
        request_header: None,
    });
    let wanted = [subject(&new)];
    within("the new authority to be asked for", async {
        while server.connect(&[], None).await.asked_for != wanted {}
    })
    .await;
}

#[tokio::test]
async fn alpn_offers_http2_and_http1() {
    let server = Setup::default().start(app()).await;
    for (offered, chosen) in [
        (&["h2", "http/1.1"][..], Some(&b"h2"[..])),
        (&["http/1.1"], Some(b"http/1.1")),
        (&[], None),
    ] {
        let connected = server.connect(offered, None).await;
        assert_eq!(connected.stream.get_ref().1.alpn_protocol(), chosen);
    }
    let response = server.h2().await.get("/").await;
    assert_eq!(
        (response.status(), response.version()),
        (StatusCode::OK, Version::HTTP_2)
    );
    assert_eq!(text(response).await, "no certificate");
}

#[tokio::test]
async fn five_hundred_requests_run_at_once_on_one_connection() {
    const REQUESTS: usize = 500;
    let all_here = Arc::new(Barrier::new(REQUESTS));
    let app = Router::new().route(
        "/",
        get(async move || {
            all_here.wait().await;
        }),
    );
    let server = Setup::default().start(app).await;
    let connection = server.h2().await;
    let requests = (0..REQUESTS).map(|_| {
        let mut sender = connection.sender.clone();
        async move {
            sender
                .send_request(get_request("/"))
                .await
                .unwrap()
                .status()
        }
    });
    let answers = within("all answers", futures::future::join_all(requests)).await;
    assert!(answers.iter().all(|&status| status == StatusCode::OK));
}

/// What clients do who reset rapidly (CVE-2023-44487): the work of a request must not be done for nobody.
#[tokio::test]
async fn a_request_that_is_taken_back_at_once_is_not_begun() {
    fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
        let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
        let mut frame = length[1..].to_vec();
        frame.extend([kind, flags]);
        frame.extend(stream.to_be_bytes());
        frame.extend(payload);
        frame
    }
    /// HEADERS that end a GET of `path`; 0x82 and 0x87 are `:method: GET` and `:scheme: https`.
    fn get_frame(stream: u32, path: &str) -> Vec<u8> {
        let mut block = vec![0x82, 0x87, 0x04, u8::try_from(path.len()).unwrap()];
        block.extend(path.as_bytes());
        frame(1, 0x05, stream, &block)
    }
    let begun = Arc::new(AtomicUsize::new(0));
    let last = Arc::new(Notify::new());
    let app = Router::new()
        .route(
            "/taken-back",
            get({
                let begun = Arc::clone(&begun);
                async move || {
                    begun.fetch_add(1, Ordering::SeqCst);
                }
            }),
        )
        .route(
            "/last",
            get({
                let last = Arc::clone(&last);
                async move || last.notify_one()
            }),
        );
    let server = Setup::default().start(app).await;
    let mut connected = server.connect(&["h2"], None).await;
    let mut sent = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    sent.extend(frame(4, 0, 0, &[]));
    for stream in (1..20).step_by(2) {
        sent.extend(get_frame(stream, "/taken-back"));
        // CANCEL
        sent.extend(frame(3, 0, stream, &8_u32.to_be_bytes()));
    }
    sent.extend(get_frame(21, "/last"));
    connected.stream.write_all(&sent).await.unwrap();
    within("the last request", last.notified()).await;
    assert_eq!(begun.load(Ordering::SeqCst), 0);
}

#[tokio::test]
async fn a_replaced_serving_certificate_is_used_for_new_connections() {
    let server = Setup::default().start(app()).await;
    let served = |connected: &Connected| {
        connected.stream.get_ref().1.peer_certificates().unwrap()[0].clone()
    };
    let before = served(&server.connect(&["h2"], None).await);
    let mut open = server.h2().await;

    let renewed = server.ca.server("localhost");
    write_pair(server.folder.path(), &renewed);
    assert!(server.certificate.reload().await.unwrap());

    let after = served(&server.connect(&["h2"], None).await);
    assert_eq!(after, renewed.certificate);
    assert_ne!(after, before);
    assert_eq!(open.get("/").await.status(), StatusCode::OK);
}

#[tokio::test]
async fn headers_that_do_not_end_are_cut_off() {
    let limits = Limits {
        header_read_timeout: Duration::from_millis(50),
        ..Limits::default()
    };
    let server = Setup {
        limits,
        ..Setup::default()
    }
    .start(app())
    .await;
    let mut stream = server.connect(&["http/1.1"], None).await.stream;
    stream
        .write_all(b"GET / HTTP/1.1\r\nHost: localhost\r\nX-Slow: ")
        .await
        .unwrap();
    closes(stream).await;
}

#[tokio::test]
async fn a_handshake_that_does_not_come_is_cut_off() {
    let limits = Limits {
        handshake_timeout: Duration::from_millis(50),
        ..Limits::default()
    };
    let server = Setup {
        limits,
        ..Setup::default()
    }
    .start(app())
    .await;
    closes(TcpStream::connect(server.address).await.unwrap()).await;
}

#[tokio::test]
async fn an_http2_client_that_says_nothing_is_cut_off() {
    let limits = Limits {
        idle_timeout: Duration::from_millis(50),
        ..Limits::default()
    };
    let server = Setup {
        limits,
        ..Setup::default()
    }
    .start(app())
    .await;
    closes(server.connect(&["h2"], None).await.stream).await;
}

#[tokio::test]
async fn an_idle_connection_ends_and_one_that_streams_does_not() {
    let app = app().route("/watch", get(async || Body::from_stream(endless())));
    let limits = Limits {
        idle_timeout: Duration::from_millis(50),
        ..Limits::default()
    };
    let server = Setup {
        limits,
        ..Setup::default()
    }
    .start(app)
    .await;
    let mut watching = server.h2().await;
    let watch = watching.get("/watch").await;
    let idle = server.h2().await;
    within("the idle connection to end", idle.connection)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(watching.get("/").await.status(), StatusCode::OK);
    drop(watch);
}

fn endless() -> impl futures::Stream<Item = Result<Bytes, Infallible>> + Send {
    futures::stream::pending()
}

#[tokio::test]
async fn connection_close_ends_an_http2_connection_after_the_answer() {
    let app = Router::new().route("/", get(async || ([("connection", "close")], "bye")));
    let server = Setup::default().start(app).await;
    let mut connection = server.h2().await;
    let response = connection.get("/").await;
    assert!(!response.headers().contains_key("connection"));
    assert_eq!(text(response).await, "bye");
    within("the connection to end", connection.connection)
        .await
        .unwrap()
        .unwrap();
}

#[tokio::test]
async fn a_user_of_a_thousand_groups_fits_and_headers_over_a_mebibyte_do_not() {
    let server = Setup::default().start(app()).await;
    let mut groups = HeaderMap::new();
    for index in 0..1000 {
        groups.append(
            "x-remote-group",
            format!("oidc:team-{index}").parse().unwrap(),
        );
    }
    let stream = server.connect(&["http/1.1"], None).await.stream;
    assert_eq!(get_h1(stream, groups).await.0, StatusCode::OK);

    let mut stream = server.connect(&["http/1.1"], None).await.stream;
    let head = format!(
        "GET / HTTP/1.1\r\nHost: localhost\r\nX-Big: {}",
        "x".repeat(2 << 20)
    );
    // The server may close before all of it is written.
    drop(stream.write_all(head.as_bytes()).await);
    let mut answer = vec![0; 12];
    within("an answer", stream.read_exact(&mut answer))
        .await
        .unwrap();
    assert_eq!(answer, b"HTTP/1.1 431");
}

#[tokio::test]
async fn stopping_finishes_requests_and_lets_watches_end_themselves() {
    let (entered, go) = (Arc::new(Barrier::new(2)), Arc::new(Barrier::new(2)));
    let (arrived, released) = (Arc::clone(&entered), Arc::clone(&go));
    let app = Router::new()
        .route(
            "/slow",
            get(async move || {
                arrived.wait().await;
                released.wait().await;
                "finished"
            }),
        )
        .route(
            "/watch",
            get(async |request: AxumRequest| {
                let Draining(draining) = request.extensions().get().cloned().unwrap();
                let events =
                    futures::StreamExt::take_until(endless(), Box::pin(draining.cancelled_owned()));
                Body::from_stream(events)
            }),
        );
    let server = Setup::default().start(app).await;
    let (mut slow, mut watching) = (server.h2().await, server.h2().await);
    let watch = watching.get("/watch").await;
    let slow = tokio::spawn(async move { text(slow.get("/slow").await).await });
    within("the slow request to arrive", entered.wait()).await;

    let address = server.address;
    let stopped = tokio::spawn(server.stop());
    assert_eq!(text(watch).await, "");
    within("the listener to close", async {
        while TcpStream::connect(address).await.is_ok() {}
    })
    .await;
    go.wait().await;
    assert_eq!(slow.await.unwrap(), "finished");
    assert_eq!(stopped.await.unwrap(), DrainReport { cut: 0 });
}

#[tokio::test]
async fn what_does_not_finish_in_time_is_cut() {
    let app = Router::new().route("/", get(async || Body::from_stream(endless())));
    let drain = Duration::from_millis(50);
    let server = Setup {
        drain,
        ..Setup::default()
    }
    .start(app)
    .await;
    let mut connection = server.h2().await;
    let stuck = connection.get("/").await;
    assert_eq!(server.stop().await, DrainReport { cut: 1 });
    assert!(
        within("the end", stuck.into_body().collect())
            .await
            .is_err()
    );
}

#[tokio::test]
async fn an_idle_kept_alive_connection_does_not_hold_the_stop_up() {
    let server = Setup::default().start(app()).await;
    let mut idle = server.h2().await;
    assert_eq!(text(idle.get("/").await).await, "no certificate");
    let handshaking = TcpStream::connect(server.address).await.unwrap();
    assert_eq!(server.stop().await, DrainReport { cut: 0 });
    drop(handshaking);
    eventually("the client sees the end", || idle.connection.is_finished()).await;
}
