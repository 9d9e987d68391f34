//! The grants record: who holds a proxy, as it is stored.
//!
//! One per proxy, in an internal key. Every grant and every release compares the version of this
//! key and writes it in the transaction that writes the lease, so the limit, the drain and the
//! fencing tokens of a proxy are one mechanism. Only the allocator reads and writes it.

use std::sync::Arc;

use bytes::Bytes;
use serde::{Deserialize, Serialize};

/// Keys of grants records start with this; the uid of the proxy follows.
pub const PREFIX: &str = "/internal/grants/";

/// Key of a proxy's grants record.
pub fn key(proxy_uid: &str) -> Arc<str> {
    format!("{PREFIX}{proxy_uid}").into()
}

/// Who holds a proxy, and whether more may.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct GrantsRecord {
    /// Namespace of the proxy.
    pub namespace: Arc<str>,
    /// Name of the proxy.
    pub name: Arc<str>,
    /// Slots, as of the observed state.
    pub max_leases: usize,
    /// Whether grants are made. While false, the store holds no grant of a later version.
    pub accepting: bool,
    /// resourceVersion of the newest state of the `Proxy` that grants knew.
    #[serde(rename = "observedProxyRV")]
    pub observed_proxy_rv: u64,
    /// Leases that hold a slot.
    pub holders: Vec<Grant>,
    /// Token of the last grant; grows by one with each.
    pub last_token: i64,
}

/// One slot that is taken.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Grant {
    /// Uid of the lease.
    #[serde(rename = "leaseUID")]
    pub lease_uid: Arc<str>,
    /// Registrable domain the lease is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub target: Option<Arc<str>>,
    /// Namespace of the lease.
    pub namespace: Arc<str>,
    /// Name of the lease.
    pub name: Arc<str>,
}

// === impl GrantsRecord ===

impl GrantsRecord {
    /// Reads a stored record.
    ///
    /// # Errors
    /// The value is not a record that this version writes.
    pub fn decode(value: &[u8]) -> Result<Self, serde_json::Error> {
        serde_json::from_slice(value)
    }

    /// The record as it is stored.
    #[expect(
        clippy::expect_used,
        reason = "strings and numbers always have a JSON form"
    )]
    pub fn encode(&self) -> Bytes {
        serde_json::to_vec(self)
            .expect("a grants record has a JSON form")
            .into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_reads_back_as_it_was_written() {
        let record = GrantsRecord {
            namespace: "fleet".into(),
            name: "a".into(),
            max_leases: 5,
            accepting: true,
            observed_proxy_rv: 17,
            holders: vec![Grant {
                lease_uid: "u".into(),
                target: Some("example.com".into()),
                namespace: "crawlers".into(),
                name: "shop-0".into(),
            }],
            last_token: 9,
        };
        let bytes = record.encode();
        assert_eq!(GrantsRecord::decode(&bytes).unwrap(), record);
        let text = std::str::from_utf8(&bytes).unwrap();
        assert!(text.contains(r#""leaseUID":"u""#) && text.contains(r#""observedProxyRV":17"#));
    }
}
