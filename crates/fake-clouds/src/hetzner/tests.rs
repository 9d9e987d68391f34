use std::time::Duration;

use runtime_kit::SteppedClock;

use super::*;
use crate::faults::Settings;

fn request(verb: Verb, path: &str, query: &[(&str, &str)], body: Option<Value>) -> Request {
    let owned = |(key, value): &(&str, &str)| ((*key).to_owned(), (*value).to_owned());
    let mut headers = HeaderMap::new();
    headers.insert("authorization", "Bearer token".parse().unwrap());
    Request {
        verb,
        path: path.into(),
        query: query.iter().map(owned).collect(),
        headers,
        text: body.as_ref().map(Value::to_string).unwrap_or_default(),
        body,
    }
}

fn create(name: &str) -> Request {
    let body = json!({
        "name": name, "server_type": "cx23", "image": "debian-12", "location": "nbg1",
        "labels": {"team": "x"},
    });
    request(Verb::POST, "/v1/servers", &[], Some(body))
}

fn project(clock: &SteppedClock) -> Hetzner {
    Hetzner::new(Script::default(), None, Arc::new(clock.clone())).unwrap()
}

async fn answer(fake: &Hetzner, request: Request) -> Answer {
    match fake.handle(request).await {
        Outcome::Answer(answer) => answer,
        Outcome::Drop => panic!("dropped"),
    }
}

async fn call(fake: &Hetzner, request: Request) -> (u16, Value) {
    answer(fake, request).await.into_parts()
}

async fn get(fake: &Hetzner, path: &str, query: &[(&str, &str)]) -> (u16, Value) {
    call(fake, request(Verb::GET, path, query, None)).await
}

async fn no_violations(fake: &Hetzner) {
    assert_eq!(get(fake, "/fake/violations", &[]).await.1, json!([]));
}

#[tokio::test]
async fn a_server_is_created_started_and_deleted_by_actions() {
    let clock = SteppedClock::default();
    let fake = project(&clock);
    let (status, created) = call(&fake, create("a")).await;
    assert_eq!(status, 201);
    assert_eq!(created["server"]["status"], "initializing");
    assert_eq!(created["server"]["location"]["name"], "nbg1");
    assert_eq!(created["action"]["command"], "create_server");
    assert_eq!(created["next_actions"][0]["command"], "start_server");
    let path = format!("/v1/servers/{}", created["server"]["id"]);
    let running = format!("{path}/actions");
    let mut seen = vec![];
    for _ in 0..4 {
        let (_, server) = get(&fake, &path, &[]).await;
        let (_, actions) = get(&fake, &running, &[("status", "running")]).await;
        let count = actions["actions"].as_array().unwrap().len();
        seen.push((server["server"]["status"].clone(), count));
        clock.advance(Duration::from_millis(67));
    }
    let wanted = [
        ("initializing", 2),
        ("off", 1),
        ("starting", 1),
        ("running", 0),
    ];
    let wanted: Vec<_> = wanted.map(|(status, count)| (json!(status), count)).into();
    assert_eq!(seen, wanted);
    let (status, _) = call(&fake, request(Verb::DELETE, &path, &[], None)).await;
    assert_eq!(status, 200);
    assert_eq!(
        get(&fake, &path, &[]).await.1["server"]["status"],
        "deleting"
    );
    clock.advance(Duration::from_secs(1));
    let (status, gone) = get(&fake, &path, &[]).await;
    assert_eq!((status, &gone["error"]["code"]), (404, &json!("not_found")));
    no_violations(&fake).await;
}

#[tokio::test]
async fn a_name_is_used_once_in_a_project_until_its_server_is_gone() {
    let clock = SteppedClock::default();
    let fake = project(&clock);
    let (_, created) = call(&fake, create("a")).await;
    let (status, refused) = call(&fake, create("a")).await;
    let code = &refused["error"]["code"];
    assert_eq!((status, code), (409, &json!("uniqueness_error")));
    let path = format!("/v1/servers/{}", created["server"]["id"]);
    call(&fake, request(Verb::DELETE, &path, &[], None)).await;
    assert_eq!(call(&fake, create("a")).await.0, 409);
    clock.advance(Duration::from_secs(1));
    assert_eq!(call(&fake, create("a")).await.0, 201);
    no_violations(&fake).await;
}

#[tokio::test]
async fn a_list_has_pages_names_and_labels() {
    let clock = SteppedClock::default();
    let fake = project(&clock);
    for name in ["a", "b", "c"] {
        call(&fake, create(name)).await;
    }
    let names = async |query: &[(&str, &str)]| {
        let (_, list) = get(&fake, "/v1/servers", query).await;
        let servers = list["servers"].as_array().unwrap();
        let names = servers
            .iter()
            .map(|server| server["name"].clone())
            .collect::<Vec<_>>();
        (
            json!(names),
            list["meta"]["pagination"]["next_page"].clone(),
        )
    };
    assert_eq!(names(&[("name", "b")]).await.0, json!(["b"]));
    assert_eq!(names(&[("label_selector", "team==y")]).await.0, json!([]));
    let first = names(&[("label_selector", "team==x"), ("per_page", "2")]).await;
    assert_eq!(first, (json!(["a", "b"]), json!(2)));
    let second = names(&[("per_page", "2"), ("page", "2")]).await;
    assert_eq!(second, (json!(["c"]), json!(null)));
    let (status, _) = get(&fake, "/v1/servers", &[("per_page", "51")]).await;
    assert_eq!(status, 422);
    no_violations(&fake).await;
}

#[tokio::test]
async fn what_the_description_does_not_know_is_refused_and_told() {
    let fake = project(&SteppedClock::default());
    let with = |field: &str, value: Value| {
        let mut request = create("a");
        let mut body = request.body.unwrap();
        body[field] = value;
        request.body = Some(body);
        request
    };
    for (request, wanted) in [
        (with("colour", json!("red")), 422),
        (with("networks", json!(["n"])), 422),
        (with("labels", json!({"a": "-"})), 422),
        (with("image", json!(null)), 422),
        (
            request(Verb::GET, "/v1/servers", &[("labels", "x")], None),
            400,
        ),
        (request(Verb::GET, "/v1/servers/a", &[], None), 400),
        (request(Verb::GET, "/v1/datacenters", &[], None), 404),
    ] {
        let path = request.path.clone();
        assert_eq!(call(&fake, request).await.0, wanted, "{path}");
    }
    let (_, violations) = get(&fake, "/fake/violations", &[]).await;
    assert_eq!(violations.as_array().unwrap().len(), 7, "{violations}");
}

#[tokio::test]
async fn tokens_are_unknown_or_read_only_or_good() {
    let fake = project(&SteppedClock::default());
    let code = async |request: Request| {
        let (status, body) = call(&fake, request).await;
        (status, body["error"]["code"].clone())
    };
    let list = || request(Verb::GET, "/v1/servers", &[], None);
    let mut anonymous = list();
    anonymous.headers.clear();
    assert_eq!(code(anonymous).await, (401, json!("unauthorized")));
    let tokens = |tokens: Value| request(Verb::PUT, "/fake/tokens", &[], Some(tokens));
    call(&fake, tokens(json!({"token": "read"}))).await;
    assert_eq!(code(list()).await, (200, json!(null)));
    assert_eq!(code(create("a")).await, (403, json!("token_readonly")));
    call(&fake, tokens(json!({"other": "readWrite"}))).await;
    assert_eq!(code(list()).await, (401, json!("unauthorized")));
}

#[tokio::test]
async fn the_limit_is_in_every_answer_and_refuses_when_it_is_used_up() {
    let clock = SteppedClock::default();
    let settings = Settings {
        requests_per_hour: 2,
        ..Settings::default()
    };
    let script = Script {
        settings: Some(settings),
        faults: Vec::new(),
    };
    let fake = Hetzner::new(script, None, Arc::new(clock.clone())).unwrap();
    let list = || request(Verb::GET, "/v1/servers", &[], None);
    for (remaining, wanted) in [("1", 200), ("0", 200), ("0", 429)] {
        let answer = answer(&fake, list()).await;
        assert_eq!(answer.header("ratelimit-limit"), Some("2"));
        assert_eq!(answer.header("ratelimit-remaining"), Some(remaining));
        assert!(answer.header("x-correlation-id").is_some());
        assert_eq!(answer.into_parts().0, wanted);
    }
    clock.advance(Duration::from_mins(30));
    assert_eq!(call(&fake, list()).await.0, 200);
}
