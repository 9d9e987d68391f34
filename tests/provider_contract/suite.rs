//! The promises, in terms of the trait alone.

use std::error::Error as _;
use std::sync::Arc;
use std::time::Duration;

use crawl_api::names;
use crawl_api::proxy::Placement;
use prometheus::Registry;
use proxy_operator::providers::{
    Instance, InstanceRequest, InstanceState, Provider, Providers, Requests, Tags, config,
};
use runtime_kit::{Class, Classify, SystemClock};

use crate::fake::Fake;

/// For what takes a second at most.
const TIMEOUT: Duration = Duration::from_secs(30);

/// What a cloud is asked to do wrong, once.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Trouble {
    /// A create is carried out, and its answer is lost.
    LostReply,
    /// A create is never answered, and nothing is done.
    CreateHangs,
    /// A create is accepted, and its operation says that quota is used up.
    QuotaInOperation,
    /// A create is accepted, and its operation says that the zone has no machines.
    StockoutInOperation,
    /// A create is refused, since quota is used up.
    QuotaAtOnce,
    /// A read is refused.
    Read(Refusal),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Refusal {
    Invalid,
    Unauthenticated,
    Forbidden,
    Quota,
    RateLimited,
    Unavailable,
}

/// A cloud and the account under test.
pub(crate) trait Site: Sized {
    /// The zones that are configured, at least two.
    const ZONES: [&'static str; 2];
    /// Whether the cloud has machines that it takes back.
    const HAS_SPOT: bool = true;

    async fn start() -> Self;
    fn provider(&self) -> &dyn Provider;
    async fn cause(&self, trouble: Trouble);
    /// Takes the machine of an instance back; where that does not happen, switches it off.
    async fn stop(&self, instance: &Instance);
    /// How many machines were ever created.
    async fn ever_created(&self) -> usize;
    /// Checks what holds at the end of every test.
    async fn finish(self);
}

/// A cloud that is a fake and plays scripts.
pub(crate) trait FakeSite: Site {
    fn fake(&self) -> &Fake;
}

/// The providers of a file, as the operator builds them.
pub(crate) async fn build(text: &str) -> Result<Arc<dyn Provider>, String> {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("providers.yaml");
    std::fs::write(&path, text).unwrap();
    let config = config::Config::read(&path).unwrap();
    let requests = Requests::register(&Registry::new()).unwrap();
    let clock = SystemClock::shared();
    let providers = Providers::build(&config, &requests, &clock).await;
    let providers = providers.map_err(|error| runtime_kit::chain(&error).to_string())?;
    Ok(Arc::clone(providers.get("under-test").unwrap()))
}

pub(crate) fn tags(cluster: &str, uid: &str) -> Tags {
    Tags::from([
        (names::TAG_CLUSTER.into(), cluster.into()),
        (names::TAG_PROXY_UID.into(), uid.into()),
    ])
}

pub(crate) fn request(name: &str) -> InstanceRequest {
    InstanceRequest {
        name: name.into(),
        placement: Placement::default(),
        cloud_init: Some("#cloud-config\npackages: [squid]\n".into()),
        port: 3128,
        auth: None,
        tags: tags("cluster-1", &format!("uid-{name}")),
    }
}

pub(crate) fn request_in(name: &str, zone: &str) -> InstanceRequest {
    let mut request = request(name);
    request.placement.zone = Some(zone.into());
    request
}

/// Waits until something holds; reads may fail meanwhile, as they do for a controller.
pub(crate) async fn until<T>(what: &str, mut check: impl AsyncFnMut() -> Option<T>) -> T {
    let waiting = async {
        loop {
            if let Some(found) = check().await {
                return found;
            }
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    };
    let found = tokio::time::timeout(TIMEOUT, waiting).await;
    found.unwrap_or_else(|_| panic!("not within {TIMEOUT:?}: {what}"))
}

pub(crate) async fn until_running(provider: &dyn Provider, id: &str) -> Instance {
    until("the instance runs", async || {
        let instance = provider.get(id).await.unwrap()?;
        (instance.state == InstanceState::Running).then_some(instance)
    })
    .await
}

pub(crate) async fn until_gone(provider: &dyn Provider, id: &str) {
    until("the instance is gone", async || {
        provider.get(id).await.unwrap().is_none().then_some(())
    })
    .await;
}

// === the promises ===

pub(crate) async fn an_instance_comes_up_with_everything_that_was_asked_for<S: Site>(site: &S) {
    let provider = site.provider();
    let [_, zone] = S::ZONES;
    let request = request_in("a", zone);
    let created = provider.create(&request).await.unwrap();
    assert_eq!(created.instance.name, "a");
    assert_eq!(created.instance.zone, zone);
    assert!(
        created.instance.id.contains(zone),
        "{}",
        created.instance.id
    );
    assert_eq!(created.instance.state, InstanceState::Provisioning);
    assert_eq!(created.instance.ip, None);
    assert_eq!(created.instance.proxy_uid(), Some("uid-a"));
    let running = until_running(provider, &created.instance.id).await;
    assert!(running.ip.is_some());
    assert_eq!(running.zone, zone);
    for (tag, value) in &request.tags {
        assert_eq!(running.tags.get(tag), Some(value));
    }
    let apart = running.created.duration_since(created.instance.created);
    assert!(apart.unsigned_abs() < Duration::from_mins(1), "{apart}");
}

pub(crate) async fn a_repeated_create_is_answered_with_the_same_instance<S: Site>(site: &S) {
    let provider = site.provider();
    let first = provider.create(&request("a")).await.unwrap().instance;
    let second = provider.create(&request("a")).await.unwrap().instance;
    assert_eq!(first.id, second.id);
    until_running(provider, &first.id).await;
    let third = provider.create(&request("a")).await.unwrap().instance;
    assert_eq!(first.id, third.id);
    assert_eq!(site.ever_created().await, 1);
}

pub(crate) async fn a_lost_reply_and_a_repeat_make_one_instance<S: Site>(site: &S) {
    let provider = site.provider();
    site.cause(Trouble::LostReply).await;
    let lost = provider.create(&request("a")).await.unwrap_err();
    assert_eq!(lost.class(), Class::Transient);
    let created = provider.create(&request("a")).await.unwrap().instance;
    until_running(provider, &created.id).await;
    let found = provider.list(&request("a").tags).await.unwrap();
    let ids: Vec<_> = found.iter().map(|instance| &instance.id).collect();
    assert_eq!(ids, [&created.id]);
    assert_eq!(site.ever_created().await, 1);
}

pub(crate) async fn a_create_that_is_given_up_and_repeated_makes_one_instance<S: Site>(site: &S) {
    let provider = site.provider();
    site.cause(Trouble::CreateHangs).await;
    let asked = request("a");
    let given_up = tokio::time::timeout(Duration::from_millis(300), provider.create(&asked));
    assert!(given_up.await.is_err());
    let created = provider.create(&asked).await.unwrap().instance;
    until_running(provider, &created.id).await;
    assert_eq!(site.ever_created().await, 1);
}

pub(crate) async fn a_name_that_is_somebody_elses_is_a_conflict<S: Site>(site: &S) {
    let provider = site.provider();
    let first = provider.create(&request("a")).await.unwrap().instance;
    until_running(provider, &first.id).await;
    for (cluster, uid) in [("cluster-1", "uid-b"), ("cluster-2", "uid-a")] {
        let mut other = request("a");
        other.tags = tags(cluster, uid);
        let error = provider.create(&other).await.unwrap_err();
        assert_eq!(
            (error.class(), error.reason()),
            (Class::Conflict, "NameTaken")
        );
        assert!(error.to_string().contains("not ours"), "{error}");
        assert!(error.source().is_some());
    }
    assert_eq!(site.ever_created().await, 1);
}

pub(crate) async fn a_deleted_instance_goes_away_and_deleting_it_again_is_success<S: Site>(
    site: &S,
) {
    let provider = site.provider();
    let id = provider.create(&request("a")).await.unwrap().instance.id;
    until_running(provider, &id).await;
    provider.delete(&id).await.unwrap();
    if let Some(instance) = provider.get(&id).await.unwrap() {
        assert_eq!(instance.state, InstanceState::Stopping);
    }
    until_gone(provider, &id).await;
    provider.delete(&id).await.unwrap();
    assert_eq!(provider.list(&request("a").tags).await.unwrap(), []);
}

pub(crate) async fn a_replacement_is_another_instance_and_the_old_id_stays_gone<S: Site>(site: &S) {
    let provider = site.provider();
    let mut ids = Vec::new();
    for _ in 0..3 {
        let id = provider.create(&request("a")).await.unwrap().instance.id;
        until_running(provider, &id).await;
        assert!(!ids.contains(&id), "{id}");
        for old in &ids {
            assert_eq!(provider.get(old).await.unwrap(), None);
            provider.delete(old).await.unwrap();
        }
        // Why: deleting what is gone touches no other machine of that name.
        until_running(provider, &id).await;
        provider.delete(&id).await.unwrap();
        until_gone(provider, &id).await;
        ids.push(id);
    }
    assert_eq!(site.ever_created().await, 3);
}

pub(crate) async fn a_list_has_what_carries_all_tags_over_every_zone<S: Site>(site: &S) {
    let provider = site.provider();
    let [first, second] = S::ZONES;
    for (name, zone) in [("a", first), ("b", second), ("c", first)] {
        provider.create(&request_in(name, zone)).await.unwrap();
    }
    let mut foreign = request_in("d", first);
    foreign.tags = tags("cluster-2", "uid-a");
    provider.create(&foreign).await.unwrap();
    let cluster = Tags::from([(names::TAG_CLUSTER.into(), "cluster-1".into())]);
    let names = async |tags: &Tags| {
        let mut names: Vec<_> = provider
            .list(tags)
            .await
            .unwrap()
            .into_iter()
            .map(|instance| (instance.name, instance.zone))
            .collect();
        names.sort();
        names
    };
    let named = |pairs: &[(&str, &str)]| -> Vec<_> {
        let owned = |(name, zone): &(&str, &str)| ((*name).to_owned(), (*zone).to_owned());
        pairs.iter().map(owned).collect()
    };
    let all = named(&[("a", first), ("b", second), ("c", first)]);
    assert_eq!(names(&cluster).await, all);
    assert_eq!(names(&request("a").tags).await, named(&[("a", first)]));
    assert_eq!(names(&tags("cluster-3", "uid-a")).await, []);
    let listing = provider.survey(&cluster).await.unwrap();
    assert!(listing.unread.is_empty(), "{:?}", listing.unread);
}

pub(crate) async fn a_quota_that_shows_in_the_operation_is_read_and_the_next_create_is_a_new_one<
    S: Site,
>(
    site: &S,
) {
    let provider = site.provider();
    operation_failed(site, Trouble::QuotaInOperation).await;
    let created = provider.create(&request("a")).await.unwrap().instance;
    until_running(provider, &created.id).await;
    assert_eq!(site.ever_created().await, 1);
}

pub(crate) async fn a_stockout_that_shows_in_the_operation_is_read<S: Site>(site: &S) {
    operation_failed(site, Trouble::StockoutInOperation).await;
}

async fn operation_failed<S: Site>(site: &S, trouble: Trouble) {
    let provider = site.provider();
    let [zone, _] = S::ZONES;
    site.cause(trouble).await;
    let created = provider.create(&request_in("a", zone)).await.unwrap();
    let operation = created.operation.unwrap();
    let error = until("the operation has failed", async || {
        provider.operation_error(&operation).await.unwrap()
    })
    .await;
    assert_eq!(
        (error.class(), error.reason()),
        (Class::Quota, "QuotaExceeded")
    );
    assert_eq!(error.exhausted_zone(), Some(zone));
    until_gone(provider, &created.instance.id).await;
}

pub(crate) async fn a_create_that_is_refused_for_quota_names_the_zone<S: Site>(site: &S) {
    let provider = site.provider();
    let [_, zone] = S::ZONES;
    site.cause(Trouble::QuotaAtOnce).await;
    let error = provider.create(&request_in("a", zone)).await.unwrap_err();
    assert_eq!(
        (error.class(), error.exhausted_zone()),
        (Class::Quota, Some(zone))
    );
    provider.create(&request_in("a", zone)).await.unwrap();
    assert_eq!(site.ever_created().await, 1);
}

pub(crate) async fn an_operation_that_went_well_or_is_unknown_has_no_error<S: Site>(site: &S) {
    let provider = site.provider();
    let created = provider.create(&request("a")).await.unwrap();
    let operation = created.operation.unwrap();
    assert!(
        provider
            .operation_error(&operation)
            .await
            .unwrap()
            .is_none()
    );
    until_running(provider, &created.instance.id).await;
    assert!(
        provider
            .operation_error(&operation)
            .await
            .unwrap()
            .is_none()
    );
    let unknown = format!("{operation}0");
    assert!(provider.operation_error(&unknown).await.unwrap().is_none());
}

pub(crate) async fn every_kind_of_failure_has_its_class_and_keeps_its_cause<S: Site>(site: &S) {
    let provider = site.provider();
    let id = provider.create(&request("a")).await.unwrap().instance.id;
    until_running(provider, &id).await;
    // The last one makes the account rest.
    for (refusal, class, reason) in [
        (Refusal::Invalid, Class::Invalid, "InvalidSpec"),
        (
            Refusal::Unauthenticated,
            Class::Unauthenticated,
            "CredentialsRejected",
        ),
        (Refusal::Forbidden, Class::Forbidden, "Forbidden"),
        (Refusal::Quota, Class::Quota, "QuotaExceeded"),
        (Refusal::Unavailable, Class::Transient, "ProviderError"),
        (Refusal::RateLimited, Class::RateLimited, "RateLimited"),
    ] {
        site.cause(Trouble::Read(refusal)).await;
        let error = provider.get(&id).await.unwrap_err();
        assert_eq!(
            (error.class(), error.reason()),
            (class, reason),
            "{refusal:?}"
        );
        assert!(error.source().is_some(), "{refusal:?}: {error}");
    }
}

pub(crate) async fn an_account_that_asks_for_rest_gets_it<S: Site>(site: &S) {
    let provider = site.provider();
    site.cause(Trouble::Read(Refusal::RateLimited)).await;
    let id = provider.create(&request("a")).await.unwrap().instance.id;
    let told = provider.get(&id).await.unwrap_err().wait().unwrap();
    assert!(told > Duration::ZERO);
    let held = provider.create(&request("b")).await.unwrap_err();
    assert_eq!(held.class(), Class::RateLimited);
    assert!(held.wait().unwrap() <= told);
    assert_eq!(site.ever_created().await, 1);
}

pub(crate) async fn an_instance_that_was_stopped_is_told_so_until_it_is_deleted<S: Site>(site: &S) {
    let provider = site.provider();
    let mut asked = request("a");
    asked.placement.spot = S::HAS_SPOT;
    let id = provider.create(&asked).await.unwrap().instance.id;
    let running = until_running(provider, &id).await;
    site.stop(&running).await;
    until("the instance is stopped", async || {
        let instance = provider.get(&id).await.unwrap()?;
        (instance.state == InstanceState::Stopped).then_some(())
    })
    .await;
    provider.delete(&id).await.unwrap();
    until_gone(provider, &id).await;
}

pub(crate) async fn a_check_tells_whether_the_account_can_be_used<S: Site>(site: &S) {
    site.provider().check().await.unwrap();
    assert_eq!(site.ever_created().await, 0);
}

pub(crate) async fn an_id_of_another_kind_is_refused<S: Site>(site: &S) {
    let provider = site.provider();
    for id in ["", "17", "aws:///eu-1/i-17"] {
        assert_eq!(
            provider.get(id).await.unwrap_err().class(),
            Class::Invalid,
            "{id:?}"
        );
        assert_eq!(
            provider.delete(id).await.unwrap_err().class(),
            Class::Invalid,
            "{id:?}"
        );
    }
}

// === what clouds do that the mock does not ===

/// Case 57.
pub(crate) async fn an_address_that_is_used_again_does_not_make_one_machine_of_two<S: FakeSite>(
    site: &S,
) {
    let provider = site.provider();
    site.fake().play("reused-address").await;
    let first = provider.create(&request("a")).await.unwrap().instance;
    let first = until_running(provider, &first.id).await;
    provider.delete(&first.id).await.unwrap();
    until_gone(provider, &first.id).await;
    let second = provider.create(&request("b")).await.unwrap().instance;
    let second = until_running(provider, &second.id).await;
    assert_eq!(second.ip, first.ip);
    assert_ne!(second.id, first.id);
    assert_eq!(second.proxy_uid(), Some("uid-b"));
    assert_eq!(provider.get(&first.id).await.unwrap(), None);
}
