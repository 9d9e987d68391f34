//! A start with many objects after a kill, and what an object in memory costs.

use std::time::Duration;

use anyhow::{Context as _, Result, ensure};
use http_body_util::BodyExt as _;
use serde_json::Value;

use crate::figures::Figures;
use crate::machine;
use crate::subjects::{Data, PAGE, Place, Running, Who};

const SETTLING: Duration = Duration::from_secs(4);

/// The name of the figure that the design bounds, in seconds.
pub(crate) fn ready(objects: u32) -> String {
    format!("start with {objects} objects: ready after")
}

/// One round on one server.
pub(crate) async fn round(
    place: &Place<'_>,
    who: Who,
    objects: u32,
    figures: &mut Figures,
) -> Result<()> {
    let idle = place.start(who, Data::Empty).await?;
    let without = settled(place, &idle).await?;
    figures.add(
        "resident memory with no object".to_owned(),
        "MiB",
        who,
        without,
    );
    drop(idle);

    // A process that has the store is killed, and the next one started: what a crash costs.
    let killed = place.spawn(who, Data::Many).await?;
    killed.process.kill9()?;
    drop(killed);
    let running = place.start(who, Data::Many).await?;
    figures.add(ready(objects), "s", who, running.ready_after.as_secs_f64());
    let used = format!("start with {objects} objects: processor time until ready");
    figures.add(used, "s", who, running.ready_used.as_secs_f64());
    let page = format!("start with {objects} objects: first page of {PAGE} after");
    let answers = running.answers_after.as_secs_f64();
    figures.add(page, "s", who, answers);
    let watch = format!("start with {objects} objects: first watch after");
    figures.add(watch, "s", who, running.watches_after.as_secs_f64());
    check(&running, objects).await?;
    let with = settled(place, &running).await?;
    let name = format!("resident memory with {objects} objects");
    figures.add(name, "MiB", who, with);
    let each = (with - without) * 1024.0 * 1024.0 / f64::from(objects);
    figures.add("bytes per cached object".to_owned(), "B", who, each);

    running.forget_peak()?;
    let begin = place.clock.elapsed();
    list(&running, objects).await?;
    let took = place.clock.elapsed().saturating_sub(begin);
    figures.add(format!("list of {objects}"), "s", who, took.as_secs_f64());
    let name = format!("peak resident memory while {objects} objects are listed");
    figures.add(name, "MiB", who, running.peak()?);
    Ok(())
}

async fn settled(place: &Place<'_>, running: &Running) -> Result<f64> {
    machine::wait_until_quiet(SETTLING, &place.clock).await?;
    running.process.check_running()?;
    running.resident()
}

/// All objects are there, as the server counts them.
async fn check(running: &Running, objects: u32) -> Result<()> {
    let body = running
        .ask(&format!("{}?limit=1", running.collection()))
        .await?;
    let page: Value = serde_json::from_slice(&body)?;
    let rest = page["metadata"]["remainingItemCount"].as_u64();
    ensure!(
        rest == Some(u64::from(objects) - 1),
        "behind the first object there are {rest:?}"
    );
    Ok(())
}

/// Everything; how much comes is all that is looked at, since looking costs processor time.
async fn list(running: &Running, objects: u32) -> Result<()> {
    let mut sender = running.server.connect().await?;
    let request = running.request(&running.collection())?;
    let response = sender.send_request(request).await.context("no list")?;
    let status = response.status();
    let (mut body, mut bytes) = (response.into_body(), 0);
    while let Some(frame) = body.frame().await {
        bytes += frame?.into_data().unwrap_or_default().len();
    }
    ensure!(
        status.is_success() && bytes > usize::try_from(objects)? * 1000,
        "{status}: a list of {objects} has {bytes} bytes"
    );
    Ok(())
}
