//! Report: the holder says how a request through its proxy went. Nothing of the lease changes; that
//! traffic went through is shown by the proxy's view.

use std::sync::Arc;

use aggregated_api::http::status::ApiError;
use aggregated_api::registry::capability::{
    Companion, CreateSubresource, Reservation, SubresourceWrite,
};
use aggregated_api::registry::context::RequestCtx;
use aggregated_api::store::Revision;
use async_trait::async_trait;
use crawl_api::lease::ProxyLease;
use crawl_api::report::{LeaseReport, LeaseReportSpec, ReportResult};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::ResourceExt;

use super::LeaseRules;
use crate::allocator::Allocator;
use crate::metrics::Metrics;
use crate::status;

/// The rules of `proxyleases/report`.
pub struct ReportRules(pub Arc<LeaseRules>);

#[async_trait]
impl CreateSubresource<ProxyLease> for ReportRules {
    type Body = LeaseReport;
    const NAME: &'static str = "report";
    const KIND: &'static str = "LeaseReport";

    async fn plan(
        &self,
        ctx: &RequestCtx,
        parent: ProxyLease,
        body: &LeaseReport,
    ) -> Result<SubresourceWrite<ProxyLease, LeaseReport>, ApiError> {
        let Self(rules) = self;
        rules.check_holder(ctx, &parent, "report on").await?;
        rules.check_bound(&parent, "reported on")?;
        let answer = LeaseReport {
            metadata: ObjectMeta {
                name: Some(parent.name_any()),
                namespace: parent.namespace(),
                uid: parent.uid(),
                ..ObjectMeta::default()
            },
            ..body.clone()
        };
        let reported = Reported {
            allocator: Arc::clone(&rules.allocator),
            metrics: Arc::clone(&rules.metrics),
            lease_uid: status::key(&parent).uid,
            at: ctx.now,
            report: body.spec,
        };
        Ok(SubresourceWrite {
            parent: None,
            companion: Companion {
                reservation: Some(Box::new(reported)),
                ..Companion::default()
            },
            body: answer,
        })
    }
}

/// A report that is accepted unless the request is a dry run.
struct Reported {
    allocator: Arc<Allocator>,
    metrics: Arc<Metrics>,
    lease_uid: Arc<str>,
    at: Timestamp,
    report: LeaseReportSpec,
}

impl Reservation for Reported {
    fn committed(self: Box<Self>, _: Revision) {
        self.metrics.reported(self.report);
        match self.report.result {
            ReportResult::Ok => self.allocator.worked(&self.lease_uid, self.at),
            ReportResult::Error => {},
        }
    }
}
