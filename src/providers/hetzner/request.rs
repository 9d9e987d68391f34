//! Builds the request for a server. Pure: nothing but the account and the request decide.

use runtime_kit::Class;
use serde::Serialize;

use super::account::HetznerAccount;
use crate::providers::{Error, InstanceRequest, Tags};

/// The longest user data, in bytes.
const MAX_USER_DATA: usize = 32 * 1024;

/// The body of a create.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
pub(super) struct CreateServer {
    pub(super) name: String,
    pub(super) location: String,
    server_type: String,
    image: String,
    labels: Tags,
    #[serde(skip_serializing_if = "Option::is_none")]
    user_data: Option<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    ssh_keys: Vec<String>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    networks: Vec<u64>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    firewalls: Vec<Firewall>,
    public_net: PublicNet,
    start_after_create: bool,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct Firewall {
    firewall: u64,
}

#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
struct PublicNet {
    enable_ipv4: bool,
    enable_ipv6: bool,
}

/// Builds the create of a request.
///
/// # Errors
/// The request asks for what Hetzner Cloud does not have, or names a location that is not
/// configured. Why refused: the providers file says where this installation may run servers.
pub(super) fn build(
    account: &HetznerAccount,
    request: &InstanceRequest,
) -> Result<CreateServer, Error> {
    let HetznerAccount {
        token_file: _,
        locations,
        endpoint: _,
        server_type,
        image,
        ssh_keys,
        networks,
        firewalls,
        ipv4,
        ipv6,
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
    let invalid = |message: String| Err(Error::new(Class::Invalid, message));
    let location = placement.zone.as_ref().or_else(|| locations.first());
    let Some(location) = location.filter(|location| locations.contains(location)) else {
        return invalid(format!(
            "location {:?} is not one of the provider's: use one of {}, or add it to \
             hetzner.locations",
            placement.zone.as_deref().unwrap_or_default(),
            locations.join(", ")
        ));
    };
    if placement.spot {
        return invalid("Hetzner Cloud has no spot servers: set placement.spot to false".into());
    }
    if let Some(subnetwork) = &placement.subnetwork {
        return invalid(format!(
            "Hetzner Cloud chooses the subnet itself, by the location: remove \
             placement.subnetwork {subnetwork:?}"
        ));
    }
    let networks = match placement.network.as_ref().map(|network| network.parse()) {
        None => networks.clone(),
        Some(Ok(network)) => vec![network],
        Some(Err(_)) => {
            return invalid(format!(
                "placement.network {:?} is no number: write the id of the network",
                placement.network.as_deref().unwrap_or_default()
            ));
        },
    };
    if let Some(length) = cloud_init.as_ref().map(String::len)
        && length > MAX_USER_DATA
    {
        return invalid(format!(
            "cloudInit has {length} bytes, and Hetzner Cloud takes {MAX_USER_DATA}: shorten it, or \
             let it fetch the rest"
        ));
    }
    let mut all_labels = labels.clone();
    all_labels.extend(tags.clone());
    let firewalls = firewalls.iter().map(|id| Firewall { firewall: *id });
    Ok(CreateServer {
        name: name.clone(),
        location: location.clone(),
        server_type: placement
            .machine_type
            .as_ref()
            .unwrap_or(server_type)
            .clone(),
        image: placement.image.as_ref().unwrap_or(image).clone(),
        labels: all_labels,
        user_data: cloud_init.clone(),
        ssh_keys: ssh_keys.clone(),
        networks,
        firewalls: firewalls.collect(),
        public_net: PublicNet {
            enable_ipv4: *ipv4,
            enable_ipv6: *ipv6,
        },
        start_after_create: true,
    })
}

#[cfg(test)]
#[path = "request_tests.rs"]
mod tests;
