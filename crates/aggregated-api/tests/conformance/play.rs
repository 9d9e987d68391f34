//! Plays a case against one server in one way, and writes down what it answered.

use std::collections::HashMap;
use std::time::Duration;

use anyhow::{Context as _, anyhow};
use bytes::Bytes;
use http::HeaderMap;
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use serde_json::{Map, Value, json};

use crate::case::{self, Case, Compare, Route, Step};
use crate::client::{Reply, Stream};
use crate::faults::FAULT_HEADER;
use crate::gadgets;
use crate::pattern::{Variables, fill, fill_value, mismatches};
use crate::subjects::Subject;

/// Longest time a case may take.
const DEADLINE: Duration = Duration::from_secs(90);
/// Pause between two tries of a step that waits for a condition.
const RETRY: Duration = Duration::from_millis(250);

/// Characters of a query that need no encoding.
const QUERY: &AsciiSet = &NON_ALPHANUMERIC
    .remove(b'-')
    .remove(b'_')
    .remove(b'.')
    .remove(b'~');

/// What a server answered, step by step.
#[derive(Clone, Debug, Default)]
pub(crate) struct Transcript {
    /// Answers of the steps that are compared, with the number of the step.
    pub(crate) answers: Vec<(usize, Value)>,
    /// Where expectations were not met; empty when all were.
    pub(crate) failures: Vec<String>,
}

/// Plays `case`; a `fault` is asked of our server with every request.
pub(crate) async fn play(
    case: &Case,
    subject: &Subject,
    route: Route,
    fault: Option<&str>,
) -> Transcript {
    let mut player = Player {
        case,
        subject,
        route,
        fault,
        variables: Variables::new(),
        streams: HashMap::new(),
        transcript: Transcript::default(),
    };
    let played = tokio::time::timeout(DEADLINE, player.run()).await;
    match played {
        Ok(Ok(())) => {},
        Ok(Err(error)) => player.transcript.failures.push(format!("{error:#}")),
        Err(_) => {
            let failure = format!("not over after {DEADLINE:?}");
            player.transcript.failures.push(failure);
        },
    }
    player.transcript
}

struct Player<'a> {
    case: &'a Case,
    subject: &'a Subject,
    route: Route,
    fault: Option<&'a str>,
    variables: Variables,
    streams: HashMap<String, Stream>,
    transcript: Transcript,
}

impl Player<'_> {
    async fn run(&mut self) -> anyhow::Result<()> {
        let mut namespace = format!("{}-{}", self.case.id, self.route.name());
        if let Some(fault) = self.fault {
            namespace = format!("{namespace}-{fault}");
        }
        self.subject.make_namespace(&namespace).await?;
        let group = "/apis/wardle.example.com/v1alpha1";
        for (name, value) in [
            ("gv", group.to_owned()),
            (
                "flunders",
                format!("{group}/namespaces/{namespace}/flunders"),
            ),
            (
                "v1beta1Flunders",
                format!("/apis/wardle.example.com/v1beta1/namespaces/{namespace}/flunders"),
            ),
            ("fischers", format!("{group}/fischers")),
            (
                "gadgets",
                format!(
                    "/apis/{}/{}/namespaces/{namespace}/gadgets",
                    gadgets::GROUP,
                    gadgets::VERSION
                ),
            ),
            ("ns", namespace),
            // Longer than what is sent without compression.
            ("long", "0123456789".repeat(14_000)),
        ] {
            self.variables.insert(name.to_owned(), value);
        }
        for (index, step) in self.case.steps.iter().enumerate() {
            let number = index + 1;
            self.step(number, step)
                .await
                .with_context(|| format!("step {number}"))?;
        }
        Ok(())
    }

    async fn step(&mut self, number: usize, step: &Step) -> anyhow::Result<()> {
        for count in 1..=step.repeat.unwrap_or(1) {
            self.variables.insert("i".to_owned(), format!("{count:03}"));
            if let Some(request) = &step.request {
                self.exchange(number, step, request).await?;
            }
            if let Some(request) = &step.watch {
                self.open(number, step, request).await?;
            }
            if let Some(events) = &step.events {
                self.events(number, step, events).await?;
            }
        }
        if let Some(name) = &step.ended {
            let stream = self.stream(name)?;
            let line = tokio::time::timeout(Duration::from_secs(20), stream.line())
                .await
                .map_err(|_| anyhow!("the stream {name} does not end"))??;
            if let Some(line) = line {
                let line = String::from_utf8_lossy(&line).into_owned();
                self.fail(number, &[format!("the stream goes on: {line}")]);
            }
        }
        if let Some(run) = &step.kubectl {
            self.kubectl(number, step, run).await?;
        }
        if let Some(name) = &step.close {
            self.streams.remove(name);
        }
        if let Some(revision) = &step.compact {
            let revision = fill(revision, &self.variables).map_err(|e| anyhow!(e))?;
            self.subject.compact(revision.parse()?).await?;
        }
        Ok(())
    }

    fn stream(&mut self, name: &str) -> anyhow::Result<&mut Stream> {
        self.streams
            .get_mut(name)
            .ok_or_else(|| anyhow!("there is no open stream {name}"))
    }

    fn fail(&mut self, number: usize, mismatches: &[String]) {
        for mismatch in mismatches {
            self.transcript
                .failures
                .push(format!("step {number}: {mismatch}"));
        }
    }

    async fn exchange(
        &mut self,
        number: usize,
        step: &Step,
        request: &case::Request,
    ) -> anyhow::Result<()> {
        let built = self.build(request)?;
        let (connections, _) = self.subject.connections(self.route, &request.user)?;
        let expected = self.expectation(step)?;
        let within = Duration::from_secs(step.until.unwrap_or(0));
        let deadline = tokio::time::Instant::now() + within;
        loop {
            let reply = connections.send(&built).await?;
            let answer = answer(&reply, self.route);
            let missed = expected
                .as_ref()
                .map(|pattern| mismatches(pattern, Some(&answer), ""))
                .unwrap_or_default();
            if !missed.is_empty() && tokio::time::Instant::now() < deadline {
                tokio::time::sleep(RETRY).await;
                continue;
            }
            self.fail(number, &missed);
            return self.note(number, step, answer);
        }
    }

    async fn open(
        &mut self,
        number: usize,
        step: &Step,
        request: &case::Request,
    ) -> anyhow::Result<()> {
        let built = self.build(request)?;
        let (connections, _) = self.subject.connections(self.route, &request.user)?;
        let expected = self.expectation(step)?;
        let stream = connections.open(&built).await?;
        let answer = if stream.status == 200 {
            let head = json!({
                "status": 200,
                "headers": headers(&stream.headers, self.route),
                "length": stream.headers.contains_key("content-length"),
            });
            let name = fill(&request.name, &self.variables).map_err(|e| anyhow!(e))?;
            self.streams.insert(name, stream);
            head
        } else {
            answer(&stream.rest().await?, self.route)
        };
        if let Some(pattern) = &expected {
            let missed = mismatches(pattern, Some(&answer), "");
            self.fail(number, &missed);
        }
        self.note(number, step, answer)
    }

    async fn events(
        &mut self,
        number: usize,
        step: &Step,
        events: &case::Events,
    ) -> anyhow::Result<()> {
        let mut seen = Vec::new();
        let within = Duration::from_secs(events.within);
        let name = fill(&events.of, &self.variables).map_err(|e| anyhow!(e))?;
        let stream = self.stream(&name)?;
        let reading = async {
            while seen.len() < events.expect.len() {
                match stream.line().await? {
                    Some(line) => {
                        let event: Value = serde_json::from_slice(&line).with_context(|| {
                            format!("no event: {}", String::from_utf8_lossy(&line))
                        })?;
                        let expected = &events.expect[seen.len()];
                        if !is_unasked_bookmark(&event, expected) {
                            seen.push(event);
                        }
                    },
                    None => return Err(anyhow!("the stream {name} has ended")),
                }
            }
            Ok(())
        };
        let outcome = match tokio::time::timeout(within, reading).await {
            Ok(outcome) => outcome,
            Err(_) => Err(anyhow!("not all events in {within:?}")),
        };
        if events.sorted {
            seen.sort_by_key(|event| {
                let name = event.pointer("/object/metadata/name").map(Value::to_string);
                (event["type"] == "BOOKMARK", name)
            });
        }
        outcome.with_context(|| format!("seen: {}", Value::from(seen.clone())))?;
        let mut missed = Vec::new();
        for (index, (pattern, event)) in events.expect.iter().zip(&seen).enumerate() {
            let pattern = fill_value(pattern, &self.variables).map_err(|e| anyhow!(e))?;
            missed.extend(mismatches(
                &pattern,
                Some(event),
                &format!("/events/{index}"),
            ));
        }
        self.fail(number, &missed);
        self.note(number, step, json!({ "events": seen }))
    }

    async fn kubectl(
        &mut self,
        number: usize,
        step: &Step,
        run: &case::Kubectl,
    ) -> anyhow::Result<()> {
        let filled = |text: &str| fill(text, &self.variables).map_err(|e| anyhow!(e));
        let args = run
            .args
            .iter()
            .map(|arg| filled(arg))
            .collect::<anyhow::Result<Vec<_>>>()?;
        let input = filled(&run.input)?;
        let editor = run.editor.as_deref();
        let answer = self.subject.kubectl(&args, &input, editor).await?;
        if let Some(pattern) = self.expectation(step)? {
            self.fail(number, &mismatches(&pattern, Some(&answer), ""));
        }
        self.note(number, step, answer)
    }

    fn expectation(&self, step: &Step) -> anyhow::Result<Option<Value>> {
        step.expect
            .as_ref()
            .map(|pattern| fill_value(pattern, &self.variables))
            .transpose()
            .map_err(|e| anyhow!(e))
    }

    /// Takes variables from an answer, and keeps it for the comparison.
    fn note(&mut self, number: usize, step: &Step, mut answer: Value) -> anyhow::Result<()> {
        for (name, pointer) in &step.capture {
            let found = answer
                .pointer(pointer)
                .ok_or_else(|| anyhow!("no {pointer} to take {name} from: {answer}"))?;
            let text = found
                .as_str()
                .map_or_else(|| found.to_string(), ToOwned::to_owned);
            self.variables.insert(name.clone(), text);
        }
        if self.case.compare_of(step) == Compare::Oracle && step.repeat.is_none() {
            for pointer in step.ignore.keys() {
                leave_out(&mut answer, pointer);
            }
            self.transcript.answers.push((number, answer));
        }
        Ok(())
    }

    fn build(&self, request: &case::Request) -> anyhow::Result<http::Request<Bytes>> {
        let fill = |text: &str| fill(text, &self.variables).map_err(|e| anyhow!(e));
        let mut uri = fill(&request.path)?;
        let mut query = Vec::new();
        for (name, value) in &request.query {
            let value = fill(value)?;
            let encoded = utf8_percent_encode(&value, QUERY);
            query.push(format!("{}={encoded}", utf8_percent_encode(name, QUERY)));
        }
        if let Some(raw) = &request.raw_query {
            query.push(fill(raw)?);
        }
        if !query.is_empty() {
            uri = format!("{uri}?{}", query.join("&"));
        }
        let mut built = http::Request::builder()
            .method(request.method.as_str())
            .uri(uri)
            .header("host", "localhost");
        let (_, identity) = self.subject.connections(self.route, &request.user)?;
        for (name, value) in identity {
            built = built.header(name, value);
        }
        let mut typed = false;
        for (name, value) in &request.headers {
            typed |= name.eq_ignore_ascii_case("content-type");
            built = built.header(name, fill(value)?);
        }
        if let Some(fault) = self.fault {
            built = built.header(FAULT_HEADER, fault);
        }
        let body = match &request.body {
            None => String::new(),
            Some(Value::String(text)) => fill(text)?.repeat(request.body_times.unwrap_or(1)),
            Some(value) => {
                if !typed {
                    built = built.header("content-type", "application/json");
                }
                fill_value(value, &self.variables)
                    .map_err(|e| anyhow!(e))?
                    .to_string()
            },
        };
        Ok(built.body(Bytes::from(body))?)
    }
}

/// A bookmark may come at any time to who takes bookmarks; only the one that ends the initial events has
/// its place.
fn is_unasked_bookmark(event: &Value, expected: &Value) -> bool {
    event["type"] == "BOOKMARK"
        && expected["type"] != "BOOKMARK"
        && event.pointer("/object/metadata/annotations").is_none()
        && event
            .pointer("/object/rows/0/object/metadata/annotations")
            .is_none()
}

/// Takes away what a JSON pointer names, there or not.
fn leave_out(answer: &mut Value, pointer: &str) {
    let Some((parent, name)) = pointer.rsplit_once('/') else {
        return;
    };
    match answer.pointer_mut(parent) {
        Some(Value::Object(members)) => {
            members.remove(name);
        },
        Some(Value::Array(_)) => {
            if let Some(item) = answer.pointer_mut(pointer) {
                *item = Value::from("<not compared>");
            }
        },
        _ => {},
    }
}

fn headers(headers: &HeaderMap, route: Route) -> Value {
    let mut out = Map::new();
    for name in headers.keys() {
        let mut values: Vec<_> = headers
            .get_all(name)
            .iter()
            .map(|value| String::from_utf8_lossy(value.as_bytes()).into_owned())
            .collect();
        if route == Route::Aggregated {
            // Why: kube-apiserver adds its own of some headers.
            values.dedup();
        }
        let value = match values.as_slice() {
            [one] => json!(one),
            several => json!(several),
        };
        out.insert(name.as_str().to_owned(), value);
    }
    Value::Object(out)
}

/// An answer as a value that patterns are matched with.
fn answer(reply: &Reply, route: Route) -> Value {
    let headers = headers(&reply.headers, route);
    let media = headers["content-type"].as_str().unwrap_or_default();
    let text = String::from_utf8_lossy(&reply.body);
    let json = media.starts_with("application/json");
    let body = if json && !text.is_empty() {
        serde_json::from_slice(&reply.body).unwrap_or_else(|_| json!({ "unreadable": text }))
    } else if media.starts_with("application/yaml") {
        serde_saphyr::from_str(&text).unwrap_or_else(|_| json!({ "unreadable": text }))
    } else {
        json!(text)
    };
    let mut answer = json!({"status": reply.status, "headers": headers, "body": body});
    if json {
        answer["pretty"] = json!(text.trim_end().contains('\n'));
        answer["newline"] = json!(text.ends_with('\n'));
    }
    answer
}
