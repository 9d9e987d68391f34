//! What clients report of a proxy, as far as the engine asks.

use async_trait::async_trait;
use crawl_api::proxy::Proxy;
use jiff::Timestamp;
use kube::runtime::reflector::ObjectRef;

/// Whom the engine asks before it marks a proxy unhealthy because of one target.
#[async_trait]
pub trait Reports: Send + Sync {
    /// When a client last reported that traffic went through the proxy with this UID. `None`: none
    /// has, or it could not be found out; the answer takes no longer than seconds.
    async fn last_success(&self, proxy: &ObjectRef<Proxy>, uid: &str) -> Option<Timestamp>;
}
