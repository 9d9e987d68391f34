//! Our server, as the process that is measured: the sample group on the library, with its objects in a
//! file of redb or in etcd.

use std::net::{Ipv4Addr, SocketAddr};
use std::sync::Arc;

use aggregated_api::store::Store;
use aggregated_api::store::etcd::{self, EtcdStore};
use aggregated_api::store::redb::{self, RedbStore};
use anyhow::{Context as _, Result};
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use runtime_kit::tls::KeyPairFiles;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower::layer::util::Identity;

use crate::flags::ServeFlags;
use crate::wardle::server::{Setup, start};

/// Serves until the process is killed.
pub(crate) async fn serve(flags: ServeFlags) -> Result<()> {
    let ServeFlags {
        kubeconfig,
        port,
        cert,
        key,
        redb,
        etcd,
        prefix,
    } = flags;
    let store: Arc<dyn Store> = match (redb, etcd) {
        (Some(file), _) => Arc::new(RedbStore::open(file, redb::Options::default())?),
        (None, etcd) => {
            let url = etcd.context("no store")?;
            let options = etcd::Options::new(url, prefix.unwrap_or_default());
            Arc::new(EtcdStore::connect(options).await?)
        },
    };
    let kubeconfig = Kubeconfig::read_from(kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let setup = Setup {
        client: Client::try_from(config)?,
        store,
        listener: TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, port))).await?,
        serving: KeyPairFiles {
            certificate: cert,
            key,
        },
        stop: CancellationToken::new(),
    };
    start(setup, Identity::new()).await?.await?;
    Ok(())
}
