//! Gets and lists in a closed loop: each client asks again when it was answered. All share one HTTP/2
//! connection, as the requests that kube-apiserver forwards do.

use std::time::Duration;

use anyhow::{Context as _, Result, bail, ensure};
use futures::future::try_join_all;
use http::HeaderValue;
use http::header::ACCEPT_ENCODING;
use http_body_util::{BodyExt as _, Full};
use hyper::client::conn::http2::SendRequest;
use serde_json::Value;

use crate::figures::Figures;
use crate::machine::percentile;
use crate::objects;
use crate::subjects::{PAGE, Place, Running, Who};

/// Objects that are read.
pub(crate) const OBJECTS: u32 = 10_000;
/// Longest wait for an answer.
const PATIENCE: Duration = Duration::from_mins(1);
/// Of an answer, as much as is looked at.
const HEAD: usize = 1024;

/// A kind of read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Read {
    Get,
    List,
    ListGzip,
    Paged,
}

/// What is measured: what, by how many clients.
const CELLS: [(Read, usize); 5] = [
    (Read::Get, 1),
    (Read::Get, 64),
    (Read::List, 1),
    (Read::ListGzip, 1),
    (Read::Paged, 1),
];

struct Client<'a> {
    running: &'a Running,
    sender: SendRequest<Full<bytes::Bytes>>,
    number: u32,
}

/// An answer: its length, and how it begins.
struct Answer {
    bytes: usize,
    head: Vec<u8>,
}

impl Read {
    fn name(self) -> String {
        match self {
            Self::Get => "get".to_owned(),
            Self::List => format!("list of {OBJECTS}"),
            Self::ListGzip => format!("list of {OBJECTS}, gzip"),
            Self::Paged => format!("list of {OBJECTS} in pages of {PAGE}"),
        }
    }
}

/// Checks that a server has what it is to be asked for.
pub(crate) async fn check(running: &Running, count: u32) -> Result<()> {
    let mut sender = running.server.connect().await?;
    let response = sender
        .send_request(running.request(&running.collection())?)
        .await
        .context("no list")?;
    let body = response.into_body().collect().await?.to_bytes();
    let list: Value = serde_json::from_slice(&body).context("a list that cannot be read")?;
    let items = list["items"].as_array().map_or(0, Vec::len);
    ensure!(
        items == usize::try_from(count)?,
        "{items} objects instead of {count}: {}",
        String::from_utf8_lossy(body.get(..200).unwrap_or(&body))
    );
    Ok(())
}

/// One round on one server.
pub(crate) async fn round(
    place: &Place<'_>,
    who: Who,
    running: &Running,
    time: Duration,
    figures: &mut Figures,
) -> Result<()> {
    running.forget_peak()?;
    for (read, clients) in CELLS {
        let sender = running.server.connect().await?;
        let looping = (0..clients).map(|client| {
            let client = Client {
                running,
                sender: sender.clone(),
                number: u32::try_from(client).unwrap_or_default(),
            };
            client.repeat(place, read, time / 4, time)
        });
        let before = running.processor_time()?;
        let begin = place.clock.elapsed();
        let times = try_join_all(looping)
            .await
            .with_context(|| format!("{} from {}", read.name(), who.name()))?;
        let took = place.clock.elapsed().saturating_sub(begin);
        let used = running.processor_time()?.saturating_sub(before);
        let all: usize = times.iter().map(|(all, _)| all).sum();
        let mut counted: Vec<f64> = times.into_iter().flat_map(|(_, counted)| counted).collect();
        counted.sort_by(f64::total_cmp);
        let count = |n: usize| u32::try_from(n).map(f64::from);
        let each = used.as_secs_f64() * 1000.0 / count(all)?;
        let name = read.name();
        if read == Read::Get {
            let by = if clients == 1 {
                "1 client"
            } else {
                "64 clients"
            };
            let rate = count(all)? / took.as_secs_f64();
            figures.add(format!("{name}, {by}"), "1/s", who, rate);
            figures.add(
                format!("p50 of a {name}, {by}"),
                "ms",
                who,
                percentile(&counted, 50),
            );
            figures.add(
                format!("p99 of a {name}, {by}"),
                "ms",
                who,
                percentile(&counted, 99),
            );
            let thousand = format!("processor time of 1,000 gets, {by}");
            figures.add(thousand, "ms", who, each * 1000.0);
        } else {
            figures.add(name.clone(), "ms", who, percentile(&counted, 50));
            figures.add(format!("processor time of a {name}"), "ms", who, each);
        }
    }
    let peak = format!("peak resident memory while {OBJECTS} objects are listed");
    figures.add(peak, "MiB", who, running.peak()?);
    Ok(())
}

impl Client<'_> {
    /// How many reads there were, and the milliseconds of those that began after the warm-up.
    async fn repeat(
        mut self,
        place: &Place<'_>,
        read: Read,
        warm_up: Duration,
        time: Duration,
    ) -> Result<(usize, Vec<f64>)> {
        let begin = place.clock.elapsed();
        let (mut all, mut counted) = (0, Vec::new());
        loop {
            let sent = place.clock.elapsed();
            let waited = sent.saturating_sub(begin);
            if waited >= warm_up + time && !counted.is_empty() {
                return Ok((all, counted));
            }
            tokio::time::timeout(PATIENCE, self.read(read))
                .await
                .context("no answer in time")??;
            all += 1;
            if waited >= warm_up {
                let took = place.clock.elapsed().saturating_sub(sent);
                counted.push(took.as_secs_f64() * 1000.0);
            }
        }
    }

    async fn read(&mut self, read: Read) -> Result<()> {
        let path = self.running.collection();
        match read {
            Read::Get => {
                // A walk that visits everything in no order.
                self.number = (self.number + 7919) % OBJECTS;
                let path = format!("{path}/{}", objects::name(self.number));
                ensure!(self.ask(&path, false).await?.bytes > 1000, "a short object");
            },
            Read::List => {
                let least = usize::try_from(OBJECTS)? * 1000;
                ensure!(self.ask(&path, false).await?.bytes > least, "a short list");
            },
            Read::ListGzip => drop(self.ask(&path, true).await?),
            Read::Paged => {
                let mut token = String::new();
                for page in 0..OBJECTS / PAGE {
                    let path = format!("{path}?limit={PAGE}{token}");
                    let answer = self.ask(&path, false).await?;
                    let next = answer.continue_token();
                    ensure!(
                        next.is_some() == (page + 1 < OBJECTS / PAGE),
                        "page {page} ends the list, or does not"
                    );
                    token = next
                        .map(|next| format!("&continue={next}"))
                        .unwrap_or_default();
                }
            },
        }
        Ok(())
    }

    async fn ask(&mut self, path: &str, gzip: bool) -> Result<Answer> {
        let mut request = self.running.request(path)?;
        if gzip {
            let headers = request.headers_mut();
            headers.insert(ACCEPT_ENCODING, HeaderValue::from_static("gzip"));
        }
        self.sender.ready().await?;
        let response = self.sender.send_request(request).await?;
        let (status, packed) = (
            response.status(),
            response.headers().contains_key("content-encoding"),
        );
        let mut answer = Answer {
            bytes: 0,
            head: Vec::new(),
        };
        let mut body = response.into_body();
        while let Some(frame) = body.frame().await {
            let Ok(data) = frame?.into_data() else {
                continue;
            };
            let room = HEAD.saturating_sub(answer.head.len()).min(data.len());
            answer
                .head
                .extend_from_slice(data.get(..room).unwrap_or_default());
            answer.bytes += data.len();
        }
        if !status.is_success() {
            bail!("{status}: {}", String::from_utf8_lossy(&answer.head));
        }
        ensure!(packed == gzip, "compressed, or not, against the wish");
        Ok(answer)
    }
}

impl Answer {
    /// Lists begin with their metadata, items come last.
    fn continue_token(&self) -> Option<String> {
        let head = String::from_utf8_lossy(&self.head);
        let metadata = head.split("\"items\"").next()?;
        let (_, token) = metadata.split_once("\"continue\":\"")?;
        Some(token.split('"').next()?.to_owned())
    }
}
