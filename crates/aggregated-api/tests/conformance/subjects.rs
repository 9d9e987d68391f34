//! The servers: ours and upstream's sample, each on a control plane of its own.
//!
//! Both serve `wardle.example.com`, and a kube-apiserver forwards a group-version to one server, so
//! there are two control planes. The alternative, ours under another group name, would make group
//! names, OpenAPI definition names, hashes and messages differ in every answer, and what hides those
//! differences hides faults too.

use std::collections::HashMap;
use std::process::Stdio;
use std::sync::Arc;
use std::time::Duration;

use aggregated_api::store::{Op, Store};
use anyhow::{Context as _, bail};
use bytes::Bytes;
use devcluster::{
    CertPair, Cluster, Options, Registered, SAMPLE_GROUP, SampleApiserver, sample_apiserver,
};
use http::Request;
use http_body_util::Full;
use hyper_util::rt::TokioIo;
use k8s_openapi::ByteString;
use k8s_openapi::api::core::v1::Namespace;
use k8s_openapi::api::rbac::v1::{ClusterRole, ClusterRoleBinding};
use k8s_openapi::apiextensions_apiserver::pkg::apis::apiextensions::v1::CustomResourceDefinition;
use k8s_openapi::kube_aggregator::pkg::apis::apiregistration::v1::APIService;
use kube::api::{ListParams, PostParams};
use kube::runtime::conditions;
use kube::runtime::wait::await_condition;
use kube::{Api, Client, CustomResourceExt as _};
use parking_lot::Mutex;
use runtime_kit::tls::KeyPairFiles;
use serde_json::{Value, json};
use tokio::io::AsyncWriteExt as _;
use tokio::net::{TcpListener, TcpStream};
use tokio::task::JoinHandle;
use tokio_util::sync::CancellationToken;

use crate::case::Route;
use crate::client::Connections;
use crate::faults::FaultLayer;
use crate::gadgets::{self, Gadget};
use crate::wardle::kinds::{V1ALPHA1, V1BETA1};
use crate::wardle::rules::Plain;
use crate::wardle::server::{Setup, memory, plain, start_with};

/// Somebody a request can be sent as: name and groups.
const USERS: [(&str, &str, &[&str]); 5] = [
    ("admin", "admin", &["system:masters"]),
    ("bob", "bob", &["people"]),
    ("reader", "reader", &["readers"]),
    ("oneName", "one-name", &["people"]),
    ("noGroups", "system:kube-aggregator", &[]),
];

/// What a definition may take to be served.
const SERVED_WITHIN: Duration = Duration::from_secs(30);

/// Revisions of our store that are forgotten before the first case.
const PAST: u64 = 100;

/// Which of the two.
enum Server {
    Ours(Ours),
    Oracle(Box<SampleApiserver>),
}

struct Ours {
    store: Arc<dyn Store>,
    served: JoinHandle<()>,
    stop: CancellationToken,
}

/// Connections, and the headers that say who uses them.
pub(crate) type Identified = (Arc<Connections>, Vec<(&'static str, String)>);

/// A server and the ways to it.
pub(crate) struct Subject {
    cluster: Cluster,
    client: Client,
    server: Server,
    port: u16,
    authority: String,
    connections: Mutex<HashMap<(Route, String), Arc<Connections>>>,
}

impl Subject {
    /// Starts a control plane with our server on it.
    pub(crate) async fn ours() -> anyhow::Result<Self> {
        let cluster = Cluster::start(Options::default()).await?;
        let listener = TcpListener::bind("127.0.0.1:0").await?;
        let port = listener.local_addr()?.port();
        cluster
            .register_apiservice(SAMPLE_GROUP, V1BETA1, port)
            .await?;
        let registered = cluster
            .register_apiservice(SAMPLE_GROUP, V1ALPHA1, port)
            .await?;
        let stop = CancellationToken::new();
        let store = with_a_past().await?;
        let setup = Setup {
            store: Arc::clone(&store),
            client: cluster.client().await?,
            listener,
            serving: KeyPairFiles {
                certificate: registered.files.cert.clone(),
                key: registered.files.key.clone(),
            },
            stop: stop.clone(),
        };
        let served = start_with(setup, FaultLayer, |builder, kinds| {
            let gadgets = kinds.collection::<Gadget>()?;
            let rules = Arc::new(Plain(gadgets.clone()));
            Ok(builder.serve(plain(gadgets).status(rules)?))
        })
        .await?;
        serve_gadgets_too(&cluster.client().await?, &registered, port).await?;
        for (group, version) in [
            (SAMPLE_GROUP, V1BETA1),
            (SAMPLE_GROUP, V1ALPHA1),
            (gadgets::GROUP, gadgets::VERSION),
        ] {
            cluster.wait_apiservice_available(group, version).await?;
        }
        let server = Server::Ours(Ours {
            store,
            served,
            stop,
        });
        Self::new(cluster, server, port, registered.ca).await
    }

    /// Starts a control plane with upstream's sample on it.
    pub(crate) async fn oracle() -> anyhow::Result<Self> {
        let cluster = Cluster::start(Options::default()).await?;
        let sample = sample_apiserver(&cluster).await?;
        define_gadgets(&cluster.client().await?).await?;
        let port = sample
            .url
            .rsplit_once(':')
            .and_then(|(_, port)| port.parse().ok())
            .context("sample-apiserver has no port")?;
        let authority = sample.registered.ca.clone();
        Self::new(cluster, Server::Oracle(Box::new(sample)), port, authority).await
    }

    async fn new(
        cluster: Cluster,
        server: Server,
        port: u16,
        authority: String,
    ) -> anyhow::Result<Self> {
        let client = cluster.client().await?;
        grant(&client).await?;
        Ok(Self {
            client,
            cluster,
            server,
            port,
            authority,
            connections: Mutex::default(),
        })
    }

    /// Makes a namespace.
    pub(crate) async fn make_namespace(&self, name: &str) -> anyhow::Result<()> {
        let object = serde_json::from_value(json!({"metadata": {"name": name}}))?;
        let namespaces: Api<Namespace> = Api::all(self.client.clone());
        namespaces.create(&PostParams::default(), &object).await?;
        Ok(())
    }

    /// The connections of a user, and the headers that name the user.
    pub(crate) fn connections(&self, route: Route, user: &str) -> anyhow::Result<Identified> {
        let known = USERS.iter().find(|(name, ..)| *name == user);
        let headers = match (known, route, user) {
            (Some((_, name, groups)), Route::Direct, _) => {
                std::iter::once(("x-remote-user", (*name).to_owned()))
                    .chain(
                        groups
                            .iter()
                            .map(|group| ("x-remote-group", (*group).to_owned())),
                    )
                    .collect()
            },
            (Some(_), Route::Aggregated, _) | (None, _, "anonymous") => Vec::new(),
            (None, _, "badToken") => vec![("authorization", "Bearer bad".to_owned())],
            _ => bail!("there is no user {user}"),
        };
        let key = (route, user.to_owned());
        if let Some(connections) = self.connections.lock().get(&key) {
            return Ok((Arc::clone(connections), headers));
        }
        let identity = match (known, route) {
            (None, _) => None,
            (Some(_), Route::Direct) => Some(clone_pair(self.cluster.front_proxy_client())),
            (Some((_, name, groups)), Route::Aggregated) => {
                Some(self.cluster.client_ca().client(name, groups)?)
            },
        };
        let (port, authority) = match route {
            Route::Direct => (self.port, self.authority.as_str()),
            Route::Aggregated => (
                self.cluster
                    .url()
                    .rsplit_once(':')
                    .and_then(|(_, port)| port.parse().ok())
                    .context("kube-apiserver has no port")?,
                self.cluster.client_ca().pem(),
            ),
        };
        let made = Arc::new(Connections::new(
            port,
            "localhost",
            authority,
            identity.as_ref(),
        )?);
        self.connections.lock().insert(key, Arc::clone(&made));
        Ok((made, headers))
    }

    /// Runs kubectl, and tells exit code and output.
    pub(crate) async fn kubectl(
        &self,
        args: &[String],
        input: &str,
        editor: Option<&str>,
    ) -> anyhow::Result<Value> {
        let cache = self.cluster.dir().join("kubectl-cache");
        let mut command = tokio::process::Command::new(self.cluster.kubectl_path()?);
        command
            .arg("--cache-dir")
            .arg(&cache)
            .args(args)
            .env("KUBECONFIG", self.cluster.kubeconfig_path())
            .env("HOME", self.cluster.dir())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .kill_on_drop(true);
        if let Some(editor) = editor {
            command.env("KUBE_EDITOR", editor);
        }
        let mut running = command.spawn()?;
        if let Some(mut stdin) = running.stdin.take() {
            stdin.write_all(input.as_bytes()).await?;
        }
        let output = running.wait_with_output().await?;
        Ok(json!({
            "exit": output.status.code(),
            "stdout": String::from_utf8_lossy(&output.stdout),
            "stderr": String::from_utf8_lossy(&output.stderr),
        }))
    }

    /// Forgets the history of the store up to `revision`.
    pub(crate) async fn compact(&self, revision: u64) -> anyhow::Result<()> {
        match &self.server {
            Server::Ours(ours) => Ok(ours.store.compact(revision).await?),
            Server::Oracle(_) => compact_etcd(self.cluster.etcd_url(), revision).await,
        }
    }

    /// Fails when a process has ended.
    pub(crate) fn check_running(&self) -> anyhow::Result<()> {
        self.cluster.check_running()?;
        if let Server::Oracle(sample) = &self.server {
            sample.process.check_running()?;
        }
        Ok(())
    }

    /// Ends our server.
    pub(crate) async fn stop(self) -> anyhow::Result<()> {
        if let Server::Ours(ours) = self.server {
            ours.stop.cancel();
            ours.served.await?;
        }
        Ok(())
    }
}

/// Registers the group of the gadgets at the Service, and so the certificate, of the sample group.
async fn serve_gadgets_too(
    client: &Client,
    registered: &Registered,
    port: u16,
) -> anyhow::Result<()> {
    let (group, version) = (gadgets::GROUP, gadgets::VERSION);
    let service = serde_json::from_value(json!({
        "metadata": {"name": format!("{version}.{group}")},
        "spec": {
            "group": group,
            "version": version,
            "groupPriorityMinimum": 1000,
            "versionPriority": 10,
            "service": {"namespace": registered.namespace, "name": registered.service, "port": port},
            "caBundle": ByteString(registered.ca.clone().into_bytes()),
        },
    }))?;
    let services: Api<APIService> = Api::all(client.clone());
    services.create(&PostParams::default(), &service).await?;
    Ok(())
}

/// Defines the gadgets as a CustomResourceDefinition, and waits until they are served.
async fn define_gadgets(client: &Client) -> anyhow::Result<()> {
    let definitions: Api<CustomResourceDefinition> = Api::all(client.clone());
    let definition = Gadget::crd();
    definitions
        .create(&PostParams::default(), &definition)
        .await?;
    let established = await_condition(
        definitions,
        Gadget::crd_name(),
        conditions::is_crd_established(),
    );
    tokio::time::timeout(SERVED_WITHIN, established).await??;
    let gadgets: Api<Gadget> = Api::all(client.clone());
    devcluster::wait_for("the gadgets to be served", SERVED_WITHIN, async || {
        Ok(gadgets.list(&ListParams::default()).await.ok())
    })
    .await?;
    Ok(())
}

/// A store that has forgotten its first revisions, as any has that is not new.
async fn with_a_past() -> anyhow::Result<Arc<dyn Store>> {
    let store = memory()?;
    for _ in 0..PAST {
        let op = Op::Put("/internal/past".into(), Bytes::from_static(b"x"));
        store.txn(Vec::new(), vec![op]).await?;
    }
    store.compact(PAST).await?;
    Ok(store)
}

fn clone_pair(pair: &CertPair) -> CertPair {
    CertPair {
        cert: pair.cert.clone(),
        key: pair.key.clone(),
    }
}

/// What the users may do beyond what everybody may.
async fn grant(client: &Client) -> anyhow::Result<()> {
    let rights = [
        (
            "reader",
            json!({"apiGroups": [SAMPLE_GROUP], "resources": ["*"], "verbs": ["get", "list", "watch"]}),
        ),
        (
            "one-name",
            json!({
                "apiGroups": [SAMPLE_GROUP], "resources": ["flunders"],
                "verbs": ["list", "watch"], "resourceNames": ["x"],
            }),
        ),
    ];
    for (user, rule) in rights {
        let role = json!({"metadata": {"name": user}, "rules": [rule]});
        let binding: Value = json!({
            "metadata": {"name": user},
            "subjects": [{"apiGroup": "rbac.authorization.k8s.io", "kind": "User", "name": user}],
            "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": user},
        });
        let roles: Api<ClusterRole> = Api::all(client.clone());
        let role = serde_json::from_value(role)?;
        roles.create(&PostParams::default(), &role).await?;
        let bindings: Api<ClusterRoleBinding> = Api::all(client.clone());
        let binding = serde_json::from_value(binding)?;
        bindings.create(&PostParams::default(), &binding).await?;
    }
    Ok(())
}

async fn compact_etcd(url: &str, revision: u64) -> anyhow::Result<()> {
    let authority = url
        .strip_prefix("http://")
        .context("etcd speaks HTTP here")?;
    let stream = TcpStream::connect(authority).await?;
    let (mut sender, connection) =
        hyper::client::conn::http1::handshake(TokioIo::new(stream)).await?;
    tokio::spawn(connection);
    let body = json!({"revision": revision.to_string(), "physical": true}).to_string();
    let request = Request::post("/v3/kv/compaction")
        .header("host", authority)
        .body(Full::new(Bytes::from(body)))?;
    let answer = sender.send_request(request).await?;
    if !answer.status().is_success() {
        bail!("etcd does not compact to {revision}: {}", answer.status());
    }
    Ok(())
}
