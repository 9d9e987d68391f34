//! The provider `hetzner` against the fake Hetzner Cloud: the contract's site, and what is its own.

use std::error::Error as _;
use std::io::{Read, Write};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use crawl_api::names;
use proxy_operator::providers::{Instance, InstanceState, Provider, Tags};
use runtime_kit::{Class, Classify};
use serde_json::json;
use tempfile::TempDir;

use crate::fake::Fake;
use crate::fake_hetzner::FakeHetzner;
use crate::suite::{
    FakeSite, Refusal, Site, Trouble, build, request, request_in, tags, until, until_running,
};

pub(crate) struct HetznerSite {
    fake: FakeHetzner,
    dir: TempDir,
    provider: Arc<dyn Provider>,
}

impl HetznerSite {
    async fn with(flags: &[&str], more: &str) -> Self {
        let fake = FakeHetzner::start(flags);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("token"), "token-1\n").unwrap();
        let text = config(&fake, &dir.path().join("token"), more);
        let provider = build(&text).await.unwrap();
        Self {
            fake,
            dir,
            provider,
        }
    }

    fn token(&self) -> PathBuf {
        self.dir.path().join("token")
    }
}

fn config(fake: &FakeHetzner, token: &Path, more: &str) -> String {
    format!(
        "
providers:
- name: under-test
  type: hetzner
  hetzner:
    tokenFile: {}
    endpoint: {}
    locations: [fsn1, nbg1]
    sshKeys: [ops]
    networks: [4711]
    firewalls: [38]
    labels: {{team: crawl}}
    {more}
",
        token.display(),
        fake.url
    )
}

impl FakeSite for HetznerSite {
    fn fake(&self) -> &Fake {
        &self.fake
    }
}

impl Site for HetznerSite {
    const ZONES: [&'static str; 2] = ["fsn1", "nbg1"];
    const HAS_SPOT: bool = false;

    async fn start() -> Self {
        Self::with(&[], "").await
    }

    fn provider(&self) -> &dyn Provider {
        self.provider.as_ref()
    }

    async fn cause(&self, trouble: Trouble) {
        let refuse = |status: u16, code: &str| {
            let fault = json!({
                "type": "refuse", "status": status, "reason": code, "message": "no",
                "retryAfter": (status == 429).then_some("2"),
            });
            json!({"faults": [{"op": "get", "times": 1, "fault": fault}]})
        };
        let script = match trouble {
            Trouble::LostReply => return self.fake.play("lost-reply").await,
            Trouble::QuotaInOperation => return self.fake.play("limit-in-action").await,
            Trouble::StockoutInOperation => return self.fake.play("stockout-in-action").await,
            Trouble::QuotaAtOnce => return self.fake.play("limit-at-once").await,
            Trouble::CreateHangs => {
                json!({"faults": [{"op": "create", "times": 1, "fault": {"type": "hang"}}]})
            },
            Trouble::Read(Refusal::Invalid) => refuse(422, "invalid_input"),
            Trouble::Read(Refusal::Unauthenticated) => refuse(401, "unauthorized"),
            Trouble::Read(Refusal::Forbidden) => refuse(403, "forbidden"),
            Trouble::Read(Refusal::Quota) => refuse(403, "resource_limit_exceeded"),
            Trouble::Read(Refusal::RateLimited) => refuse(429, "rate_limit_exceeded"),
            Trouble::Read(Refusal::Unavailable) => refuse(503, "unavailable"),
        };
        self.fake.apply(script).await;
    }

    async fn stop(&self, instance: &Instance) {
        self.fake.switch_off(&instance.name).await;
    }

    async fn ever_created(&self) -> usize {
        self.fake.created().await.len()
    }

    /// Whatever a test did, every request and every answer was one of the real API.
    async fn finish(self) {
        assert_eq!(self.fake.violations().await, json!([]));
    }
}

fn cluster() -> Tags {
    Tags::from([(names::TAG_CLUSTER.into(), "cluster-1".into())])
}

/// Every script of a trouble, and the class it is to have at a create.
#[tokio::test]
async fn every_trouble_at_a_create_has_its_class() {
    for (script, class) in [
        ("limit-at-once", Class::Quota),
        ("stockout", Class::Quota),
        ("placement", Class::Quota),
        ("too-many-requests", Class::RateLimited),
        ("unauthorized", Class::Unauthenticated),
        ("forbidden", Class::Forbidden),
        ("invalid", Class::Invalid),
        ("conflict", Class::Transient),
        ("locked", Class::Transient),
        ("maintenance", Class::Transient),
        ("server-error", Class::Transient),
        ("error-page", Class::Transient),
        ("connection-drops", Class::Transient),
        ("lost-reply", Class::Transient),
    ] {
        let site = HetznerSite::start().await;
        site.fake.play(script).await;
        let error = site.provider.create(&request("a")).await.unwrap_err();
        assert_eq!(error.class(), class, "{script}: {error}");
        let wanted = (script == "too-many-requests").then_some(Duration::from_secs(7));
        assert_eq!(error.wait(), wanted, "{script}");
        assert!(error.source().is_some(), "{script}");
        // Why: what happens after a failure is the controllers' decision.
        assert_eq!(site.fake.calls("create_server").await, 1, "{script}");
        site.finish().await;
    }
}

#[tokio::test]
async fn a_create_asks_for_exactly_what_is_configured_and_placed() {
    let site = HetznerSite::start().await;
    let mut asked = request_in("a", "nbg1");
    asked.placement.machine_type = Some("cax11".into());
    asked.placement.image = Some("ubuntu-24.04".into());
    asked.placement.network = Some("4712".into());
    site.provider.create(&asked).await.unwrap();
    let created = site.fake.created().await;
    assert_eq!(created.len(), 1);
    assert_eq!(
        created[0]["request"],
        json!({
            "name": "a",
            "location": "nbg1",
            "server_type": "cax11",
            "image": "ubuntu-24.04",
            "labels": {
                "crawl-cluster": "cluster-1", "crawl-proxy-uid": "uid-a", "team": "crawl",
            },
            "user_data": "#cloud-config\npackages: [squid]\n",
            "ssh_keys": ["ops"],
            "networks": [4712],
            "firewalls": [{"firewall": 38}],
            "public_net": {"enable_ipv4": true, "enable_ipv6": true},
            "start_after_create": true,
        })
    );
    site.finish().await;
}

#[tokio::test]
async fn what_hetzner_cloud_does_not_have_is_refused_without_a_call() {
    let site = HetznerSite::start().await;
    let mut spot = request("a");
    spot.placement.spot = true;
    let error = site.provider.create(&spot).await.unwrap_err();
    assert_eq!(
        (error.class(), error.reason()),
        (Class::Invalid, "InvalidSpec")
    );
    assert!(error.to_string().contains("placement.spot"), "{error}");
    assert_eq!(site.fake.calls("create_server").await, 0);
    // What only the cloud knows is its answer.
    let mut unknown = request("a");
    unknown.placement.machine_type = Some("e2-micro".into());
    let error = site.provider.create(&unknown).await.unwrap_err();
    assert_eq!(error.class(), Class::Invalid);
    assert!(error.source().unwrap().to_string().contains("e2-micro"));
    site.finish().await;
}

#[tokio::test]
async fn a_server_that_is_created_and_not_started_yet_is_not_taken_for_a_stopped_one() {
    let site = HetznerSite::start().await;
    site.fake
        .apply(json!({"settings": {"bootMilliseconds": 1500}, "faults": []}))
        .await;
    let id = site
        .provider
        .create(&request("a"))
        .await
        .unwrap()
        .instance
        .id;
    let mut actions_read = false;
    until("the server runs", async || {
        let instance = site.provider.get(&id).await.unwrap().unwrap();
        actions_read |= site.fake.calls("list_actions_for_server").await > 0;
        match instance.state {
            InstanceState::Running => Some(()),
            InstanceState::Provisioning => None,
            ended @ (InstanceState::Stopping | InstanceState::Stopped) => panic!("{ended:?}"),
        }
    })
    .await;
    assert!(actions_read, "the server was never seen off");
    site.finish().await;
}

#[tokio::test]
async fn a_server_with_ipv6_alone_is_reached_at_the_first_address_of_its_network() {
    let site = HetznerSite::with(&[], "ipv4: false").await;
    let id = site
        .provider
        .create(&request("a"))
        .await
        .unwrap()
        .instance
        .id;
    let ip = until_running(site.provider(), &id).await.ip.unwrap();
    let address: std::net::Ipv6Addr = ip.parse().unwrap();
    assert_eq!(address.segments()[4..], [0, 0, 0, 1]);
    site.finish().await;
}

#[tokio::test]
async fn a_server_that_somebody_removed_is_gone() {
    let site = HetznerSite::start().await;
    let id = site
        .provider
        .create(&request("a"))
        .await
        .unwrap()
        .instance
        .id;
    until_running(site.provider(), &id).await;
    site.fake.remove("a").await;
    assert_eq!(site.provider.get(&id).await.unwrap(), None);
    assert_eq!(site.provider.list(&request("a").tags).await.unwrap(), []);
    site.provider.delete(&id).await.unwrap();
    site.finish().await;
}

#[tokio::test]
async fn a_server_that_somebody_protected_is_told_with_the_remedy() {
    let site = HetznerSite::start().await;
    let id = site
        .provider
        .create(&request("a"))
        .await
        .unwrap()
        .instance
        .id;
    site.fake.play("protected").await;
    let error = site.provider.delete(&id).await.unwrap_err();
    assert_eq!(
        (error.class(), error.reason()),
        (Class::Forbidden, "Forbidden")
    );
    assert!(error.to_string().contains("delete protection"), "{error}");
    site.finish().await;
}

#[tokio::test]
async fn a_page_that_says_404_is_no_reason_to_believe_that_a_server_is_gone() {
    let site = HetznerSite::start().await;
    let id = site
        .provider
        .create(&request("a"))
        .await
        .unwrap()
        .instance
        .id;
    site.fake
        .apply(json!({"faults": [{"fault": {"type": "page", "status": 404}}]}))
        .await;
    let read = site.provider.get(&id).await.unwrap_err();
    assert_eq!(read.class(), Class::Transient);
    let deleted = site.provider.delete(&id).await.unwrap_err();
    assert_eq!(deleted.class(), Class::Transient);
    site.finish().await;
}

#[tokio::test]
async fn an_api_that_does_not_answer_is_given_up_and_nothing_is_believed_to_be_gone() {
    let site = HetznerSite::start().await;
    site.provider.create(&request("a")).await.unwrap();
    site.fake.play("unreachable").await;
    let error = site.provider.list(&request("a").tags).await.unwrap_err();
    assert_eq!(error.class(), Class::Transient);
    assert!(error.to_string().contains("no answer"), "{error}");
    site.finish().await;
}

#[tokio::test]
async fn reads_that_lag_behind_make_no_second_server() {
    let site = HetznerSite::start().await;
    site.fake.play("eventually-consistent").await;
    let first = site.provider.create(&request("a")).await.unwrap().instance;
    assert_eq!(site.provider.get(&first.id).await.unwrap(), None);
    assert_eq!(site.provider.list(&request("a").tags).await.unwrap(), []);
    // A controller that saw nothing creates again: the name is taken, by whom cannot be seen.
    let unseen = site.provider.create(&request("a")).await.unwrap_err();
    assert_eq!(unseen.class(), Class::Transient);
    assert!(
        unseen.to_string().contains("cannot be seen yet"),
        "{unseen}"
    );
    let second = until("the server can be seen", async || {
        site.provider.create(&request("a")).await.ok()
    })
    .await;
    assert_eq!(second.instance.id, first.id);
    assert_eq!(site.ever_created().await, 1);
    site.finish().await;
}

#[tokio::test]
async fn a_request_that_arrives_after_it_was_given_up_makes_no_second_server() {
    let site = HetznerSite::start().await;
    site.fake.play("slow").await;
    let asked = request("a");
    let given_up = tokio::time::timeout(Duration::from_millis(100), site.provider.create(&asked));
    assert!(given_up.await.is_err());
    let created = site.provider.create(&asked).await.unwrap();
    let found = site.provider.list(&asked.tags).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].id, created.instance.id);
    assert_eq!(site.ever_created().await, 1);
    site.finish().await;
}

#[tokio::test]
async fn creates_at_the_same_time_make_one_server() {
    let site = HetznerSite::start().await;
    let asked = request("a");
    let (first, second) = tokio::join!(site.provider.create(&asked), site.provider.create(&asked));
    assert_eq!(first.unwrap().instance.id, second.unwrap().instance.id);
    assert_eq!(site.ever_created().await, 1);
    site.finish().await;
}

/// Names are unique in a project, so that a server in another location is in the way, too.
#[tokio::test]
async fn a_name_is_one_server_in_all_locations() {
    let site = HetznerSite::start().await;
    let first = site
        .provider
        .create(&request_in("a", "fsn1"))
        .await
        .unwrap();
    let second = site
        .provider
        .create(&request_in("a", "nbg1"))
        .await
        .unwrap();
    assert_eq!(second.instance.id, first.instance.id);
    assert_eq!(second.instance.zone, "fsn1");
    assert_eq!(site.ever_created().await, 1);
    site.finish().await;
}

#[tokio::test]
async fn a_list_is_read_to_its_last_page() {
    let site = HetznerSite::start().await;
    site.fake.play("pages").await;
    for name in ["a", "b", "c", "d", "e"] {
        site.provider.create(&request(name)).await.unwrap();
    }
    let mut foreign = request("f");
    foreign.tags = tags("cluster-2", "uid-f");
    site.provider.create(&foreign).await.unwrap();
    let found = site.provider.list(&cluster()).await.unwrap();
    let names: Vec<_> = found
        .iter()
        .map(|instance| instance.name.as_str())
        .collect();
    assert_eq!(names, ["a", "b", "c", "d", "e"]);
    assert_eq!(site.fake.calls("list_servers").await, 3);
    site.finish().await;
}

#[tokio::test]
async fn requests_that_are_used_up_let_the_account_rest_for_less_than_the_hour() {
    let site = HetznerSite::start().await;
    site.fake.play("requests-used-up").await;
    // The limit is one of the project: what was called before counts as well. Answers say what is
    // left, so it is not called any more before it has to refuse.
    let error = until("the requests are used up", async || {
        site.provider.check().await.err()
    })
    .await;
    assert_eq!(error.class(), Class::RateLimited);
    let wait = error.wait().unwrap();
    assert!(
        !wait.is_zero() && wait < Duration::from_hours(1),
        "{wait:?}"
    );
    site.finish().await;
}

#[tokio::test]
async fn a_server_outlives_the_client_that_asked_for_it() {
    let site = HetznerSite::start().await;
    let id = site
        .provider
        .create(&request("a"))
        .await
        .unwrap()
        .instance
        .id;
    let other = build(&config(&site.fake, &site.token(), "")).await.unwrap();
    assert_eq!(other.list(&request("a").tags).await.unwrap()[0].id, id);
    let repeated = other.create(&request("a")).await.unwrap().instance;
    assert_eq!(repeated.id, id);
    assert_eq!(site.ever_created().await, 1);
    site.finish().await;
}

#[tokio::test]
async fn a_token_that_was_revoked_is_told_and_a_new_one_is_used_at_once() {
    let site = HetznerSite::start().await;
    site.provider.check().await.unwrap();
    let tokens = json!({"token-2": "readWrite", "token-3": "read"});
    site.fake.accept_tokens(tokens).await;
    for _ in 0..2 {
        let error = site.provider.check().await.unwrap_err();
        let found = (error.class(), error.reason());
        assert_eq!(found, (Class::Unauthenticated, "CredentialsRejected"));
        let text = runtime_kit::chain(&error).to_string();
        assert!(!text.contains("token-1"), "{text}");
    }
    // As a mounted Secret changes: another file takes the name.
    let replace = |token: &str| {
        let fresh = site.dir.path().join("fresh");
        std::fs::write(&fresh, token).unwrap();
        std::fs::rename(&fresh, site.token()).unwrap();
    };
    replace("token-2");
    site.provider.check().await.unwrap();
    site.provider.create(&request("a")).await.unwrap();
    // One that may only read is told with the remedy.
    replace("token-3");
    site.provider.check().await.unwrap();
    let error = site.provider.create(&request("b")).await.unwrap_err();
    assert_eq!(error.class(), Class::Forbidden);
    assert!(error.to_string().contains("Read & Write"), "{error}");
    // A file that is away for a moment changes nothing, one that holds no token is told.
    std::fs::remove_file(site.token()).unwrap();
    site.provider.check().await.unwrap();
    std::fs::write(site.token(), "two words").unwrap();
    let error = site.provider.check().await.unwrap_err();
    assert_eq!(error.class(), Class::Unauthenticated);
    assert!(
        error.to_string().contains("does not hold a token"),
        "{error}"
    );
    site.finish().await;
}

#[tokio::test]
async fn a_token_that_cannot_be_used_is_told_before_anything_is_called() {
    let fake = FakeHetzner::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    for (content, wanted) in [
        (None, "cannot read the token file"),
        (Some(""), "does not hold a token"),
        (Some("\n"), "does not hold a token"),
        (Some("hidden words"), "does not hold a token"),
        (Some("hidden\u{7f}"), "does not hold a token"),
    ] {
        if let Some(content) = content {
            std::fs::write(&token, content).unwrap();
        }
        let built = build(&config(&fake, &token, "")).await;
        let error = built.map(|_| ()).unwrap_err();
        let whose = "provider under-test cannot be used";
        assert!(error.starts_with(whose), "{error}");
        assert!(error.contains(wanted), "{error}");
        assert!(!error.contains("hidden"), "{error}");
    }
    assert_eq!(fake.calls("list_servers").await, 0);
}

#[tokio::test]
async fn a_server_can_be_a_real_proxy() {
    let site = HetznerSite::with(&["--proxy-port", "3128"], "").await;
    let id = site
        .provider
        .create(&request("a"))
        .await
        .unwrap()
        .instance
        .id;
    let ip = until_running(site.provider(), &id).await.ip.unwrap();
    let reach = async || tokio::net::TcpStream::connect((ip.as_str(), 3128)).await;
    until("the proxy listens", async || reach().await.ok()).await;
    site.provider.delete(&id).await.unwrap();
    until("the proxy is gone", async || {
        reach().await.is_err().then_some(())
    })
    .await;
    site.finish().await;
}

/// What lies: each page names the first one as the next. What was read so far is no list.
#[tokio::test]
async fn a_list_that_leads_back_is_an_error_and_not_the_end() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut request = [0; 4_096];
            let _length = stream.read(&mut request).unwrap();
            let body = r#"{"servers": [], "meta": {"pagination": {"next_page": 1}}}"#;
            let length = body.len();
            let answer = format!(
                "HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: {length}\r\n\r\n{body}"
            );
            stream.write_all(answer.as_bytes()).unwrap();
        }
    });
    let dir = tempfile::tempdir().unwrap();
    let token = dir.path().join("token");
    std::fs::write(&token, "token-1").unwrap();
    let text = format!(
        "providers: [{{name: under-test, type: hetzner, hetzner: {{tokenFile: {}, \
         endpoint: 'http://{address}', locations: [fsn1]}}}}]",
        token.display()
    );
    let provider = build(&text).await.unwrap();
    let error = provider.survey(&cluster()).await.unwrap_err();
    assert_eq!(error.class(), Class::Transient);
    assert!(error.to_string().contains("page 1 is said"), "{error}");
}
