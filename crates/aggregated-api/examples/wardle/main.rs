//! Serves upstream's sample group on a cluster: a small aggregated API server on this library, whose
//! answers can be laid beside those of `k8s.io/sample-apiserver`.
//!
//! ```text
//! cargo run -p aggregated-api --example wardle -- --kubeconfig FILE --secure-port 8443 \
//!     --tls-cert-file server.crt --tls-private-key-file server.key
//! ```

mod wardle;

use std::net::{Ipv4Addr, SocketAddr};
use std::path::PathBuf;

use clap::Parser;
use kube::config::{KubeConfigOptions, Kubeconfig};
use kube::{Client, Config};
use runtime_kit::tls::{KeyPairFiles, install_default_provider};
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;
use tower::layer::util::Identity;
use wardle::server::{Setup, memory, start};

/// Flags under upstream's names.
#[derive(Parser)]
struct Args {
    /// How to reach the cluster: authentication, authorization and namespaces are its.
    #[arg(long)]
    kubeconfig: PathBuf,
    /// Where to listen on loopback.
    #[arg(long, default_value_t = 8443)]
    secure_port: u16,
    /// Certificate for `<service>.<namespace>.svc`.
    #[arg(long)]
    tls_cert_file: PathBuf,
    /// Its key.
    #[arg(long)]
    tls_private_key_file: PathBuf,
}

#[tokio::main]
async fn main() -> anyhow::Result<()> {
    install_default_provider();
    let args = Args::parse();
    let kubeconfig = Kubeconfig::read_from(&args.kubeconfig)?;
    let config = Config::from_custom_kubeconfig(kubeconfig, &KubeConfigOptions::default()).await?;
    let address = SocketAddr::new(Ipv4Addr::LOCALHOST.into(), args.secure_port);
    let stop = CancellationToken::new();
    let setup = Setup {
        client: Client::try_from(config)?,
        store: memory()?,
        listener: TcpListener::bind(address).await?,
        serving: KeyPairFiles {
            certificate: args.tls_cert_file,
            key: args.tls_private_key_file,
        },
        stop: stop.clone(),
    };
    let served = start(setup, Identity::new()).await?;
    tokio::signal::ctrl_c().await?;
    stop.cancel();
    served.await?;
    Ok(())
}
