//! Translates what Hetzner Cloud says of servers.

use std::net::Ipv6Addr;

use jiff::Timestamp;
use runtime_kit::Class;
use serde::Deserialize;

use crate::providers::{Error, Instance, InstanceState, Tags};

const PREFIX: &str = "hcloud://";

/// A server, as far as it matters here.
#[derive(Debug, Deserialize)]
pub(super) struct Server {
    pub(super) id: u64,
    name: String,
    status: String,
    created: Timestamp,
    labels: Tags,
    location: Location,
    public_net: PublicNet,
}

#[derive(Debug, Deserialize)]
struct Location {
    name: String,
}

#[derive(Debug, Deserialize)]
struct PublicNet {
    ipv4: Option<Address>,
    ipv6: Option<Address>,
}

#[derive(Debug, Deserialize)]
struct Address {
    ip: String,
}

/// What changes a server, and why it did not.
#[derive(Debug, Deserialize)]
pub(super) struct Action {
    pub(super) id: u64,
    pub(super) status: String,
    pub(super) error: Option<Reason>,
}

/// Why something failed, for programs and for people.
#[derive(Debug, Deserialize)]
pub(super) struct Reason {
    pub(super) code: String,
    pub(super) message: String,
}

/// The answer to a create. Why without the root password: nobody needs it, and what is not read
/// cannot be logged.
#[derive(Debug, Deserialize)]
pub(super) struct CreatedServer {
    pub(super) server: Server,
    pub(super) action: Action,
}

#[derive(Debug, Deserialize)]
pub(super) struct OneServer {
    pub(super) server: Server,
}

#[derive(Debug, Deserialize)]
pub(super) struct OneAction {
    pub(super) action: Action,
}

#[derive(Debug, Deserialize)]
pub(super) struct Actions {
    pub(super) actions: Vec<Action>,
}

/// A page of a list of servers.
#[derive(Debug, Deserialize)]
pub(super) struct Servers {
    pub(super) servers: Vec<Server>,
    meta: Meta,
}

#[derive(Debug, Deserialize)]
struct Meta {
    pagination: Pagination,
}

#[derive(Debug, Deserialize)]
struct Pagination {
    next_page: Option<u64>,
}

// === impl Servers ===

impl Servers {
    /// The number of the page behind this one.
    pub(super) fn next_page(&self) -> Option<u64> {
        self.meta.pagination.next_page
    }
}

/// The identity of a server: the number, since a name may be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id<'a> {
    pub(super) location: &'a str,
    pub(super) number: u64,
}

// === impl Id ===

impl<'a> Id<'a> {
    pub(super) fn read(text: &'a str) -> Result<Self, Error> {
        let id = text.strip_prefix(PREFIX).and_then(split);
        id.map(|(location, number)| Self { location, number })
            .ok_or_else(|| {
                let message =
                    format!("providerID {text:?} is not of the form {PREFIX}LOCATION/NUMBER");
                Error::new(Class::Invalid, message)
            })
    }
}

/// Takes a location and a number apart, as in `fsn1/17`.
pub(super) fn split(text: &str) -> Option<(&str, u64)> {
    let (location, number) = text.split_once('/')?;
    let number = number.parse().ok()?;
    (!location.is_empty()).then_some((location, number))
}

// === impl Server ===

impl Server {
    /// Whether it is switched off: stopped, or created and not started yet.
    pub(super) fn is_off(&self) -> bool {
        self.status == "off"
    }

    pub(super) fn into_instance(self) -> Instance {
        let Self {
            id,
            name,
            status,
            created,
            labels,
            location: Location { name: location },
            public_net,
        } = self;
        let state = state(&status);
        Instance {
            id: format!("{PREFIX}{location}/{id}"),
            name,
            tags: labels,
            created,
            state,
            // Why: addresses are given before the server boots, and nobody listens there yet.
            ip: address(public_net).filter(|_| state == InstanceState::Running),
            port: None,
            zone: location,
        }
    }
}

/// Why `migrating`, `rebuilding` and `unknown` are running: they say nothing of a server's age, and
/// an old one that is still being provisioned would be replaced at once. Whether it works is seen
/// by its probes. States to come are treated likewise.
fn state(status: &str) -> InstanceState {
    match status {
        "initializing" | "starting" => InstanceState::Provisioning,
        "stopping" | "deleting" => InstanceState::Stopping,
        "off" => InstanceState::Stopped,
        _ => InstanceState::Running,
    }
}

/// The address at which a server is reached. Of an IPv6 network, servers have the address that
/// ends in `::1`.
fn address(net: PublicNet) -> Option<String> {
    let PublicNet { ipv4, ipv6 } = net;
    let first = |network: Address| {
        let (network, _) = network.ip.split_once('/')?;
        let network: Ipv6Addr = network.parse().ok()?;
        Some(Ipv6Addr::from_bits(network.to_bits() | 1).to_string())
    };
    ipv4.map(|address| address.ip)
        .or_else(|| ipv6.and_then(first))
}

#[cfg(test)]
mod tests {
    use runtime_kit::Classify;
    use serde_json::{Value, json};

    use super::*;

    /// As in the documentation, without what is not read.
    fn server(change: &Value) -> Instance {
        let mut server = json!({
            "id": 42,
            "name": "my-resource",
            "status": "running",
            "created": "2016-01-30T23:55:00+00:00",
            "public_net": {
                "ipv4": {"id": 42, "ip": "1.2.3.4", "blocked": false, "dns_ptr": "s.example.com"},
                "ipv6": {"id": 42, "ip": "2001:db8::/64", "blocked": false, "dns_ptr": []},
                "floating_ips": [478],
            },
            "location": {"id": 42, "name": "fsn1"},
            "labels": {"environment": "prod", "just-a-key": ""},
        });
        let fields = change.as_object().unwrap().clone();
        server.as_object_mut().unwrap().extend(fields);
        serde_json::from_value::<Server>(server)
            .unwrap()
            .into_instance()
    }

    #[test]
    fn a_server_is_translated() {
        let instance = server(&json!({}));
        assert_eq!(instance.id, "hcloud://fsn1/42");
        assert_eq!(instance.name, "my-resource");
        assert_eq!(instance.zone, "fsn1");
        assert_eq!(instance.created.to_string(), "2016-01-30T23:55:00Z");
        assert_eq!(instance.state, InstanceState::Running);
        assert_eq!(instance.ip.as_deref(), Some("1.2.3.4"));
        assert_eq!(instance.tags["environment"], "prod");
    }

    #[test]
    fn a_server_without_ipv4_is_reached_at_the_first_address_of_its_network() {
        for (network, wanted) in [
            (
                json!({"ip": "2001:db8:17:2a::/64"}),
                Some("2001:db8:17:2a::1"),
            ),
            (json!({"ip": "nonsense"}), None),
            (json!(null), None),
        ] {
            let net = json!({"ipv4": null, "ipv6": network});
            let instance = server(&json!({"public_net": net}));
            assert_eq!(instance.ip.as_deref(), wanted, "{net}");
        }
    }

    /// The nine states of the documentation.
    #[test]
    fn every_state_has_a_meaning() {
        use InstanceState::{Provisioning, Running, Stopped, Stopping};
        for (status, wanted) in [
            ("initializing", Provisioning),
            ("starting", Provisioning),
            ("running", Running),
            ("migrating", Running),
            ("rebuilding", Running),
            ("unknown", Running),
            ("stopping", Stopping),
            ("deleting", Stopping),
            ("off", Stopped),
            ("a-state-to-come", Running),
        ] {
            let instance = server(&json!({"status": status}));
            assert_eq!(instance.state, wanted, "{status}");
            assert_eq!(instance.ip.is_some(), wanted == Running, "{status}");
        }
    }

    #[test]
    fn an_id_carries_the_location_and_anything_else_is_refused() {
        let id = Id::read("hcloud://fsn1/42").unwrap();
        assert_eq!((id.location, id.number), ("fsn1", 42));
        for text in [
            "",
            "42",
            "hcloud://42",
            "hcloud:///42",
            "hcloud://fsn1/name",
            "hcloud://fsn1/42/x",
            "gce://p/fsn1/42",
        ] {
            let error = Id::read(text).unwrap_err();
            assert_eq!(error.class(), Class::Invalid, "{text}");
        }
    }
}
