//! `/providers` and `/proxies/NAMESPACE/NAME` on the admin endpoint: what only the operator can find
//! out, asked at the time somebody wants to know.

use std::sync::{Arc, OnceLock};

use axum::extract::{Path, State};
use axum::http::StatusCode;
use axum::response::{IntoResponse, Response};
use axum::routing::get;
use axum::{Json, Router};
use crawl_api::operator_view::{ProviderView, ProvidersView, QuotaError, Refusal};
use futures::future::join_all;
use runtime_kit::{Classify, Clock};

use crate::providers::{self, AccountState, Provider, Providers};
use crate::proxy::Ctx;

/// What the views are made of.
#[derive(Clone)]
pub struct Views {
    /// The providers.
    pub providers: Providers,
    /// Set once there is a connection to the API server.
    pub ctx: Arc<OnceLock<Arc<Ctx>>>,
    /// The time.
    pub clock: Arc<dyn Clock>,
}

/// The routes.
pub fn routes(views: Views) -> Router {
    Router::new()
        .route("/providers", get(all_providers))
        .route("/proxies/{namespace}/{name}", get(one_proxy))
        .with_state(views)
}

async fn all_providers(State(views): State<Views>) -> Json<ProvidersView> {
    let asked = views
        .providers
        .iter()
        .map(|(name, provider)| view(name, provider.as_ref(), &*views.clock));
    Json(ProvidersView {
        providers: join_all(asked).await,
    })
}

async fn view(name: &str, provider: &dyn Provider, clock: &dyn Clock) -> ProviderView {
    let checked = provider.check().await;
    let AccountState {
        account,
        calls_left,
        resting,
        quota_errors,
        last_quota_error,
    } = provider.account();
    ProviderView {
        name: name.to_owned(),
        account,
        checked_at: clock.now(),
        refusal: checked.err().map(|error| refusal(&error)),
        calls_left,
        rest_seconds: resting
            .as_millis()
            .div_ceil(1_000)
            .try_into()
            .unwrap_or(u64::MAX),
        quota_errors,
        last_quota_error: last_quota_error.map(|(at, message)| QuotaError { at, message }),
    }
}

/// An error in the words of a condition.
pub(crate) fn refusal(error: &providers::Error) -> Refusal {
    Refusal {
        reason: error.reason().to_owned(),
        message: runtime_kit::chain(error).to_string(),
    }
}

async fn one_proxy(
    State(views): State<Views>,
    Path((namespace, name)): Path<(String, String)>,
) -> Response {
    let Some(ctx) = views.ctx.get() else {
        let message = "there is no connection to the API server yet\n";
        return (StatusCode::SERVICE_UNAVAILABLE, message).into_response();
    };
    if let Some(view) = ctx.view(&namespace, &name).await {
        return Json(view).into_response();
    }
    let message = format!("no Proxy {name} in namespace {namespace} is known here\n");
    (StatusCode::NOT_FOUND, message).into_response()
}
