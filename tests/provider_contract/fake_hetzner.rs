//! The fake Hetzner Cloud, and tokens that it accepts.

use std::ops::Deref;

use http::Method;
use serde_json::Value;

use crate::fake::Fake;

/// A fake Hetzner Cloud as a process.
pub(crate) struct FakeHetzner(Fake);

impl Deref for FakeHetzner {
    type Target = Fake;

    fn deref(&self) -> &Fake {
        &self.0
    }
}

impl FakeHetzner {
    pub(crate) fn start(flags: &[&str]) -> Self {
        Self(Fake::start("hetzner", flags))
    }

    /// Accepts only these tokens, each `read` or `readWrite`.
    pub(crate) async fn accept_tokens(&self, tokens: Value) {
        self.call(Method::PUT, "tokens", tokens.to_string()).await;
    }

    /// Switches a server off behind the operator's back.
    pub(crate) async fn switch_off(&self, server: &str) {
        let path = format!("switch-off?server={server}");
        self.call(Method::POST, &path, String::new()).await;
    }

    /// Removes a server behind the operator's back.
    pub(crate) async fn remove(&self, server: &str) {
        let path = format!("remove?server={server}");
        self.call(Method::POST, &path, String::new()).await;
    }
}
