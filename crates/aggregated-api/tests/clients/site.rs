//! A control plane with the sample server on it, which can be stopped and started again.

use std::path::Path;
use std::sync::{Arc, LazyLock};
use std::time::Duration;

use aggregated_api::store::{Op, Store};
use bytes::Bytes;
use devcluster::{Cluster, Options, SAMPLE_GROUP, SAMPLE_VERSIONS, wait_for};
use k8s_openapi::api::core::v1::{Namespace, ServiceAccount};
use kube::api::{ApiResource, DynamicObject, GroupVersionKind, PostParams};
use kube::{Api, Client};
use runtime_kit::tls::{KeyPairFiles, install_default_provider};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio::runtime::Runtime;
use tokio::sync::{Mutex, OnceCell};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;
use tower::layer::util::Identity;

use crate::wardle::kinds::V1ALPHA1;
use crate::wardle::server::{Setup, memory, start};

/// For what takes seconds at most.
pub(crate) const PATIENCE: Duration = Duration::from_secs(90);

/// The runtime of all tests: servers and clients of a shared site live in it.
static RUNTIME: LazyLock<Runtime> = LazyLock::new(|| {
    install_default_provider();
    tokio::runtime::Builder::new_multi_thread()
        .worker_threads(2)
        .enable_all()
        .build()
        .unwrap()
});

/// Runs a test.
pub(crate) fn run(test: impl Future<Output = ()>) {
    RUNTIME.block_on(test);
}

/// The site of tests that leave the server alone. Never dropped: the cluster ends with this process.
pub(crate) async fn shared() -> &'static Site {
    static SITE: OnceCell<Site> = OnceCell::const_new();
    SITE.get_or_init(|| Site::start(Options::default())).await
}

/// A control plane and the server.
pub(crate) struct Site {
    pub(crate) cluster: Cluster,
    pub(crate) client: Client,
    store: Arc<dyn Store>,
    port: u16,
    serving: KeyPairFiles,
    running: Mutex<(CancellationToken, JoinHandle<()>)>,
}

impl Site {
    /// Starts both and waits until the group is served.
    pub(crate) async fn start(options: Options) -> Self {
        let cluster = Cluster::start(options).await.unwrap();
        let client = cluster.client().await.unwrap();
        let port = cluster.free_port().unwrap();
        let [older, newer] = SAMPLE_VERSIONS;
        cluster
            .register_apiservice(SAMPLE_GROUP, older, port)
            .await
            .unwrap();
        let registered = cluster
            .register_apiservice(SAMPLE_GROUP, newer, port)
            .await
            .unwrap();
        let serving = KeyPairFiles {
            certificate: registered.files.cert,
            key: registered.files.key,
        };
        let store = with_a_past().await;
        let running = serve(&client, &store, port, &serving).await;
        let site = Self {
            cluster,
            client,
            store,
            port,
            serving,
            running: Mutex::new(running),
        };
        site.available().await;
        site
    }

    /// Waits until the aggregator passes requests on.
    pub(crate) async fn available(&self) {
        for version in SAMPLE_VERSIONS {
            self.cluster
                .wait_apiservice_available(SAMPLE_GROUP, version)
                .await
                .unwrap();
        }
    }

    /// Ends the server and starts another one on the same store, as after an upgrade; `between` is done
    /// while there is none.
    pub(crate) async fn restart(&self, between: impl Future<Output = ()>) {
        let mut running = self.running.lock().await;
        let (stop, served) = &mut *running;
        stop.cancel();
        served.await.unwrap();
        between.await;
        *running = serve(&self.client, &self.store, self.port, &self.serving).await;
    }

    /// Forgets all of the past: watches that were not there then cannot be resumed.
    pub(crate) async fn forget(&self) {
        self.store.compact(self.store.revision()).await.unwrap();
    }

    /// Makes a namespace, and waits for its ServiceAccount.
    pub(crate) async fn namespace(&self, name: &str) {
        let object = serde_json::from_value(json!({"metadata": {"name": name}})).unwrap();
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        namespaces
            .create(&PostParams::default(), &object)
            .await
            .unwrap();
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client.clone(), name);
        wait_for("the default ServiceAccount", PATIENCE, async || {
            Ok(accounts.get_opt("default").await.ok().flatten())
        })
        .await
        .unwrap();
    }

    /// The flunders of a namespace.
    pub(crate) fn flunders(&self, namespace: &str) -> Api<DynamicObject> {
        Api::namespaced_with(self.client.clone(), namespace, &flunders())
    }
}

/// The resource.
pub(crate) fn flunders() -> ApiResource {
    let kind = GroupVersionKind::gvk(SAMPLE_GROUP, V1ALPHA1, "Flunder");
    ApiResource::from_gvk_with_plural(&kind, "flunders")
}

/// A flunder to create.
pub(crate) fn flunder(value: &Value) -> DynamicObject {
    let mut object = json!({
        "apiVersion": format!("{SAMPLE_GROUP}/{V1ALPHA1}"), "kind": "Flunder",
    });
    json_patch::merge(&mut object, value);
    serde_json::from_value(object).unwrap()
}

/// A file of this folder.
pub(crate) fn file(name: &str) -> std::path::PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("tests/clients")
        .join(name)
}

/// A store that has forgotten its first revisions, as any has that is not new.
async fn with_a_past() -> Arc<dyn Store> {
    let store = memory().unwrap();
    for _ in 0..10 {
        let op = Op::Put("/internal/past".into(), Bytes::from_static(b"x"));
        store.txn(Vec::new(), vec![op]).await.unwrap();
    }
    store.compact(store.revision()).await.unwrap();
    store
}

async fn serve(
    client: &Client,
    store: &Arc<dyn Store>,
    port: u16,
    serving: &KeyPairFiles,
) -> (CancellationToken, JoinHandle<()>) {
    let stop = CancellationToken::new();
    let setup = Setup {
        client: client.clone(),
        store: Arc::clone(store),
        listener: TcpListener::bind(("127.0.0.1", port)).await.unwrap(),
        serving: serving.clone(),
        stop: stop.clone(),
    };
    (stop, start(setup, Identity::new()).await.unwrap())
}
