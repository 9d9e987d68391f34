//! The proxy of one instance: an HTTP/1.1 forward proxy, CONNECT tunnel and SOCKS5 on one port, that
//! listens on the instance's address and dials from it. [`crate::cloud`] starts and stops it; once stopped, its
//! port refuses and every connection through it is cut.

mod dial;
mod headers;
mod serve;
mod socks5;

use std::{
    io,
    net::{Ipv4Addr, SocketAddr, SocketAddrV4},
    sync::Arc,
    time::Duration,
};

use tokio::{
    net::{TcpListener, TcpSocket},
    sync::Semaphore,
    task::JoinHandle,
};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use crate::{faults::Behaviour, model::ProxyAuth, state::Record};

/// Connections of clients at a time; more wait in the kernel's queue.
const MAX_CONNECTIONS: usize = 1024;
/// Waiting connections the kernel keeps.
const BACKLOG: u32 = 1024;
/// A pause after a failed accept, as when the process has no descriptors left.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// What a proxy is to be.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Spec {
    pub(crate) listen: SocketAddrV4,
    pub(crate) exit: Ipv4Addr,
    pub(crate) auth: Option<ProxyAuth>,
    pub(crate) behaviour: Behaviour,
}

impl Spec {
    pub(crate) fn of(record: &Record) -> Self {
        Self {
            listen: record.socket(),
            exit: record.exit(),
            auth: record.request.auth.clone(),
            behaviour: record.behaviour.clone(),
        }
    }
}

/// A listening proxy.
#[derive(Debug)]
pub(crate) struct Proxy {
    spec: Arc<Spec>,
    cut: CancellationToken,
    accepting: JoinHandle<()>,
}

impl Proxy {
    /// Listens from now on. Must be called within a tokio runtime.
    pub(crate) fn start(spec: Spec) -> io::Result<Self> {
        let socket = TcpSocket::new_v4()?;
        socket.set_reuseaddr(true)?;
        socket.bind(SocketAddr::V4(spec.listen))?;
        let swallows = spec.behaviour == Behaviour::BlackHole;
        let listener = socket.listen(if swallows { 0 } else { BACKLOG })?;
        let spec = Arc::new(spec);
        let cut = CancellationToken::new();
        let accepting = if swallows {
            tokio::spawn(swallow(listener, spec.listen, cut.clone()))
        } else {
            tokio::spawn(accept(listener, Arc::clone(&spec), cut.clone()))
        };
        Ok(Self {
            spec,
            cut,
            accepting,
        })
    }

    pub(crate) fn spec(&self) -> &Spec {
        &self.spec
    }

    /// Returns once the port refuses and every connection is cut.
    pub(crate) async fn stop(self) {
        self.cut.cancel();
        if let Err(error) = self.accepting.await {
            tracing::error!(%error, "a proxy ended badly");
        }
    }
}

/// Fills the queue of a listener that nobody accepts from: the kernel drops what comes after.
async fn swallow(listener: TcpListener, address: SocketAddrV4, cut: CancellationToken) {
    let filling = async {
        let filled = tokio::net::TcpStream::connect(address).await;
        if let Err(error) = &filled {
            tracing::warn!(%address, %error, "a black hole could not be filled");
        }
        std::future::pending::<()>().await;
        drop(filled);
    };
    let _never = cut.run_until_cancelled(filling).await;
    drop(listener);
}

async fn accept(listener: TcpListener, spec: Arc<Spec>, cut: CancellationToken) {
    let tasks = TaskTracker::new();
    let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
    let accepting = async {
        while let Ok(permit) = Arc::clone(&permits).acquire_owned().await {
            let stream = match listener.accept().await {
                Ok((stream, _)) => stream,
                Err(error) => {
                    tracing::warn!(%error, "accept failed");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                    continue;
                },
            };
            let connection = serve::Connection {
                spec: Arc::clone(&spec),
                cut: cut.clone(),
                tasks: tasks.clone(),
                permit: Arc::new(permit),
            };
            let cut = cut.clone();
            tasks.spawn(async move {
                // A connection that is cut needs no word about it.
                let _finished = cut
                    .run_until_cancelled(serve::serve(stream, connection))
                    .await;
            });
        }
    };
    let _never = cut.run_until_cancelled(accepting).await;
    drop(listener);
    tasks.close();
    tasks.wait().await;
}
