//! The provider `mock`: instances of `crates/mock-cloud`, a process of its own whose instances are
//! real proxies on loopback addresses.

use async_trait::async_trait;
use mock_cloud::client::{self, Client};
use mock_cloud::model::{self, CreateInstance, ErrorBody, ErrorCode, ListInstances, ProxyAuth};
use runtime_kit::{Class, Classify};

use super::config::MockAccount;
use super::{
    Allowance, Created, Error, Instance, InstanceRequest, InstanceState, Listing, Provider, Tags,
};
use crate::health::Credentials;

/// An account at a mock cloud.
pub(super) struct Mock {
    client: Client,
    default_zone: String,
    allowance: Allowance,
}

// === impl Mock ===

impl Mock {
    pub(super) fn new(account: &MockAccount, allowance: Allowance) -> Self {
        let MockAccount { url, zone } = account;
        Self {
            client: Client::with_base(url.as_str()),
            default_zone: zone.clone(),
            allowance,
        }
    }
}

#[async_trait]
impl Provider for Mock {
    async fn create(&self, request: &InstanceRequest) -> Result<Created, Error> {
        let InstanceRequest {
            name,
            placement,
            cloud_init,
            port,
            auth,
            tags,
        } = request;
        let zone = placement.zone.as_ref().unwrap_or(&self.default_zone);
        let hardware = [
            ("machine-type", placement.machine_type.clone()),
            ("image", placement.image.clone()),
            ("network", placement.network.clone()),
            ("subnetwork", placement.subnetwork.clone()),
            ("spot", placement.spot.then(|| "true".to_owned())),
        ];
        let body = CreateInstance {
            name: name.clone(),
            labels: tags.clone(),
            metadata: hardware
                .into_iter()
                .filter_map(|(key, value)| Some((key.to_owned(), value?)))
                .collect(),
            cloud_init: cloud_init.clone(),
            port: *port,
            auth: auth
                .as_ref()
                .map(|Credentials { username, password }| ProxyAuth {
                    username: username.clone(),
                    password: password.clone(),
                }),
        };
        self.allowance.take()?;
        match self.client.create(zone, &body).await {
            Ok(model::Created {
                instance,
                operation,
            }) => Ok(Created {
                instance: translate(instance),
                operation: Some(operation),
            }),
            Err(error) if error.code() == Some(ErrorCode::AlreadyExists) => {
                self.allowance.take()?;
                let found = self.client.get(zone, name).await;
                let found = found.map_err(|error| failed("get", name, error))?;
                let found = translate(found);
                if found.is_answer_to(request) {
                    Ok(Created {
                        instance: found,
                        operation: None,
                    })
                } else {
                    let message = format!(
                        "an instance named {name} exists in zone {zone} and is not ours: delete or rename it"
                    );
                    Err(Error::new(Class::Conflict, message).caused_by(error))
                }
            },
            Err(error) => Err(exhausted(failed("create", name, error), zone)),
        }
    }

    async fn get(&self, id: &str) -> Result<Option<Instance>, Error> {
        let (zone, key) = split(id)?;
        self.allowance.take()?;
        match self.client.get(zone, key).await {
            Ok(instance) => Ok(Some(translate(instance))),
            Err(error) if error.code() == Some(ErrorCode::NotFound) => Ok(None),
            Err(error) => Err(failed("get", id, error)),
        }
    }

    async fn delete(&self, id: &str) -> Result<(), Error> {
        let (zone, key) = split(id)?;
        self.allowance.take()?;
        match self.client.delete(zone, key).await {
            Ok(_) => Ok(()),
            Err(error) if error.code() == Some(ErrorCode::NotFound) => Ok(()),
            Err(error) => Err(failed("delete", id, error)),
        }
    }

    async fn survey(&self, tags: &Tags) -> Result<Listing, Error> {
        let selection = ListInstances {
            zone: None,
            labels: tags.clone(),
        };
        self.allowance.take()?;
        let found = self.client.list(&selection).await;
        let found = found.map_err(|error| failed("list", "instances", error))?;
        Ok(Listing {
            instances: found.into_iter().map(translate).collect(),
            unread: Vec::new(),
        })
    }

    async fn operation_error(&self, operation: &str) -> Result<Option<Error>, Error> {
        self.allowance.take()?;
        match self.client.operation(operation).await {
            Ok(model::Operation { error, zone, .. }) => {
                Ok(error.map(|ErrorBody { code, message }| {
                    let message = format!("the provider could not create it: {message}");
                    exhausted(Error::new(class_of(code), message), &zone)
                }))
            },
            Err(error) if error.code() == Some(ErrorCode::NotFound) => Ok(None),
            Err(error) => Err(failed("read operation", operation, error)),
        }
    }

    async fn console(&self, id: &str) -> Result<Option<String>, Error> {
        let (zone, key) = split(id)?;
        match self.client.console(zone, key).await {
            Ok(model::Console { contents }) => Ok(Some(contents)),
            Err(error) if error.code() == Some(ErrorCode::NotFound) => Ok(None),
            Err(error) => Err(failed("read the console of", id, error)),
        }
    }

    /// Why the books: reading them is no call that a fault could be meant for.
    async fn check(&self) -> Result<(), Error> {
        self.allowance.take()?;
        let asked = self.client.calls().await;
        asked.map_err(|error| failed("read", "the books of the mock cloud", error))?;
        Ok(())
    }
}

const ID_PREFIX: &str = "mock://";

fn split(id: &str) -> Result<(&str, &str), Error> {
    id.strip_prefix(ID_PREFIX)
        .and_then(|rest| rest.split_once('/'))
        .ok_or_else(|| {
            let message = format!("providerID {id:?} is not of the form {ID_PREFIX}ZONE/ID");
            Error::new(Class::Invalid, message)
        })
}

fn translate(instance: model::Instance) -> Instance {
    let model::Instance {
        id,
        name,
        zone,
        labels,
        metadata: _,
        state,
        ip,
        port,
        created_at,
    } = instance;
    Instance {
        id: format!("{ID_PREFIX}{zone}/{id}"),
        name,
        tags: labels,
        created: created_at,
        state: match state {
            model::InstanceState::Provisioning => InstanceState::Provisioning,
            model::InstanceState::Running => InstanceState::Running,
            model::InstanceState::Stopping => InstanceState::Stopping,
            model::InstanceState::Terminated => InstanceState::Stopped,
        },
        ip: ip.map(|ip| ip.to_string()),
        port: Some(port),
        zone,
    }
}

fn failed(op: &str, what: &str, error: client::Error) -> Error {
    let (class, wait) = match &error {
        client::Error::Refused {
            code, retry_after, ..
        } => (class_of(*code), *retry_after),
        client::Error::Send { .. }
        | client::Error::Timeout { .. }
        | client::Error::Answer { .. }
        | client::Error::Request { .. } => (Class::Transient, None),
    };
    Error::new(class, format!("cannot {op} {what}"))
        .retry_after(wait)
        .caused_by(error)
}

/// Another placement may do when it is for lack of something.
fn exhausted(error: Error, zone: &str) -> Error {
    if error.class() == Class::Quota {
        error.exhausted_in(zone)
    } else {
        error
    }
}

fn class_of(code: ErrorCode) -> Class {
    match code {
        ErrorCode::NotFound => Class::NotFound,
        ErrorCode::AlreadyExists => Class::AlreadyExists,
        ErrorCode::QuotaExceeded | ErrorCode::ZoneResourcesExhausted => Class::Quota,
        ErrorCode::Invalid => Class::Invalid,
        ErrorCode::Forbidden => Class::Forbidden,
        ErrorCode::Unauthorized => Class::Unauthenticated,
        ErrorCode::RateLimited => Class::RateLimited,
        ErrorCode::BackendError | ErrorCode::Unknown => Class::Transient,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_id_carries_its_zone_and_anything_else_is_refused() {
        assert_eq!(split("mock://eu-1/17").unwrap(), ("eu-1", "17"));
        for id in ["17", "mock://17", "gce://eu-1/17"] {
            assert_eq!(split(id).unwrap_err().class(), Class::Invalid, "{id}");
        }
    }
}
