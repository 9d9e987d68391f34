//! HTTP: what a request is about, the filters it passes, and how errors are answered.

mod body;
mod compress;
pub(crate) mod documents;
mod handlers;
pub mod health;
mod in_flight;
pub mod options;
pub mod request;
pub mod response;
pub mod service;
pub mod status;

/// Patch formats that are implemented, and therefore declared in OpenAPI and in 415 answers.
pub(crate) fn patch_types() -> &'static [&'static str] {
    &[
        "application/json-patch+json",
        "application/merge-patch+json",
    ]
}
