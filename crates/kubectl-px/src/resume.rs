//! `kubectl px resume`: creation goes on after many instances went away at once.

use std::process::ExitCode;

use crawl_api::names;
use crawl_api::pool::ProxyPool;
use kube::Api;
use kube::api::{Patch, PatchParams};
use runtime_kit::{Clock, SystemClock};
use serde_json::json;

use crate::failure::Failure;
use crate::fleet::{ask, proxies};
use crate::kube_flags::KubeFlags;
use crate::mark::{FIELD_MANAGER, exit, print};

/// `kubectl px resume`.
#[derive(Debug, clap::Args)]
pub(crate) struct Resume {
    /// Names of pools.
    #[arg(value_name = "POOL", required_unless_present = "proxy")]
    pools: Vec<String>,

    /// A proxy that belongs to no pool; may be repeated.
    #[arg(long, value_name = "NAME")]
    proxy: Vec<String>,

    #[command(flatten)]
    kube: KubeFlags,
}

impl Resume {
    /// Runs the command; the status is 1 for every failure, with the reason on standard error.
    pub(crate) async fn run(self) -> ExitCode {
        exit(self.resume().await)
    }

    async fn resume(&self) -> Result<(), Failure> {
        let session = self.kube.session().await.map_err(Failure::Configure)?;
        let now = SystemClock::new().now();
        let seen = json!({"metadata": {"annotations": {names::ANNOTATION_RESUME: now}}});
        let seen = Patch::Merge(seen);
        let params = PatchParams {
            field_manager: Some(FIELD_MANAGER.to_owned()),
            ..PatchParams::default()
        };
        let pools: Api<ProxyPool> = Api::namespaced(session.client.clone(), &session.namespace);
        for name in &self.pools {
            ask(&session, "patch", async || {
                pools.patch_metadata(name, &params, &seen).await
            })
            .await?;
            print(&format!("proxypool.{}/{name} resumed\n", names::GROUP))?;
        }
        for name in &self.proxy {
            let request = proxies(&session);
            ask(&session, "patch", async || {
                request.patch_metadata(name, &params, &seen).await
            })
            .await?;
            print(&format!("proxy.{}/{name} resumed\n", names::GROUP))?;
        }
        Ok(())
    }
}
