//! What happened between two moments: metrics of the operator, writes at kube-apiserver, processor time.

use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::Result;
use runtime_kit::Clock;
use tokio::task::JoinHandle;

use crate::process;
use crate::scrape::{Histogram, Scrape};
use crate::site::{Operator, Site};

/// How often sockets are counted.
const COUNT_INTERVAL: Duration = Duration::from_millis(200);

/// One moment.
struct Moment {
    at: Duration,
    operator: Scrape,
    object_writes: f64,
    operator_time: Duration,
    lease_time: Duration,
}

/// A span that has begun.
pub(crate) struct Open<'a> {
    site: &'a Site,
    operator: &'a Operator,
    before: Moment,
    sockets: Sockets,
}

/// A span that is over.
pub(crate) struct Span {
    before: Moment,
    after: Moment,
    /// The most sockets that the operator had open.
    pub(crate) sockets: f64,
    /// The most memory that the operator had, MiB.
    pub(crate) peak_mib: f64,
}

/// Counts the sockets of a process until it is dropped.
struct Sockets {
    peak: Arc<AtomicUsize>,
    counting: JoinHandle<()>,
}

/// The labels of a series.
pub(crate) type Labels = BTreeMap<String, String>;

async fn moment(site: &Site, operator: &Operator) -> Result<Moment> {
    Ok(Moment {
        object_writes: site.object_writes().await?,
        operator: operator.scrape().await?,
        operator_time: process::processor_time(operator.process.pid())?,
        lease_time: process::processor_time(site.lease_apiserver.pid())?,
        at: site.clock.elapsed(),
    })
}

// === impl Open ===

impl<'a> Open<'a> {
    /// Begins a span.
    pub(crate) async fn begin(site: &'a Site, operator: &'a Operator) -> Result<Self> {
        process::forget_peak(operator.process.pid())?;
        Ok(Self {
            site,
            operator,
            sockets: Sockets::count(operator.process.pid(), &site.clock),
            before: moment(site, operator).await?,
        })
    }

    /// Time since it began.
    pub(crate) fn elapsed(&self) -> Duration {
        self.site.clock.elapsed().saturating_sub(self.before.at)
    }

    /// Ends it.
    pub(crate) async fn end(self) -> Result<Span> {
        let Self {
            site,
            operator,
            before,
            sockets,
        } = self;
        site.check_running()?;
        Ok(Span {
            before,
            after: moment(site, operator).await?,
            sockets: sockets.peak(),
            peak_mib: process::peak_mib(operator.process.pid())?,
        })
    }
}

// === impl Span ===

impl Span {
    /// How long it was, in seconds.
    pub(crate) fn seconds(&self) -> f64 {
        self.after.at.saturating_sub(self.before.at).as_secs_f64()
    }

    /// By how much a counter of the operator grew, over all series that `wanted` accepts.
    pub(crate) fn grown(&self, name: &str, wanted: impl Fn(&Labels) -> bool) -> f64 {
        self.after.operator.sum(name, &wanted) - self.before.operator.sum(name, &wanted)
    }

    /// Passes of all controllers.
    pub(crate) fn passes(&self) -> f64 {
        self.grown("controller_runtime_reconcile_total", |_| true)
    }

    /// Mean time of a pass, milliseconds.
    pub(crate) fn pass_milliseconds(&self) -> f64 {
        let total = self.grown("controller_runtime_reconcile_time_seconds_sum", |_| true);
        total * 1000.0 / self.passes().max(1.0)
    }

    /// Requests of the operator to kube-apiserver that only read; a watch counts when it begins.
    pub(crate) fn reads(&self) -> f64 {
        self.grown("rest_client_requests_total", is_read)
    }

    /// Requests of the operator to kube-apiserver that write, those for its leadership included.
    pub(crate) fn writes(&self) -> f64 {
        self.grown("rest_client_requests_total", |labels| !is_read(labels))
    }

    /// Writes to Proxies, ProxyPools and events, by whomever.
    pub(crate) fn object_writes(&self) -> f64 {
        self.after.object_writes - self.before.object_writes
    }

    /// Calls to providers.
    pub(crate) fn provider_calls(&self) -> f64 {
        self.grown("proxy_operator_provider_requests_total", |_| true)
    }

    /// How much later than due probes began.
    pub(crate) fn lag(&self) -> Histogram {
        let name = "proxy_operator_probe_lag_seconds";
        let after = self.after.operator.histogram(name);
        after.since(&self.before.operator.histogram(name))
    }

    /// Processor time of the operator, seconds.
    pub(crate) fn operator_time(&self) -> f64 {
        let (after, before) = (self.after.operator_time, self.before.operator_time);
        after.saturating_sub(before).as_secs_f64()
    }

    /// Processor time of lease-apiserver, seconds.
    pub(crate) fn lease_time(&self) -> f64 {
        let (after, before) = (self.after.lease_time, self.before.lease_time);
        after.saturating_sub(before).as_secs_f64()
    }
}

fn is_read(labels: &Labels) -> bool {
    labels.get("method").is_some_and(|method| method == "GET")
}

// === impl Sockets ===

impl Sockets {
    fn count(pid: i32, clock: &Arc<dyn Clock>) -> Self {
        let peak = Arc::new(AtomicUsize::new(0));
        let (seen, clock) = (Arc::clone(&peak), Arc::clone(clock));
        let counting = tokio::spawn(async move {
            loop {
                seen.fetch_max(open_sockets(pid), Ordering::Relaxed);
                clock.sleep(COUNT_INTERVAL).await;
            }
        });
        Self { peak, counting }
    }

    fn peak(&self) -> f64 {
        let peak = self.peak.load(Ordering::Relaxed);
        f64::from(u32::try_from(peak).unwrap_or(u32::MAX))
    }
}

impl Drop for Sockets {
    fn drop(&mut self) {
        self.counting.abort();
    }
}

/// None when the process is gone, which others notice.
fn open_sockets(pid: i32) -> usize {
    let Ok(files) = std::fs::read_dir(format!("/proc/{pid}/fd")) else {
        return 0;
    };
    let links = files
        .flatten()
        .filter_map(|file| std::fs::read_link(file.path()).ok());
    links
        .filter(|link| link.to_string_lossy().starts_with("socket:"))
        .count()
}
