//! The clients of an account, built from its credentials, and built again when those change.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use google_cloud_auth::credentials::service_account::AccessSpecifier;
use google_cloud_auth::credentials::{
    Builder as DefaultCredentials, Credentials, external_account, impersonated, service_account,
    user_account,
};
use google_cloud_compute::client::{Instances, ZoneOperations};
use google_cloud_gax::retry_policy::NeverRetry;
use parking_lot::Mutex;
use runtime_kit::Class;
use serde_json::Value;
use url::Url;

use crate::providers::Error;

/// What tokens are asked for.
const SCOPE: &str = "https://www.googleapis.com/auth/compute";

/// The clients of the services that are used.
#[derive(Clone, Debug)]
pub(super) struct Clients {
    pub(super) instances: Instances,
    pub(super) operations: ZoneOperations,
}

/// Where clients come from.
pub(super) struct Source {
    file: Option<PathBuf>,
    endpoint: Option<Url>,
    /// The clients, and the text of the file that they were built from.
    built: Mutex<Option<(String, Clients)>>,
    /// What the file was last found to say, to log a change once.
    name: String,
}

// === impl Source ===

impl Source {
    pub(super) fn new(name: &str, file: Option<&Path>, endpoint: Option<&Url>) -> Arc<Self> {
        Arc::new(Self {
            file: file.map(Path::to_owned),
            endpoint: endpoint.cloned(),
            built: Mutex::default(),
            name: name.into(),
        })
    }

    /// The clients for the credentials as they are now.
    ///
    /// Why the file is read for each call: a mounted Secret changes under the process, and a read
    /// costs nothing beside the call. The text is compared, since such files are swapped by
    /// renaming a folder.
    ///
    /// # Errors
    /// The credentials cannot be used: [`Class::Unauthenticated`], with the remedy.
    pub(super) async fn clients(&self) -> Result<Clients, Error> {
        let text = match &self.file {
            None => String::new(),
            Some(file) => match tokio::fs::read_to_string(file).await {
                Ok(text) => text,
                Err(error) => return self.unreadable(file, error),
            },
        };
        let earlier = self.built.lock().clone();
        if let Some((of, clients)) = &earlier
            && *of == text
        {
            return Ok(clients.clone());
        }
        let clients = self.build(&text).await?;
        if earlier.is_some() {
            tracing::info!(
                provider = self.name,
                "credentials changed, and are used from now on"
            );
        }
        *self.built.lock() = Some((text, clients.clone()));
        Ok(clients)
    }

    /// Why clients are kept: a Secret that is being replaced is no reason to stop.
    fn unreadable(&self, file: &Path, error: std::io::Error) -> Result<Clients, Error> {
        if let Some((_, clients)) = &*self.built.lock() {
            return Ok(clients.clone());
        }
        let message = format!(
            "cannot read the credentials file {}: mount the Secret there, or correct \
             gcp.credentialsFile",
            file.display()
        );
        Err(Error::new(Class::Unauthenticated, message).caused_by(error))
    }

    async fn build(&self, text: &str) -> Result<Clients, Error> {
        let credentials = match &self.file {
            None => DefaultCredentials::default()
                .with_scopes([SCOPE])
                .build()
                .map_err(|error| {
                    let message = "there are no application default credentials: set \
                        gcp.credentialsFile, or give the pod an identity (see \
                        docs/providers/gcp.md)";
                    Error::new(Class::Unauthenticated, message).caused_by(error)
                })?,
            Some(file) => from_file(file, text)?,
        };
        // Why no retries: what happens after a failure is the controllers' decision, and the
        // library would try for a minute.
        let instances = Instances::builder()
            .with_credentials(credentials.clone())
            .with_retry_policy(NeverRetry);
        let operations = ZoneOperations::builder()
            .with_credentials(credentials)
            .with_retry_policy(NeverRetry);
        let (instances, operations) = match &self.endpoint {
            None => (instances, operations),
            Some(endpoint) => (
                instances.with_endpoint(endpoint.as_str()),
                operations.with_endpoint(endpoint.as_str()),
            ),
        };
        let failed = |error| {
            let message = "a client of Compute Engine cannot be built: check gcp.endpoint";
            Error::new(Class::Invalid, message).caused_by(error)
        };
        Ok(Clients {
            instances: instances.build().await.map_err(failed)?,
            operations: operations.build().await.map_err(failed)?,
        })
    }
}

/// The kinds of credentials files that are understood.
const KINDS: &str =
    "service_account, external_account, impersonated_service_account, authorized_user";

fn from_file(file: &Path, text: &str) -> Result<Credentials, Error> {
    let refused = |what: &str| {
        let message = format!(
            "the credentials file {} {what}: store a key file or a workload identity \
             configuration there",
            file.display()
        );
        Error::new(Class::Unauthenticated, message)
    };
    let json: Value = serde_json::from_str(text)
        .map_err(|error| refused("is not JSON").caused_by(error.to_string()))?;
    let kind = json.get("type").and_then(Value::as_str).unwrap_or_default();
    let built = match kind {
        "service_account" => service_account::Builder::new(json)
            .with_access_specifier(AccessSpecifier::from_scopes([SCOPE]))
            .build(),
        "external_account" => external_account::Builder::new(json)
            .with_scopes([SCOPE])
            .build(),
        "impersonated_service_account" => impersonated::Builder::new(json)
            .with_scopes([SCOPE])
            .build(),
        "authorized_user" => user_account::Builder::new(json)
            .with_scopes([SCOPE])
            .build(),
        other => {
            let what = format!("is of the type {other:?}, which is not one of {KINDS}");
            return Err(refused(&what));
        },
    };
    built.map_err(|error| refused("cannot be used").caused_by(error))
}
