//! How Compute Engine words its answers: resources, and errors with the HTTP status they have.

use jiff::Timestamp;
use jiff::tz::{Offset, TimeZone};
use serde_json::{Map, Value, json};

use super::state::{Machine, Operation};
use crate::faults::Refusal;

const SERVICE: &str = "https://www.googleapis.com/compute/v1";

/// A refusal: HTTP status, word and message, and the header `Retry-After`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Refused {
    pub(super) status: u16,
    pub(super) reason: String,
    pub(super) message: String,
    pub(super) retry_after: Option<String>,
}

// === impl Refused ===

impl Refused {
    pub(super) fn new(status: u16, reason: &str, message: String) -> Self {
        Self {
            status,
            reason: reason.into(),
            message,
            retry_after: None,
        }
    }

    pub(super) fn invalid(message: String) -> Self {
        Self::new(400, "invalid", message)
    }

    pub(super) fn not_found(project: &str, zone: &str, kind: &str, key: &str) -> Self {
        let resource = format!("projects/{project}/zones/{zone}/{kind}/{key}");
        Self::new(
            404,
            "notFound",
            format!("The resource '{resource}' was not found"),
        )
    }

    pub(super) fn body(&self) -> Value {
        let Self {
            status,
            reason,
            message,
            retry_after: _,
        } = self;
        let mut error = json!({
            "code": status,
            "message": message,
            "errors": [{"message": message, "domain": "global", "reason": reason}],
        });
        if let (401, Some(error)) = (status, error.as_object_mut()) {
            error.insert("status".into(), json!("UNAUTHENTICATED"));
        }
        json!({"error": error})
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
            status,
            reason,
            message,
            retry_after,
        }
    }
}

/// Why with an offset: Compute Engine writes times of its own zone.
fn time(at: Timestamp) -> String {
    let zone = Offset::from_hours(-8).map_or(TimeZone::UTC, TimeZone::fixed);
    at.to_zoned(zone)
        .strftime("%Y-%m-%dT%H:%M:%S.%3f%:z")
        .to_string()
}

fn zone_url(project: &str, zone: &str) -> String {
    format!("{SERVICE}/projects/{project}/zones/{zone}")
}

pub(super) fn instance(machine: &Machine, status: &str) -> Value {
    let Machine {
        id,
        project,
        zone,
        name,
        body,
        created,
        address,
        ..
    } = machine;
    let mut fields = body.as_object().cloned().unwrap_or_default();
    let url = zone_url(project, zone);
    let more = json!({
        "kind": "compute#instance",
        "id": id.to_string(),
        "creationTimestamp": time(*created),
        "status": status,
        "zone": url,
        "selfLink": format!("{url}/instances/{name}"),
        "labelFingerprint": "42WmSpB8rSM=",
        "startRestricted": false,
        "deletionProtection": false,
        "disks": [{
            "kind": "compute#attachedDisk",
            "type": "PERSISTENT",
            "mode": "READ_WRITE",
            "source": format!("{url}/disks/{name}"),
            "deviceName": "persistent-disk-0",
            "index": 0,
            "boot": true,
            "autoDelete": body.pointer("/disks/0/autoDelete").cloned().unwrap_or(json!(false)),
        }],
    });
    fields.extend(more.as_object().cloned().unwrap_or_default());
    if let Some(machine_type) = body.get("machineType").and_then(Value::as_str) {
        let path = machine_type.trim_start_matches(&format!("projects/{project}/"));
        let full = format!("{SERVICE}/projects/{project}/{path}");
        fields.insert("machineType".into(), json!(full));
    }
    let running = matches!(status, "RUNNING" | "STOPPING");
    let interfaces = fields
        .get_mut("networkInterfaces")
        .and_then(Value::as_array_mut);
    for (index, interface) in interfaces.into_iter().flatten().enumerate() {
        let Some(interface) = interface.as_object_mut() else {
            continue;
        };
        interface.insert("kind".into(), json!("compute#networkInterface"));
        interface.insert("name".into(), json!(format!("nic{index}")));
        interface.insert(
            "networkIP".into(),
            json!(format!("10.128.0.{}", id % 250 + 2)),
        );
        if running {
            give_addresses(interface, address, *id);
        }
    }
    Value::Object(fields)
}

fn give_addresses(interface: &mut Map<String, Value>, address: &str, id: u64) {
    let each = |interface: &mut Map<String, Value>, key: &str, field: &str, value: &str| {
        let configs = interface.get_mut(key).and_then(Value::as_array_mut);
        for config in configs.into_iter().flatten() {
            if let Some(config) = config.as_object_mut() {
                config.insert(field.into(), json!(value));
            }
        }
    };
    each(interface, "accessConfigs", "natIP", address);
    let v6 = format!("2600:1900:4000:1::{:x}", id % 0xffff);
    each(interface, "ipv6AccessConfigs", "externalIpv6", &v6);
}

pub(super) fn operation(operation: &Operation, done: bool) -> Value {
    let Operation {
        id,
        name,
        project,
        zone,
        kind,
        target,
        target_name,
        started,
        failure,
        ..
    } = operation;
    let url = zone_url(project, zone);
    let mut answer = json!({
        "kind": "compute#operation",
        "id": id.to_string(),
        "name": name,
        "zone": url,
        "operationType": kind,
        "targetLink": format!("{url}/instances/{target_name}"),
        "targetId": target.to_string(),
        "user": "operator@project.iam.gserviceaccount.com",
        "status": if done { "DONE" } else { "RUNNING" },
        "progress": if done { 100 } else { 0 },
        "insertTime": time(*started),
        "startTime": time(*started),
        "selfLink": format!("{url}/operations/{name}"),
    });
    if let (true, Some(fields)) = (done, answer.as_object_mut()) {
        fields.insert("endTime".into(), json!(time(*started)));
        if let Some(failure) = failure {
            let errors = json!([{"code": failure.code, "message": failure.message}]);
            fields.insert("error".into(), json!({"errors": errors}));
            fields.insert("httpErrorStatusCode".into(), json!(failure.status));
            fields.insert("httpErrorMessage".into(), json!(failure.message));
        }
    }
    answer
}

/// From a position on; a negative one counts from the end.
pub(super) fn console(machine: &Machine, start: i64) -> Value {
    let Machine {
        project,
        zone,
        name,
        console,
        ..
    } = machine;
    let length = i64::try_from(console.len()).unwrap_or(i64::MAX);
    let from = if start < 0 { length + start } else { start };
    let from = usize::try_from(from).unwrap_or_default();
    let contents = String::from_utf8_lossy(console.as_bytes().get(from..).unwrap_or_default());
    json!({
        "kind": "compute#serialPortOutput",
        "contents": contents,
        "start": from.to_string(),
        "next": length.to_string(),
        "selfLink": format!("{}/instances/{name}/serialPort", zone_url(project, zone)),
    })
}

pub(super) fn list(project: &str, zone: &str, items: Vec<Value>, next: Option<u64>) -> Value {
    let mut answer = json!({
        "kind": "compute#instanceList",
        "id": format!("projects/{project}/zones/{zone}/instances"),
        "selfLink": format!("{}/instances", zone_url(project, zone)),
    });
    if let Some(fields) = answer.as_object_mut() {
        // Why: Compute Engine leaves an empty list out.
        if !items.is_empty() {
            fields.insert("items".into(), Value::Array(items));
        }
        if let Some(next) = next {
            fields.insert("nextPageToken".into(), json!(format!("after-{next}")));
        }
    }
    answer
}
