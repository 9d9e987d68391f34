//! A TCP proxy before etcd that can be slow, or let nothing through.

use std::time::Duration;

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio_util::sync::{CancellationToken, DropGuard};

/// What happens to bytes on their way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Way {
    Open,
    /// What comes at once takes this long.
    Slow(Duration),
    /// Connections stay open, and nothing arrives.
    Silent,
}

pub(super) struct Proxy {
    pub(super) url: String,
    way: watch::Sender<Way>,
    _ends: DropGuard,
}

impl Proxy {
    /// Before what listens on this loopback port.
    pub(super) async fn before(port: u16) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let url = format!("http://{}", listener.local_addr().unwrap());
        let (way, ways) = watch::channel(Way::Open);
        let end = CancellationToken::new();
        let serving = async move {
            loop {
                let (client, _) = listener.accept().await.unwrap();
                let ways = ways.clone();
                drop(tokio::spawn(async move {
                    let Ok(server) = TcpStream::connect(("127.0.0.1", port)).await else {
                        return;
                    };
                    let (from_client, to_client) = client.into_split();
                    let (from_server, to_server) = server.into_split();
                    tokio::select! {
                        () = forward(from_client, to_server, ways.clone()) => {},
                        () = forward(from_server, to_client, ways) => {},
                    }
                }));
            }
        };
        let ended = end.clone();
        drop(tokio::spawn(async move {
            tokio::select! {
                () = serving => {},
                () = ended.cancelled() => {},
            }
        }));
        Self {
            url,
            way,
            _ends: end.drop_guard(),
        }
    }

    pub(super) fn set(&self, way: Way) {
        self.way.send_replace(way);
    }
}

async fn forward(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    mut ways: watch::Receiver<Way>,
) {
    let mut buffer = vec![0; 64 << 10];
    while let Ok(read @ 1..) = from.read(&mut buffer).await {
        let way = ways.wait_for(|way| *way != Way::Silent).await;
        let Ok(way) = way.map(|way| *way) else { return };
        if let Way::Slow(delay) = way {
            tokio::time::sleep(delay).await;
        }
        if to.write_all(&buffer[..read]).await.is_err() {
            return;
        }
    }
}
