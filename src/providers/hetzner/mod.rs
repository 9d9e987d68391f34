//! The provider `hetzner`: servers of Hetzner Cloud, over its HTTP API.
//!
//! It never waits for an action: a create is over when Hetzner Cloud accepted it, and what became of
//! it is seen in the server, or in the action's error. A create can be repeated because names are
//! unique in a project.

mod account;
mod client;
mod error;
mod request;
mod server;
mod token;

use std::path::Path;
use std::sync::Arc;

use async_trait::async_trait;
use runtime_kit::{Class, Classify, Clock};

pub use self::account::HetznerAccount;
use self::client::Client;
use self::server::{Actions, CreatedServer, Id, OneAction, OneServer, Server, Servers};
use super::{
    Allowance, Created, Error, Instance, InstanceRequest, InstanceState, Listing, Provider, Tags,
};

/// Servers on a page of a list, the most that Hetzner Cloud gives.
const PAGE: u32 = 50;

/// An account at Hetzner Cloud.
pub(super) struct Hetzner {
    account: HetznerAccount,
    client: Client,
}

// === impl Hetzner ===

impl Hetzner {
    /// Reads the token, and calls nobody.
    ///
    /// # Errors
    /// The token cannot be used.
    pub(super) async fn new(
        name: &str,
        account: &HetznerAccount,
        clock: Arc<dyn Clock>,
        allowance: Allowance,
    ) -> Result<Self, Error> {
        Ok(Self {
            account: account.clone(),
            client: Client::new(name, account, clock, allowance).await?,
        })
    }

    /// The name is taken: by an earlier request of ours, or by somebody else.
    async fn taken(&self, request: &InstanceRequest, refusal: Error) -> Result<Created, Error> {
        let name = &request.name;
        let what = format!("look for server {name}");
        let query = [("name", name.clone())];
        let found: Servers = self.client.get(&what, "servers", &query).await?;
        let Some(found) = found.servers.into_iter().next() else {
            let message = format!("a server named {name} exists and cannot be seen yet");
            return Err(Error::new(Class::Transient, message).caused_by(refusal));
        };
        let instance = found.into_instance();
        if instance.is_answer_to(request) {
            return Ok(Created {
                instance,
                operation: None,
            });
        }
        let message = format!(
            "a server named {name} exists in {} and is not ours: delete or rename it",
            instance.zone
        );
        Err(Error::new(Class::Conflict, message).caused_by(refusal))
    }

    async fn read(&self, Id { location, number }: Id<'_>) -> Result<Option<Server>, Error> {
        let what = format!("read server {number} in {location}");
        let path = format!("servers/{number}");
        let found: Result<OneServer, Error> = self.client.get(&what, &path, &[]).await;
        match found {
            Ok(OneServer { server }) => Ok(Some(server)),
            Err(error) if error.class() == Class::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    /// Whether an action is at work on a server. Why asked: a server is created first, and then
    /// started by an action of its own; one that is off in between is not one that was stopped.
    async fn is_changing(&self, Id { location, number }: Id<'_>) -> Result<bool, Error> {
        let what = format!("read the actions of server {number} in {location}");
        let path = format!("servers/{number}/actions");
        let query = [("status", "running".to_owned())];
        let Actions { actions } = self.client.get(&what, &path, &query).await?;
        Ok(!actions.is_empty())
    }

    /// Reads every page of the servers that carry all these tags.
    async fn all(&self, tags: &Tags) -> Result<Vec<Server>, Error> {
        let selector = selector(tags);
        let mut found = Vec::new();
        let mut page = 1;
        loop {
            let mut query = vec![
                ("page", page.to_string()),
                ("per_page", PAGE.to_string()),
                ("sort", "id:asc".to_owned()),
            ];
            query.extend(selector.clone().map(|text| ("label_selector", text)));
            let list: Servers = self
                .client
                .get("list the servers", "servers", &query)
                .await?;
            let next = list.next_page();
            found.extend(list.servers);
            match next {
                None => return Ok(found),
                Some(next) if next > page => page = next,
                // Why not what was found so far: what a list lacks passes for gone.
                Some(next) => {
                    let message = format!(
                        "cannot list the servers: page {next} is said to follow page {page}"
                    );
                    return Err(Error::new(Class::Transient, message));
                },
            }
        }
    }
}

/// The selector of a list: all of its terms hold.
fn selector(tags: &Tags) -> Option<String> {
    let terms: Vec<_> = tags
        .iter()
        .map(|(key, value)| format!("{key}=={value}"))
        .collect();
    (!terms.is_empty()).then(|| terms.join(","))
}

#[async_trait]
impl Provider for Hetzner {
    async fn create(&self, request: &InstanceRequest) -> Result<Created, Error> {
        let body = request::build(&self.account, request)?;
        let location = &body.location;
        let what = format!("create server {} in {location}", body.name);
        let created = self.client.post(&what, "servers", &body);
        match created.await {
            Ok(CreatedServer { server, action }) => {
                let instance = server.into_instance();
                let operation = format!("{}/{}", instance.zone, action.id);
                Ok(Created {
                    instance,
                    operation: Some(operation),
                })
            },
            Err(error) if error.class() == Class::AlreadyExists => self.taken(request, error).await,
            Err(error) if error.class() == Class::NotFound => {
                let message = format!(
                    "cannot {what}: something that it names does not exist; check server type, \
                     image, SSH keys, networks and firewalls"
                );
                Err(Error::new(Class::Invalid, message).caused_by(error))
            },
            Err(error) if error.class() == Class::Quota => Err(error.exhausted_in(location)),
            Err(error) => Err(error),
        }
    }

    async fn get(&self, id: &str) -> Result<Option<Instance>, Error> {
        let id = Id::read(id)?;
        let Some(mut server) = self.read(id).await? else {
            return Ok(None);
        };
        if server.is_off() {
            if self.is_changing(id).await? {
                return Ok(Some(Instance {
                    state: InstanceState::Provisioning,
                    ..server.into_instance()
                }));
            }
            // Why again: the action may have ended between the two.
            let Some(again) = self.read(id).await? else {
                return Ok(None);
            };
            server = again;
        }
        Ok(Some(server.into_instance()))
    }

    async fn delete(&self, id: &str) -> Result<(), Error> {
        let Id { location, number } = Id::read(id)?;
        let what = format!("delete server {number} in {location}");
        match self
            .client
            .delete(&what, &format!("servers/{number}"))
            .await
        {
            Err(error) if error.class() != Class::NotFound => Err(error),
            Ok(()) | Err(_) => Ok(()),
        }
    }

    /// One list has the servers of every location, also of those that are configured no longer.
    async fn survey(&self, tags: &Tags) -> Result<Listing, Error> {
        let servers = self.all(tags).await?.into_iter();
        let instances = servers.map(Server::into_instance);
        // Why again: what is deleted follows from this list.
        let carries_all = |instance: &Instance| {
            let mut wanted = tags.iter();
            wanted.all(|(key, value)| instance.tags.get(key) == Some(value))
        };
        Ok(Listing {
            instances: instances.filter(carries_all).collect(),
            unread: Vec::new(),
        })
    }

    async fn operation_error(&self, operation: &str) -> Result<Option<Error>, Error> {
        let Some((location, number)) = server::split(operation) else {
            let message = format!("operation {operation:?} is not of the form LOCATION/NUMBER");
            return Err(Error::new(Class::Invalid, message));
        };
        let what = format!("read action {number}");
        let path = format!("actions/{number}");
        let found: Result<OneAction, Error> = self.client.get(&what, &path, &[]).await;
        match found {
            Ok(OneAction { action }) => Ok(error::of_action(action, location)),
            Err(error) if error.class() == Class::NotFound => Ok(None),
            Err(error) => Err(error),
        }
    }

    fn credentials_file(&self) -> Option<&Path> {
        Some(&self.account.token_file)
    }

    async fn check(&self) -> Result<(), Error> {
        let query = [("per_page", "1".to_owned())];
        let listed: Result<Servers, Error> =
            self.client.get("list the servers", "servers", &query).await;
        listed.map(|_| ())
    }
}
