//! Every API type of proxy-operator. Pure: no runtime, no client, no I/O.

#![expect(
    unreachable_pub,
    reason = "the KubeSchema derive repeats each public type within a function, out of reach"
)]
#![expect(
    clippy::duplicated_attributes,
    reason = "kube's printcolumn repeats its keys for each column; the lint takes them for one list"
)]

pub mod address;
pub mod conditions;
pub mod crds;
pub mod endpoint;
pub mod lease;
pub mod names;
pub mod operator_view;
pub mod pool;
pub mod proxy;
pub mod report;
pub mod scheme;
