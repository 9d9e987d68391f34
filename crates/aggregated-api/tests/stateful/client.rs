//! Requests to a server, in this process or in another one, and the streams of its watches.

use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;

use axum::body::Body;
use futures::StreamExt;
use futures::stream::BoxStream;
use http::{Request, Response};
use http_body_util::BodyExt;
use hyper_util::client::legacy::Client as HttpClient;
use hyper_util::client::legacy::connect::HttpConnector;
use hyper_util::rt::TokioExecutor;
use serde_json::Value;

use crate::common::Server;

/// No answer and no event takes longer, unless something is wrong.
const PATIENCE: Duration = Duration::from_secs(30);

/// Where requests go.
#[derive(Clone)]
pub(crate) enum Client {
    /// To a server in this process.
    Here(Arc<Server>),
    /// To one that listens on loopback.
    There(Box<HttpClient<HttpConnector, Body>>, SocketAddr),
}

/// The server went away before it answered; what it did is not known.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Lost;

impl Client {
    /// A client of a process.
    pub(crate) fn there(address: SocketAddr) -> Self {
        let client = HttpClient::builder(TokioExecutor::new()).build_http();
        Self::There(Box::new(client), address)
    }

    async fn send(&self, mut request: Request<Body>) -> Result<Response<Body>, Lost> {
        match self {
            Self::Here(server) => Ok(server.send(request).await),
            Self::There(client, address) => {
                let path = request.uri().to_string();
                *request.uri_mut() = format!("http://{address}{path}").parse().unwrap();
                let answer = tokio::time::timeout(PATIENCE, client.request(request));
                let answer = answer.await.expect("an answer in time");
                Ok(answer.map_err(|_| Lost)?.map(Body::new))
            },
        }
    }

    /// Sends JSON, returns status and body.
    pub(crate) async fn call(
        &self,
        method: &str,
        path: &str,
        body: Option<Value>,
    ) -> Result<(u16, Value), Lost> {
        let request = Request::builder()
            .method(method)
            .uri(path)
            .header("x-test-user", "bob")
            .header(
                "content-type",
                match method {
                    "PATCH" => "application/merge-patch+json",
                    _ => "application/json",
                },
            );
        let body = body.map_or_else(Body::empty, |body| Body::from(body.to_string()));
        let response = self.send(request.body(body).unwrap()).await?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.map_err(|_| Lost)?;
        let body = serde_json::from_slice(&body.to_bytes()).expect("JSON");
        Ok((status, body))
    }

    /// Opens a watch.
    pub(crate) async fn watch(&self, path: &str) -> Result<Stream, Lost> {
        let request = Request::builder().uri(path).header("x-test-user", "bob");
        let response = self.send(request.body(Body::empty()).unwrap()).await?;
        assert_eq!(response.status(), 200, "{path}");
        Ok(Stream {
            data: StreamExt::boxed(response.into_body().into_data_stream()),
            buffer: Vec::new(),
        })
    }
}

/// Events of a watch.
pub(crate) struct Stream {
    data: BoxStream<'static, Result<bytes::Bytes, axum::Error>>,
    buffer: Vec<u8>,
}

impl Stream {
    /// The next event; `None` when the stream has ended, or was cut, also within an event.
    pub(crate) async fn next(&mut self) -> Option<Value> {
        loop {
            if let Some(end) = self.buffer.iter().position(|b| *b == b'\n') {
                let line: Vec<u8> = self.buffer.drain(..=end).collect();
                return Some(serde_json::from_slice(&line).expect("an event"));
            }
            let chunk = tokio::time::timeout(PATIENCE, self.data.next()).await;
            let chunk = chunk.expect("an event in time")?.ok()?;
            self.buffer.extend_from_slice(&chunk);
        }
    }
}
