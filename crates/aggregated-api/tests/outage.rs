//! What a cluster makes of a server that goes away and comes back: its namespaces wait and say for whom,
//! everything else goes on.

#![expect(
    clippy::unwrap_used,
    reason = "a helper that cannot do its work fails its test"
)]

#[allow(dead_code, reason = "shared with others, which may use more of it")]
#[path = "../examples/wardle/wardle/mod.rs"]
mod wardle;

use std::time::Duration;

use aggregated_api::store::SERVED_PREFIX;
use devcluster::{Cluster, Error, Options, wait_for};
use k8s_openapi::api::core::v1::{ConfigMap, Namespace};
use kube::api::{DeleteParams, DynamicObject, PostParams};
use kube::core::{ApiResource, GroupVersionKind};
use kube::{Api, Client};
use runtime_kit::tls::KeyPairFiles;
use serde_json::json;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use wardle::kinds::{GROUP, V1ALPHA1};
use wardle::server::{Setup, memory, start};

/// The aggregator asks every 60 s what there is, and the namespace controller tries again ever more
/// rarely.
const PATIENCE: Duration = Duration::from_mins(5);

async fn make_namespace(client: &Client, name: &str) {
    let namespace = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
    Api::<Namespace>::all(client.clone())
        .create(&PostParams::default(), &namespace)
        .await
        .unwrap();
}

async fn namespace(client: &Client, name: &str) -> Result<Option<Namespace>, Error> {
    Api::all(client.clone())
        .get_opt(name)
        .await
        .map_err(|source| Error::Api {
            action: "get the namespace".to_owned(),
            source: Box::new(source),
        })
}

#[tokio::test(flavor = "multi_thread")]
async fn a_namespace_outlives_an_outage_and_is_deleted_after_it() {
    runtime_kit::tls::install_default_provider();
    let cluster = Cluster::start(Options::default()).await.unwrap();
    let client = cluster.client().await.unwrap();
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    let registered = cluster
        .register_apiservice(GROUP, V1ALPHA1, address.port())
        .await
        .unwrap();
    let store = memory().unwrap();
    let run = async |listener| {
        let stop = CancellationToken::new();
        let setup = Setup {
            client: client.clone(),
            store: store.clone(),
            listener,
            serving: KeyPairFiles {
                certificate: registered.files.cert.clone(),
                key: registered.files.key.clone(),
            },
            stop: stop.clone(),
        };
        let served = start(setup, tower::layer::util::Identity::new()).await;
        (stop, served.unwrap())
    };
    let (stop, served) = run(listener).await;
    cluster
        .wait_apiservice_available(GROUP, V1ALPHA1)
        .await
        .unwrap();
    make_namespace(&client, "going").await;
    let kind = ApiResource::from_gvk(&GroupVersionKind::gvk(GROUP, V1ALPHA1, "Flunder"));
    let flunders: Api<DynamicObject> = Api::namespaced_with(client.clone(), "going", &kind);
    flunders
        .create(&PostParams::default(), &DynamicObject::new("a", &kind))
        .await
        .unwrap();

    stop.cancel();
    served.await.unwrap();
    let namespaces: Api<Namespace> = Api::all(client.clone());
    let params = DeleteParams::default();
    namespaces.delete("going", &params).await.unwrap();
    let group_version = format!("{GROUP}/{V1ALPHA1}");
    wait_for(
        "the namespace to say for whom it waits",
        PATIENCE,
        async || {
            let going = namespace(&client, "going").await?;
            let conditions = going
                .expect("the namespace outlives the outage")
                .status
                .and_then(|status| status.conditions)
                .unwrap_or_default();
            let named = conditions.iter().any(|condition| {
                condition.type_ == "NamespaceDeletionDiscoveryFailure"
                    && condition.status == "True"
                    && condition
                        .message
                        .as_ref()
                        .is_some_and(|message| message.contains(&group_version))
            });
            Ok(named.then_some(()))
        },
    )
    .await
    .unwrap();
    make_namespace(&client, "staying").await;
    let maps: Api<ConfigMap> = Api::namespaced(client.clone(), "staying");
    let map = serde_json::from_value(json!({"metadata": {"name": "a"}})).unwrap();
    maps.create(&PostParams::default(), &map).await.unwrap();
    let kept = store.list(SERVED_PREFIX, None, None, None).await.unwrap();
    assert_eq!(kept.records.len(), 1, "nothing is deleted unseen");

    let (stop, served) = run(TcpListener::bind(address).await.unwrap()).await;
    wait_for("the namespace to be gone", PATIENCE, async || {
        let gone = namespace(&client, "going").await?.is_none();
        Ok(gone.then_some(()))
    })
    .await
    .unwrap();
    let kept = store.list(SERVED_PREFIX, None, None, None).await.unwrap();
    assert_eq!(kept.records.len(), 0, "the flunder went first");
    stop.cancel();
    served.await.unwrap();
}
