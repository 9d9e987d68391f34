//! Translates what Compute Engine says of instances.

use google_cloud_compute::model::instance::Status;
use google_cloud_compute::model::{Instance as Found, Operation};
use jiff::Timestamp;
use runtime_kit::Class;

use super::{Error, Instance, InstanceRequest, InstanceState};

const PREFIX: &str = "gce://";

/// The identity of an instance: the number, since a name may be used again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Id<'a> {
    pub(super) project: &'a str,
    pub(super) zone: &'a str,
    pub(super) number: &'a str,
}

// === impl Id ===

impl<'a> Id<'a> {
    pub(super) fn read(text: &'a str) -> Result<Self, Error> {
        let mut parts = text.strip_prefix(PREFIX).unwrap_or_default().split('/');
        match (parts.next(), parts.next(), parts.next(), parts.next()) {
            (Some(project), Some(zone), Some(number), None)
                if !project.is_empty() && !zone.is_empty() && number.parse::<u64>().is_ok() =>
            {
                Ok(Self {
                    project,
                    zone,
                    number,
                })
            },
            (_, _, _, _) => {
                let message =
                    format!("providerID {text:?} is not of the form {PREFIX}PROJECT/ZONE/NUMBER");
                Err(Error::new(Class::Invalid, message))
            },
        }
    }
}

fn write_id(project: &str, zone: &str, number: u64) -> String {
    format!("{PREFIX}{project}/{zone}/{number}")
}

/// An instance as it was read.
pub(super) fn translate(project: &str, zone: &str, found: Found) -> Result<Instance, Error> {
    let name = found.name.unwrap_or_default();
    let (Some(number), Some(created)) = (found.id, time(found.creation_timestamp.as_deref()))
    else {
        return Err(incomplete(&format!("instance {name:?} in {zone}")));
    };
    let access = found.network_interfaces.into_iter().next();
    let access = access.and_then(|interface| interface.access_configs.into_iter().next());
    Ok(Instance {
        id: write_id(project, zone, number),
        name,
        tags: found.labels.into_iter().collect(),
        created,
        state: state(found.status.as_ref()),
        ip: access.and_then(|access| access.nat_ip),
        port: None,
        zone: zone.into(),
    })
}

/// The instance that an operation will make, from what is known of it, and the operation's name.
pub(super) fn accepted(
    project: &str,
    zone: &str,
    request: &InstanceRequest,
    operation: &Operation,
) -> Result<(String, Instance), Error> {
    let started = operation.insert_time.as_deref();
    let (Some(operation), Some(number), Some(created)) =
        (operation.name.clone(), operation.target_id, time(started))
    else {
        return Err(incomplete(&format!(
            "the operation that makes {}",
            request.name
        )));
    };
    let instance = Instance {
        id: write_id(project, zone, number),
        name: request.name.clone(),
        tags: request.tags.clone(),
        created,
        state: InstanceState::Provisioning,
        ip: None,
        port: None,
        zone: zone.into(),
    };
    Ok((operation, instance))
}

/// Why one that is being repaired is running: it has run before, and one that is still being
/// provisioned at its age would be replaced at once. Whether it works is seen by its probes. States
/// to come are waited for, and the time limit ends the wait.
fn state(status: Option<&Status>) -> InstanceState {
    match status {
        Some(Status::Running | Status::Repairing) => InstanceState::Running,
        Some(
            Status::Stopping | Status::Suspending | Status::PendingStop | Status::Deprovisioning,
        ) => InstanceState::Stopping,
        Some(Status::Terminated | Status::Stopped | Status::Suspended) => InstanceState::Stopped,
        _ => InstanceState::Provisioning,
    }
}

fn time(text: Option<&str>) -> Option<Timestamp> {
    text?.parse().ok()
}

fn incomplete(what: &str) -> Error {
    let message = format!("Compute Engine said too little of {what}: number or time is missing");
    Error::new(Class::Transient, message)
}

#[cfg(test)]
mod tests {
    use google_cloud_compute::model::{AccessConfig, NetworkInterface};
    use runtime_kit::Classify;

    use super::*;

    #[test]
    fn an_id_carries_project_and_zone_and_anything_else_is_refused() {
        let id = Id::read("gce://p-1/europe-west1-b/4611686018427387904").unwrap();
        assert_eq!((id.project, id.zone), ("p-1", "europe-west1-b"));
        assert_eq!(id.number, "4611686018427387904");
        for text in [
            "",
            "4611686018427387904",
            "gce://europe-west1-b/17",
            "gce://p-1/europe-west1-b/name",
            "gce://p-1/europe-west1-b/17/x",
            "mock://p-1/europe-west1-b/17",
            "gce:///europe-west1-b/17",
        ] {
            assert_eq!(
                Id::read(text).unwrap_err().class(),
                Class::Invalid,
                "{text}"
            );
        }
    }

    #[test]
    fn the_address_is_the_external_one_and_times_have_any_offset() {
        let access = AccessConfig::new().set_nat_ip("198.51.100.7");
        let interface = NetworkInterface::new()
            .set_network_ip("10.0.0.2")
            .set_access_configs([access]);
        let found = Found::new()
            .set_id(17_u64)
            .set_name("a")
            .set_creation_timestamp("2026-11-06T00:49:37.123-08:00")
            .set_status(Status::Running)
            .set_labels([("k", "v")])
            .set_network_interfaces([interface]);
        let instance = translate("p", "z-1", found).unwrap();
        assert_eq!(instance.id, "gce://p/z-1/17");
        assert_eq!(instance.ip.as_deref(), Some("198.51.100.7"));
        assert_eq!(instance.created.to_string(), "2026-11-06T08:49:37.123Z");
        assert_eq!(instance.state, InstanceState::Running);
        assert_eq!(instance.tags["k"], "v");
    }

    #[test]
    fn an_instance_without_number_or_time_is_told_and_not_guessed() {
        let error = translate("p", "z-1", Found::new().set_name("a")).unwrap_err();
        assert_eq!(error.class(), Class::Transient);
    }

    /// The twelve states of the reference.
    #[test]
    fn every_state_has_a_meaning() {
        use InstanceState::{Provisioning, Running, Stopped, Stopping};
        for (name, wanted) in [
            ("PENDING", Provisioning),
            ("PROVISIONING", Provisioning),
            ("STAGING", Provisioning),
            ("REPAIRING", Running),
            ("RUNNING", Running),
            ("STOPPING", Stopping),
            ("SUSPENDING", Stopping),
            ("PENDING_STOP", Stopping),
            ("DEPROVISIONING", Stopping),
            ("TERMINATED", Stopped),
            ("STOPPED", Stopped),
            ("SUSPENDED", Stopped),
            ("A_STATE_TO_COME", Provisioning),
        ] {
            assert_eq!(state(Some(&Status::from(name))), wanted, "{name}");
        }
    }
}
