//! Counts what a process asks of its API server, under the name that client-go's programs have for
//! it, so that dashboards know it.

use std::task::{Context, Poll};

use futures::FutureExt;
use futures::future::BoxFuture;
use http::{Method, Request, Response, StatusCode};
use kube::client::{Body, ClientBuilder};
use kube::{Client, Config};
use prometheus::{IntCounterVec, Opts, Registry};
use tower::{Layer, Service};

/// The label `code` of a request that had no answer, as client-go has it.
const NO_ANSWER: &str = "<error>";

/// The counter `rest_client_requests_total`. Clones count together.
#[derive(Clone, Debug)]
pub struct ApiRequests(IntCounterVec);

impl ApiRequests {
    /// Registers the counter.
    ///
    /// # Errors
    /// A metric of that name is registered already.
    pub fn register(registry: &Registry) -> Result<Self, prometheus::Error> {
        let options = Opts::new(
            "rest_client_requests_total",
            "Requests to the API server, by status code and method; a watch counts when it begins.",
        );
        let counter = IntCounterVec::new(options, &["code", "method"])?;
        registry.register(Box::new(counter.clone()))?;
        Ok(Self(counter))
    }

    /// A client whose requests are counted.
    ///
    /// # Errors
    /// The configuration does not make a client: certificates, keys, credential plugins.
    pub fn client(&self, config: Config) -> Result<Client, kube::Error> {
        Ok(ClientBuilder::try_from(config)?.with_layer(self).build())
    }

    fn count(&self, method: &Method, code: Option<StatusCode>) {
        let code = code.as_ref().map_or(NO_ANSWER, StatusCode::as_str);
        self.0.with_label_values(&[code, method.as_str()]).inc();
    }
}

impl<S> Layer<S> for ApiRequests {
    type Service = Counted<S>;

    fn layer(&self, inner: S) -> Counted<S> {
        Counted {
            inner,
            requests: self.clone(),
        }
    }
}

/// A service whose requests are counted once they are answered.
#[derive(Clone, Debug)]
pub struct Counted<S> {
    inner: S,
    requests: ApiRequests,
}

impl<S, B> Service<Request<Body>> for Counted<S>
where
    S: Service<Request<Body>, Response = Response<B>>,
    S::Future: Send + 'static,
{
    type Response = S::Response;
    type Error = S::Error;
    type Future = BoxFuture<'static, Result<S::Response, S::Error>>;

    fn poll_ready(&mut self, context: &mut Context<'_>) -> Poll<Result<(), S::Error>> {
        self.inner.poll_ready(context)
    }

    fn call(&mut self, request: Request<Body>) -> Self::Future {
        let (requests, method) = (self.requests.clone(), request.method().clone());
        let answer = self.inner.call(request);
        let counted = answer.inspect(move |answer| {
            requests.count(&method, answer.as_ref().ok().map(Response::status));
        });
        counted.boxed()
    }
}

#[cfg(test)]
mod tests {
    use prometheus::TextEncoder;
    use tower::{ServiceExt, service_fn};

    use super::*;

    #[tokio::test]
    async fn answers_count_by_code_and_what_is_not_answered_as_an_error() {
        let registry = Registry::new();
        let requests = ApiRequests::register(&registry).expect("registered");
        let answers = service_fn(async |request: Request<Body>| match request.uri().path() {
            "/there" => Ok(Response::new(())),
            "/refused" => {
                let mut answer = Response::new(());
                *answer.status_mut() = StatusCode::CONFLICT;
                Ok(answer)
            },
            _ => Err(()),
        });
        let counted = requests.layer(answers);
        for (method, path) in [
            (Method::GET, "/there"),
            (Method::GET, "/there"),
            (Method::PUT, "/refused"),
            (Method::GET, "/unreachable"),
        ] {
            let mut request = Request::new(Body::empty());
            *request.method_mut() = method;
            *request.uri_mut() = path.parse().expect("a path");
            let _counted_either_way = counted.clone().oneshot(request).await.is_ok();
        }
        let text = TextEncoder::new()
            .encode_to_string(&registry.gather())
            .expect("encoded");
        for line in [
            r#"rest_client_requests_total{code="200",method="GET"} 2"#,
            r#"rest_client_requests_total{code="409",method="PUT"} 1"#,
            r#"rest_client_requests_total{code="<error>",method="GET"} 1"#,
        ] {
            assert!(text.lines().any(|each| each == line), "{line} in {text}");
        }
    }
}
