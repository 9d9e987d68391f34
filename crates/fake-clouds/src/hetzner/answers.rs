//! How Hetzner Cloud words its answers: servers, actions, pages and errors.

use jiff::Timestamp;
use serde_json::{Value, json};

use super::checks::{LOCATIONS, SERVER_TYPES};
use super::state::{Action, Server, text};
use crate::faults::Refusal;

/// A refusal: HTTP status, code and message, and the header `Retry-After`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) status: u16,
    pub(super) code: String,
    pub(super) message: String,
    pub(super) field: Option<&'static str>,
    pub(super) retry_after: Option<String>,
}

// === impl Refused ===

impl Refused {
    pub(super) fn new(status: u16, code: &str, message: impl Into<String>) -> Self {
        Self {
            status,
            code: code.into(),
            message: message.into(),
            field: None,
            retry_after: None,
        }
    }

    /// A field is wrong.
    pub(super) fn invalid(field: &'static str, what: &str) -> Self {
        Self {
            field: Some(field),
            ..Self::new(
                422,
                "invalid_input",
                format!("invalid input in field '{field}': {what}"),
            )
        }
    }

    pub(super) fn not_found(kind: &str, id: u64) -> Self {
        Self::new(404, "not_found", format!("{kind} with ID '{id}' not found"))
    }

    pub(super) fn body(&self) -> Value {
        let Self {
            status: _,
            code,
            message,
            field,
            retry_after: _,
        } = self;
        let details = match field {
            Some(name) if code == "uniqueness_error" => json!({"fields": [{"name": name}]}),
            Some(name) => json!({"fields": [{"name": name, "messages": [message]}]}),
            None => json!({}),
        };
        json!({"error": {"code": code, "message": message, "details": details}})
    }
}

impl From<Refusal> for Refused {
    fn from(refusal: Refusal) -> Self {
        let Refusal {
            status,
            reason,
            message,
            retry_after,
        } = refusal;
        Self {
            retry_after,
            ..Self::new(status, &reason, message)
        }
    }
}

fn time(at: Timestamp) -> String {
    at.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// A number for what has a name, so that the same name has the same number always.
fn number(known: &[&str], name: &str) -> u64 {
    let index = known.iter().position(|each| *each == name);
    index
        .and_then(|index| u64::try_from(index).ok())
        .unwrap_or(98)
        + 1
}

fn location(name: &str) -> Value {
    json!({
        "id": number(&LOCATIONS, name),
        "name": name,
        "description": format!("Location {name}"),
        "country": "DE",
        "city": "Falkenstein",
        "latitude": 50.476_12,
        "longitude": 12.370_071,
        "network_zone": "eu-central",
    })
}

fn server_type(name: &str) -> Value {
    let amount = json!({"net": "0.0060", "gross": "0.0071"});
    json!({
        "id": number(&SERVER_TYPES, name),
        "name": name,
        "description": name.to_ascii_uppercase(),
        "category": "Shared vCPU",
        "cores": 2,
        "memory": 4,
        "disk": 40,
        "deprecated": false,
        "deprecation": null,
        "locations": [{"id": 1, "name": "fsn1", "deprecation": null}],
        "prices": [{
            "location": "fsn1",
            "price_hourly": amount,
            "price_monthly": amount,
            "included_traffic": 21_990_232_555_520_u64,
            "price_per_tb_traffic": amount,
        }],
        "storage_type": "local",
        "cpu_type": "shared",
        "architecture": "x86",
    })
}

fn image(name: &str) -> Value {
    json!({
        "id": 114_690_387,
        "type": "system",
        "status": "available",
        "name": name,
        "description": name,
        "image_size": null,
        "disk_size": 5,
        "created": "2023-06-13T06:00:02Z",
        "created_from": null,
        "bound_to": null,
        "os_flavor": "debian",
        "os_version": "12",
        "rapid_deploy": true,
        "protection": {"delete": false},
        "deprecated": null,
        "deleted": null,
        "labels": {},
        "architecture": "x86",
    })
}

pub(super) fn server(server: &Server, status: &str) -> Value {
    let Server {
        id,
        name,
        location: place,
        body,
        created,
        ipv4,
        ..
    } = server;
    let list = |field: &str| body.get(field).and_then(Value::as_array).cloned();
    let networks = list("networks").unwrap_or_default();
    let firewalls = list("firewalls").unwrap_or_default();
    let has_ipv6 = body.pointer("/public_net/enable_ipv6") != Some(&json!(false));
    let ipv4 = ipv4.as_ref().map(|ip| {
        let dns = format!("static.{ip}.clients.your-server.de");
        json!({"id": id + 1, "ip": ip, "blocked": false, "dns_ptr": dns})
    });
    let ipv6 = has_ipv6.then(|| {
        let ip = format!("2001:db8:{:x}:{:x}::/64", id >> 16 & 0xffff, id & 0xffff);
        json!({"id": id + 2, "ip": ip, "blocked": false, "dns_ptr": []})
    });
    json!({
        "id": id,
        "name": name,
        "status": status,
        "created": time(*created),
        "public_net": {
            "ipv4": ipv4,
            "ipv6": ipv6,
            "floating_ips": [],
            "firewalls": firewalls
                .iter()
                .map(|each| json!({"id": each["firewall"], "status": "applied"}))
                .collect::<Vec<_>>(),
        },
        "private_net": networks
            .iter()
            .map(|network| json!({
                "network": network, "ip": "10.0.0.2", "alias_ips": [],
                "mac_address": "86:00:ff:2a:7d:e1",
            }))
            .collect::<Vec<_>>(),
        "server_type": server_type(&text(body, "server_type")),
        "location": location(place),
        "image": image(&text(body, "image")),
        "iso": null,
        "rescue_enabled": false,
        "locked": false,
        "backup_window": null,
        "outgoing_traffic": 0,
        "ingoing_traffic": 0,
        "included_traffic": 21_990_232_555_520_u64,
        "protection": {"delete": false, "rebuild": false},
        "labels": body.get("labels").cloned().unwrap_or_else(|| json!({})),
        "volumes": [],
        "load_balancers": [],
        "primary_disk_size": 40,
        "placement_group": null,
    })
}

pub(super) fn action(action: &Action, done: bool) -> Value {
    let Action {
        id,
        command,
        server,
        started,
        ends: _,
        failure,
    } = action;
    let failure = failure.as_ref().filter(|_| done);
    json!({
        "id": id,
        "command": command,
        "status": match (done, failure) {
            (false, _) => "running",
            (true, None) => "success",
            (true, Some(_)) => "error",
        },
        "progress": if done { 100 } else { 0 },
        "started": time(*started),
        "finished": done.then(|| time(*started)),
        "resources": [{"id": server, "type": "server"}],
        "error": failure.map(|failure| json!({"code": failure.code, "message": failure.message})),
    })
}

/// A page of a list, as `Link` and `meta.pagination` number them: from 1.
#[derive(Clone, Copy, Debug)]
pub(super) struct Page {
    pub(super) number: usize,
    pub(super) size: usize,
}

// === impl Page ===

impl Page {
    /// The answer with this page of a list.
    pub(super) fn of(self, key: &str, all: Vec<Value>) -> Value {
        let Self { number, size } = self;
        let total = all.len();
        let last = total.div_ceil(size).max(1);
        let items: Vec<_> = all
            .into_iter()
            .skip(number.saturating_sub(1).saturating_mul(size))
            .take(size)
            .collect();
        json!({
            key: items,
            "meta": {"pagination": {
                "page": number,
                "per_page": size,
                "previous_page": (number > 1).then(|| number - 1),
                "next_page": (number < last).then_some(number + 1),
                "last_page": last,
                "total_entries": total,
            }},
        })
    }
}
