//! What Compute Engine refuses although the discovery document allows it: rules that its reference
//! states in prose (resource "instances", "Naming resources", "Labels", "Spot VMs").

use regex::Regex;
use serde_json::Value;

/// The longest value of one metadata entry, in bytes.
const MAX_METADATA_VALUE: usize = 262_144;
/// The most labels of a resource.
const MAX_LABELS: usize = 64;

/// Checks the body of an insert.
///
/// # Errors
/// In words, what Compute Engine would not take.
pub(super) fn check(zone: &str, body: &Value) -> Result<(), String> {
    let invalid = |field: &str, value: &str, why: &str| {
        Err(format!(
            "Invalid value for field 'resource.{field}': '{value}'. {why}"
        ))
    };
    let text = |at: &str| body.pointer(at).and_then(Value::as_str).unwrap_or_default();
    let items = |at: &str| {
        let array = body.pointer(at).and_then(Value::as_array);
        array.map(Vec::as_slice).unwrap_or_default()
    };
    let name = text("/name");
    if !matches("[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?", name) {
        return invalid(
            "name",
            name,
            "Must be a match of the naming rule of RFC 1035.",
        );
    }
    let machine = text("/machineType");
    let of_zone = format!(
        "(?:projects/[^/]+/)?zones/{}/machineTypes/[^/]+",
        regex::escape(zone)
    );
    if !matches(&of_zone, machine) {
        let why = "The URL is malformed: it has to name a machine type of the zone.";
        return invalid("machineType", machine, why);
    }
    let boot = items("/disks").first();
    let Some(boot) = boot.filter(|disk| disk.get("boot") == Some(&Value::Bool(true))) else {
        return invalid("disks", "", "At least one boot disk is required.");
    };
    let disk = |at: &str| boot.pointer(at).and_then(Value::as_str).unwrap_or_default();
    let image = disk("/initializeParams/sourceImage");
    if !matches(
        r"(?:https://[^/]+/compute/v1/)?projects/[^/]+/global/images/.+|global/images/.+",
        image,
    ) && disk("/source").is_empty()
    {
        return invalid(
            "disks[0].initializeParams.sourceImage",
            image,
            "The URL is malformed.",
        );
    }
    let kind = disk("/initializeParams/diskType");
    let of_zone = format!(
        "(?:projects/[^/]+/)?zones/{}/diskTypes/[^/]+",
        regex::escape(zone)
    );
    if !kind.is_empty() && !matches(&of_zone, kind) {
        return invalid(
            "disks[0].initializeParams.diskType",
            kind,
            "The URL is malformed.",
        );
    }
    if items("/networkInterfaces").is_empty() {
        return invalid(
            "networkInterfaces",
            "",
            "At least one network interface is required.",
        );
    }
    for interface in items("/networkInterfaces") {
        let stack = interface.get("stackType").and_then(Value::as_str);
        if interface.get("ipv6AccessConfigs").is_some() && stack.is_none_or(|s| s == "IPV4_ONLY") {
            let why = "IPv6 access configs need a stack type with IPv6.";
            return invalid("networkInterfaces[0].ipv6AccessConfigs", "", why);
        }
    }
    let labels = body.get("labels").and_then(Value::as_object);
    let labels = labels.into_iter().flatten();
    for (count, (key, value)) in labels.enumerate() {
        let value = value.as_str().unwrap_or_default();
        if count >= MAX_LABELS
            || !matches("[a-z][-_a-z0-9]{0,62}", key)
            || !matches("[-_a-z0-9]{0,63}", value)
        {
            return invalid(&format!("labels.{key}"), value, "The label is malformed.");
        }
    }
    for tag in items("/tags/items") {
        let tag = tag.as_str().unwrap_or_default();
        if !matches("[a-z](?:[-a-z0-9]{0,61}[a-z0-9])?", tag) {
            return invalid(
                "tags",
                tag,
                "Must be a match of the naming rule of RFC 1035.",
            );
        }
    }
    for item in items("/metadata/items") {
        let value = item
            .get("value")
            .and_then(Value::as_str)
            .unwrap_or_default();
        if value.len() > MAX_METADATA_VALUE {
            return invalid(
                "metadata",
                "",
                "A value must not be longer than 262144 bytes.",
            );
        }
    }
    let spot = text("/scheduling/provisioningModel") == "SPOT";
    let action = text("/scheduling/instanceTerminationAction");
    if !action.is_empty() && !spot {
        let why = "A termination action needs the provisioning model SPOT.";
        return invalid("scheduling.instanceTerminationAction", action, why);
    }
    if spot && body.pointer("/scheduling/automaticRestart") == Some(&Value::Bool(true)) {
        return invalid(
            "scheduling.automaticRestart",
            "true",
            "Spot VMs cannot restart.",
        );
    }
    Ok(())
}

fn matches(pattern: &str, text: &str) -> bool {
    Regex::new(&format!("^(?:{pattern})$")).is_ok_and(|whole| whole.is_match(text))
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn good() -> Value {
        json!({
            "name": "a-1",
            "machineType": "zones/z-1/machineTypes/e2-micro",
            "disks": [{"boot": true, "initializeParams": {
                "sourceImage": "projects/debian-cloud/global/images/family/debian-12",
                "diskType": "zones/z-1/diskTypes/pd-balanced",
            }}],
            "networkInterfaces": [{"network": "global/networks/default"}],
            "labels": {"crawl-cluster": "5c1d"},
        })
    }

    #[test]
    fn what_the_reference_asks_for_is_enough() {
        check("z-1", &good()).unwrap();
    }

    #[test]
    fn what_the_reference_forbids_is_refused() {
        for (at, value) in [
            ("name", json!("A")),
            ("machineType", json!("e2-micro")),
            ("machineType", json!("zones/z-2/machineTypes/e2-micro")),
            ("disks", json!([])),
            (
                "disks",
                json!([{"boot": true, "initializeParams": {"sourceImage": "debian-12"}}]),
            ),
            ("networkInterfaces", json!([])),
            ("networkInterfaces", json!([{"ipv6AccessConfigs": []}])),
            ("labels", json!({"Team": "x"})),
            ("labels", json!({"team": "a.b"})),
            ("tags", json!({"items": ["a_b"]})),
            ("scheduling", json!({"instanceTerminationAction": "STOP"})),
            (
                "scheduling",
                json!({"provisioningModel": "SPOT", "automaticRestart": true}),
            ),
            (
                "metadata",
                json!({"items": [{"key": "k", "value": "x".repeat(262_145)}]}),
            ),
        ] {
            let mut body = good();
            body[at] = value.clone();
            assert!(check("z-1", &body).is_err(), "{at}: {value}");
        }
    }
}
