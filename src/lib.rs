//! proxy-operator: controllers and the health engine, as a library so that tests can reach it.

pub mod app;
pub mod args;
pub mod credentials;
pub mod echo;
pub mod events;
pub mod gc;
pub mod health;
pub mod metrics;
pub mod pool;
pub mod providers;
pub mod proxy;
pub mod secrets;
pub mod views;
pub mod watch;

/// As whom the operator writes: what managedFields of an object say.
const FIELD_MANAGER: &str = "proxy-operator";

/// How the operator creates and updates.
fn post_params() -> kube::api::PostParams {
    kube::api::PostParams {
        field_manager: Some(FIELD_MANAGER.into()),
        ..Default::default()
    }
}

/// How the operator patches.
fn patch_params() -> kube::api::PatchParams {
    kube::api::PatchParams {
        field_manager: Some(FIELD_MANAGER.into()),
        ..Default::default()
    }
}
