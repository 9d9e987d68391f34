//! A panic in a handler ends its request with 500 and leaves the connection and the other
//! requests on it alone. A panic while a body is streamed aborts that stream: the status was sent.

use std::{
    convert::Infallible,
    panic::{AssertUnwindSafe, catch_unwind},
    task::{Context, Poll},
};

use futures::{
    FutureExt,
    future::{CatchUnwind, Either, Map, Ready, ready},
};
use http::{HeaderValue, Response, StatusCode, header};
use tower::{Layer, Service};

const BODY: &str = "This request caused apiserver to panic. Look in the logs for details.\n";

/// Catches panics of the service below. The text of the panic goes to the log through the panic
/// hook, never to the caller.
#[derive(Clone, Copy, Debug, Default)]
pub struct CatchPanicLayer;

impl<S> Layer<S> for CatchPanicLayer {
    type Service = CatchPanic<S>;

    fn layer(&self, inner: S) -> Self::Service {
        CatchPanic { inner }
    }
}

/// The service that [`CatchPanicLayer`] makes.
#[derive(Clone, Debug)]
pub struct CatchPanic<S> {
    inner: S,
}

type Caught<B> = Result<Result<Response<B>, Infallible>, Box<dyn std::any::Any + Send>>;
type Answered<F, B> =
    Map<CatchUnwind<AssertUnwindSafe<F>>, fn(Caught<B>) -> Result<Response<B>, Infallible>>;

impl<S, R, B> Service<R> for CatchPanic<S>
where
    S: Service<R, Response = Response<B>, Error = Infallible>,
    B: From<&'static str>,
{
    type Response = Response<B>;
    type Error = Infallible;
    type Future = Either<Answered<S::Future, B>, Ready<Result<Response<B>, Infallible>>>;

    fn poll_ready(&mut self, cx: &mut Context<'_>) -> Poll<Result<(), Self::Error>> {
        self.inner.poll_ready(cx)
    }

    fn call(&mut self, request: R) -> Self::Future {
        match catch_unwind(AssertUnwindSafe(|| self.inner.call(request))) {
            Ok(future) => {
                let answer: fn(Caught<B>) -> Result<Response<B>, Infallible> =
                    |caught| caught.unwrap_or_else(|_| Ok(apology()));
                Either::Left(AssertUnwindSafe(future).catch_unwind().map(answer))
            },
            Err(_) => Either::Right(ready(Ok(apology()))),
        }
    }
}

fn apology<B: From<&'static str>>() -> Response<B> {
    let mut response = Response::new(B::from(BODY));
    *response.status_mut() = StatusCode::INTERNAL_SERVER_ERROR;
    response.headers_mut().insert(
        header::CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    response
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use axum::body::Body;
    use http_body_util::BodyExt;
    use tower::{ServiceBuilder, ServiceExt, service_fn};

    use super::*;

    async fn answer(path: &'static str) -> Response<Body> {
        let service = ServiceBuilder::new()
            .layer(CatchPanicLayer)
            .service(service_fn(|request: http::Request<()>| {
                assert_ne!(request.uri().path(), "/in-call", "a test panics here");
                async move {
                    assert_ne!(request.uri().path(), "/in-future", "a test panics here");
                    Ok::<_, Infallible>(Response::new(Body::from("fine")))
                }
            }));
        let Ok(response) = service
            .oneshot(http::Request::builder().uri(path).body(()).unwrap())
            .await;
        response
    }

    #[tokio::test]
    async fn a_panic_of_a_handler_is_500_with_upstreams_text() {
        for path in ["/in-call", "/in-future"] {
            let response = answer(path).await;
            assert_eq!(response.status(), 500);
            assert_eq!(
                response.headers()["content-type"],
                "text/plain; charset=utf-8"
            );
            let body = response.into_body().collect().await.unwrap().to_bytes();
            assert_eq!(
                body,
                "This request caused apiserver to panic. Look in the logs for details.\n"
            );
        }
    }

    #[tokio::test]
    async fn an_answer_passes_unchanged() {
        assert_eq!(answer("/").await.status(), 200);
    }
}
