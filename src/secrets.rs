//! Wakes the Proxies that refer to a Secret when it changes.
//!
//! One watch of metadata per namespace whose Proxies refer to Secrets, begun when the first of them
//! is seen: what is in a Secret is read by a pass, when it needs it. Where the operator may not
//! watch, passes find changes at their own pace.

use std::collections::HashSet;
use std::time::Duration;

use crawl_api::proxy::Proxy;
use futures::stream::SelectAll;
use futures::{Stream, StreamExt};
use k8s_openapi::api::core::v1::Secret;
use kube::core::PartialObjectMeta;
use kube::runtime::reflector::{ObjectRef, Store};
use kube::runtime::watcher::Event;
use kube::runtime::{WatchStreamExt, watcher};
use kube::{Api, Client, ResourceExt};
use runtime_kit::{Class, Classify};
use tokio::sync::mpsc;

use crate::watch::Subscription;

/// When a watch that is forbidden is tried again. Why not left to the watch's own backoff: each try
/// begins with an event of its own, which resets it, so it asked (and warned) every second for ever.
const FORBIDDEN_RETRY: Duration = Duration::from_secs(20);

/// The Secrets that a Proxy refers to, in its own namespace.
fn references(proxy: &Proxy) -> impl Iterator<Item = String> {
    let cloud_init = proxy.spec.cloud_init.as_ref();
    let cloud_init = cloud_init.and_then(|source| source.secret_ref.as_ref());
    proxy
        .credentials_secret()
        .into_iter()
        .chain(cloud_init.map(|reference| reference.name.clone()))
}

/// The Proxy again, if it refers to a Secret: what [`run`] begins its watches by.
pub fn referring(proxy: &Proxy) -> Option<ObjectRef<Proxy>> {
    references(proxy).next().map(|_| ObjectRef::from_obj(proxy))
}

/// Watches until nobody listens. `changes` are Proxies that refer to Secrets.
pub async fn run(
    client: Client,
    proxies: Store<Proxy>,
    mut changes: Subscription<Proxy>,
    wake: mpsc::UnboundedSender<ObjectRef<Proxy>>,
) {
    let mut namespaces = HashSet::new();
    let mut watches = SelectAll::new();
    loop {
        let (namespace, secret) = tokio::select! {
            changed = changes.recv() => {
                let Some(proxy) = changed else { return };
                let namespace = proxy.namespace.unwrap_or_default();
                if namespaces.insert(namespace.clone()) {
                    watches.push(watch(client.clone(), namespace).boxed());
                }
                continue;
            },
            Some(changed) = watches.next(), if !watches.is_empty() => changed,
        };
        for proxy in concerned(&proxies.state(), &namespace, &secret) {
            if wake.send(proxy).is_err() {
                return;
            }
        }
    }
}

fn concerned<'a>(
    proxies: &'a [std::sync::Arc<Proxy>],
    namespace: &'a str,
    secret: &'a str,
) -> impl Iterator<Item = ObjectRef<Proxy>> + 'a {
    proxies
        .iter()
        .filter(move |proxy| proxy.metadata.namespace.as_deref() == Some(namespace))
        .filter(move |proxy| references(proxy).any(|name| name == secret))
        .map(|proxy| ObjectRef::from_obj(&**proxy))
}

/// Namespace and name of each Secret that is there or changes. It never ends: what fails is tried
/// again.
fn watch(client: Client, namespace: String) -> impl Stream<Item = (String, String)> + Send {
    let secrets: Api<PartialObjectMeta<Secret>> = Api::namespaced(client, &namespace);
    let events = watcher(secrets, watcher::Config::default()).default_backoff();
    let names = events.then(move |event| named(namespace.clone(), event));
    names.filter_map(std::future::ready)
}

async fn named(
    namespace: String,
    event: watcher::Result<Event<PartialObjectMeta<Secret>>>,
) -> Option<(String, String)> {
    match event {
        Ok(Event::Apply(secret) | Event::InitApply(secret) | Event::Delete(secret)) => {
            Some((namespace, secret.name_any()))
        },
        Ok(Event::Init | Event::InitDone) => None,
        Err(error) => {
            let wait = extra_wait(&error);
            let error = runtime_kit::chain(&error).to_string();
            tracing::debug!(namespace, error, "Secrets cannot be watched");
            if let Some(wait) = wait {
                tokio::time::sleep(wait).await;
            }
            None
        },
    }
}

/// How much longer than the watch itself does it is waited after a failure.
fn extra_wait(error: &watcher::Error) -> Option<Duration> {
    let forbidden = match error {
        watcher::Error::InitialListFailed(error)
        | watcher::Error::WatchStartFailed(error)
        | watcher::Error::WatchFailed(error) => error.class() == Class::Forbidden,
        watcher::Error::WatchError(_) | watcher::Error::NoResourceVersion => false,
    };
    forbidden.then_some(FORBIDDEN_RETRY)
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use crawl_api::proxy::{Auth, CloudInit, ProxySpec, SecretKeyRef, SecretRef};
    use kube::core::Status;

    use super::*;

    fn proxy(namespace: &str, name: &str, change: impl FnOnce(&mut ProxySpec)) -> Proxy {
        let mut spec = ProxySpec::managed("local");
        change(&mut spec);
        let mut proxy = Proxy::new(name, spec);
        proxy.metadata.namespace = Some(namespace.into());
        proxy
    }

    fn with_secret(spec: &mut ProxySpec) {
        let secret_ref = Some(SecretRef { name: "s".into() });
        spec.auth = Some(Auth {
            secret_ref,
            ..Auth::default()
        });
    }

    #[test]
    fn those_are_woken_that_refer_to_the_secret_in_its_namespace() {
        let generated = |spec: &mut ProxySpec| {
            spec.auth = Some(Auth {
                generate: true,
                ..Auth::default()
            });
        };
        let in_cloud_init = |spec: &mut ProxySpec| {
            let secret_ref = Some(SecretKeyRef {
                name: "s".into(),
                key: "k".into(),
            });
            spec.cloud_init = Some(CloudInit {
                secret_ref,
                ..CloudInit::default()
            });
        };
        let all: Vec<_> = [
            proxy("a", "auth", with_secret),
            proxy("a", "boot", in_cloud_init),
            proxy("a", "made", generated),
            proxy("a", "none", |_| {}),
            proxy("b", "elsewhere", with_secret),
        ]
        .map(Arc::new)
        .into();
        let woken = |secret| -> Vec<_> {
            let found = concerned(&all, "a", secret);
            found.map(|proxy| proxy.name).collect()
        };
        assert_eq!(woken("s"), ["auth", "boot"]);
        assert_eq!(woken("made-proxy-auth"), ["made"]);
        assert!(woken("other").is_empty());
        assert!(referring(&all[3]).is_none());
        assert!(referring(&all[2]).is_some());
    }

    /// kube's backoff of a watch is reset by the event that each try begins with.
    #[test]
    fn a_forbidden_watch_is_not_tried_every_second() {
        let wait = |code: u16, reason: &str| {
            let status = Status::failure("secrets", reason).with_code(code);
            let error = kube::Error::Api(Box::new(status));
            extra_wait(&watcher::Error::InitialListFailed(error))
        };
        assert_eq!(wait(403, "Forbidden"), Some(FORBIDDEN_RETRY));
        assert_eq!(wait(503, "ServiceUnavailable"), None);
    }
}
