//! SOCKS5 (RFC 1928) with user name and password (RFC 1929): the way to the target through an
//! endpoint of that scheme. The name is resolved by the proxy.

use tokio::io::{AsyncReadExt, AsyncWriteExt};
use url::Host;

use super::exchange::Wanted;
use super::transport::Io;
use crate::health::failure::Failure;
use crate::health::target::Credentials;

const VERSION: u8 = 5;
const NO_AUTH: u8 = 0;
const PASSWORD: u8 = 2;
const CONNECT: u8 = 1;

/// Connects through the proxy to the target.
pub(super) async fn connect(
    mut proxy: Io,
    wanted: &Wanted,
    credentials: Option<&Credentials>,
) -> Result<Io, Failure> {
    let greeting: &[u8] = match credentials {
        Some(_) => &[VERSION, 2, NO_AUTH, PASSWORD],
        None => &[VERSION, 1, NO_AUTH],
    };
    send(&mut proxy, greeting).await?;
    match (receive(&mut proxy).await?, credentials) {
        ([VERSION, NO_AUTH], _) => {},
        ([VERSION, PASSWORD], Some(credentials)) => {
            send(&mut proxy, &password_request(credentials)?).await?;
            let [_, refused]: [u8; 2] = receive(&mut proxy).await?;
            if refused != 0 {
                return Err(Failure::ProxyAuth);
            }
        },
        ([VERSION, _], _) => return Err(Failure::ProxyAuth),
        _ => return Err(no_socks()),
    }
    send(&mut proxy, &connect_request(wanted)?).await?;
    let [version, refused, _, kind]: [u8; 4] = receive(&mut proxy).await?;
    if version != VERSION {
        return Err(no_socks());
    }
    if refused != 0 {
        return Err(Failure::TargetUnreachable(format!(
            "it answers with SOCKS5 code {refused}"
        )));
    }
    // The bound address says nothing that is needed, but it must be read.
    let length = match kind {
        1 => 4,
        4 => 16,
        3 => usize::from(receive::<1>(&mut proxy).await?[0]),
        _ => return Err(no_socks()),
    };
    let mut bound = vec![0; length + 2];
    read(&mut proxy, &mut bound).await?;
    Ok(proxy)
}

fn password_request(credentials: &Credentials) -> Result<Vec<u8>, Failure> {
    let Credentials { username, password } = credentials;
    let mut request = vec![1];
    for text in [username, password] {
        let length = u8::try_from(text.len()).map_err(|_| {
            Failure::InvalidCheck("SOCKS5 credentials have at most 255 bytes each".into())
        })?;
        request.push(length);
        request.extend_from_slice(text.as_bytes());
    }
    Ok(request)
}

fn connect_request(wanted: &Wanted) -> Result<Vec<u8>, Failure> {
    let mut request = vec![VERSION, CONNECT, 0];
    match wanted.host() {
        Host::Ipv4(ip) => {
            request.push(1);
            request.extend_from_slice(&ip.octets());
        },
        Host::Ipv6(ip) => {
            request.push(4);
            request.extend_from_slice(&ip.octets());
        },
        Host::Domain(name) => {
            let length = u8::try_from(name.len()).map_err(|_| {
                Failure::InvalidCheck("the target's name is longer than 255 bytes".into())
            })?;
            request.extend_from_slice(&[3, length]);
            request.extend_from_slice(name.as_bytes());
        },
    }
    request.extend_from_slice(&wanted.port().to_be_bytes());
    Ok(request)
}

async fn send(proxy: &mut Io, bytes: &[u8]) -> Result<(), Failure> {
    proxy.write_all(bytes).await.map_err(|_| aborted())
}

async fn receive<const N: usize>(proxy: &mut Io) -> Result<[u8; N], Failure> {
    let mut bytes = [0; N];
    read(proxy, &mut bytes).await?;
    Ok(bytes)
}

async fn read(proxy: &mut Io, into: &mut [u8]) -> Result<(), Failure> {
    proxy
        .read_exact(into)
        .await
        .map(drop)
        .map_err(|_| aborted())
}

fn aborted() -> Failure {
    Failure::ConnectAborted("it was asked for a SOCKS5 connection")
}

fn no_socks() -> Failure {
    Failure::UnexpectedContent("what answers does not speak SOCKS5".into())
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Cases 16 and 17. RFC 1929: each is as long as the byte before it says, and arrives as it is.
        #[test]
        fn any_credentials_of_up_to_255_bytes_arrive_as_they_are(
            username in "\\PC{1,60}",
            password in "\\PC{1,60}",
        ) {
            let credentials = Credentials { username, password };
            let request = password_request(&credentials).unwrap();
            let (version, rest) = request.split_first().unwrap();
            prop_assert_eq!(*version, 1);
            let mut rest = rest;
            for text in [&credentials.username, &credentials.password] {
                let (length, after) = rest.split_first().unwrap();
                let (field, after) = after.split_at(usize::from(*length));
                prop_assert_eq!(field, text.as_bytes());
                rest = after;
            }
            prop_assert!(rest.is_empty());
        }
    }

    #[test]
    fn longer_credentials_are_refused_with_the_reason() {
        let credentials = Credentials {
            username: "u".into(),
            password: "p".repeat(256),
        };
        let refused = password_request(&credentials).unwrap_err();
        assert_eq!(refused.reason(), "InvalidHealthCheck");
    }
}
