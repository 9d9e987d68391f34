//! One question to the cluster's API server, with the timeouts and retries of delegated
//! authentication and authorization.

use std::{sync::Arc, time::Duration};

use kube::{Api, Client, Resource, api::PostParams};
use runtime_kit::chain;
use serde::{Serialize, de::DeserializeOwned};
use tokio::time::{Instant, sleep, timeout};

use super::AuthError;

/// All attempts together.
const TOTAL: Duration = Duration::from_secs(10);
/// One attempt: shorter than all of them, so that a peer that went silent costs one attempt.
const ATTEMPT: Duration = Duration::from_secs(4);
const ATTEMPTS: u32 = 5;
const FIRST_PAUSE: Duration = Duration::from_millis(500);
/// Growth of the pause between attempts.
const FACTOR: f64 = 1.5;
/// Share of the pause that is added at random, so that replicas do not ask in step.
const JITTER: f64 = 0.2;

/// Posts a review and gives back the API server's copy, with its status.
pub(super) async fn post<R>(
    client: Client,
    review: &'static str,
    request: &R,
) -> Result<R, AuthError>
where
    R: Resource + Serialize + DeserializeOwned + Clone + std::fmt::Debug,
    R: Resource<Scope = k8s_openapi::ClusterResourceScope>,
    R::DynamicType: Default,
{
    let api: Api<R> = Api::all(client);
    let params = PostParams::default();
    let deadline = Instant::now() + TOTAL;
    let mut pause = FIRST_PAUSE;
    let mut attempt = 1;
    loop {
        let left = deadline.saturating_duration_since(Instant::now());
        let cause: Arc<str> = match timeout(ATTEMPT.min(left), api.create(&params, request)).await {
            Ok(Ok(answer)) => return Ok(answer),
            Ok(Err(err)) if is_passing(&err) => describe(&err),
            Ok(Err(err)) => {
                return Err(AuthError::Unavailable {
                    review,
                    cause: describe(&err),
                });
            },
            Err(_) => "the API server did not answer in time".into(),
        };
        let wait = pause.mul_f64(1.0 + JITTER * rand::random::<f64>());
        if attempt == ATTEMPTS || Instant::now() + wait >= deadline {
            return Err(AuthError::Unavailable { review, cause });
        }
        tracing::debug!(review, attempt, %cause, "asking again");
        sleep(wait).await;
        pause = pause.mul_f64(FACTOR);
        attempt += 1;
    }
}

/// Whether another attempt may fare better: the server is overloaded, failing, or out of reach.
fn is_passing(err: &kube::Error) -> bool {
    if let kube::Error::Api(status) = err {
        return status.code == 429 || status.code >= 500;
    }
    matches!(
        err,
        kube::Error::HyperError(_) | kube::Error::Service(_) | kube::Error::ReadEvents(_)
    )
}

fn describe(err: &kube::Error) -> Arc<str> {
    if let kube::Error::Api(status) = err {
        return format!("{} ({} {})", status.message, status.code, status.reason).into();
    }
    chain(err).to_string().into()
}
