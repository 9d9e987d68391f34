//! Proxies that do what proxies should not.

use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::sync::Arc;

use runtime_kit::tls::ReloadingCertificate;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
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
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
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

/// Agrees to every tunnel and speaks TLS in it with a certificate of its own making.
pub(super) async fn intercepting(files: &Path) -> SocketAddr {
    let names = ["localhost".into(), "127.0.0.1".into()];
    let made = self_signed::ensure(files, &names).unwrap();
    let certificate = ReloadingCertificate::load(made.serving).await.unwrap();
    let tls = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_cert_resolver(certificate);
    let acceptor = TlsAcceptor::from(Arc::new(tls));
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
        let mut upstream = TcpStream::connect(to).await?;
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

async fn read_head(stream: &mut TcpStream) -> std::io::Result<Vec<u8>> {
    let mut head = Vec::new();
    while !head.ends_with(b"\r\n\r\n") {
        head.push(stream.read_u8().await?);
    }
    Ok(head)
}
