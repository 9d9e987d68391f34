//! A stub of an aggregated API: it serves discovery, and otherwise tells who the aggregator says is asking.

use std::convert::Infallible;
use std::sync::Arc;

use devcluster::CertPair;
use http_body_util::Full;
use hyper::body::{Bytes, Incoming};
use hyper::{Request, Response};
use hyper_util::rt::{TokioExecutor, TokioIo};
use hyper_util::server::conn::auto;
use rustls_pki_types::pem::PemObject as _;
use rustls_pki_types::{CertificateDer, PrivateKeyDer};
use serde_json::json;
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;

/// Serves `group/version` on `port` until the runtime ends.
pub(crate) async fn serve_stub(
    group: &'static str,
    version: &'static str,
    port: u16,
    serving: &CertPair,
) {
    let certificate = CertificateDer::from_pem_slice(serving.cert.as_bytes()).unwrap();
    let key = PrivateKeyDer::from_pem_slice(serving.key.as_bytes()).unwrap();
    let config = rustls::ServerConfig::builder()
        .with_no_client_auth()
        .with_single_cert(vec![certificate], key)
        .unwrap();
    let acceptor = TlsAcceptor::from(Arc::new(config));
    let listener = TcpListener::bind(("127.0.0.1", port)).await.unwrap();
    tokio::spawn(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let acceptor = acceptor.clone();
            tokio::spawn(async move {
                let Ok(stream) = acceptor.accept(stream).await else {
                    return;
                };
                let service = hyper::service::service_fn(async move |request| {
                    Ok::<_, Infallible>(answer(group, version, &request))
                });
                // A peer that goes away is no failure of the stub.
                auto::Builder::new(TokioExecutor::new())
                    .serve_connection(TokioIo::new(stream), service)
                    .await
                    .unwrap_or_default();
            });
        }
    });
}

fn answer(group: &str, version: &str, request: &Request<Incoming>) -> Response<Full<Bytes>> {
    let group_version = format!("{group}/{version}");
    let body = if request.uri().path() == format!("/apis/{group_version}/whoami") {
        let headers = request
            .headers()
            .iter()
            .filter(|(name, _)| name.as_str().starts_with("x-remote-"));
        let headers = headers.map(|(name, value)| (name.as_str(), value.to_str().unwrap()));
        json!(headers.collect::<Vec<_>>())
    } else {
        json!({
            "kind": "APIResourceList",
            "apiVersion": "v1",
            "groupVersion": group_version,
            "resources": [{
                "name": "whoami", "singularName": "whoami", "namespaced": false, "kind": "WhoAmI", "verbs": ["list"],
            }],
        })
    };
    let response = Response::builder().header("content-type", "application/json");
    response
        .body(Full::new(Bytes::from(body.to_string())))
        .unwrap()
}
