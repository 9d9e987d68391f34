//! What holders say of the traffic that they send through a leased proxy: counts that ride along
//! with a renewal, and `LeaseReport`, the `report` subresource.

use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::lease::{LEASE_GROUP, LEASE_VERSION};

/// Requests through the leased proxy since the last renewal.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct Traffic {
    /// Requests whose answer came through the proxy, whatever its status code. One is enough to show
    /// that the proxy works.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub ok: i32,
    /// Requests without an answer: refused, cut off, timed out.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_000_000_000))]
    pub errors: i32,
    /// Bytes sent and received, at most 1 PiB.
    #[serde(default)]
    #[schemars(range(min = 0, max = 1_125_899_906_842_624_i64))]
    pub bytes: i64,
}

/// Body of `POST …/proxyleases/<name>/report`: how one request through the leased proxy went.
#[derive(Clone, Debug, PartialEq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaseReport {
    /// `leases.crawl.example.com/v1alpha1`.
    #[serde(default)]
    pub api_version: String,
    /// `LeaseReport`.
    #[serde(default)]
    pub kind: String,
    /// Name and namespace of the lease.
    #[serde(default)]
    pub metadata: ObjectMeta,
    /// What happened.
    pub spec: LeaseReportSpec,
}

/// How a request went.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Serialize, JsonSchema)]
#[serde(rename_all = "camelCase")]
pub struct LeaseReportSpec {
    /// OK: an answer came through the proxy. Error: none did.
    pub result: ReportResult,
    /// Status code of the answer, if there was one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[schemars(range(min = 100, max = 599))]
    pub http_status: Option<u16>,
}

/// Whether traffic went through the proxy.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Deserialize, Serialize, JsonSchema)]
pub enum ReportResult {
    /// An answer came through.
    #[serde(rename = "OK")]
    Ok,
    /// None did.
    Error,
}

// === impl LeaseReport ===

impl LeaseReport {
    /// A report to be sent.
    pub fn new(result: ReportResult, http_status: Option<u16>) -> Self {
        Self {
            api_version: format!("{LEASE_GROUP}/{LEASE_VERSION}"),
            kind: "LeaseReport".to_owned(),
            metadata: ObjectMeta::default(),
            spec: LeaseReportSpec {
                result,
                http_status,
            },
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_report_reads_as_the_design_spells_it() {
        let report = LeaseReport::new(ReportResult::Ok, Some(204));
        let value = serde_json::to_value(&report).unwrap();
        assert_eq!(value["spec"], json!({"result": "OK", "httpStatus": 204}));
        assert_eq!(value["kind"], "LeaseReport");
        let read: LeaseReport =
            serde_json::from_value(json!({"spec": {"result": "Error"}})).unwrap();
        assert_eq!(read.spec.result, ReportResult::Error);
    }
}
