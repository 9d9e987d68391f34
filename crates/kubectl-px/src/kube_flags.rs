//! The flags about the cluster that kubectl users expect, and the client they select.

use std::path::PathBuf;
use std::time::Duration;

use kube::config::{AuthInfo, InClusterError, KubeConfigOptions, Kubeconfig, KubeconfigError};
use kube::{Client, Config};
use serde_json::json;

use crate::duration::parse_timeout;

/// Which cluster, as whom, in which namespace: named and meant as in kubectl.
#[derive(Debug, Clone, Default, clap::Args)]
#[command(next_help_heading = "Cluster options")]
pub(crate) struct KubeFlags {
    /// Namespace; default: that of the kubeconfig's context.
    #[arg(short, long, value_name = "NAME")]
    namespace: Option<String>,

    /// Path to the kubeconfig file to use.
    #[arg(long, value_name = "FILE")]
    kubeconfig: Option<PathBuf>,

    /// The kubeconfig context to use.
    #[arg(long, value_name = "NAME")]
    context: Option<String>,

    /// The kubeconfig cluster to use.
    #[arg(long, value_name = "NAME")]
    cluster: Option<String>,

    /// The kubeconfig user to use.
    #[arg(long, value_name = "NAME")]
    user: Option<String>,

    /// Address of the API server.
    #[arg(short, long, value_name = "URL")]
    server: Option<String>,

    /// Bearer token, used instead of the kubeconfig's credentials.
    #[arg(long, value_name = "TOKEN")]
    token: Option<String>,

    /// User name to impersonate.
    #[arg(long = "as", value_name = "USER")]
    impersonate: Option<String>,

    /// Group to impersonate; may be repeated.
    #[arg(long = "as-group", value_name = "GROUP", requires = "impersonate")]
    impersonate_group: Vec<String>,

    /// UID to impersonate.
    #[arg(long = "as-uid", value_name = "UID", requires = "impersonate")]
    impersonate_uid: Option<String>,

    /// Path to the certificate authority of the API server.
    #[arg(long, value_name = "FILE")]
    certificate_authority: Option<PathBuf>,

    /// Path to a client certificate.
    #[arg(long, value_name = "FILE", requires = "client_key")]
    client_certificate: Option<String>,

    /// Path to the client certificate's key.
    #[arg(long, value_name = "FILE", requires = "client_certificate")]
    client_key: Option<String>,

    /// Do not check the API server's certificate. Unsafe.
    #[arg(long)]
    insecure_skip_tls_verify: bool,

    /// Name expected in the API server's certificate.
    #[arg(long, value_name = "NAME")]
    tls_server_name: Option<String>,

    /// Time to wait for a single answer of the server, like 30s or 1m; 0 waits without end.
    #[arg(long, value_name = "DURATION", default_value = "0", allow_hyphen_values = true, value_parser = parse_timeout)]
    request_timeout: u32,
}

/// Why there is no client.
#[derive(Debug, thiserror::Error)]
pub(crate) enum Error {
    /// The kubeconfig.
    #[error("the kubeconfig cannot be used: {}", runtime_kit::chain(.0))]
    Kubeconfig(#[source] KubeconfigError),
    /// `--server`.
    #[error("--server {value:?} is not a URL: {source}")]
    Server {
        /// What was given.
        value: String,
        /// What is wrong with it.
        #[source]
        source: http::uri::InvalidUri,
    },
    /// Neither a kubeconfig nor a pod.
    #[error(
        "no kubeconfig was found and this is not a pod ({0}): set --kubeconfig, KUBECONFIG or --server"
    )]
    NoCluster(#[source] InClusterError),
    /// Credentials, certificates or the proxy to the API server.
    #[error("the credentials or certificates cannot be used: {}", runtime_kit::chain(.0))]
    BuildClient(#[source] kube::Error),
    /// `--token`.
    #[error("--token cannot be used: {0}")]
    Token(#[source] serde_json::Error),
}

/// A client, and what else the flags say about requests.
#[derive(Clone)]
pub(crate) struct Session {
    /// Sends each request once.
    pub(crate) client: Client,
    /// Namespace of leases.
    pub(crate) namespace: String,
    /// Host of the API server.
    pub(crate) server_host: Option<String>,
    /// Host and port of the API server, for messages.
    pub(crate) server: String,
    /// Limit for a single request.
    pub(crate) request_timeout: Option<Duration>,
}

impl KubeFlags {
    /// Reads the kubeconfig and builds the client; nothing is sent yet.
    pub(crate) async fn session(&self) -> Result<Session, Error> {
        let config = self.config().await?;
        let namespace = self.namespace.clone();
        Ok(Session {
            namespace: namespace.unwrap_or_else(|| config.default_namespace.clone()),
            server_host: config.cluster_url.host().map(|host| {
                host.trim_start_matches('[')
                    .trim_end_matches(']')
                    .to_owned()
            }),
            server: host_and_port(&config.cluster_url),
            request_timeout: (self.request_timeout > 0)
                .then(|| Duration::from_secs(self.request_timeout.into())),
            client: Client::try_from(config).map_err(Error::BuildClient)?,
        })
    }

    /// The namespace of the flags or the kubeconfig; `None` where there is no cluster at all.
    pub(crate) async fn namespace_only(&self) -> Result<Option<String>, Error> {
        if self.namespace.is_some() {
            return Ok(self.namespace.clone());
        }
        match self.config().await {
            Ok(config) => Ok(Some(config.default_namespace)),
            Err(Error::NoCluster(_)) => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn config(&self) -> Result<Config, Error> {
        let options = KubeConfigOptions {
            context: self.context.clone(),
            cluster: self.cluster.clone(),
            user: self.user.clone(),
        };
        let mut config = match (self.read_kubeconfig()?, &self.server) {
            (Some(file), _) => Config::from_custom_kubeconfig(file, &options)
                .await
                .map_err(Error::Kubeconfig)?,
            (None, Some(server)) => Config::new(parse_server(server)?),
            (None, None) => Config::incluster().map_err(Error::NoCluster)?,
        };
        self.apply_cluster(&mut config)?;
        self.apply_identity(&mut config.auth_info)?;
        config.default_retry = false;
        Ok(config)
    }

    fn read_kubeconfig(&self) -> Result<Option<Kubeconfig>, Error> {
        if let Some(path) = &self.kubeconfig {
            return Kubeconfig::read_from(path)
                .map(Some)
                .map_err(Error::Kubeconfig);
        }
        match Kubeconfig::read() {
            Ok(file) => Ok(Some(file)),
            Err(KubeconfigError::FindPath) => Ok(None),
            Err(KubeconfigError::ReadConfig(source, _))
                if source.kind() == std::io::ErrorKind::NotFound =>
            {
                Ok(None)
            },
            Err(error) => Err(Error::Kubeconfig(error)),
        }
    }

    fn apply_cluster(&self, config: &mut Config) -> Result<(), Error> {
        if let Some(server) = &self.server {
            config.cluster_url = parse_server(server)?;
        }
        if self.certificate_authority.is_some() {
            config
                .root_cert_file
                .clone_from(&self.certificate_authority);
        }
        if self.tls_server_name.is_some() {
            config.tls_server_name.clone_from(&self.tls_server_name);
        }
        config.accept_invalid_certs |= self.insecure_skip_tls_verify;
        Ok(())
    }

    fn apply_identity(&self, auth: &mut AuthInfo) -> Result<(), Error> {
        if let Some(token) = &self.token {
            // Why: an API server asks the client certificate first; were one left, the token that
            // was given would be ignored.
            *auth = serde_json::from_value(json!({ "token": token })).map_err(Error::Token)?;
        }
        if self.client_certificate.is_some() {
            auth.client_certificate.clone_from(&self.client_certificate);
            auth.client_certificate_data = None;
            auth.client_key.clone_from(&self.client_key);
            auth.client_key_data = None;
        }
        if self.impersonate.is_some() {
            auth.impersonate.clone_from(&self.impersonate);
            auth.impersonate_uid.clone_from(&self.impersonate_uid);
            auth.impersonate_groups =
                (!self.impersonate_group.is_empty()).then(|| self.impersonate_group.clone());
        }
        Ok(())
    }
}

fn host_and_port(url: &http::Uri) -> String {
    let host = url.host().unwrap_or_default();
    let usual = if url.scheme_str() == Some("http") {
        80
    } else {
        443
    };
    format!("{host}:{}", url.port_u16().unwrap_or(usual))
}

fn parse_server(value: &str) -> Result<http::Uri, Error> {
    let url = if value.contains("://") {
        value.to_owned()
    } else {
        format!("https://{value}")
    };
    url.parse().map_err(|source| Error::Server {
        value: value.to_owned(),
        source,
    })
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Parser)]
    struct Command {
        #[command(flatten)]
        kube: KubeFlags,
    }

    fn kubeconfig(folder: &tempfile::TempDir) -> String {
        let path = folder.path().join("kubeconfig");
        let text = json!({
            "apiVersion": "v1", "kind": "Config", "current-context": "one",
            "clusters": [
                {"name": "one", "cluster": {"server": "http://one.example.com:8080"}},
                {"name": "two", "cluster": {"server": "http://two.example.com"}},
            ],
            "users": [{"name": "u", "user": {
                "client-certificate-data": "QQ==", "client-key-data": "QQ=="}}],
            "contexts": [
                {"name": "one", "context": {"cluster": "one", "user": "u", "namespace": "crawlers"}},
                {"name": "two", "context": {"cluster": "two", "user": "u"}},
            ],
        });
        std::fs::write(&path, text.to_string()).expect("written");
        path.to_str().expect("a path").to_owned()
    }

    async fn config(folder: &tempfile::TempDir, flags: &[&str]) -> Config {
        let path = kubeconfig(folder);
        let all = [&["x", "--kubeconfig", &path], flags].concat();
        let command = Command::try_parse_from(all).expect("valid flags");
        command.kube.config().await.expect("a configuration")
    }

    #[tokio::test]
    async fn the_context_selects_server_and_namespace_and_flags_override() {
        let folder = tempfile::tempdir().expect("a folder");
        let current = config(&folder, &[]).await;
        assert_eq!(current.cluster_url.host(), Some("one.example.com"));
        assert_eq!(current.default_namespace, "crawlers");
        assert!(!current.default_retry);
        let other = config(&folder, &["--context", "two"]).await;
        assert_eq!(other.cluster_url.host(), Some("two.example.com"));
        let cluster = config(&folder, &["--cluster", "two"]).await;
        assert_eq!(cluster.cluster_url.host(), Some("two.example.com"));
        assert_eq!(cluster.default_namespace, "crawlers");
        let server = config(&folder, &["-s", "three.example.com:6443"]).await;
        assert_eq!(
            server.cluster_url.to_string(),
            "https://three.example.com:6443/"
        );
    }

    #[test]
    fn the_server_is_named_with_its_port() {
        for (url, named) in [
            ("https://127.0.0.1:6443/", "127.0.0.1:6443"),
            ("https://[::1]/api", "[::1]:443"),
            ("http://one.example.com", "one.example.com:80"),
        ] {
            assert_eq!(host_and_port(&url.parse().expect("a URL")), named);
        }
    }

    #[tokio::test]
    async fn a_token_replaces_the_client_certificate_of_the_kubeconfig() {
        let folder = tempfile::tempdir().expect("a folder");
        let auth = config(&folder, &["--token", "abc"]).await.auth_info;
        assert!(auth.token.is_some());
        assert!(auth.client_certificate_data.is_none());
    }

    #[tokio::test]
    async fn impersonation_is_passed_on() {
        let folder = tempfile::tempdir().expect("a folder");
        let flags = ["--as", "jane", "--as-group", "a", "--as-group", "b"];
        let auth = config(&folder, &flags).await.auth_info;
        assert_eq!(auth.impersonate.as_deref(), Some("jane"));
        assert_eq!(
            auth.impersonate_groups,
            Some(vec!["a".to_owned(), "b".to_owned()])
        );
    }

    #[tokio::test]
    async fn an_unknown_context_is_named() {
        let folder = tempfile::tempdir().expect("a folder");
        let path = kubeconfig(&folder);
        let flags = ["x", "--kubeconfig", &path, "--context", "nowhere"];
        let command = Command::try_parse_from(flags).expect("valid flags");
        let error = command.kube.config().await.expect_err("unknown");
        assert!(error.to_string().contains("nowhere"), "{error}");
    }
}
