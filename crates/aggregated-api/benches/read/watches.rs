//! Fan-out: many watchers on few connections, and one writer. Every watcher must see every write, once and
//! in order.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use bytes::Bytes;
use futures::{StreamExt as _, TryStreamExt as _, stream};
use http_body_util::{BodyExt as _, Full};
use hyper::body::Incoming;
use hyper::client::conn::http2::SendRequest;
use runtime_kit::Clock;
use tokio::task::JoinSet;
use tokio_util::sync::CancellationToken;

use crate::figures::Figures;
use crate::machine::{self, percentile};
use crate::objects::{self, WRITTEN};
use crate::subjects::{Data, Place, Running, Who};

/// Watchers of one connection: below the 1,000 streams that both servers allow.
const PER_CONNECTION: usize = 500;
/// Watches that are being opened at once.
const OPENING: usize = 64;
/// Deliveries per second while the rate is fixed.
const DELIVERIES: usize = 20_000;
/// How long writes come at the fixed rate.
const STEADY: Duration = Duration::from_secs(4);
/// Deliveries of the burst.
const BURST: usize = 100_000;
/// After which a watcher that gets nothing more has missed something.
const STALLED: Duration = Duration::from_secs(10);
const SETTLING: Duration = Duration::from_secs(2);

/// What a watcher has seen.
#[derive(Default)]
struct Seen {
    events: usize,
    /// Milliseconds from the sending of a write until its event, while the rate is fixed.
    lags: Vec<f64>,
    /// What went wrong.
    fault: Option<String>,
}

struct Watcher {
    body: Incoming,
    steady: usize,
    all: usize,
    clock: Arc<dyn Clock>,
    delivered: Arc<AtomicUsize>,
    stop: CancellationToken,
}

/// One round on one server, with a new process and without the other objects: memory that earlier watchers
/// or the start left free would be taken for theirs.
pub(crate) async fn round(
    place: &Place<'_>,
    who: Who,
    watchers: usize,
    round: u16,
    figures: &mut Figures,
) -> Result<()> {
    let running = place.start(who, Data::Watched).await?;
    let steady = watches_of(watchers, STEADY);
    let burst = (BURST / watchers).max(1);
    let idle = settled(place, &running).await?;
    let begin = place.clock.elapsed();
    let bodies = open(&running, watchers).await?;
    let opened = place.clock.elapsed().saturating_sub(begin);
    let delivered = Arc::new(AtomicUsize::new(0));
    let stop = CancellationToken::new();
    let mut tasks = JoinSet::new();
    for body in bodies {
        let watcher = Watcher {
            body,
            steady,
            all: steady + burst,
            clock: Arc::clone(&place.clock),
            delivered: Arc::clone(&delivered),
            stop: stop.clone(),
        };
        tasks.spawn(watcher.watch());
    }
    let watched = settled(place, &running).await?;
    running.forget_peak()?;

    let mut writer = Writer {
        sender: running.server.connect().await?,
        running: &running,
        place,
        prefix: format!("w{round}-{watchers}"),
        number: 0,
    };
    let used = running.processor_time()?;
    let begin = place.clock.elapsed();
    writer
        .write(steady, STEADY / u32::try_from(steady)?)
        .await?;
    let reached = wait(place, &delivered, watchers * steady).await;
    let took = place.clock.elapsed().saturating_sub(begin);
    let used = running.processor_time()?.saturating_sub(used);

    let begin = place.clock.elapsed();
    writer.write(burst, Duration::ZERO).await?;
    let burst_reached = wait(place, &delivered, watchers * (steady + burst)).await;
    let burst_took = place.clock.elapsed().saturating_sub(begin);
    let peak = running.peak()?;
    stop.cancel();

    let (mut lags, mut short, mut fault) = (Vec::new(), 0_usize, None);
    for seen in tasks.join_all().await {
        lags.extend(seen.lags);
        short += usize::from(seen.events < steady + burst);
        fault = fault.or(seen.fault);
    }
    lags.sort_by(f64::total_cmp);
    let of = |what: &str| format!("{watchers} watchers: {what}");
    let count = |n: usize| u32::try_from(n).map(f64::from);
    figures.add(of("opened in"), "s", who, opened.as_secs_f64());
    let memory = (watched - idle) * 1024.0 / count(watchers)?;
    figures.add(of("resident memory of a watcher"), "KiB", who, memory);
    let rate = count(watchers * steady)? / took.as_secs_f64();
    let cost = used.as_secs_f64() * 1e6 / count(watchers * steady)?;
    let at_rate = [
        (of("events delivered at a fixed rate"), "1/s", rate),
        (of("lag p50"), "ms", percentile(&lags, 50)),
        (of("lag p99"), "ms", percentile(&lags, 99)),
        (of("processor time of a delivery"), "us", cost),
    ];
    for (name, unit, value) in at_rate {
        match (&reached, &fault) {
            (Ok(()), _) => figures.add(name, unit, who, value),
            (Err(error), fault) => {
                figures.fail(name, unit, who, why(error, fault.as_deref(), short));
            },
        }
    }
    let name = of("events delivered in a burst");
    let rate = count(watchers * burst)? / burst_took.as_secs_f64();
    match (&burst_reached, &fault) {
        (Ok(()), None) => figures.add(name, "1/s", who, rate),
        (Err(error), fault) => figures.fail(name, "1/s", who, why(error, fault.as_deref(), short)),
        (Ok(()), Some(fault)) => figures.fail(name, "1/s", who, fault.clone()),
    }
    figures.add(of("peak resident memory"), "MiB", who, peak);
    Ok(())
}

fn watches_of(watchers: usize, time: Duration) -> usize {
    let seconds = usize::try_from(time.as_secs()).unwrap_or(1);
    (DELIVERIES * seconds / watchers).max(1)
}

fn why(error: &anyhow::Error, fault: Option<&str>, short: usize) -> String {
    let fault = fault.unwrap_or("they just waited");
    format!("{error}; {short} watchers missed events, the first: {fault}")
}

/// Resident memory once nothing happens any more, MiB.
async fn settled(place: &Place<'_>, running: &Running) -> Result<f64> {
    machine::wait_until_quiet(SETTLING, &place.clock).await?;
    running.process.check_running()?;
    running.resident()
}

/// Waits for a number of deliveries.
async fn wait(place: &Place<'_>, delivered: &AtomicUsize, goal: usize) -> Result<()> {
    let (mut last, mut since) = (0, place.clock.elapsed());
    loop {
        let now = delivered.load(Ordering::Relaxed);
        if now >= goal {
            return Ok(());
        }
        if now > last {
            (last, since) = (now, place.clock.elapsed());
        }
        ensure!(
            place.clock.elapsed() < since + STALLED,
            "{now} of {goal} events were delivered"
        );
        place.clock.sleep(Duration::from_millis(1)).await;
    }
}

/// Opens watches from the present state on.
async fn open(running: &Running, watchers: usize) -> Result<Vec<Incoming>> {
    let version = running.version().await?;
    let path = format!(
        "{}?watch=true&timeoutSeconds=600&resourceVersion={version}",
        running.collection()
    );
    let mut senders = Vec::new();
    for _ in 0..watchers.div_ceil(PER_CONNECTION) {
        senders.push(running.server.connect().await?);
    }
    stream::iter(senders.iter().cycle().take(watchers).cloned())
        .map(|sender| open_one(running, sender, &path))
        .buffer_unordered(OPENING)
        .try_collect()
        .await
}

async fn open_one(
    running: &Running,
    mut sender: SendRequest<Full<Bytes>>,
    path: &str,
) -> Result<Incoming> {
    sender.ready().await?;
    let answering = sender.send_request(running.request(path)?);
    let response = tokio::time::timeout(STALLED, answering)
        .await
        .context("a watch does not begin")??;
    if !response.status().is_success() {
        let status = response.status();
        let body = response.into_body().collect().await?.to_bytes();
        bail!("{status}: {}", String::from_utf8_lossy(&body));
    }
    Ok(response.into_body())
}

struct Writer<'a> {
    sender: SendRequest<Full<Bytes>>,
    running: &'a Running,
    place: &'a Place<'a>,
    prefix: String,
    number: usize,
}

impl Writer<'_> {
    /// Creates objects, one after the other, not sooner than `interval` after each other.
    async fn write(&mut self, count: usize, interval: Duration) -> Result<()> {
        let mut due = self.place.clock.elapsed();
        for _ in 0..count {
            let early = due.saturating_sub(self.place.clock.elapsed());
            if !early.is_zero() {
                self.place.clock.sleep(early).await;
            }
            due += interval;
            let at = self.place.clock.elapsed().as_nanos();
            let written = format!("{} {at}", self.number);
            let name = format!("{}-{:04}", self.prefix, self.number);
            let object = objects::object(&name, self.running.who.version(), &written);
            self.running.create(&mut self.sender, &object).await?;
            self.number += 1;
        }
        Ok(())
    }
}

impl Watcher {
    async fn watch(mut self) -> Seen {
        let mut seen = Seen::default();
        // The beginning of a line whose end has not come.
        let mut begun: Vec<u8> = Vec::new();
        while seen.events < self.all && seen.fault.is_none() {
            let frame = tokio::select! {
                () = self.stop.cancelled() => return seen,
                frame = self.body.frame() => frame,
            };
            let data = match frame {
                None => {
                    seen.fault = Some("the server ended the watch".to_owned());
                    return seen;
                },
                Some(Err(error)) => {
                    seen.fault = Some(format!("the watch broke: {error}"));
                    return seen;
                },
                Some(Ok(frame)) => frame.into_data().unwrap_or_default(),
            };
            let mut rest = &data[..];
            while let Some(end) = rest.iter().position(|&byte| byte == b'\n') {
                let (line, next) = rest.split_at(end + 1);
                rest = next;
                if begun.is_empty() {
                    self.take(line, &mut seen);
                } else {
                    begun.extend_from_slice(line);
                    self.take(&begun, &mut seen);
                    begun.clear();
                }
            }
            begun.extend_from_slice(rest);
        }
        // Why: a stream that is given up would make the server do something.
        self.stop.cancelled().await;
        seen
    }

    fn take(&self, line: &[u8], seen: &mut Seen) {
        let Some((number, at)) = written(line) else {
            let line = String::from_utf8_lossy(line);
            seen.fault = Some(line.chars().take(300).collect());
            return;
        };
        if number != seen.events {
            seen.fault = Some(format!("event {number} came instead of {}", seen.events));
            return;
        }
        if seen.events < self.steady {
            let lag = self.clock.elapsed().saturating_sub(at);
            seen.lags.push(lag.as_secs_f64() * 1000.0);
        }
        seen.events += 1;
        self.delivered.fetch_add(1, Ordering::Relaxed);
    }
}

/// Number and time of the write that an event tells.
fn written(line: &[u8]) -> Option<(usize, Duration)> {
    let mark = format!("\"{WRITTEN}\":\"");
    let at = line
        .windows(mark.len())
        .position(|window| window == mark.as_bytes())?;
    let text = line
        .get(at + mark.len()..)?
        .split(|&byte| byte == b'"')
        .next()?;
    let (number, at) = std::str::from_utf8(text).ok()?.split_once(' ')?;
    Some((number.parse().ok()?, Duration::from_nanos(at.parse().ok()?)))
}
