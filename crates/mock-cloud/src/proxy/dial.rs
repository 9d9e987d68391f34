//! Connects to what a client wants to reach, from the instance's own address.

use std::{
    io,
    net::{IpAddr, Ipv4Addr, SocketAddr},
    time::Duration,
};

use tokio::{
    net::{TcpSocket, TcpStream, lookup_host},
    time::timeout,
};

/// How long a name may take to resolve, and each of its addresses to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a target was not reached.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    #[error("cannot resolve {0:?}")]
    Resolve(String),
    #[error("cannot connect to {address}: {source}")]
    Connect {
        address: SocketAddr,
        source: io::Error,
    },
    #[error("{0} did not answer in time")]
    Timeout(String),
}

/// Connects to the first address of the host that answers.
pub(crate) async fn dial(host: &str, port: u16, exit: Ipv4Addr) -> Result<TcpStream, Error> {
    let unresolved = || Error::Resolve(host.to_owned());
    // A URI writes an IPv6 address in brackets; a resolver wants none.
    let bare = host
        .strip_prefix('[')
        .and_then(|rest| rest.strip_suffix(']'))
        .unwrap_or(host);
    let found = timeout(CONNECT_TIMEOUT, lookup_host((bare, port)))
        .await
        .map_err(|_| Error::Timeout(host.to_owned()))?
        .map_err(|_| unresolved())?;
    let mut addresses: Vec<SocketAddr> = found.collect();
    // Only IPv4 can leave from the instance's address.
    addresses.sort_by_key(SocketAddr::is_ipv6);
    let mut last = unresolved();
    for address in addresses {
        match timeout(CONNECT_TIMEOUT, connect(address, exit)).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(source)) => last = Error::Connect { address, source },
            Err(_) => last = Error::Timeout(address.to_string()),
        }
    }
    Err(last)
}

async fn connect(address: SocketAddr, exit: Ipv4Addr) -> io::Result<TcpStream> {
    let socket = match address.ip() {
        IpAddr::V4(ip) => {
            let socket = TcpSocket::new_v4()?;
            // Why: a loopback source cannot reach the Internet (EINVAL); what lies beyond this
            // machine is dialled from the machine's own address.
            if ip.is_loopback() {
                socket.bind(SocketAddr::new(IpAddr::V4(exit), 0))?;
            }
            socket
        },
        IpAddr::V6(_) => TcpSocket::new_v6()?,
    };
    let stream = socket.connect(address).await?;
    stream.set_nodelay(true)?;
    Ok(stream)
}
