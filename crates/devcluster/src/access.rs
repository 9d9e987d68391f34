//! Clients and kubeconfigs for everybody a test wants to be.

use std::path::{Path, PathBuf};
use std::process::Output;

use k8s_openapi::api::authentication::v1::{BoundObjectReference, TokenRequest, TokenRequestSpec};
use k8s_openapi::api::core::v1::{Pod, ServiceAccount};
use kube::api::PostParams;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Api, Client, Config};

use crate::binaries::Binary;
use crate::cluster::Cluster;
use crate::error::{Error, Result};
use crate::kubeconfig::Credential;

/// A client for `kubeconfig` that does not retry by itself, so that a test sees what the server said.
pub async fn client_for(kubeconfig: &Path) -> Result<Client> {
    let file = Kubeconfig::read_from(kubeconfig)?;
    let mut config = Config::from_custom_kubeconfig(file, &KubeConfigOptions::default()).await?;
    config.default_retry = false;
    Client::try_from(config).map_err(Error::api("make a client"))
}

impl Cluster {
    /// A client of the administrator, without automatic retries. Make one per runtime: a client does not
    /// outlive the runtime it was made in.
    pub async fn client(&self) -> Result<Client> {
        client_for(self.kubeconfig_path()).await
    }

    /// A client of `user` in `groups`, through a certificate. Such a user has no rights but those of
    /// `system:authenticated`.
    pub async fn user_client(&self, user: &str, groups: &[&str]) -> Result<Client> {
        client_for(&self.user_kubeconfig(user, groups)?).await
    }

    /// The kubeconfig of `user` in `groups`, through a certificate.
    pub fn user_kubeconfig(&self, user: &str, groups: &[&str]) -> Result<PathBuf> {
        let pair = self.client_ca().client(user, groups)?;
        let file = format!("{}.kubeconfig", file_name(&[&[user], groups].concat()));
        self.write_kubeconfig(&file, user, &Credential::Certificate(&pair), "default")
    }

    /// The kubeconfig of a ServiceAccount that exists, through a token good for an hour. Its namespace is
    /// the default namespace.
    pub async fn service_account_kubeconfig(&self, namespace: &str, name: &str) -> Result<PathBuf> {
        let token = self.service_account_token(namespace, name).await?;
        let file = format!("{}.kubeconfig", file_name(&["sa", namespace, name]));
        self.write_kubeconfig(&file, name, &Credential::Token(&token), namespace)
    }

    /// The kubeconfig a process in `pod` would have: the token of the pod's ServiceAccount, bound to the
    /// pod. It dies with the pod.
    pub async fn pod_kubeconfig(&self, namespace: &str, pod: &str) -> Result<PathBuf> {
        let token = self.pod_token(namespace, pod).await?;
        let file = format!("{}.kubeconfig", file_name(&["pod", namespace, pod]));
        self.write_kubeconfig(&file, pod, &Credential::Token(&token), namespace)
    }

    /// A bearer token of a ServiceAccount that exists.
    pub async fn service_account_token(&self, namespace: &str, name: &str) -> Result<String> {
        self.request_token(namespace, name, None).await
    }

    /// A bearer token of the ServiceAccount of `pod`, bound to the pod.
    pub async fn pod_token(&self, namespace: &str, pod: &str) -> Result<String> {
        let pods: Api<Pod> = Api::namespaced(self.client().await?, namespace);
        let found = pods
            .get(pod)
            .await
            .map_err(Error::api(format!("read pod {namespace}/{pod}")))?;
        let account = found.spec.and_then(|spec| spec.service_account_name);
        let bound = BoundObjectReference {
            api_version: Some("v1".to_owned()),
            kind: Some("Pod".to_owned()),
            name: Some(pod.to_owned()),
            uid: found.metadata.uid,
        };
        self.request_token(
            namespace,
            account.as_deref().unwrap_or("default"),
            Some(bound),
        )
        .await
    }

    async fn request_token(
        &self,
        namespace: &str,
        account: &str,
        bound: Option<BoundObjectReference>,
    ) -> Result<String> {
        let accounts: Api<ServiceAccount> = Api::namespaced(self.client().await?, namespace);
        let request = TokenRequest {
            spec: Some(TokenRequestSpec {
                bound_object_ref: bound,
                expiration_seconds: Some(3600),
                ..TokenRequestSpec::default()
            }),
            ..TokenRequest::default()
        };
        let action = format!("create a token of ServiceAccount {namespace}/{account}");
        let answer = accounts
            .create_token_request(account, &PostParams::default(), &request)
            .await
            .map_err(Error::api(action))?;
        Ok(answer
            .status
            .and_then(|status| status.token)
            .unwrap_or_default())
    }

    /// Runs kubectl as the administrator, and waits for its end; blocks.
    pub fn kubectl(&self, args: &[&str]) -> Result<Output> {
        self.kubectl_as(self.kubeconfig_path(), args)
    }

    /// Runs kubectl with `kubeconfig`, and waits for its end; blocks.
    pub fn kubectl_as(&self, kubeconfig: &Path, args: &[&str]) -> Result<Output> {
        self.command(Binary::Kubectl)?
            .env("KUBECONFIG", kubeconfig)
            // Why: discovery caches of other clusters on the same port would be believed.
            .env("KUBECACHEDIR", self.dir().join("kubectl-cache"))
            .args(args)
            .output()
            .map_err(|source| Error::Spawn { name: "kubectl".to_owned(), source })
    }
}

/// `parts` as one file name: anything but letters, digits, `.` and `-` becomes `_`.
fn file_name(parts: &[&str]) -> String {
    let safe = |c: char| {
        if c.is_ascii_alphanumeric() || matches!(c, '.' | '-') {
            c
        } else {
            '_'
        }
    };
    parts.join("_").chars().map(safe).collect()
}
