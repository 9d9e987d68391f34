//! SOCKS5 (RFC 1928) with user name and password (RFC 1929), on the port that also speaks HTTP: a
//! client whose first byte is [`VERSION`] speaks it.

use std::io;
use std::net::{Ipv4Addr, Ipv6Addr};

use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::TcpStream,
    time::timeout,
};

use super::{
    Spec,
    dial::dial,
    serve::{HEAD_TIMEOUT, PORTAL_PAGE},
};
use crate::{faults::Behaviour, model::ProxyAuth};

pub(super) const VERSION: u8 = 5;

/// The version of the exchange of user name and password, which has one of its own.
const PASSWORD_VERSION: u8 = 1;

mod method {
    pub(super) const NONE: u8 = 0;
    pub(super) const PASSWORD: u8 = 2;
    pub(super) const NONE_ACCEPTABLE: u8 = 0xff;
}

mod reply {
    pub(super) const SUCCEEDED: u8 = 0;
    pub(super) const HOST_UNREACHABLE: u8 = 4;
    pub(super) const COMMAND_UNSUPPORTED: u8 = 7;
    pub(super) const ADDRESS_UNSUPPORTED: u8 = 8;
}

/// Serves the connection to its end.
pub(super) async fn serve(mut client: TcpStream, spec: &Spec) -> io::Result<()> {
    let asked = timeout(HEAD_TIMEOUT, negotiate(&mut client, spec)).await??;
    let Some((host, port)) = asked else {
        return client.shutdown().await;
    };
    if spec.behaviour == Behaviour::CaptivePortal {
        answer(&mut client, reply::SUCCEEDED).await?;
        client.write_all(PORTAL_PAGE.as_bytes()).await?;
        client.shutdown().await?;
        // Why: closing while bytes are unread would take the page back.
        return tokio::io::copy(&mut client, &mut tokio::io::sink())
            .await
            .map(drop);
    }
    match dial(&host, port, spec.exit).await {
        Ok(mut upstream) => {
            answer(&mut client, reply::SUCCEEDED).await?;
            tokio::io::copy_bidirectional(&mut client, &mut upstream)
                .await
                .map(drop)
        },
        Err(error) => {
            tracing::debug!(%error, "the target is not reached");
            answer(&mut client, reply::HOST_UNREACHABLE).await?;
            client.shutdown().await
        },
    }
}

/// Host and port that the client may connect to; `None` when it was refused.
async fn negotiate(client: &mut TcpStream, spec: &Spec) -> io::Result<Option<(String, u16)>> {
    let [_version, count] = read::<2>(client).await?;
    let mut offered = vec![0; usize::from(count)];
    client.read_exact(&mut offered).await?;
    if !authenticate(client, spec, &offered).await? {
        return Ok(None);
    }
    let [_version, command, _reserved, kind] = read::<4>(client).await?;
    let host = match kind {
        1 => Ipv4Addr::from(read::<4>(client).await?).to_string(),
        3 => text(client).await?,
        4 => Ipv6Addr::from(read::<16>(client).await?).to_string(),
        _ => {
            answer(client, reply::ADDRESS_UNSUPPORTED).await?;
            return Ok(None);
        },
    };
    let port = client.read_u16().await?;
    if command == 1 {
        return Ok(Some((host, port)));
    }
    answer(client, reply::COMMAND_UNSUPPORTED).await?;
    Ok(None)
}

/// Whether the client may go on.
async fn authenticate(client: &mut TcpStream, spec: &Spec, offered: &[u8]) -> io::Result<bool> {
    let needed = spec.auth.is_some() || spec.behaviour == Behaviour::RejectAuth;
    let method = if needed {
        method::PASSWORD
    } else {
        method::NONE
    };
    if !offered.contains(&method) {
        client
            .write_all(&[VERSION, method::NONE_ACCEPTABLE])
            .await?;
        return Ok(false);
    }
    client.write_all(&[VERSION, method]).await?;
    if !needed {
        return Ok(true);
    }
    let [_version] = read::<1>(client).await?;
    let given = ProxyAuth {
        username: text(client).await?,
        password: text(client).await?,
    };
    let right = spec.behaviour != Behaviour::RejectAuth && spec.auth.as_ref() == Some(&given);
    client
        .write_all(&[PASSWORD_VERSION, u8::from(!right)])
        .await?;
    Ok(right)
}

/// Bytes after their number, as text.
async fn text(client: &mut TcpStream) -> io::Result<String> {
    let mut bytes = vec![0; usize::from(client.read_u8().await?)];
    client.read_exact(&mut bytes).await?;
    String::from_utf8(bytes).map_err(io::Error::other)
}

async fn read<const N: usize>(client: &mut TcpStream) -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    client.read_exact(&mut bytes).await?;
    Ok(bytes)
}

/// The bound address of the answer is not told: nobody needs it for CONNECT.
async fn answer(client: &mut TcpStream, code: u8) -> io::Result<()> {
    client
        .write_all(&[VERSION, code, 0, 1, 0, 0, 0, 0, 0, 0])
        .await
}
