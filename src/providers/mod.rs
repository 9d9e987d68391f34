//! What the controllers need of a cloud or vendor, and what every provider shares.
//!
//! A provider is built from the providers file ([`config`]) with the calls that its account has
//! ([`Allowance`]), wrapped once for metrics and time limits ([`Metered`]), and looked up by name in
//! [`Providers`].

mod allowance;
pub mod config;
mod endpoint;
mod error;
mod gcp;
mod hetzner;
mod metered;
mod mock;
mod snapshot;

use std::collections::BTreeMap;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use crawl_api::names;
use crawl_api::proxy::Placement;
use jiff::Timestamp;
use runtime_kit::{Classify, Clock};

pub use self::allowance::{Allowance, Exhausted, Limits, Rate, on_behalf_of};
pub use self::error::Error;
pub use self::metered::{Metered, Requests};
pub use self::snapshot::Sighting;
use crate::health::Credentials;

/// A cloud or vendor account that runs instances.
///
/// Calls are made under a time limit and may be lost at any point: every one of them is safe to
/// repeat.
#[async_trait]
pub trait Provider: Send + Sync {
    /// Creates an instance by name. An instance of that name that carries the same cluster and
    /// Proxy tags is the answer to an earlier request, and success.
    ///
    /// # Errors
    /// Among others [`runtime_kit::Class::Conflict`]: the name is somebody else's.
    async fn create(&self, request: &InstanceRequest) -> Result<Created, Error>;

    /// Reads an instance by its [`Instance::id`]; `None` when it does not exist.
    async fn get(&self, id: &str) -> Result<Option<Instance>, Error>;

    /// Looks at an instance that is expected to run, as [`Self::get`], or in a listing of those that
    /// carry all these tags, begun no longer than that age ago.
    async fn glance(&self, id: &str, _tags: &Tags, _age: Duration) -> Result<Sighting, Error> {
        self.get(id).await.map(Sighting::Asked)
    }

    /// Asks for an instance to go away. One that does not exist is success; one that is on its way
    /// stays visible as [`InstanceState::Stopping`].
    async fn delete(&self, id: &str) -> Result<(), Error>;

    /// Reads the instances that carry all these tags, over every zone. A zone that cannot be read
    /// never hides the others: it is told beside them.
    async fn survey(&self, tags: &Tags) -> Result<Listing, Error>;

    /// Looks for the instances that carry all these tags.
    ///
    /// # Errors
    /// Nothing was found, and a zone could not be read: it may be there.
    async fn list(&self, tags: &Tags) -> Result<Vec<Instance>, Error> {
        self.survey(tags).await?.found()
    }

    /// Why an operation failed, if it did. Clouds report lack of quota or stock there.
    async fn operation_error(&self, operation: &str) -> Result<Option<Error>, Error>;

    /// What its account is known to be like, without asking it.
    fn account(&self) -> AccountState {
        AccountState::default()
    }

    /// The file that its credentials are read from, if it is one that may change.
    fn credentials_file(&self) -> Option<&Path> {
        None
    }

    /// The end of what an instance's machine wrote to its console, if the provider keeps that.
    async fn console(&self, _id: &str) -> Result<Option<String>, Error> {
        Ok(None)
    }

    /// For how long an instance that was accepted may be missing from reads. Until then "not
    /// found" proves nothing about an instance that was never seen.
    fn reads_lag(&self) -> Duration {
        Duration::ZERO
    }

    /// Whether the account answers and accepts the credentials: one read that changes nothing.
    async fn check(&self) -> Result<(), Error>;
}

/// What is known of an account without asking it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct AccountState {
    /// Type and account.
    pub account: String,
    /// How many calls may be made at once now; none: there is no limit.
    pub calls_left: Option<u32>,
    /// How long it asked to be left alone yet.
    pub resting: Duration,
    /// How often quota or stock was lacking.
    pub quota_errors: u64,
    /// When that was last, and what was said.
    pub last_quota_error: Option<(Timestamp, String)>,
}

/// Names and values attached to an instance: lower-case letters, digits and inner dashes, at most
/// 63 characters each, so that every cloud takes them.
pub type Tags = BTreeMap<String, String>;

/// A request for an instance, complete: what a provider adds depends on nothing else but its
/// configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct InstanceRequest {
    /// The name, see `proxy::naming`.
    pub name: String,
    /// Where and on what it runs; what is left out is the provider's default.
    pub placement: Placement,
    /// First-boot configuration.
    pub cloud_init: Option<String>,
    /// The TCP port on which its proxy listens.
    pub port: u16,
    /// Credentials its proxy asks for; none: it lets everybody through.
    pub auth: Option<Credentials>,
    /// What it can be found by.
    pub tags: Tags,
}

/// The answer to a create.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Created {
    /// The instance, usually still starting.
    pub instance: Instance,
    /// The provider's operation, when it has one.
    pub operation: Option<String>,
}

/// An instance at a provider.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Instance {
    /// The provider's identity of it, with its zone: [`Provider::get`] and [`Provider::delete`]
    /// need nothing else.
    pub id: String,
    /// Its name.
    pub name: String,
    /// What it can be found by.
    pub tags: Tags,
    /// When the provider accepted it.
    pub created: Timestamp,
    /// Where it is in its life.
    pub state: InstanceState,
    /// The address of its proxy, when it has one.
    pub ip: Option<String>,
    /// The port of its proxy, when the instance says it itself.
    pub port: Option<u16>,
    /// The provider's zone.
    pub zone: String,
}

impl Instance {
    /// The UID of the Proxy it belongs to.
    pub fn proxy_uid(&self) -> Option<&str> {
        self.tags.get(names::TAG_PROXY_UID).map(String::as_str)
    }

    /// Whether it was made for the Proxy of this request: it is the answer to an earlier one, and
    /// nobody else's.
    pub fn is_answer_to(&self, request: &InstanceRequest) -> bool {
        let same = |tag| self.tags.get(tag) == request.tags.get(tag);
        same(names::TAG_CLUSTER) && same(names::TAG_PROXY_UID)
    }
}

/// Where an instance is in its life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum InstanceState {
    /// Accepted and booting.
    Provisioning,
    /// Booted.
    Running,
    /// Being deleted or taken back.
    Stopping,
    /// Stopped or taken back; exists until it is deleted.
    Stopped,
}

/// The instances of an account, as far as they could be read.
#[derive(Debug, Default)]
pub struct Listing {
    /// What was found.
    pub instances: Vec<Instance>,
    /// The zones that could not be read.
    pub unread: Vec<Unread>,
}

/// A zone that could not be read.
#[derive(Debug)]
pub struct Unread {
    /// Which one.
    pub zone: String,
    /// Why.
    pub error: Error,
}

// === impl Listing ===

impl Listing {
    /// The instances.
    ///
    /// # Errors
    /// There are none, and a zone could not be read.
    pub fn found(self) -> Result<Vec<Instance>, Error> {
        let Self { instances, unread } = self;
        match unread.into_iter().next() {
            Some(Unread { error, .. }) if instances.is_empty() => Err(error),
            Some(_) | None => Ok(instances),
        }
    }
}

/// A provider of the providers file that cannot be built.
#[derive(Debug, thiserror::Error)]
#[error("provider {name} cannot be used")]
pub struct BuildError {
    /// Which one.
    pub name: String,
    /// Why, with the remedy.
    #[source]
    pub source: Error,
}

/// The providers of this installation by name.
#[derive(Clone, Default)]
pub struct Providers(Arc<BTreeMap<String, Arc<dyn Provider>>>);

// === impl Providers ===

impl Providers {
    /// Builds every provider of the providers file. Reads credentials, and calls nobody.
    ///
    /// # Errors
    /// The credentials of one are missing or malformed.
    pub async fn build(
        config: &config::Config,
        requests: &Requests,
        clock: &Arc<dyn Clock>,
    ) -> Result<Self, BuildError> {
        let allowances = allowances(config, clock);
        let mut providers = BTreeMap::new();
        for config::Entry { name, account, .. } in &config.providers {
            let failed = |source| BuildError {
                name: name.clone(),
                source,
            };
            let allowance = allowances
                .get(&account.limited_as())
                .cloned()
                .unwrap_or_else(|| Allowance::unlimited(Arc::clone(clock)));
            let inner: Arc<dyn Provider> = match account {
                config::Account::Mock(mock) => Arc::new(mock::Mock::new(mock, allowance.clone())),
                config::Account::Gcp(gcp) => {
                    let built = gcp::Gcp::new(name, gcp, Arc::clone(clock), allowance.clone());
                    Arc::new(built.await.map_err(failed)?)
                },
                config::Account::Hetzner(hetzner) => {
                    let (clock, allowance) = (Arc::clone(clock), allowance.clone());
                    let built = hetzner::Hetzner::new(name, hetzner, clock, allowance);
                    Arc::new(built.await.map_err(failed)?)
                },
            };
            let (requests, clock) = (requests.clone(), Arc::clone(clock));
            let metered = Metered::new(name.clone(), inner, requests, clock, allowance);
            let metered: Arc<dyn Provider> = Arc::new(metered);
            providers.insert(name.clone(), metered);
        }
        Ok(Self(Arc::new(providers)))
    }

    /// Asks every account whether it accepts its credentials, and logs those that do not. Why no
    /// error: one cloud that is down, or one key that was revoked, is no reason to let the proxies
    /// of the others go without an operator.
    pub async fn check(&self) {
        for (name, provider) in self.iter() {
            match provider.check().await {
                Ok(()) => tracing::info!(provider = name, "the account accepts its credentials"),
                Err(error) => {
                    let reason = error.reason();
                    let error = runtime_kit::chain(&error).to_string();
                    tracing::error!(provider = name, reason, error, "the account cannot be used");
                },
            }
        }
    }

    /// The provider of a name.
    pub fn get(&self, name: &str) -> Option<&Arc<dyn Provider>> {
        self.0.get(name)
    }

    /// Names and providers, in order.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &Arc<dyn Provider>)> {
        self.0
            .iter()
            .map(|(name, provider)| (name.as_str(), provider))
    }

    /// The names, in order.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// The accounts, each once, with the lowest limits that any of its providers has.
fn allowances(config: &config::Config, clock: &Arc<dyn Clock>) -> BTreeMap<String, Allowance> {
    let mut limits: BTreeMap<String, Limits> = BTreeMap::new();
    for entry in &config.providers {
        let own = entry.limits();
        limits
            .entry(entry.account.limited_as())
            .and_modify(|lowest| *lowest = lowest.lower(own))
            .or_insert(own);
    }
    let build = |(name, limits): (String, Limits)| {
        let allowance = Allowance::new(name.clone(), limits, Arc::clone(clock));
        (name, allowance)
    };
    limits.into_iter().map(build).collect()
}

impl FromIterator<(String, Arc<dyn Provider>)> for Providers {
    fn from_iter<I: IntoIterator<Item = (String, Arc<dyn Provider>)>>(providers: I) -> Self {
        Self(Arc::new(providers.into_iter().collect()))
    }
}
