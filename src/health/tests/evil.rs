//! Proxies that do what proxies should not.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use runtime_kit::tls::ReloadingCertificate;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, TcpSocket, TcpStream};
use tokio::sync::mpsc;
use tokio_rustls::TlsAcceptor;

use crate::echo::self_signed;

/// Serves each connection with `serve`; the channel tells of each connection.
pub(super) async fn proxy<F>(
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> (SocketAddr, mpsc::UnboundedReceiver<()>)
where
    F: Future<Output = std::io::Result<()>> + Send + 'static,
{
    proxy_at(Ipv4Addr::LOCALHOST.into(), serve).await
}

async fn proxy_at<F>(
    listen: IpAddr,
    serve: impl Fn(TcpStream) -> F + Send + 'static,
) -> (SocketAddr, mpsc::UnboundedReceiver<()>)
where
    F: Future<Output = std::io::Result<()>> + Send + 'static,
{
    let listener = TcpListener::bind((listen, 0)).await.unwrap();
    let address = listener.local_addr().unwrap();
    let (tell, connections) = mpsc::unbounded_channel();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let _unheard = tell.send(());
            tokio::spawn(serve(stream));
        }
    });
    (address, connections)
}

/// Accepts and never says a word.
pub(super) async fn hanging() -> (SocketAddr, mpsc::UnboundedReceiver<()>) {
    proxy(async |stream: TcpStream| {
        std::future::pending::<()>().await;
        drop(stream);
        Ok(())
    })
    .await
}

/// Answers every head with these bytes and closes.
pub(super) async fn answering(answer: &'static str) -> SocketAddr {
    let (address, _) = proxy(move |mut stream| async move {
        read_head(&mut stream).await?;
        stream.write_all(answer.as_bytes()).await?;
        stream.shutdown().await
    })
    .await;
    address
}

/// Speaks TLS with the certificate in this directory, which is made unless it is there.
async fn acceptor(files: &Path) -> TlsAcceptor {
    let names = ["localhost".into(), "127.0.0.1".into()];
    let made = self_signed::ensure(files, &names).unwrap();
    let certificate = ReloadingCertificate::load(made.serving).await.unwrap();
    let tls = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    TlsAcceptor::from(Arc::new(tls))
}

/// Passes everything on, and goes by its own address instead of the caller's.
pub(super) async fn honest(exit: Option<Ipv4Addr>, listen: IpAddr) -> SocketAddr {
    let (address, _) = proxy_at(listen, move |stream| forward(stream, exit)).await;
    address
}

/// The same, spoken to in TLS.
pub(super) async fn tls(files: &Path) -> SocketAddr {
    let acceptor = acceptor(files).await;
    let (address, _) = proxy(move |stream| {
        let acceptor = acceptor.clone();
        async move { forward(acceptor.accept(stream).await?, Some(SOCKS_EXIT)).await }
    })
    .await;
    address
}

/// Serves one CONNECT.
async fn forward(
    mut stream: impl AsyncRead + AsyncWrite + Unpin,
    exit: Option<Ipv4Addr>,
) -> std::io::Result<()> {
    let head = read_head(&mut stream).await?;
    let head = String::from_utf8(head).unwrap();
    let to: SocketAddr = head.split(' ').nth(1).unwrap().parse().unwrap();
    let socket = if to.is_ipv4() {
        TcpSocket::new_v4()?
    } else {
        TcpSocket::new_v6()?
    };
    if let Some(exit) = exit {
        socket.bind(SocketAddr::from((exit, 0)))?;
    }
    let mut upstream = socket.connect(to).await?;
    stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
    tokio::io::copy_bidirectional(&mut stream, &mut upstream)
        .await
        .map(drop)
}

/// Holds even the key of the echo target's certificate, and answers in its place: with this body,
/// in which `NONCE` becomes the nonce of the request.
pub(super) async fn forging(files: &Path, body: String) -> SocketAddr {
    let acceptor = acceptor(files).await;
    let (address, _) = proxy(move |mut stream| {
        let (acceptor, body) = (acceptor.clone(), body.clone());
        async move {
            read_head(&mut stream).await?;
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
            let mut tls = acceptor.accept(stream).await?;
            let asked = String::from_utf8(read_head(&mut tls).await?).unwrap();
            let nonce = asked.split("nonce=").nth(1).unwrap();
            let nonce = nonce.split(' ').next().unwrap();
            let body = body.replace("NONCE", nonce);
            let length = body.len();
            let answer = format!("HTTP/1.1 200 OK\r\nContent-Length: {length}\r\n\r\n{body}");
            tls.write_all(answer.as_bytes()).await?;
            tls.shutdown().await
        }
    })
    .await;
    address
}

/// Answers a CONNECT and then sends this instead of the target's TLS.
pub(super) async fn tunnelling(instead: &'static str) -> SocketAddr {
    let (address, _) = proxy(move |mut stream| async move {
        read_head(&mut stream).await?;
        stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
        stream.read_u8().await?;
        stream.write_all(instead.as_bytes()).await?;
        stream.shutdown().await
    })
    .await;
    address
}

/// Answers every head with the first bytes, and then with the others again and again, without end.
pub(super) async fn flooding(first: &'static str, again: &'static str) -> SocketAddr {
    let (address, _) = proxy(move |mut stream| async move {
        read_head(&mut stream).await?;
        stream.write_all(first.as_bytes()).await?;
        let again = again.repeat(4096 / again.len() + 1);
        loop {
            stream.write_all(again.as_bytes()).await?;
        }
    })
    .await;
    address
}

/// Sends these bytes to whoever connects, and then not a word more; the channel tells of each
/// connection.
pub(super) async fn stalling(bytes: &'static [u8]) -> (SocketAddr, mpsc::UnboundedReceiver<()>) {
    proxy(move |mut stream| async move {
        stream.write_all(bytes).await?;
        std::future::pending::<()>().await;
        drop(stream);
        Ok(())
    })
    .await
}

/// Agrees to a tunnel, and with the same packet sends this in place of the target.
pub(super) async fn hasty(instead: &'static str) -> SocketAddr {
    let (address, _) = proxy(move |mut stream| async move {
        read_head(&mut stream).await?;
        let answer = format!("HTTP/1.1 200 OK\r\n\r\n{instead}");
        stream.write_all(answer.as_bytes()).await?;
        // Why: closing while bytes are unread would take the answer back.
        tokio::io::copy(&mut stream, &mut tokio::io::sink())
            .await
            .map(drop)
    })
    .await;
    address
}

/// Answers a SOCKS5 greeting, and a request if there is one, with these bytes.
pub(super) async fn socks5_answering(
    greeting: &'static [u8],
    request: &'static [u8],
) -> SocketAddr {
    let (address, _) = proxy(move |mut stream| async move {
        stream.read_exact(&mut [0; 3]).await?;
        stream.write_all(greeting).await?;
        stream.read_exact(&mut [0; 10]).await?;
        stream.write_all(request).await?;
        stream.shutdown().await
    })
    .await;
    address
}

/// Agrees to every tunnel and speaks TLS in it with a certificate of its own making.
pub(super) async fn intercepting(files: &Path) -> SocketAddr {
    let acceptor = acceptor(files).await;
    let (address, _) = proxy(move |mut stream| {
        let acceptor = acceptor.clone();
        async move {
            read_head(&mut stream).await?;
            stream.write_all(b"HTTP/1.1 200 OK\r\n\r\n").await?;
            let mut tls = acceptor.accept(stream).await?;
            tls.write_all(b"HTTP/1.1 204 No Content\r\n\r\n").await
        }
    })
    .await;
    address
}

/// Where [`socks5`] and [`tls`] come out: not at the address that the operator has.
pub(super) const SOCKS_EXIT: Ipv4Addr = Ipv4Addr::new(127, 77, 0, 1);

/// A SOCKS5 proxy with a password that connects to wherever it is asked.
pub(super) async fn socks5(password: &'static str) -> SocketAddr {
    let (address, _) = proxy(move |mut stream| async move {
        let mut greeting = [0; 4];
        stream.read_exact(&mut greeting).await?;
        assert_eq!(greeting, [5, 2, 0, 2]);
        stream.write_all(&[5, 2]).await?;
        let user = field(&mut stream, true).await?;
        let given = field(&mut stream, false).await?;
        assert_eq!(user, b"crawler");
        if given != password.as_bytes() {
            return stream.write_all(&[1, 1]).await;
        }
        stream.write_all(&[1, 0]).await?;
        let mut request = [0; 10];
        stream.read_exact(&mut request).await?;
        let [5, 1, 0, 1, a, b, c, d, high, low] = request else {
            panic!("{request:?}")
        };
        let to = SocketAddr::from(([a, b, c, d], u16::from_be_bytes([high, low])));
        let socket = TcpSocket::new_v4()?;
        socket.bind(SocketAddr::from((SOCKS_EXIT, 0)))?;
        let mut upstream = socket.connect(to).await?;
        stream.write_all(&[5, 0, 0, 1, 0, 0, 0, 0, 0, 0]).await?;
        tokio::io::copy_bidirectional(&mut stream, &mut upstream)
            .await
            .map(drop)
    })
    .await;
    address
}

async fn field(stream: &mut TcpStream, versioned: bool) -> std::io::Result<Vec<u8>> {
    if versioned {
        assert_eq!(stream.read_u8().await?, 1);
    }
    let length = stream.read_u8().await?;
    let mut bytes = vec![0; usize::from(length)];
    stream.read_exact(&mut bytes).await?;
    Ok(bytes)
}

async fn read_head(stream: &mut (impl AsyncRead + Unpin)) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    Ok(head)
}
