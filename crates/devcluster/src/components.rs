//! The command lines of the control plane's components. Pure: what is started with which flags, and why.

use std::path::Path;

use crate::pki::CertFiles;

/// Files and addresses the components share.
pub(crate) struct Layout<'a> {
    pub(crate) pki: &'a Path,
    pub(crate) etcd_data: &'a Path,
    pub(crate) etcd_url: &'a str,
    pub(crate) etcd_peer_url: &'a str,
    pub(crate) serving: &'a CertFiles,
    pub(crate) front_proxy_client: &'a CertFiles,
    pub(crate) service_account: &'a CertFiles,
    pub(crate) controller_manager_kubeconfig: &'a Path,
    pub(crate) controller_manager_port: u16,
    pub(crate) port: u16,
}

/// What kube-controller-manager runs: everything that acts on objects without needing real nodes,
/// volumes or a cloud.
const CONTROLLERS: &[&str] = &[
    "clusterrole-aggregation-controller",
    "cronjob-controller",
    "daemonset-controller",
    "deployment-controller",
    "disruption-controller",
    "endpoints-controller",
    "endpointslice-controller",
    "garbage-collector-controller",
    "job-controller",
    "namespace-controller",
    "pod-garbage-collector-controller",
    "replicaset-controller",
    "resourcequota-controller",
    "root-ca-certificate-publisher-controller",
    "serviceaccount-controller",
    "serviceaccount-token-controller",
    "statefulset-controller",
    "ttl-after-finished-controller",
];

/// First address of the service range: what `kubernetes.default` would resolve to.
pub(crate) const FIRST_SERVICE_IP: &str = "10.0.0.1";

fn flag(name: &str, value: impl AsRef<std::ffi::OsStr>) -> std::ffi::OsString {
    let mut flag = std::ffi::OsString::from(format!("--{name}="));
    flag.push(value);
    flag
}

pub(crate) fn etcd_args(layout: &Layout<'_>) -> Vec<std::ffi::OsString> {
    vec![
        flag("name", "devcluster"),
        flag("data-dir", layout.etcd_data),
        flag("listen-client-urls", layout.etcd_url),
        flag("advertise-client-urls", layout.etcd_url),
        flag("listen-peer-urls", layout.etcd_peer_url),
        flag("initial-advertise-peer-urls", layout.etcd_peer_url),
        flag(
            "initial-cluster",
            format!("devcluster={}", layout.etcd_peer_url),
        ),
        flag("log-level", "warn"),
    ]
}

pub(crate) fn apiserver_args(layout: &Layout<'_>) -> Vec<std::ffi::OsString> {
    let pki = layout.pki;
    vec![
        flag("etcd-servers", layout.etcd_url),
        flag("bind-address", "127.0.0.1"),
        flag("advertise-address", "127.0.0.1"),
        flag("secure-port", layout.port.to_string()),
        // Why: the Endpoints of `kubernetes.default` may not hold a loopback address, and nobody needs them.
        flag("endpoint-reconciler-type", "none"),
        flag("service-cluster-ip-range", "10.0.0.0/24"),
        flag("tls-cert-file", &layout.serving.cert),
        flag("tls-private-key-file", &layout.serving.key),
        flag("client-ca-file", pki.join("ca.crt")),
        flag("authorization-mode", "RBAC"),
        flag("allow-privileged", "true"),
        flag("service-account-issuer", "https://kubernetes.default.svc"),
        flag("service-account-key-file", &layout.service_account.cert),
        flag(
            "service-account-signing-key-file",
            &layout.service_account.key,
        ),
        flag(
            "requestheader-client-ca-file",
            pki.join("front-proxy-ca.crt"),
        ),
        flag("requestheader-allowed-names", crate::FRONT_PROXY_NAME),
        flag("requestheader-username-headers", "X-Remote-User"),
        flag("requestheader-group-headers", "X-Remote-Group"),
        flag("requestheader-extra-headers-prefix", "X-Remote-Extra-"),
        flag("requestheader-uid-headers", "X-Remote-Uid"),
        flag("proxy-client-cert-file", &layout.front_proxy_client.cert),
        flag("proxy-client-key-file", &layout.front_proxy_client.key),
    ]
}

pub(crate) fn controller_manager_args(layout: &Layout<'_>) -> Vec<std::ffi::OsString> {
    let kubeconfig = layout.controller_manager_kubeconfig;
    vec![
        flag("kubeconfig", kubeconfig),
        flag("authentication-kubeconfig", kubeconfig),
        flag("authorization-kubeconfig", kubeconfig),
        flag("bind-address", "127.0.0.1"),
        flag("secure-port", layout.controller_manager_port.to_string()),
        flag("tls-cert-file", &layout.serving.cert),
        flag("tls-private-key-file", &layout.serving.key),
        flag("leader-elect", "false"),
        flag("use-service-account-credentials", "true"),
        flag(
            "service-account-private-key-file",
            &layout.service_account.key,
        ),
        flag("root-ca-file", layout.pki.join("ca.crt")),
        flag("controllers", CONTROLLERS.join(",")),
    ]
}
