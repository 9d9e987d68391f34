//! Delegated authentication, authorization and the listener on a real control plane: what a server
//! on this library sees of callers that come through the aggregator and of those that come directly.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::{sync::Arc, time::Duration};

use aggregated_api::{
    admission::{KubeNamespaces, NamespaceError, NamespaceLifecycle},
    auth::{
        Attributes, AuthError, Authenticator, Authorizer, ConfigState, Decision,
        DelegatedAuthenticator, DelegatedConfig, SubjectAccessReviewAuthorizer, User,
    },
    server::{Limits, ServingTls, Shutdown, serve},
};
use axum::{
    Json, Router,
    extract::{Request, State},
    http::StatusCode,
    response::{IntoResponse, Response},
};
use devcluster::{Cluster, Options};
use k8s_openapi::api::{
    core::v1::{Namespace, Pod, ServiceAccount},
    rbac::v1::{ClusterRole, ClusterRoleBinding, RoleBinding},
};
use kube::{Api, Client, api::PostParams};
use runtime_kit::{
    SystemClock,
    tls::{KeyPairFiles, ReloadingCertificate},
};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Value, json};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

const GROUP: &str = "whoami.example.com";
const DEADLINE: Duration = Duration::from_secs(30);

struct Guard {
    authenticator: DelegatedAuthenticator,
    authorizer: SubjectAccessReviewAuthorizer,
}

/// Answers who is calling, to those that may `get` the resource `whoami`.
async fn whoami(State(guard): State<Arc<Guard>>, request: Request) -> Response {
    let path = request.uri().path().to_owned();
    let (mut parts, _) = request.into_parts();
    let user = match guard.authenticator.authenticate(&parts).await {
        Ok(Some(user)) => user,
        Ok(None) | Err(AuthError::Unauthenticated(_)) => {
            return StatusCode::UNAUTHORIZED.into_response();
        },
        Err(err) => return (StatusCode::INTERNAL_SERVER_ERROR, err.to_string()).into_response(),
    };
    guard.authenticator.strip_credentials(&mut parts.headers);
    assert!(
        !parts
            .headers
            .keys()
            .any(|name| name.as_str().starts_with("x-remote-"))
    );
    match guard.authorizer.authorize(&user, &attributes(&path)).await {
        Ok(Decision::Allow) => answer(&path, &user),
        Ok(Decision::Deny(_)) => StatusCode::FORBIDDEN.into_response(),
        Err(err) => (StatusCode::INTERNAL_SERVER_ERROR, err.to_string()).into_response(),
    }
}

fn attributes(path: &str) -> Attributes {
    if !path.contains("/whoami/") {
        return Attributes::NonResource {
            verb: "get".to_owned(),
            path: path.to_owned(),
        };
    }
    Attributes::Resource {
        verb: "get".to_owned(),
        group: GROUP.to_owned(),
        version: "v1".to_owned(),
        resource: "whoami".to_owned(),
        subresource: String::new(),
        namespace: String::new(),
        name: "me".to_owned(),
    }
}

fn answer(path: &str, user: &User) -> Response {
    if !path.contains("/whoami/") {
        return Json(json!({
            "kind": "APIResourceList", "apiVersion": "v1", "groupVersion": format!("{GROUP}/v1"),
            "resources": [],
        }))
        .into_response();
    }
    let User {
        name,
        uid,
        groups,
        extra,
    } = user;
    Json(json!({"name": name, "uid": uid, "groups": groups, "extra": extra})).into_response()
}

async fn create<K>(api: Api<K>, object: Value)
where
    K: kube::Resource + Clone + std::fmt::Debug + Serialize + DeserializeOwned,
{
    let object = serde_json::from_value(object).unwrap();
    api.create(&PostParams::default(), &object).await.unwrap();
}

async fn bind(client: &Client, name: &str, role: &str, subject: &Value) {
    let binding = json!({
        "metadata": {"name": name}, "subjects": [subject],
        "roleRef": {"apiGroup": "rbac.authorization.k8s.io", "kind": "ClusterRole", "name": role},
    });
    create(Api::<ClusterRoleBinding>::all(client.clone()), binding).await;
}

async fn until<F: AsyncFn() -> bool>(what: &str, condition: F) {
    let met = async {
        while !condition().await {
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    };
    assert!(
        tokio::time::timeout(DEADLINE, met).await.is_ok(),
        "not in time: {what}"
    );
}

/// The identity that the server under test sees.
async fn ask(client: &Client) -> Result<Value, u16> {
    let request = http::Request::get(format!("/apis/{GROUP}/v1/whoami/me")).body(Vec::new());
    match client.request::<Value>(request.unwrap()).await {
        Ok(seen) => Ok(seen),
        Err(kube::Error::Api(status)) => Err(status.code),
        Err(err) => panic!("{err:?}"),
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_are_known_through_the_aggregator_and_directly() {
    let cluster = Cluster::start(Options::default()).await.unwrap();
    let admin = cluster.client().await.unwrap();
    let account = json!({"kind": "ServiceAccount", "namespace": "servers", "name": "server"});
    create(
        Api::<Namespace>::all(admin.clone()),
        json!({"metadata": {"name": "servers"}}),
    )
    .await;
    create(
        Api::<ServiceAccount>::namespaced(admin.clone(), "servers"),
        json!({"metadata": {"name": "server"}}),
    )
    .await;
    let kubeconfig = cluster
        .service_account_kubeconfig("servers", "server")
        .await
        .unwrap();
    let client = devcluster::client_for(&kubeconfig).await.unwrap();

    let clock = SystemClock::shared();
    let config = DelegatedConfig::pending(Arc::clone(&clock));
    let namespaces = KubeNamespaces::new(client.clone());
    let stop = CancellationToken::new();
    tokio::spawn({
        let (config, client, stop) = (Arc::clone(&config), client.clone(), stop.clone());
        async move { config.run(client, stop).await }
    });
    tokio::spawn({
        let (namespaces, stop) = (Arc::clone(&namespaces), stop.clone());
        async move { namespaces.run(stop).await }
    });

    // Without its bindings the server may not read the ConfigMap, and says so.
    until("forbidden", async || {
        config.state() == ConfigState::Forbidden
    })
    .await;
    create(
        Api::<RoleBinding>::namespaced(admin.clone(), "kube-system"),
        json!({
            "metadata": {"name": "server-auth-reader"}, "subjects": [account],
            "roleRef": {
                "apiGroup": "rbac.authorization.k8s.io", "kind": "Role",
                "name": "extension-apiserver-authentication-reader",
            },
        }),
    )
    .await;
    bind(
        &admin,
        "server-auth-delegator",
        "system:auth-delegator",
        &account,
    )
    .await;
    create(
        Api::<ClusterRole>::all(admin.clone()),
        json!({
            "metadata": {"name": "namespace-reader"},
            "rules": [{
                "apiGroups": [""], "resources": ["namespaces"], "verbs": ["get", "list", "watch"],
            }],
        }),
    )
    .await;
    bind(&admin, "server-namespaces", "namespace-reader", &account).await;
    tokio::time::timeout(DEADLINE, config.settled())
        .await
        .unwrap();
    let trust = config.trust().clone();
    assert!(
        trust.client_ca.is_some() && trust.request_header.is_some(),
        "{trust:?}"
    );

    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let port = listener.local_addr().unwrap().port();
    let registered = cluster
        .register_apiservice(GROUP, "v1", port)
        .await
        .unwrap();
    let certificate = ReloadingCertificate::load(KeyPairFiles {
        certificate: registered.files.cert.clone(),
        key: registered.files.key.clone(),
    })
    .await
    .unwrap();
    let tls = ServingTls::new(certificate, Arc::clone(&config)).unwrap();
    let guard = Guard {
        authenticator: DelegatedAuthenticator::new(
            &config,
            client.clone(),
            Vec::new(),
            Arc::clone(&clock),
        ),
        authorizer: SubjectAccessReviewAuthorizer::new(client, clock),
    };
    let app = Router::new().fallback(whoami).with_state(Arc::new(guard));
    let shutdown = Shutdown {
        stop: stop.clone(),
        drain: DEADLINE,
    };
    let served = tokio::spawn(serve(listener, tls, app, Limits::default(), shutdown));
    cluster
        .wait_apiservice_available(GROUP, "v1")
        .await
        .unwrap();

    // Through the aggregator, as a pod.
    create(
        Api::<ClusterRole>::all(admin.clone()),
        json!({
            "metadata": {"name": "whoami"},
            "rules": [{"apiGroups": [GROUP], "resources": ["whoami"], "verbs": ["get"]}],
        }),
    )
    .await;
    let pods: Api<Pod> = Api::namespaced(admin.clone(), "servers");
    create(
        pods.clone(),
        json!({
            "metadata": {"name": "crawler-0"},
            "spec": {
                "serviceAccountName": "server", "containers": [{"name": "c", "image": "c"}],
            },
        }),
    )
    .await;
    bind(&admin, "whoami-server", "whoami", &account).await;
    let pod = cluster
        .pod_kubeconfig("servers", "crawler-0")
        .await
        .unwrap();
    let pod = devcluster::client_for(&pod).await.unwrap();
    until("the role to be seen", async || ask(&pod).await.is_ok()).await;
    let seen = ask(&pod).await.unwrap();
    assert_eq!(seen["name"], "system:serviceaccount:servers:server");
    assert_eq!(
        seen["extra"]["authentication.kubernetes.io/pod-name"],
        json!(["crawler-0"])
    );
    let uid = pods.get("crawler-0").await.unwrap().metadata.uid.unwrap();
    assert_eq!(
        seen["extra"]["authentication.kubernetes.io/pod-uid"],
        json!([uid])
    );
    assert!(
        seen["groups"]
            .as_array()
            .unwrap()
            .contains(&json!("system:authenticated"))
    );

    // Directly: by certificate, by token, without credentials, with spoofed headers.
    let direct = |kubeconfig: &std::path::Path| {
        let kubeconfig = kubeconfig.to_owned();
        async move {
            let file = kube::config::Kubeconfig::read_from(&kubeconfig).unwrap();
            let options = kube::config::KubeConfigOptions::default();
            let mut config = kube::Config::from_custom_kubeconfig(file, &options)
                .await
                .unwrap();
            config.cluster_url = format!("https://localhost:{port}").parse().unwrap();
            config.tls_server_name = Some("whoami-example-com.aggregated-apis.svc".to_owned());
            config.default_retry = false;
            config
        }
    };
    let by_certificate = direct(cluster.kubeconfig_path()).await;
    let seen = ask(&Client::try_from(by_certificate).unwrap())
        .await
        .unwrap();
    assert!(
        seen["groups"]
            .as_array()
            .unwrap()
            .contains(&json!("system:masters"))
    );

    let by_token = direct(
        &cluster
            .pod_kubeconfig("servers", "crawler-0")
            .await
            .unwrap(),
    )
    .await;
    let seen = ask(&Client::try_from(by_token.clone()).unwrap())
        .await
        .unwrap();
    assert_eq!(
        seen["extra"]["authentication.kubernetes.io/pod-name"],
        json!(["crawler-0"])
    );

    let nobody = direct(&cluster.user_kubeconfig("nobody", &[]).unwrap()).await;
    assert_eq!(
        ask(&Client::try_from(nobody.clone()).unwrap()).await,
        Err(403)
    );

    let mut spoofing = by_token.clone();
    spoofing.auth_info = kube::config::AuthInfo::default();
    spoofing.headers = vec![
        ("x-remote-user".parse().unwrap(), "admin".parse().unwrap()),
        (
            "x-remote-group".parse().unwrap(),
            "system:masters".parse().unwrap(),
        ),
    ];
    assert_eq!(ask(&Client::try_from(spoofing).unwrap()).await, Err(403));

    let mut bad = by_token;
    bad.auth_info = kube::config::AuthInfo {
        token: Some("nonsense".to_owned().into()),
        ..kube::config::AuthInfo::default()
    };
    assert_eq!(ask(&Client::try_from(bad).unwrap()).await, Err(401));

    // Namespaces: made, going away, unknown.
    until("namespaces", async || namespaces.is_synced()).await;
    let created = Api::<Namespace>::all(admin.clone());
    create(
        created.clone(),
        json!({"metadata": {"name": "going"}, "spec": {"finalizers": ["kubernetes"]}}),
    )
    .await;
    assert_eq!(namespaces.check_create("going").await, Ok(()));
    create(
        Api::<k8s_openapi::api::core::v1::ConfigMap>::namespaced(admin.clone(), "going"),
        json!({"metadata": {"name": "holds", "finalizers": ["example.com/held"]}}),
    )
    .await;
    created
        .delete("going", &kube::api::DeleteParams::default())
        .await
        .unwrap();
    let terminating = Err(NamespaceError::Terminating("going".to_owned()));
    until("termination", async || {
        namespaces.check_create("going").await == terminating
    })
    .await;
    assert_eq!(
        namespaces.check_create("nowhere").await,
        Err(NamespaceError::NotFound("nowhere".to_owned()))
    );

    stop.cancel();
    let report = tokio::time::timeout(DEADLINE, served)
        .await
        .unwrap()
        .unwrap();
    assert_eq!(report.cut, 0);
}
