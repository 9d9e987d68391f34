//! The provider `gcp` against the fake Compute Engine: the contract's site, and what is its own.

use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use crawl_api::names;
use proxy_operator::providers::{Instance, InstanceState, Provider, Tags};
use runtime_kit::{Class, Classify};
use serde_json::json;
use tempfile::TempDir;

use crate::fake::Fake;
use crate::fake_gce::{FakeGce, key_file};
use crate::suite::{
    FakeSite, Refusal, Site, Trouble, build, request, request_in, tags, until, until_gone,
    until_running,
};

pub(crate) struct GcpSite {
    fake: FakeGce,
    dir: TempDir,
    provider: Arc<dyn Provider>,
}

impl GcpSite {
    async fn with_flags(flags: &[&str]) -> Self {
        let fake = FakeGce::start(flags);
        let dir = tempfile::tempdir().unwrap();
        std::fs::write(dir.path().join("key.json"), key_file("key-1")).unwrap();
        let text = config(&fake, &dir.path().join("key.json"));
        let provider = build(&text).await.unwrap();
        Self {
            fake,
            dir,
            provider,
        }
    }

    fn key(&self) -> PathBuf {
        self.dir.path().join("key.json")
    }
}

fn config(fake: &FakeGce, key: &std::path::Path) -> String {
    format!(
        "
providers:
- name: under-test
  type: gcp
  callsPerHour: 10000000
  createsPerMinute: 100000
  gcp:
    project: p-1
    zones: [europe-west1-b, europe-west1-c]
    credentialsFile: {}
    endpoint: {}
    networkTags: [crawl-proxy]
    ipv6: true
    serviceAccount: {{email: machine@p-1.iam.gserviceaccount.com}}
    spotTerminationAction: Stop
    labels: {{team: crawl}}
",
        key.display(),
        fake.url
    )
}

impl FakeSite for GcpSite {
    fn fake(&self) -> &Fake {
        &self.fake
    }
}

impl Site for GcpSite {
    const ZONES: [&'static str; 2] = ["europe-west1-b", "europe-west1-c"];

    async fn start() -> Self {
        Self::with_flags(&[]).await
    }

    fn provider(&self) -> &dyn Provider {
        self.provider.as_ref()
    }

    async fn cause(&self, trouble: Trouble) {
        let refuse = |status: u16, reason: &str| {
            let fault = json!({
                "type": "refuse", "status": status, "reason": reason, "message": "no",
                "retryAfter": (status == 429).then_some("2"),
            });
            json!({"faults": [{"op": "get", "times": 1, "fault": fault}]})
        };
        let script = match trouble {
            Trouble::LostReply => return self.fake.play("lost-reply").await,
            Trouble::QuotaInOperation => return self.fake.play("quota-in-operation").await,
            Trouble::StockoutInOperation => return self.fake.play("stockout").await,
            Trouble::QuotaAtOnce => return self.fake.play("quota-at-once").await,
            Trouble::CreateHangs => {
                json!({"faults": [{"op": "create", "times": 1, "fault": {"type": "hang"}}]})
            },
            Trouble::Read(Refusal::Invalid) => refuse(400, "invalid"),
            Trouble::Read(Refusal::Unauthenticated) => refuse(401, "authError"),
            Trouble::Read(Refusal::Forbidden) => refuse(403, "forbidden"),
            Trouble::Read(Refusal::Quota) => refuse(403, "quotaExceeded"),
            Trouble::Read(Refusal::RateLimited) => refuse(429, "rateLimitExceeded"),
            Trouble::Read(Refusal::Unavailable) => refuse(503, "backendError"),
        };
        self.fake.apply(script).await;
    }

    async fn stop(&self, instance: &Instance) {
        let Instance { zone, name, .. } = instance;
        self.fake.preempt("p-1", zone, name).await;
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
        ("quota-at-once", Class::Quota),
        ("rate-limited", Class::RateLimited),
        ("too-many-requests", Class::RateLimited),
        ("unauthenticated", Class::Unauthenticated),
        ("forbidden", Class::Forbidden),
        ("api-disabled", Class::Forbidden),
        ("invalid", Class::Invalid),
        ("not-ready", Class::Transient),
        ("error-page", Class::Transient),
        ("request-timeout", Class::Transient),
        ("backend-error", Class::Transient),
        ("connection-drops", Class::Transient),
        ("lost-reply", Class::Transient),
    ] {
        let site = GcpSite::start().await;
        site.fake.play(script).await;
        let error = site.provider.create(&request("a")).await.unwrap_err();
        assert_eq!(error.class(), class, "{script}: {error}");
        let wanted = (script == "too-many-requests").then_some(Duration::from_secs(7));
        assert_eq!(error.wait(), wanted, "{script}");
        // Why: what happens after a failure is the controllers' decision.
        assert_eq!(
            site.fake.calls("compute.instances.insert").await,
            1,
            "{script}"
        );
        site.finish().await;
    }
}

#[tokio::test]
async fn a_page_that_says_404_is_no_reason_to_believe_that_a_machine_is_gone() {
    let site = GcpSite::start().await;
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
    assert_eq!(
        site.provider.get(&id).await.unwrap_err().class(),
        Class::Transient
    );
    assert_eq!(
        site.provider.delete(&id).await.unwrap_err().class(),
        Class::Transient
    );
    site.finish().await;
}

#[tokio::test]
async fn a_zone_that_fails_never_hides_the_others_and_is_told() {
    let site = GcpSite::start().await;
    for (name, zone) in [("a", "europe-west1-b"), ("b", "europe-west1-c")] {
        site.provider.create(&request_in(name, zone)).await.unwrap();
    }
    // The second one takes as long as a request may take.
    for script in ["zone-broken", "zone-unreachable"] {
        site.fake.play(script).await;
        let listing = site.provider.survey(&cluster()).await.unwrap();
        let names: Vec<_> = listing.instances.iter().map(|i| i.name.as_str()).collect();
        assert_eq!(names, ["a"], "{script}");
        let unread: Vec<_> = listing.unread.iter().map(|u| u.zone.as_str()).collect();
        assert_eq!(unread, ["europe-west1-c"], "{script}");
        assert_eq!(
            listing.unread[0].error.class(),
            Class::Transient,
            "{script}"
        );
    }
    site.fake.play("zone-broken").await;
    let found = site.provider.list(&request("a").tags).await.unwrap();
    assert_eq!(found.len(), 1);
    // What was not found may be in the zone that cannot be read: creating it again would be wrong.
    let unknown = site.provider.list(&request("b").tags).await.unwrap_err();
    assert_eq!(unknown.class(), Class::Transient);
    site.finish().await;
}

/// Case 59.
#[tokio::test]
async fn reads_that_lag_behind_make_no_second_machine() {
    let site = GcpSite::start().await;
    site.fake.play("eventually-consistent").await;
    let first = site.provider.create(&request("a")).await.unwrap().instance;
    assert_eq!(site.provider.get(&first.id).await.unwrap(), None);
    assert_eq!(site.provider.list(&request("a").tags).await.unwrap(), []);
    // A controller that saw nothing creates again: by the same id, by another one once the first
    // operation is over, and at last against a machine that can be seen.
    let second = until("the machine can be seen", async || {
        match site.provider.create(&request("a")).await {
            Ok(created) => {
                assert_eq!(created.instance.id, first.id);
                (created.instance.state == InstanceState::Running).then_some(created)
            },
            Err(error) => {
                assert_eq!(error.class(), Class::Transient, "{error}");
                None
            },
        }
    })
    .await;
    assert_eq!(second.instance.id, first.id);
    assert_eq!(site.ever_created().await, 1);
    site.finish().await;
}

#[tokio::test]
async fn a_request_that_arrives_after_it_was_given_up_makes_no_second_machine() {
    let site = GcpSite::start().await;
    site.fake.play("slow").await;
    let asked = request("a");
    let given_up = tokio::time::timeout(Duration::from_millis(100), site.provider.create(&asked));
    assert!(given_up.await.is_err());
    let created = site.provider.create(&asked).await.unwrap();
    until("both requests were carried out", async || {
        (site.fake.calls("compute.instances.insert").await == 2).then_some(())
    })
    .await;
    let found = site.provider.list(&asked.tags).await.unwrap();
    assert_eq!(found.len(), 1);
    assert_eq!(found[0].id, created.instance.id);
    assert_eq!(site.ever_created().await, 1);
    site.finish().await;
}

#[tokio::test]
async fn creates_at_the_same_time_make_one_machine() {
    let site = GcpSite::start().await;
    let asked = request("a");
    let (first, second) = tokio::join!(site.provider.create(&asked), site.provider.create(&asked));
    assert_eq!(first.unwrap().instance.id, second.unwrap().instance.id);
    assert_eq!(site.ever_created().await, 1);
    site.finish().await;
}

#[tokio::test]
async fn a_list_is_read_to_its_last_page() {
    let site = GcpSite::start().await;
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
    site.finish().await;
}

#[tokio::test]
async fn a_machine_outlives_the_client_that_asked_for_it() {
    let site = GcpSite::start().await;
    let id = site
        .provider
        .create(&request("a"))
        .await
        .unwrap()
        .instance
        .id;
    let other = build(&config(&site.fake, &site.key())).await.unwrap();
    assert_eq!(other.list(&request("a").tags).await.unwrap()[0].id, id);
    let repeated = other.create(&request("a")).await.unwrap().instance;
    assert_eq!(repeated.id, id);
    assert_eq!(site.ever_created().await, 1);
    site.finish().await;
}

#[tokio::test]
async fn a_key_that_was_revoked_is_told_and_a_new_one_is_used_at_once() {
    let site = GcpSite::start().await;
    site.provider.check().await.unwrap();
    site.fake.accept_keys(&["key-2"]).await;
    for _ in 0..2 {
        let error = site.provider.check().await.unwrap_err();
        assert_eq!(
            (error.class(), error.reason()),
            (Class::Unauthenticated, "CredentialsRejected")
        );
    }
    // As a mounted Secret changes: another file takes the name.
    let fresh = site.dir.path().join("fresh.json");
    std::fs::write(&fresh, key_file("key-2")).unwrap();
    std::fs::rename(&fresh, site.key()).unwrap();
    site.provider.check().await.unwrap();
    site.provider.create(&request("a")).await.unwrap();
    // A file that is away for a moment changes nothing, one that is no key is told.
    std::fs::remove_file(site.key()).unwrap();
    site.provider.check().await.unwrap();
    std::fs::write(site.key(), "{").unwrap();
    let error = site.provider.check().await.unwrap_err();
    assert_eq!(error.class(), Class::Unauthenticated);
    assert!(error.to_string().contains("is not JSON"), "{error}");
    site.finish().await;
}

#[tokio::test]
async fn credentials_that_cannot_be_used_are_told_before_anything_is_called() {
    let fake = FakeGce::start(&[]);
    let dir = tempfile::tempdir().unwrap();
    let key = dir.path().join("key.json");
    for (content, wanted) in [
        (None, "cannot read the credentials file"),
        (Some("not JSON"), "is not JSON"),
        (Some("{}"), "is of the type \"\""),
        (Some(r#"{"type": "other"}"#), "is of the type \"other\""),
        (Some(r#"{"type": "service_account"}"#), "cannot be used"),
    ] {
        if let Some(content) = content {
            std::fs::write(&key, content).unwrap();
        }
        let error = build(&config(&fake, &key)).await.map(|_| ()).unwrap_err();
        assert!(
            error.starts_with("provider under-test cannot be used"),
            "{error}"
        );
        assert!(error.contains(wanted), "{error}");
        assert!(error.contains("key.json"), "{error}");
    }
    assert_eq!(fake.calls("compute.instances.list").await, 0);
}

#[tokio::test]
async fn the_end_of_a_console_is_read_and_that_of_no_machine_is_none() {
    let site = GcpSite::start().await;
    let created = site.provider.create(&request("a")).await.unwrap();
    let Instance { id, zone, name, .. } = created.instance;
    let read = async || site.provider.console(&id).await.unwrap();
    assert_eq!(read().await.as_deref(), Some(""));
    let text = format!("{}the end\n", "boot\n".repeat(100_000));
    site.fake.write_console("p-1", &zone, &name, &text).await;
    let tail = read().await.unwrap();
    assert_eq!(tail, text[text.len() - 256 * 1024..]);
    site.provider.delete(&id).await.unwrap();
    until_gone(site.provider(), &id).await;
    assert_eq!(read().await, None);
    site.finish().await;
}

#[tokio::test]
async fn a_machine_can_be_a_real_proxy() {
    let site = GcpSite::with_flags(&["--proxy-port", "3128"]).await;
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
