//! HTTP/1.1 on a connection that is there: a CONNECT, or one GET.

use std::io;

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use bytes::Bytes;
use futures::future::{Either, select};
use http::uri::Authority;
use http::{HeaderValue, Method, Request, Response, StatusCode, Uri, header};
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper_util::rt::TokioIo;
use rustls_pki_types::ServerName;
use url::{Host, Url};

use super::transport::{Io, too_much};
use crate::health::failure::Failure;
use crate::health::target::Credentials;

/// Bytes of an answer's head.
const MAX_HEAD: usize = 64 * 1024;
/// Bytes of an answer's body that are looked at.
const MAX_BODY: usize = 64 * 1024;
const USER_AGENT: &str = "proxy-operator";

/// A URL that has been taken apart.
pub(super) struct Wanted {
    url: Url,
    uri: Uri,
    authority: Authority,
    host: Host<String>,
    port: u16,
}

/// What came back.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Answer {
    pub(super) status: StatusCode,
    /// The first 64 KiB.
    pub(super) body: Bytes,
    /// There was more.
    pub(super) truncated: bool,
}

/// How a request names its target.
#[derive(Clone, Copy)]
pub(super) enum Form<'a> {
    /// By its path: to the target itself.
    Origin,
    /// By the whole URL: to a proxy, with credentials for it.
    Absolute(Option<&'a Credentials>),
}

impl Wanted {
    pub(super) fn new(url: Url) -> Result<Self, Failure> {
        let unusable = || Failure::InvalidCheck(format!("{url} cannot be fetched"));
        let host = url.host().ok_or_else(unusable)?.to_owned();
        let port = url.port_or_known_default().ok_or_else(unusable)?;
        let uri: Uri = url.as_str().parse().map_err(|_| unusable())?;
        let authority = format!("{host}:{port}").parse().map_err(|_| unusable())?;
        Ok(Self {
            url,
            uri,
            authority,
            host,
            port,
        })
    }

    pub(super) fn is_https(&self) -> bool {
        self.url.scheme() == "https"
    }

    pub(super) fn host(&self) -> &Host<String> {
        &self.host
    }

    pub(super) fn port(&self) -> u16 {
        self.port
    }

    pub(super) fn server_name(&self) -> Result<ServerName<'static>, Failure> {
        match &self.host {
            Host::Domain(name) => ServerName::try_from(name.clone())
                .map_err(|error| Failure::InvalidCheck(error.to_string())),
            Host::Ipv4(ip) => Ok(ServerName::from(std::net::IpAddr::V4(*ip))),
            Host::Ipv6(ip) => Ok(ServerName::from(std::net::IpAddr::V6(*ip))),
        }
    }
}

fn client() -> http1::Builder {
    let mut client = http1::Builder::new();
    client.max_buf_size(MAX_HEAD);
    client
}

/// Asks an HTTP proxy for a tunnel to the target.
pub(super) async fn tunnel(
    proxy: Io,
    wanted: &Wanted,
    credentials: Option<&Credentials>,
) -> Result<Io, Failure> {
    const DOING: &str = "it was asked for a tunnel";
    let mut request = Request::builder()
        .method(Method::CONNECT)
        .uri(wanted.authority.as_str())
        .header(header::HOST, wanted.authority.as_str())
        .header(header::USER_AGENT, USER_AGENT)
        .body(Empty::<Bytes>::new())
        .map_err(|error| Failure::InvalidCheck(error.to_string()))?;
    authorise(&mut request, credentials)?;
    let (mut sender, connection) = client()
        .handshake(TokioIo::new(proxy))
        .await
        .map_err(|error| http_failure(&error, DOING))?;
    let asking = async {
        let answer = sender
            .send_request(request)
            .await
            .map_err(|error| http_failure(&error, DOING))?;
        match answer.status() {
            status if status.is_success() => hyper::upgrade::on(answer)
                .await
                .map_err(|error| http_failure(&error, DOING)),
            // Why 401: tinyproxy answers so to wrong credentials, and to none with 407.
            StatusCode::PROXY_AUTHENTICATION_REQUIRED | StatusCode::UNAUTHORIZED => {
                Err(Failure::ProxyAuth)
            },
            status => Err(Failure::TargetUnreachable(format!(
                "it answers CONNECT with {status}"
            ))),
        }
    };
    let upgraded = drive(asking, connection.with_upgrades()).await?;
    Ok(Box::new(TokioIo::new(upgraded)))
}

/// Fetches the target's answer.
pub(super) async fn get(through: Io, wanted: &Wanted, form: Form<'_>) -> Result<Answer, Failure> {
    const DOING: &str = "the answer was awaited";
    let host = wanted.url.port().map_or_else(
        || wanted.host.to_string(),
        |port| format!("{}:{port}", wanted.host),
    );
    let uri = match form {
        Form::Absolute(_) => wanted.uri.clone(),
        Form::Origin => wanted
            .uri
            .path_and_query()
            .cloned()
            .map_or_else(Uri::default, Uri::from),
    };
    let mut request = Request::builder()
        .uri(uri)
        .header(header::HOST, host)
        .header(header::USER_AGENT, USER_AGENT)
        .header(header::ACCEPT, "*/*")
        .header(header::CACHE_CONTROL, "no-cache")
        .header(header::CONNECTION, "close")
        .body(Empty::<Bytes>::new())
        .map_err(|error| Failure::InvalidCheck(error.to_string()))?;
    if let Form::Absolute(credentials) = form {
        authorise(&mut request, credentials)?;
    }
    let (mut sender, connection) = client()
        .handshake(TokioIo::new(through))
        .await
        .map_err(|error| http_failure(&error, DOING))?;
    let asking = async {
        let answer = sender
            .send_request(request)
            .await
            .map_err(|error| http_failure(&error, DOING))?;
        read(answer)
            .await
            .map_err(|error| http_failure(&error, DOING))
    };
    drive(asking, connection).await
}

async fn read(answer: Response<Incoming>) -> Result<Answer, hyper::Error> {
    let (head, mut body) = answer.into_parts();
    let mut bytes = Vec::new();
    let mut truncated = false;
    while let Some(frame) = body.frame().await {
        if let Ok(data) = frame?.into_data() {
            let room = MAX_BODY - bytes.len();
            bytes.extend(data.iter().take(room));
            truncated = data.len() > room;
        }
        if truncated {
            break;
        }
    }
    Ok(Answer {
        status: head.status,
        body: bytes.into(),
        truncated,
    })
}

/// Runs an exchange and the connection it needs to its end. The exchange's own outcome counts:
/// when the connection ends first, the exchange knows why.
async fn drive<T>(
    asking: impl Future<Output = Result<T, Failure>>,
    connection: impl Future<Output = Result<(), hyper::Error>>,
) -> Result<T, Failure> {
    let asking = std::pin::pin!(asking);
    let connection = std::pin::pin!(connection);
    match select(asking, connection).await {
        Either::Left((outcome, _)) => outcome,
        Either::Right((_, asking)) => asking.await,
    }
}

fn authorise<B>(
    request: &mut Request<B>,
    credentials: Option<&Credentials>,
) -> Result<(), Failure> {
    let Some(Credentials { username, password }) = credentials else {
        return Ok(());
    };
    request
        .headers_mut()
        .insert(header::PROXY_AUTHORIZATION, basic(username, password)?);
    Ok(())
}

/// Credentials in the Basic scheme (RFC 7617), as UTF-8.
fn basic(username: &str, password: &str) -> Result<HeaderValue, Failure> {
    if username.contains(':') {
        return Err(Failure::InvalidCheck(
            "the user name has a colon, which HTTP proxies take for its end".into(),
        ));
    }
    let token = STANDARD.encode(format!("{username}:{password}"));
    let mut value = HeaderValue::try_from(format!("Basic {token}"))
        .map_err(|_| Failure::InvalidCheck("the credentials do not fit into a header".into()))?;
    value.set_sensitive(true);
    Ok(value)
}

fn http_failure(error: &hyper::Error, doing: &'static str) -> Failure {
    if let Some(failure) = too_much(error) {
        failure
    } else if error.is_parse_too_large() {
        Failure::UnexpectedContent(
            "the head of the answer has more than 64 KiB, or 100 fields".into(),
        )
    } else if error.is_parse() {
        Failure::UnexpectedContent("what answers does not speak HTTP".into())
    } else if is_damaged(error) {
        Failure::UnexpectedContent("the body of the answer breaks the rules of HTTP".into())
    } else {
        Failure::ConnectAborted(doing)
    }
}

/// Whether a body cannot be taken apart, as hyper says it.
fn is_damaged(error: &hyper::Error) -> bool {
    let source = std::error::Error::source(error);
    let source = source.and_then(|source| source.downcast_ref::<io::Error>());
    source.is_some_and(|source| {
        matches!(
            source.kind(),
            io::ErrorKind::InvalidData | io::ErrorKind::InvalidInput
        )
    })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// As a server reads RFC 7617: the user name ends at the first colon.
    fn read(value: &HeaderValue) -> (String, String) {
        let token = value.to_str().unwrap().strip_prefix("Basic ").unwrap();
        let text = String::from_utf8(STANDARD.decode(token).unwrap()).unwrap();
        let (username, password) = text.split_once(':').unwrap();
        (username.to_owned(), password.to_owned())
    }

    /// Cases 16 and 17.
    #[test]
    fn every_printable_byte_arrives_in_user_name_and_password() {
        for byte in b'!'..=b'~' {
            let text = format!("a{}b", char::from(byte));
            assert_eq!(read(&basic("user", &text).unwrap()).1, text);
            match basic(&text, "password") {
                Ok(value) => assert_eq!(read(&value).0, text),
                Err(refused) => {
                    assert_eq!((byte, refused.reason()), (b':', "InvalidHealthCheck"));
                },
            }
        }
    }

    proptest! {
        #[test]
        fn any_credentials_in_utf_8_arrive_as_they_are(
            username in "[^:\\p{Cc}]{1,64}",
            password in "\\PC{0,64}",
        ) {
            let value = basic(&username, &password).unwrap();
            prop_assert!(value.is_sensitive());
            prop_assert_eq!(read(&value), (username, password));
        }
    }
}
