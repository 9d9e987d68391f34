//! A fake of Hetzner Cloud, as far as the provider `hetzner` uses it: the servers and actions of
//! one project.
//!
//! | request | what it does |
//! |---|---|
//! | `/v1/…` | the API, checked against an extract of its description |
//! | `PUT /fake/script` | a [`Script`]: settings and faults from now on |
//! | `PUT /fake/tokens` | JSON object: only these tokens are accepted, each `read` or `readWrite` |
//! | `POST /fake/switch-off?server=NAME` | switches a server off |
//! | `POST /fake/remove?server=NAME` | removes a server at once |
//! | `GET /fake/created` | everything that was ever created, with its request |
//! | `GET /fake/calls` | how often each method was called |
//! | `GET /fake/violations` | requests and responses that are not as the description says |

mod answers;
mod checks;
mod limit;
mod state;

use std::sync::Arc;

use http::{HeaderMap, Method as Verb};
use parking_lot::Mutex;
use runtime_kit::Clock;
use serde_json::{Value, json};

use self::answers::{Page, Refused};
use self::limit::Standing;
use self::state::{Access, State};
use crate::discovery::{Api, Call, Refusal};
use crate::faults::{self, Failure, Op, Script};
use crate::journal::Journal;
use crate::now::Now;
use crate::proxies::Proxies;
use crate::serve::{Answer, Fake, Outcome, Request};

/// Items on a page, when it is not said how many.
const PER_PAGE: usize = 25;
/// Pages are never longer, whatever is asked for.
const MAX_PER_PAGE: usize = 50;
/// Where a server is created when it is not said.
const DEFAULT_LOCATION: &str = "fsn1";

/// A project at Hetzner Cloud.
#[derive(Debug)]
pub struct Hetzner {
    api: Api,
    clock: Arc<dyn Clock>,
    state: Mutex<State>,
    journal: Journal,
    proxies: Option<Proxies>,
}

// === impl Hetzner ===

impl Hetzner {
    /// An empty one.
    ///
    /// # Errors
    /// The extract of the description cannot be read.
    pub fn new(
        script: Script,
        proxies: Option<Proxies>,
        clock: Arc<dyn Clock>,
    ) -> Result<Self, serde_json::Error> {
        Ok(Self {
            api: Api::read(include_str!("../../data/hcloud-v1.json"))?,
            clock,
            state: Mutex::new(State::new(script)),
            journal: Journal::default(),
            proxies,
        })
    }

    fn now(&self) -> Now {
        Now::of(&*self.clock)
    }

    /// Takes the request off the project's limit.
    fn limit(&self) -> Result<Standing, Standing> {
        let now = self.now();
        let mut state = self.state.lock();
        let requests = state.setup.settings.requests_per_hour;
        state.limit.take(requests, now)
    }

    /// Authentication, routing and types, in the order of the real front end.
    fn check(&self, request: &Request) -> Result<Call<'_>, Refused> {
        let violated = |what: &str| {
            let text = format!("request {} {}: {what}", request.verb, request.path);
            self.journal.violated(text);
        };
        self.authorize(request)?;
        let query = &request.query;
        let call = match self.api.route(request.verb.as_str(), &request.path, query) {
            Ok(call) => call,
            Err(Refusal::NoSuchMethod) => {
                violated("no such method");
                return Err(Refused::new(404, "not_found", "Not Found"));
            },
            Err(Refusal::Wrong(what)) => {
                violated(&what);
                return Err(Refused::new(400, "invalid_input", what));
            },
        };
        let body = request.body.as_ref();
        if body.is_none() && !request.text.is_empty() {
            violated("the body is no JSON");
            return Err(Refused::new(400, "json_error", "invalid JSON"));
        }
        let checked = self.api.check_request(call.method, body);
        checked.map_err(|what| {
            violated(&what);
            Refused::new(422, "invalid_input", what)
        })?;
        Ok(call)
    }

    fn authorize(&self, request: &Request) -> Result<(), Refused> {
        let access = match (token(&request.headers), &self.state.lock().tokens) {
            (None, _) => None,
            (Some(_), None) => Some(Access::ReadWrite),
            (Some(token), Some(known)) => known.get(token).copied(),
        };
        match access {
            None => {
                let message = "the token you are using is invalid";
                Err(Refused::new(401, "unauthorized", message))
            },
            Some(Access::Read) if request.verb != Verb::GET => {
                let message = "this token is only allowed to perform GET requests";
                Err(Refused::new(403, "token_readonly", message))
            },
            Some(Access::Read | Access::ReadWrite) => Ok(()),
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
        match call.method.id.as_str() {
            "create_server" => self.create(body.unwrap_or_default(), failure, now).await,
            "delete_server" => self.delete(id(call), now).await,
            "list_servers" => self.list(call, now),
            "get_action" => self.action(id(call), now),
            "list_actions_for_server" => self.actions(call, now),
            _ => self.get(id(call), now),
        }
    }

    async fn create(
        &self,
        body: Value,
        failure: Option<Failure>,
        now: Now,
    ) -> Result<Value, Refused> {
        checks::check(&body).map_err(|(field, what)| Refused::invalid(field, &what))?;
        let name = state::text(&body, "name");
        let location = match state::text(&body, "location") {
            none if none.is_empty() => DEFAULT_LOCATION.to_owned(),
            location => location,
        };
        let keys = body.get("ssh_keys").and_then(Value::as_array);
        let has_keys = keys.is_some_and(|keys| !keys.is_empty());
        let labels = body.get("labels").cloned().unwrap_or_else(|| json!({}));
        let failed = failure.is_some();
        let (mut server, actions) = {
            let mut state = self.state.lock();
            if state.named(&name).is_some() {
                return Err(Refused {
                    field: Some("name"),
                    ..Refused::new(409, "uniqueness_error", "server name is already used")
                });
            }
            state.create(&location, body, failure, now)
        };
        if let (Some(proxies), false) = (&self.proxies, failed) {
            let labels = serde_json::from_value(labels).unwrap_or_default();
            let broken = |what| Refused::new(503, "unavailable", what);
            let address = proxies.start(&location, &name, labels).await;
            let address = address.map_err(broken)?;
            server.ipv4 = Some(address.clone());
            self.state.lock().set_address(server.id, address);
        }
        let mut actions = actions.iter().map(|each| answers::action(each, false));
        Ok(json!({
            "server": answers::server(&server, "initializing"),
            "action": actions.next(),
            "next_actions": actions.collect::<Vec<_>>(),
            // Why: a password that nobody may ever log.
            "root_password": (!has_keys).then_some("YItygq1v3GYjjMomLaKc"),
        }))
    }

    async fn delete(&self, id: u64, now: Now) -> Result<Value, Refused> {
        let deleted = self.state.lock().delete(id, now);
        let (server, action) = deleted.ok_or_else(|| Refused::not_found("server", id))?;
        if let Some(proxies) = &self.proxies {
            proxies.stop(&server.location, &server.name).await;
        }
        Ok(json!({"action": answers::action(&action, false)}))
    }

    fn get(&self, id: u64, now: Now) -> Result<Value, Refused> {
        let state = self.state.lock();
        let server = state
            .server(id)
            .filter(|server| state.is_visible(server, now))
            .ok_or_else(|| Refused::not_found("server", id))?;
        Ok(json!({"server": answers::server(server, state.status(server, now))}))
    }

    fn list(&self, call: &Call<'_>, now: Now) -> Result<Value, Refused> {
        let state = self.state.lock();
        let selector = match parameter(call, "label_selector") {
            None => Vec::new(),
            Some(text) => checks::selector(text)
                .ok_or_else(|| Refused::invalid("label_selector", "malformed"))?,
        };
        let name = parameter(call, "name");
        let servers = state.visible(now).into_iter().filter_map(|server| {
            let shown = answers::server(server, state.status(server, now));
            let holds = |(key, value): &(String, String)| shown["labels"][key] == **value;
            let is_named = name.is_none_or(|name| name == server.name);
            (is_named && selector.iter().all(holds)).then_some(shown)
        });
        let page = page(call, state.setup.settings.page_size)?;
        Ok(page.of("servers", servers.collect()))
    }

    fn action(&self, id: u64, now: Now) -> Result<Value, Refused> {
        let state = self.state.lock();
        let action = state
            .action(id)
            .ok_or_else(|| Refused::not_found("action", id))?;
        Ok(json!({"action": answers::action(action, action.ends <= now.elapsed)}))
    }

    fn actions(&self, call: &Call<'_>, now: Now) -> Result<Value, Refused> {
        let state = self.state.lock();
        let server = id(call);
        if state.server(server).is_none() {
            return Err(Refused::not_found("server", server));
        }
        let wanted = parameter(call, "status");
        let actions = state.actions_of(server).into_iter();
        let shown = actions.map(|action| answers::action(action, action.ends <= now.elapsed));
        let matching =
            shown.filter(|action| wanted.is_none_or(|status| action["status"] == status));
        let page = page(call, state.setup.settings.page_size)?;
        Ok(page.of("actions", matching.collect()))
    }

    fn answer(&self, call: Option<&Call<'_>>, result: Result<Value, Refused>) -> Answer {
        match result {
            Ok(body) => {
                let checked = call.map(|call| self.api.check_response(call.method, &body));
                if let Some(Err(what)) = checked {
                    self.journal.violated(format!("response: {what}"));
                }
                let is_create = call.is_some_and(|call| call.method.id == "create_server");
                Answer::json(if is_create { 201 } else { 200 }, &body)
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

    /// The location that a call is about, for rules of one zone.
    fn zone(&self, call: &Call<'_>, body: Option<&Value>) -> String {
        if let Some(body) = body {
            return state::text(body, "location");
        }
        let state = self.state.lock();
        let server = state.server(id(call));
        server
            .map(|server| server.location.clone())
            .unwrap_or_default()
    }

    fn with_headers(&self, answer: Answer, standing: Standing) -> Answer {
        let Standing {
            limit,
            remaining,
            reset,
        } = standing;
        let nanoseconds = self.clock.elapsed().as_nanos();
        answer
            .with("ratelimit-limit", limit.to_string())
            .with("ratelimit-remaining", remaining.to_string())
            .with("ratelimit-reset", reset.as_second().to_string())
            .with("x-correlation-id", format!("fake-{nanoseconds:x}"))
    }

    fn administer(&self, request: &Request) -> Answer {
        let server = request.query.iter().find(|(key, _)| key == "server");
        let server = server.map(|(_, name)| name.as_str()).unwrap_or_default();
        let wrong = |what: String| Answer::json(400, &json!({"error": what}));
        let mut state = self.state.lock();
        let done = match (&request.verb, request.path.as_str()) {
            (&Verb::PUT, "/fake/script") => Script::read(&request.text)
                .map(|script| state.setup.apply(script))
                .map_err(|error| error.to_string()),
            (&Verb::PUT, "/fake/tokens") => serde_json::from_str(&request.text)
                .map(|tokens| state.tokens = tokens)
                .map_err(|error| error.to_string()),
            (&Verb::POST, "/fake/switch-off") if state.switch_off(server) => Ok(()),
            (&Verb::POST, "/fake/remove") if state.remove(server, self.now()) => Ok(()),
            (&Verb::POST, _) => Err(format!("there is no server {server:?}")),
            (&Verb::GET, "/fake/created") => return Answer::json(200, &json!(state.ever())),
            (_, _) => {
                let no_such_path = || Answer::json(404, &json!({"error": "no such path"}));
                return self.journal.answer(request).unwrap_or_else(no_such_path);
            },
        };
        match done {
            Ok(()) => Answer::json(200, &json!({})),
            Err(what) => wrong(what),
        }
    }
}

impl Fake for Hetzner {
    async fn handle(&self, request: Request) -> Outcome {
        if request.path.starts_with("/fake/") {
            return Outcome::Answer(self.administer(&request));
        }
        let limit = self.limit();
        let call = match limit {
            Ok(_) => self.check(&request),
            Err(_) => Err(Refused::new(
                429,
                "rate_limit_exceeded",
                "limit of requests per hour reached",
            )),
        };
        let outcome = match call {
            Err(refused) => Outcome::Answer(self.answer(None, Err(refused))),
            Ok(call) => {
                self.journal.called(&call.method.id);
                let (op, zone) = (op(&call), self.zone(&call, request.body.as_ref()));
                let fault = self.state.lock().setup.take(op, &zone);
                let carry_out = async |failure| {
                    let result = self.carry_out(&call, request.body, failure).await;
                    self.answer(Some(&call), result)
                };
                let refuse = |refusal| self.answer(Some(&call), Err(Refused::from(refusal)));
                faults::play(fault, &*self.clock, carry_out, refuse).await
            },
        };
        match outcome {
            Outcome::Answer(answer) => {
                let (Ok(standing) | Err(standing)) = limit;
                Outcome::Answer(self.with_headers(answer, standing))
            },
            Outcome::Drop => Outcome::Drop,
        }
    }
}

fn token(headers: &HeaderMap) -> Option<&str> {
    let value = headers.get(http::header::AUTHORIZATION)?.to_str().ok()?;
    value
        .strip_prefix("Bearer ")
        .filter(|token| !token.is_empty())
}

fn op(call: &Call<'_>) -> Op {
    match call.method.id.as_str() {
        "create_server" => Op::Create,
        "delete_server" => Op::Delete,
        "list_servers" => Op::List,
        "get_action" | "list_actions_for_server" => Op::Operation,
        _ => Op::Get,
    }
}

fn parameter<'a>(call: &'a Call<'_>, name: &str) -> Option<&'a str> {
    call.parameters.get(name).map(String::as_str)
}

/// The number in the path; the description says that it is one.
fn id(call: &Call<'_>) -> u64 {
    let id = parameter(call, "id").and_then(|id| id.parse().ok());
    id.unwrap_or_default()
}

/// The page that is asked for; `longest` is a setting.
fn page(call: &Call<'_>, longest: u32) -> Result<Page, Refused> {
    let number = |name: &str| parameter(call, name).and_then(|text| text.parse::<usize>().ok());
    let size = number("per_page").unwrap_or(PER_PAGE);
    if size > MAX_PER_PAGE {
        return Err(Refused::invalid("per_page", "must not be more than 50"));
    }
    let longest = usize::try_from(longest).unwrap_or(MAX_PER_PAGE);
    Ok(Page {
        number: number("page").unwrap_or(1),
        size: size.min(longest),
    })
}

#[cfg(test)]
mod tests;
