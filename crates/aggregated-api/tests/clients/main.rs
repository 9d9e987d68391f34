//! Clients that people use, as they are, against the sample group behind the aggregator of a real control
//! plane: kube-rs, client-go, the Python client, two kubectls and kube-controller-manager.

#![expect(
    clippy::unwrap_used,
    clippy::expect_used,
    reason = "a helper that cannot do its work fails its test"
)]

mod churn;
mod client_go;
mod controllers;
mod kube_rs;
mod kubectl;
mod python;
mod site;
#[allow(dead_code, reason = "each test binary uses its part")]
#[path = "../../examples/wardle/wardle/mod.rs"]
mod wardle;
