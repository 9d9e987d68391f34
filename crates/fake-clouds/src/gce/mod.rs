//! A fake of Compute Engine, as far as the provider `gcp` uses it: instances and zone operations.
//!
//! | request | what it does |
//! |---|---|
//! | `/compute/v1/…` | the API, checked against its discovery document |
//! | `PUT /fake/script` | a [`Script`]: settings and faults from now on |
//! | `PUT /fake/keys` | JSON list: only tokens signed by a key of these ids are accepted |
//! | `POST /fake/preempt?project=P&zone=Z&instance=I` | takes a spot machine back |
//! | `PUT /fake/console?project=P&zone=Z&instance=I` | text: what a machine wrote to its console |
//! | `GET /fake/created` | everything that was ever created, and when it was gone |
//! | `GET /fake/calls` | how often each method was called |
//! | `GET /fake/violations` | requests and responses that are not as the document says |

mod answers;
mod checks;
mod filter;
mod state;

use std::sync::Arc;

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use http::{HeaderMap, Method as Verb};
use parking_lot::Mutex;
use runtime_kit::Clock;
use serde_json::{Value, json};

use self::answers::Refused;
use self::filter::Filter;
use self::state::State;
use crate::discovery::{Api, Call, Refusal};
use crate::faults::{self, Failure, Op, Script};
use crate::journal::Journal;
use crate::now::Now;
use crate::proxies::Proxies;
use crate::serve::{Answer, Fake, Outcome, Request};

/// Pages are never longer, whatever is asked for.
const MAX_RESULTS: u32 = 500;

/// A Compute Engine.
#[derive(Debug)]
pub struct Gce {
    api: Api,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    journal: Journal,
    proxies: Option<Proxies>,
}

// === impl Gce ===

impl Gce {
    /// An empty one.
    ///
    /// # Errors
    /// The extract of the discovery document cannot be read.
    pub fn new(
        script: Script,
        proxies: Option<Proxies>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, serde_json::Error> {
        Ok(Self {
            api: Api::read(include_str!("../../data/compute-v1.json"))?,
            clock,
            state: Mutex::new(State::new(script)),
            journal: Journal::default(),
            proxies,
        })
    }

    fn now(&self) -> Now {
        Now::of(&*self.clock)
    }

    /// Authentication, routing and the document, in the order of the real front end.
    fn check(&self, request: &Request) -> Result<Call<'_>, Refused> {
        let violated = |what: String| {
            let text = format!("request {} {}: {what}", request.verb, request.path);
            self.journal.violated(text);
            Refused::invalid(what)
        };
        let query = &request.query;
        let call = match self.api.route(request.verb.as_str(), &request.path, query) {
            Ok(call) => call,
            Err(Refusal::NoSuchMethod) => {
                violated("no such method".into());
                return Err(Refused::new(404, "notFound", "Not Found".into()));
            },
            Err(Refusal::Wrong(what)) => return Err(violated(what)),
        };
        if !self.is_authentic(&request.headers) {
            let message = "Request had invalid authentication credentials.";
            return Err(Refused::new(401, "authError", message.into()));
        }
        let body = request.body.as_ref();
        self.api
            .check_request(call.method, body)
            .map_err(violated)?;
        Ok(call)
    }

    /// Whether there is a bearer token, and one of a key that is accepted.
    fn is_authentic(&self, headers: &HeaderMap) -> bool {
        let token = headers
            .get(http::header::AUTHORIZATION)
            .and_then(|value| value.to_str().ok())
            .and_then(|value| value.strip_prefix("Bearer "));
        let Some(token) = token else {
            return false;
        };
        let key = || {
            let (head, _) = token.split_once('.')?;
            let head: Value = serde_json::from_slice(&URL_SAFE_NO_PAD.decode(head).ok()?).ok()?;
            head.get("kid")?.as_str().map(str::to_owned)
        };
        match &self.state.lock().keys {
            None => !token.is_empty(),
            Some(keys) => key().is_some_and(|key| keys.contains(&key)),
        }
    }

    async fn carry_out(
        &self,
        call: &Call<'_>,
        body: Option<Value>,
        failure: Option<Failure>,
    ) -> Result<Value, Refused> {
        let now = self.now();
        self.state.lock().settle(now);
        match op(call) {
            Op::Create => {
                self.insert(call, body.unwrap_or_default(), failure, now)
                    .await
            },
            Op::Delete => self.delete(call, now).await,
            Op::Get => self.get(call, now),
            Op::List => self.list(call, now),
            Op::Operation => self.operation(call, now),
            Op::Console => self.console(call, now),
        }
    }

    async fn insert(
        &self,
        call: &Call<'_>,
        body: Value,
        failure: Option<Failure>,
        now: Now,
    ) -> Result<Value, Refused> {
        let (project, zone) = (parameter(call, "project"), parameter(call, "zone"));
        let request_id = call.parameters.get("requestId").cloned();
        let nil = |id: &str| id.bytes().all(|b| b == b'0' || b == b'-');
        if let Some(id) = request_id.as_deref().filter(|id| !is_uuid(id) || nil(id)) {
            let message = format!("Invalid value for field 'requestId': '{id}'.");
            return Err(Refused::invalid(message));
        }
        checks::check(zone, &body).map_err(Refused::invalid)?;
        let name = body.get("name").and_then(Value::as_str).unwrap_or_default();
        let name = name.to_owned();
        let (operation, labels) = {
            let mut state = self.state.lock();
            let earlier = request_id
                .as_deref()
                .and_then(|id| state.requested(project, id));
            if let Some(earlier) = earlier {
                let done = earlier.ends <= now.elapsed;
                return Ok(answers::operation(earlier, done));
            }
            if state.named(project, zone, &name, now).is_some() {
                let resource = format!("projects/{project}/zones/{zone}/instances/{name}");
                let message = format!("The resource '{resource}' already exists");
                return Err(Refused::new(409, "alreadyExists", message));
            }
            let labels = body.get("labels").cloned().unwrap_or_default();
            let target = (project, zone, name.as_str());
            let operation = state.insert(target, body, request_id, failure, now);
            (operation, labels)
        };
        if let (Some(proxies), None) = (&self.proxies, &operation.failure) {
            let labels = serde_json::from_value(labels).unwrap_or_default();
            let failed = |what| Refused::new(503, "backendError", what);
            let address = proxies.start(zone, &name, labels).await.map_err(failed)?;
            self.state.lock().set_address(operation.target, address);
        }
        Ok(answers::operation(&operation, false))
    }

    async fn delete(&self, call: &Call<'_>, now: Now) -> Result<Value, Refused> {
        let operation = {
            let mut state = self.state.lock();
            let machine = found(&state, call, now)?;
            let id = machine.id;
            state.delete(id, now)
        };
        let zone = parameter(call, "zone");
        let operation = operation.ok_or_else(|| not_found(call))?;
        if let Some(proxies) = &self.proxies {
            proxies.stop(zone, &operation.target_name).await;
        }
        Ok(answers::operation(&operation, false))
    }

    fn get(&self, call: &Call<'_>, now: Now) -> Result<Value, Refused> {
        let state = self.state.lock();
        let (project, zone) = (parameter(call, "project"), parameter(call, "zone"));
        let shown = state.shown(project, zone, parameter(call, "instance"), now);
        let (machine, status) = shown.ok_or_else(|| not_found(call))?;
        Ok(answers::instance(machine, status))
    }

    fn list(&self, call: &Call<'_>, now: Now) -> Result<Value, Refused> {
        let asked = |name| call.parameters.get(name).map(String::as_str);
        let filter = asked("filter").unwrap_or_default();
        let filter = Filter::read(filter).ok_or_else(|| {
            Refused::invalid(format!("Invalid value for field 'filter': '{filter}'."))
        })?;
        // Why empty is the first page: the client library sends the parameter always.
        let after = match asked("pageToken").filter(|token| !token.is_empty()) {
            None => 0,
            Some(token) => token
                .strip_prefix("after-")
                .and_then(|id| id.parse().ok())
                .ok_or_else(|| Refused::invalid("Invalid value for field 'pageToken'".into()))?,
        };
        let (project, zone) = (parameter(call, "project"), parameter(call, "zone"));
        let state = self.state.lock();
        let wanted = asked("maxResults").and_then(|n| n.parse().ok());
        let size = wanted.unwrap_or(MAX_RESULTS).min(MAX_RESULTS);
        let size = size.min(state.setup.settings.page_size);
        let mut items = Vec::new();
        let mut last = after;
        let mut next = None;
        for (machine, status) in state.zone(project, zone, after, now) {
            let shown = answers::instance(machine, status);
            if !filter.holds(&shown) {
                continue;
            }
            if items.len() >= usize::try_from(size).unwrap_or(usize::MAX) {
                next = Some(last);
                break;
            }
            last = machine.id;
            items.push(shown);
        }
        Ok(answers::list(project, zone, items, next))
    }

    fn operation(&self, call: &Call<'_>, now: Now) -> Result<Value, Refused> {
        let (project, zone) = (parameter(call, "project"), parameter(call, "zone"));
        let key = parameter(call, "operation");
        let state = self.state.lock();
        let operation = state
            .operation(project, zone, key)
            .ok_or_else(|| Refused::not_found(project, zone, "operations", key))?;
        Ok(answers::operation(operation, operation.ends <= now.elapsed))
    }

    fn console(&self, call: &Call<'_>, now: Now) -> Result<Value, Refused> {
        let state = self.state.lock();
        let machine = found(&state, call, now)?;
        let asked = call.parameters.get("start");
        let start = asked.and_then(|start| start.parse().ok());
        Ok(answers::console(machine, start.unwrap_or_default()))
    }

    fn answer(&self, call: Option<&Call<'_>>, result: Result<Value, Refused>) -> Answer {
        match result {
            Ok(body) => {
                let checked = call.map(|call| self.api.check_response(call.method, &body));
                if let Some(Err(what)) = checked {
                    self.journal.violated(format!("response: {what}"));
                }
                Answer::json(200, &body)
            },
            Err(refused) => {
                let answer = Answer::json(refused.status, &refused.body());
                match refused.retry_after {
                    Some(after) => answer.with("retry-after", after),
                    None => answer,
                }
            },
        }
    }

    fn administer(&self, request: &Request) -> Answer {
        let asked = |name: &str| {
            let pair = request.query.iter().find(|(key, _)| key == name);
            pair.map(|(_, value)| value.as_str()).unwrap_or_default()
        };
        let ok = || Answer::json(200, &json!({}));
        let wrong = |what: String| Answer::json(400, &json!({"error": what}));
        match (&request.verb, request.path.as_str()) {
            (&Verb::PUT, "/fake/script") => match Script::read(&request.text) {
                Ok(script) => {
                    self.state.lock().setup.apply(script);
                    ok()
                },
                Err(error) => wrong(error.to_string()),
            },
            (&Verb::PUT, "/fake/keys") => match serde_json::from_str(&request.text) {
                Ok(keys) => {
                    self.state.lock().keys = keys;
                    ok()
                },
                Err(error) => wrong(error.to_string()),
            },
            (&Verb::POST, "/fake/preempt") => {
                let mut state = self.state.lock();
                let key = asked("instance");
                let now = self.now();
                let machine = state.named(asked("project"), asked("zone"), key, now);
                let id = machine.map(|machine| machine.id);
                if id.is_some_and(|id| state.preempt(id, now)) {
                    ok()
                } else {
                    wrong(format!("{key:?} is no spot machine"))
                }
            },
            (&Verb::PUT, "/fake/console") => {
                let (mut state, now) = (self.state.lock(), self.now());
                let key = asked("instance");
                let machine = state.named(asked("project"), asked("zone"), key, now);
                let id = machine.map(|machine| machine.id);
                if id.is_some_and(|id| state.set_console(id, request.text.clone())) {
                    ok()
                } else {
                    wrong(format!("there is no machine {key:?}"))
                }
            },
            (&Verb::GET, "/fake/created") => {
                let mut state = self.state.lock();
                state.settle(self.now());
                Answer::json(200, &json!(state.ever()))
            },
            (_, _) => {
                let no_such_path = || Answer::json(404, &json!({"error": "no such path"}));
                self.journal.answer(request).unwrap_or_else(no_such_path)
            },
        }
    }
}

impl Fake for Gce {
    async fn handle(&self, request: Request) -> Outcome {
        if request.path.starts_with("/fake/") {
            return Outcome::Answer(self.administer(&request));
        }
        let call = match self.check(&request) {
            Ok(call) => call,
            Err(refused) => return Outcome::Answer(self.answer(None, Err(refused))),
        };
        self.journal.called(&call.method.id);
        let (op, zone) = (op(&call), parameter(&call, "zone").to_owned());
        let fault = self.state.lock().setup.take(op, &zone);
        let carry_out = async |failure| {
            let result = self.carry_out(&call, request.body, failure).await;
            self.answer(Some(&call), result)
        };
        let refuse = |refusal| self.answer(Some(&call), Err(Refused::from(refusal)));
        faults::play(fault, &*self.clock, carry_out, refuse).await
    }
}

fn op(call: &Call<'_>) -> Op {
    match call.method.id.as_str() {
        "compute.instances.insert" => Op::Create,
        "compute.instances.delete" => Op::Delete,
        "compute.instances.list" => Op::List,
        "compute.zoneOperations.get" => Op::Operation,
        "compute.instances.getSerialPortOutput" => Op::Console,
        _ => Op::Get,
    }
}

fn parameter<'a>(call: &'a Call<'_>, name: &str) -> &'a str {
    call.parameters
        .get(name)
        .map(String::as_str)
        .unwrap_or_default()
}

fn not_found(call: &Call<'_>) -> Refused {
    let (project, zone) = (parameter(call, "project"), parameter(call, "zone"));
    Refused::not_found(project, zone, "instances", parameter(call, "instance"))
}

fn found<'a>(state: &'a State, call: &Call<'_>, now: Now) -> Result<&'a state::Machine, Refused> {
    let (project, zone) = (parameter(call, "project"), parameter(call, "zone"));
    let machine = state.named(project, zone, parameter(call, "instance"), now);
    machine.ok_or_else(|| not_found(call))
}

fn is_uuid(text: &str) -> bool {
    let groups: Vec<_> = text.split('-').collect();
    let hex = |group: &&str| group.bytes().all(|b| b.is_ascii_hexdigit());
    groups.iter().map(|group| group.len()).eq([8, 4, 4, 4, 12]) && groups.iter().all(hex)
}

#[cfg(test)]
mod tests {
    use std::time::Duration;

    use runtime_kit::SteppedClock;

    use super::*;

    const INSTANCES: &str = "/compute/v1/projects/p/zones/z-1/instances";
    const ID: &str = "9d5c3ab2-0000-8000-8000-000000000001";

    fn request(verb: Verb, path: &str, query: &[(&str, &str)], body: Option<Value>) -> Request {
        let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
        let mut headers = HeaderMap::new();
        headers.insert("authorization", "Bearer a.b.c".parse().unwrap());
        Request {
            verb,
            path: path.into(),
            query: query.iter().map(owned).collect(),
            headers,
            text: body.as_ref().map(Value::to_string).unwrap_or_default(),
            body,
        }
    }

    fn machine(action: &str) -> Value {
        json!({
            "name": "a",
            "machineType": "zones/z-1/machineTypes/e2-micro",
            "disks": [{"boot": true, "initializeParams": {
                "sourceImage": "projects/debian-cloud/global/images/family/debian-12",
            }}],
            "networkInterfaces": [{"accessConfigs": [{"type": "ONE_TO_ONE_NAT"}]}],
            "scheduling": {"provisioningModel": "SPOT", "instanceTerminationAction": action},
        })
    }

    fn gce(clock: &SteppedClock) -> Gce {
        Gce::new(Script::default(), None, Arc::new(clock.clone())).unwrap()
    }

    async fn call(gce: &Gce, request: Request) -> (u16, Value) {
        match gce.handle(request).await {
            Outcome::Answer(answer) => answer.into_parts(),
            Outcome::Drop => panic!("dropped"),
        }
    }

    async fn get(gce: &Gce, path: &str) -> (u16, Value) {
        call(gce, request(Verb::GET, path, &[], None)).await
    }

    #[tokio::test]
    async fn what_the_document_does_not_know_is_refused_and_told() {
        let gce = gce(&SteppedClock::default());
        let mut body = machine("STOP");
        body["colour"] = json!("red");
        for request in [
            request(Verb::POST, INSTANCES, &[], Some(body)),
            request(Verb::GET, INSTANCES, &[("labels", "x")], None),
            request(Verb::GET, "/compute/v1/projects/p/zones", &[], None),
        ] {
            let (status, _) = call(&gce, request).await;
            assert!(matches!(status, 400 | 404), "{status}");
        }
        let (_, violations) = get(&gce, "/fake/violations").await;
        assert_eq!(violations.as_array().unwrap().len(), 3, "{violations}");
    }

    #[tokio::test]
    async fn nobody_is_served_without_a_token() {
        let gce = gce(&SteppedClock::default());
        let mut anonymous = request(Verb::GET, INSTANCES, &[], None);
        anonymous.headers.clear();
        let (status, body) = call(&gce, anonymous).await;
        assert_eq!(
            (status, &body["error"]["status"]),
            (401, &json!("UNAUTHENTICATED"))
        );
    }

    #[tokio::test]
    async fn a_repeated_request_id_is_answered_with_the_first_operation() {
        let clock = SteppedClock::default();
        let gce = gce(&clock);
        let query = [("requestId", ID)];
        let insert = || request(Verb::POST, INSTANCES, &query, Some(machine("STOP")));
        let (_, first) = call(&gce, insert()).await;
        assert_eq!(first["status"], "RUNNING");
        clock.advance(Duration::from_secs(1));
        let (status, second) = call(&gce, insert()).await;
        assert_eq!((status, &second["status"]), (200, &json!("DONE")));
        assert_eq!(second["name"], first["name"]);
        let another = request(Verb::POST, INSTANCES, &[], Some(machine("STOP")));
        let (status, refused) = call(&gce, another).await;
        let reason = &refused["error"]["errors"][0]["reason"];
        assert_eq!((status, reason), (409, &json!("alreadyExists")));
    }

    #[tokio::test]
    async fn a_spot_machine_that_is_taken_back_stops_or_goes_as_it_was_asked_for() {
        for (action, wanted) in [
            ("STOP", (200, json!("TERMINATED"))),
            ("DELETE", (404, json!(null))),
        ] {
            let clock = SteppedClock::default();
            let gce = gce(&clock);
            let insert = request(Verb::POST, INSTANCES, &[], Some(machine(action)));
            assert_eq!(call(&gce, insert).await.0, 200);
            clock.advance(Duration::from_secs(1));
            let path = format!("{INSTANCES}/a");
            let (_, running) = get(&gce, &path).await;
            assert_eq!(running["status"], "RUNNING");
            let query = [("project", "p"), ("zone", "z-1"), ("instance", "a")];
            let taken = request(Verb::POST, "/fake/preempt", &query, None);
            assert_eq!(call(&gce, taken).await.0, 200);
            let (_, stopping) = get(&gce, &path).await;
            assert_eq!(stopping["status"], "STOPPING");
            clock.advance(Duration::from_secs(1));
            let (status, body) = get(&gce, &path).await;
            assert_eq!((status, body["status"].clone()), wanted, "{action}");
            assert_eq!(get(&gce, "/fake/violations").await.1, json!([]));
        }
    }
}
