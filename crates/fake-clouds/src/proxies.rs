//! Machines that are real proxies on loopback addresses: instances of a mock cloud.

use std::collections::BTreeMap;

use mock_cloud::client::Client;
use mock_cloud::model::{CreateInstance, Labels};

/// Where the proxies of machines run.
#[derive(Clone, Debug)]
pub struct Proxies {
    /// The mock cloud whose instances they are.
    pub machines: Client,
    /// The port they listen on.
    pub port: u16,
}

// === impl Proxies ===

impl Proxies {
    /// Starts the proxy of a machine and gives its address.
    ///
    /// # Errors
    /// In words, why there is none.
    pub(crate) async fn start(
        &self,
        zone: &str,
        name: &str,
        labels: Labels,
    ) -> Result<String, String> {
        let request = CreateInstance {
            name: name.into(),
            labels,
            metadata: BTreeMap::default(),
            cloud_init: None,
            port: self.port,
            auth: None,
        };
        let failed = |error: mock_cloud::client::Error| runtime_kit::chain(&error).to_string();
        self.machines.create(zone, &request).await.map_err(failed)?;
        let machine = self.machines.get(zone, name).await.map_err(failed)?;
        let address = machine.ip.map(|ip| ip.to_string());
        address.ok_or_else(|| "the proxy of the machine has no address".into())
    }

    /// Stops the proxy of a machine.
    pub(crate) async fn stop(&self, zone: &str, name: &str) {
        if let Err(error) = self.machines.delete(zone, name).await {
            let error = runtime_kit::chain(&error).to_string();
            tracing::warn!(error, name, "a proxy was not stopped");
        }
    }
}
