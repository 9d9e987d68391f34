//! One Proxy as its provider and the health engine see it at the moment, for `views`.

use crawl_api::operator_view::{InstanceView, ProbeView, ProxyView};
use crawl_api::proxy::Proxy;
use kube::ResourceExt;
use kube::runtime::reflector::ObjectRef;

use super::{Ctx, observe};
use crate::health::Verdict;
use crate::providers::{Error, Instance, InstanceState};
use crate::views;

impl Ctx {
    /// Asks the provider for the instance of a Proxy; none: the Proxy is not known.
    pub async fn view(&self, namespace: &str, name: &str) -> Option<ProxyView> {
        let reference = ObjectRef::<Proxy>::new(name).within(namespace);
        let proxy = self.fleets.proxy(&reference)?;
        let (instance, refusal) = match self.look(&proxy).await {
            Ok(instance) => (instance.map(instance_view), None),
            Err(error) => (None, Some(views::refusal(&error))),
        };
        let uid = proxy.uid().unwrap_or_default();
        Some(ProxyView {
            probe: self.health.verdict(&uid).map(probe_view),
            at: self.clock.now(),
            uid,
            instance,
            refusal,
        })
    }

    async fn look(&self, proxy: &Proxy) -> Result<Option<Instance>, Error> {
        let name = proxy.spec.provider.as_deref();
        let Some(provider) = name.and_then(|name| self.providers.get(name)) else {
            return Ok(None);
        };
        let status = proxy.status.as_ref();
        if let Some(id) = status.and_then(|status| status.provider_id.as_deref()) {
            return provider.get(id).await;
        }
        let found = provider.list(&observe::identity_tags(self, proxy)).await?;
        Ok(found.into_iter().next())
    }
}

fn instance_view(instance: Instance) -> InstanceView {
    let Instance {
        id,
        name,
        tags: _,
        created,
        state,
        ip,
        port: _,
        zone,
    } = instance;
    let state = match state {
        InstanceState::Provisioning => "Provisioning",
        InstanceState::Running => "Running",
        InstanceState::Stopping => "Stopping",
        InstanceState::Stopped => "Stopped",
    };
    InstanceView {
        id,
        name,
        state: state.into(),
        ip,
        zone,
        created,
    }
}

fn probe_view(verdict: Verdict) -> ProbeView {
    let Verdict {
        healthy,
        reason,
        message,
        exit_ip,
        location: _,
        latency,
        since,
        flapping: _,
        hold: _,
        last_probe,
    } = verdict;
    ProbeView {
        healthy,
        reason,
        message,
        since,
        last_probe,
        latency_milliseconds: latency.and_then(|latency| latency.as_millis().try_into().ok()),
        exit_ip,
    }
}
