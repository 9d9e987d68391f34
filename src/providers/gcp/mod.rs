//! The provider `gcp`: instances of Compute Engine, through the official client library.
//!
//! It never waits for an operation: a create is over when Compute Engine accepted it, and what
//! became of it is seen in the instance, or in the operation's error.

mod account;
mod clients;
mod error;
mod instance;
mod request;

use std::future::Future;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use futures::future::join_all;
use google_cloud_compute::model::Operation;
use google_cloud_compute::model::operation::Status as OperationStatus;
use google_cloud_gax::error::Error as ApiError;
use runtime_kit::{Class, Classify, Clock};

pub use self::account::GcpAccount;
use self::clients::{Clients, Source};
use self::instance::Id;
use self::request::Insert;
use super::{
    Allowance, Created, Error, Instance, InstanceRequest, InstanceState, Listing, Provider, Tags,
    Unread,
};

/// How long one request may take. Shorter than the limit of a whole call, so that one zone that
/// does not answer leaves time to tell what the others said.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);
/// How long an accepted instance may be missing from reads: an insert is carried out after it was
/// answered, and lists are not of this very moment.
const READS_LAG: Duration = Duration::from_secs(5);
/// How much of the end of a machine's serial console is read, in bytes: more than a boot writes.
const CONSOLE: i64 = 256 * 1024;
/// Instances on a page of a list, the most that Compute Engine gives.
const PAGE: u32 = 500;
/// How many earlier requests of the same content are skipped in one create.
const MAX_EARLIER: usize = 16;

/// An account at Compute Engine.
pub(super) struct Gcp {
    account: GcpAccount,
    source: Arc<Source>,
    clock: Arc<dyn Clock>,
    allowance: Allowance,
}

// === impl Gcp ===

impl Gcp {
    /// Reads the credentials, and calls nobody.
    ///
    /// # Errors
    /// The credentials cannot be used.
    pub(super) async fn new(
        name: &str,
        account: &GcpAccount,
        clock: Arc<dyn Clock>,
        allowance: Allowance,
    ) -> Result<Self, Error> {
        let file = account.credentials_file.as_deref();
        let source = Source::new(name, file, account.endpoint.as_ref());
        source.clients().await?;
        Ok(Self {
            account: account.clone(),
            source,
            clock,
            allowance,
        })
    }

    async fn request<T>(
        &self,
        what: &str,
        request: impl Future<Output = Result<T, ApiError>> + Send,
    ) -> Result<T, Error> {
        self.allowance.take()?;
        let result = tokio::select! {
            result = request => result,
            () = self.clock.sleep(REQUEST_TIMEOUT) => {
                let seconds = REQUEST_TIMEOUT.as_secs();
                let message = format!("cannot {what}: no answer within {seconds} s");
                return Err(Error::new(Class::Transient, message));
            },
        };
        result.map_err(|error| error::failed(what, error, self.clock.now()))
    }

    async fn insert(
        &self,
        clients: &Clients,
        insert: &Insert,
        id: String,
    ) -> Result<Operation, Error> {
        let name = insert.instance.name.as_deref().unwrap_or_default();
        let what = format!("create instance {name} in {}", insert.zone);
        let sent = clients
            .instances
            .insert()
            .set_project(&self.account.project)
            .set_zone(&insert.zone)
            .set_request_id(id)
            .set_body(insert.instance.clone())
            .send();
        let sent = Box::pin(self.request(&what, sent)).await;
        sent.map_err(|error| {
            if error.class() == Class::Quota {
                error.exhausted_in(&insert.zone)
            } else {
                error
            }
        })
    }

    /// Reads an instance by name or number.
    async fn read(&self, project: &str, zone: &str, key: &str) -> Result<Option<Instance>, Error> {
        let clients = self.source.clients().await?;
        let sent = clients
            .instances
            .get()
            .set_project(project)
            .set_zone(zone)
            .set_instance(key)
            .send();
        match self
            .request(&format!("read instance {key} in {zone}"), sent)
            .await
        {
            Ok(found) => instance::translate(project, zone, found).map(Some),
            Err(error) if error.class() == Class::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// The name is taken: by an earlier request of ours, or by somebody else.
    async fn taken(
        &self,
        insert: &Insert,
        request: &InstanceRequest,
        refusal: Error,
    ) -> Result<Created, Error> {
        let (name, zone) = (&request.name, &insert.zone);
        let Some(found) = self.read(&self.account.project, zone, name).await? else {
            let message =
                format!("an instance named {name} exists in {zone} and cannot be seen yet");
            return Err(Error::new(Class::Transient, message).caused_by(refusal));
        };
        if found.is_answer_to(request) {
            return Ok(Created {
                instance: found,
                operation: None,
            });
        }
        let message = format!(
            "an instance named {name} exists in zone {zone} and is not ours: delete or rename it"
        );
        Err(Error::new(Class::Conflict, message).caused_by(refusal))
    }

    async fn list_zone(&self, zone: &str, tags: &Tags, most: u32) -> Result<Vec<Instance>, Error> {
        let clients = self.source.clients().await?;
        let project = &self.account.project;
        let what = format!("list the instances in {zone}");
        let mut found = Vec::new();
        let mut page = None;
        loop {
            let sent = clients
                .instances
                .list()
                .set_project(project)
                .set_zone(zone)
                .set_max_results(most)
                .set_or_clear_filter(filter(tags))
                .set_or_clear_page_token(page.take())
                .send();
            let list = self.request(&what, sent).await?;
            for each in list.items {
                let each = instance::translate(project, zone, each)?;
                // Why again: what is deleted follows from this list.
                if tags
                    .iter()
                    .all(|(key, value)| each.tags.get(key) == Some(value))
                {
                    found.push(each);
                }
            }
            page = list.next_page_token.filter(|token| !token.is_empty());
            if page.is_none() || most < PAGE {
                return Ok(found);
            }
        }
    }
}

/// The filter of a list, in the notation of Compute Engine: conditions in parentheses all hold.
fn filter(tags: &Tags) -> Option<String> {
    let terms: Vec<_> = tags
        .iter()
        .map(|(key, value)| format!("(labels.{key} = \"{value}\")"))
        .collect();
    (!terms.is_empty()).then(|| terms.join(" "))
}

#[async_trait]
impl Provider for Gcp {
    async fn create(&self, request: &InstanceRequest) -> Result<Created, Error> {
        let insert = request::build(&self.account, request)?;
        let clients = self.source.clients().await?;
        let project = &self.account.project;
        let mut after = String::new();
        for _ in 0..MAX_EARLIER {
            let id = insert.request_id(&after)?;
            let operation = match self.insert(&clients, &insert, id).await {
                Ok(operation) => operation,
                Err(error) if error.class() == Class::AlreadyExists => {
                    return self.taken(&insert, request, error).await;
                },
                Err(error) => return Err(error),
            };
            let (name, accepted) = instance::accepted(project, &insert.zone, request, &operation)?;
            let tell = |instance| Created {
                instance,
                operation: Some(format!("{}/{name}", insert.zone)),
            };
            if operation.status != Some(OperationStatus::Done) {
                return Ok(tell(accepted));
            }
            // Why: Compute Engine answers a repeated id with the operation of the first request,
            // for an hour and more. One that is over may have failed, or its instance may be gone
            // since; then this request is a new one and needs an id of its own.
            let id = Id::read(&accepted.id)?;
            if let Some(found) = self.read(project, id.zone, id.number).await? {
                return Ok(tell(found));
            }
            after = name;
        }
        let message = format!(
            "{MAX_EARLIER} earlier requests for {} are over, and none left an instance: it is \
             tried again later",
            request.name
        );
        Err(Error::new(Class::Transient, message))
    }

    async fn get(&self, id: &str) -> Result<Option<Instance>, Error> {
        let Id {
            project,
            zone,
            number,
        } = Id::read(id)?;
        self.read(project, zone, number).await
    }

    async fn delete(&self, id: &str) -> Result<(), Error> {
        let Id {
            project,
            zone,
            number,
        } = Id::read(id)?;
        let clients = self.source.clients().await?;
        let sent = clients
            .instances
            .delete()
            .set_project(project)
            .set_zone(zone)
            .set_instance(number)
            .send();
        match self
            .request(&format!("delete instance {number} in {zone}"), sent)
            .await
        {
            Ok(_) => Ok(()),
            Err(error) if error.class() == Class::NotFound => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn survey(&self, tags: &Tags) -> Result<Listing, Error> {
        let zones = &self.account.zones;
        let reads = zones.iter().map(|zone| self.list_zone(zone, tags, PAGE));
        let mut listing = Listing::default();
        for (zone, result) in zones.iter().zip(join_all(reads).await) {
            match result {
                Ok(found) => listing.instances.extend(found),
                Err(error) => listing.unread.push(Unread {
                    zone: zone.clone(),
                    error,
                }),
            }
        }
        Ok(listing)
    }

    async fn operation_error(&self, operation: &str) -> Result<Option<Error>, Error> {
        let Some((zone, name)) = operation.split_once('/') else {
            let message = format!("operation {operation:?} is not of the form ZONE/NAME");
            return Err(Error::new(Class::Invalid, message));
        };
        let clients = self.source.clients().await?;
        let sent = clients
            .operations
            .get()
            .set_project(&self.account.project)
            .set_zone(zone)
            .set_operation(name)
            .send();
        match self
            .request(&format!("read operation {name} in {zone}"), sent)
            .await
        {
            Ok(operation) => Ok(error::of_operation(&operation, zone)),
            Err(error) if error.class() == Class::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn credentials_file(&self) -> Option<&Path> {
        self.account.credentials_file.as_deref()
    }

    async fn console(&self, id: &str) -> Result<Option<String>, Error> {
        let Id {
            project,
            zone,
            number,
        } = Id::read(id)?;
        let clients = self.source.clients().await?;
        let sent = clients
            .instances
            .get_serial_port_output()
            .set_project(project)
            .set_zone(zone)
            .set_instance(number)
            .set_start(-CONSOLE)
            .send();
        let what = format!("read the console of instance {number} in {zone}");
        match self.request(&what, sent).await {
            Ok(output) => Ok(output.contents),
            Err(error) if error.class() == Class::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn reads_lag(&self) -> Duration {
        READS_LAG
    }

    async fn check(&self) -> Result<(), Error> {
        let zone = self.account.zones.first().map(String::as_str);
        let nothing = Tags::new();
        self.list_zone(zone.unwrap_or_default(), &nothing, 1)
            .await?;
        Ok(())
    }
}
