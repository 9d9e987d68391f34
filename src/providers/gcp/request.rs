//! Builds the insert request of a machine. Pure: nothing but the account and the request decide.

use data_encoding::HEXLOWER;
use google_cloud_compute::model::access_config::Type as AccessType;
use google_cloud_compute::model::metadata::Items;
use google_cloud_compute::model::network_interface::StackType;
use google_cloud_compute::model::scheduling::{
    InstanceTerminationAction, OnHostMaintenance, ProvisioningModel,
};
use google_cloud_compute::model::{
    AccessConfig, AttachedDisk, AttachedDiskInitializeParams, Instance, Metadata, NetworkInterface,
    Scheduling, ServiceAccount, Tags,
};
use runtime_kit::Class;
use sha2::{Digest, Sha256};

use super::account::{GcpAccount, TerminationAction};
use crate::providers::{Error, InstanceRequest};

/// An insert, complete.
#[derive(Clone, Debug, PartialEq)]
pub(super) struct Insert {
    pub(super) zone: String,
    pub(super) instance: Instance,
    /// What [`Insert::request_id`] is made of, beside the instance's own labels.
    labels: crate::providers::Tags,
    project: String,
}

/// Builds the insert of a request.
///
/// # Errors
/// The request names a zone that is not configured. Why refused: machines are looked for in the
/// configured zones only, so one elsewhere could never be found again.
pub(super) fn build(account: &GcpAccount, request: &InstanceRequest) -> Result<Insert, Error> {
    let GcpAccount {
        project,
        zones,
        credentials_file: _,
        endpoint: _,
        machine_type,
        image,
        disk,
        network,
        subnetwork,
        network_tags,
        ipv6,
        service_account,
        spot_termination_action,
        labels,
    } = account;
    // Why port and auth are not sent: the machine learns them from its cloud-init.
    let InstanceRequest {
        name,
        placement,
        cloud_init,
        port: _,
        auth: _,
        tags,
    } = request;
    let zone = placement.zone.as_ref().or_else(|| zones.first());
    let zone = zone.filter(|zone| zones.contains(zone)).ok_or_else(|| {
        let asked = placement.zone.as_deref().unwrap_or_default();
        let message = format!(
            "zone {asked:?} is not one of the provider's: use one of {}, or add it to gcp.zones",
            zones.join(", ")
        );
        Error::new(Class::Invalid, message)
    })?;
    let machine_type = placement.machine_type.as_ref().unwrap_or(machine_type);
    let image = placement.image.as_ref().unwrap_or(image);
    let network = placement.network.as_ref().unwrap_or(network);
    let subnetwork = placement.subnetwork.as_ref().or(subnetwork.as_ref());

    let mut all_labels = labels.clone();
    all_labels.extend(tags.clone());
    let boot = AttachedDiskInitializeParams::new()
        .set_source_image(path_or(image, || format!("global/images/{image}")))
        .set_disk_type(path_or(&disk.type_, || {
            format!("zones/{zone}/diskTypes/{}", disk.type_)
        }))
        .set_disk_size_gb(i64::from(disk.size_gigabytes));
    let mut interface = NetworkInterface::new()
        .set_network(path_or(network, || format!("global/networks/{network}")))
        .set_access_configs([AccessConfig::new()
            .set_type(AccessType::OneToOneNat)
            .set_name("External NAT")]);
    if let Some(subnetwork) = subnetwork {
        let region = zone
            .rsplit_once('-')
            .map_or(zone.as_str(), |(region, _)| region);
        interface = interface.set_subnetwork(path_or(subnetwork, || {
            format!("regions/{region}/subnetworks/{subnetwork}")
        }));
    }
    if *ipv6 {
        interface = interface
            .set_stack_type(StackType::Ipv4Ipv6)
            .set_ipv_6_access_configs([AccessConfig::new()
                .set_type(AccessType::DirectIpv6)
                .set_name("External IPv6")]);
    }
    let mut instance = Instance::new()
        .set_name(name)
        .set_machine_type(path_or(machine_type, || {
            format!("zones/{zone}/machineTypes/{machine_type}")
        }))
        .set_labels(&all_labels)
        .set_disks([AttachedDisk::new()
            .set_boot(true)
            .set_auto_delete(true)
            .set_initialize_params(boot)])
        .set_network_interfaces([interface]);
    if !network_tags.is_empty() {
        instance = instance.set_tags(Tags::new().set_items(network_tags));
    }
    if let Some(cloud_init) = cloud_init {
        let user_data = Items::new().set_key("user-data").set_value(cloud_init);
        instance = instance.set_metadata(Metadata::new().set_items([user_data]));
    }
    if let Some(account) = service_account {
        let identity = ServiceAccount::new()
            .set_email(&account.email)
            .set_scopes(&account.scopes);
        instance = instance.set_service_accounts([identity]);
    }
    if placement.spot {
        let action = match spot_termination_action {
            TerminationAction::Delete => InstanceTerminationAction::Delete,
            TerminationAction::Stop => InstanceTerminationAction::Stop,
        };
        let scheduling = Scheduling::new()
            .set_provisioning_model(ProvisioningModel::Spot)
            .set_instance_termination_action(action)
            .set_on_host_maintenance(OnHostMaintenance::Terminate)
            .set_automatic_restart(false);
        instance = instance.set_scheduling(scheduling);
    }
    Ok(Insert {
        zone: zone.clone(),
        instance,
        labels: all_labels,
        project: project.clone(),
    })
}

/// A path as it is; a bare name completed.
fn path_or(text: &str, complete: impl FnOnce() -> String) -> String {
    if text.contains('/') {
        text.to_owned()
    } else {
        complete()
    }
}

// === impl Insert ===

impl Insert {
    /// The id of the request: the same for a repeat, another one for another request, and another
    /// one after an earlier request whose operation is over (`after` is that operation's name, or
    /// empty). A UUID of version 8 (RFC 9562): its bits are from a SHA-256.
    pub(super) fn request_id(&self, after: &str) -> Result<String, Error> {
        let Self {
            zone,
            instance,
            labels,
            project,
        } = self;
        // Why without labels: the library keeps them unordered.
        let rest = instance.clone().set_labels::<_, String, String>([]);
        let rest = serde_json::to_string(&rest);
        let (Ok(rest), Ok(labels)) = (rest, serde_json::to_string(labels)) else {
            return Err(Error::new(Class::Invalid, "the request cannot be encoded"));
        };
        let mut hash = Sha256::new();
        for part in [project, zone, &rest, &labels, after] {
            hash.update(part);
            hash.update([0]);
        }
        let digest = hash.finalize();
        let mut bytes = [0_u8; 16];
        for (to, from) in bytes.iter_mut().zip(digest) {
            *to = from;
        }
        bytes[6] = (bytes[6] & 0x0f) | 0x80;
        bytes[8] = (bytes[8] & 0x3f) | 0x80;
        let text = HEXLOWER.encode(&bytes);
        let mut rest = text.as_str();
        let groups = [8, 4, 4, 4, 12].map(|length| {
            let (group, after) = rest.split_at(length);
            rest = after;
            group
        });
        Ok(groups.join("-"))
    }
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
