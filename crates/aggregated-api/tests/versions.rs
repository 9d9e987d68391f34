//! A kind in two versions: conversions lose nothing, and a store written in one version is read in the
//! other.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

#[path = "../examples/wardle/wardle/kinds.rs"]
#[allow(dead_code, reason = "shared with the server")]
mod kinds;

use std::sync::Arc;

use aggregated_api::registry::cache::StoreCache;
use aggregated_api::registry::capability::{Companion, Object};
use aggregated_api::registry::collection::{Collection, Written};
use aggregated_api::registry::version::Convert as _;
use aggregated_api::schema::declaration::DeclarationError;
use aggregated_api::store::Store;
use aggregated_api::store::redb::{Options, RedbStore};
use kinds::{Fischer, Flunder, FlunderV1alpha1};
use proptest::prelude::*;
use runtime_kit::clock::SystemClock;
use serde_json::{Value, json};

const KEY: &str = "/registry/wardle.example.com/flunders/ns/f";

fn object<T: Object>(version: &str, spec: &Value) -> T {
    serde_json::from_value(json!({
        "apiVersion": format!("wardle.example.com/{version}"),
        "kind": "Flunder",
        "metadata": {"name": "f", "namespace": "ns", "labels": {"app": "x"}},
        "spec": spec,
    }))
    .unwrap()
}

fn value(object: &impl serde::Serialize) -> Value {
    serde_json::to_value(object).unwrap()
}

proptest! {
    #[test]
    fn conversions_lose_nothing(
        reference in "[a-z]{1,8}",
        kind in prop::option::of(prop_oneof![Just("Flunder"), Just("Fischer")]),
    ) {
        let spec = match kind {
            Some(kind) => json!({"reference": reference, "referenceType": kind}),
            None => json!({}),
        };
        let old: FlunderV1alpha1 = object("v1alpha1", &spec);
        let before = value(&old);
        prop_assert_eq!(value(&FlunderV1alpha1::from_hub(old.into_hub())), before);

        let spec = match kind {
            Some("Flunder") => json!({"flunderReference": reference, "referenceType": "Flunder"}),
            Some(_) => json!({"fischerReference": reference, "referenceType": "Fischer"}),
            None => json!({}),
        };
        let hub: Flunder = object("v1beta1", &spec);
        let before = value(&hub);
        prop_assert_eq!(value(&FlunderV1alpha1::from_hub(hub).into_hub()), before);
    }
}

async fn both(store: &Arc<dyn Store>) -> Collection<Flunder> {
    let cache = StoreCache::start(Arc::clone(store)).await.unwrap();
    Collection::with_versions(&cache, SystemClock::shared(), |versions| {
        versions.add::<FlunderV1alpha1>()
    })
    .unwrap()
}

async fn stored(store: &Arc<dyn Store>) -> Value {
    let listing = store.list(KEY, None, None, None).await.unwrap();
    serde_json::from_slice(&listing.records[0].value).unwrap()
}

#[tokio::test]
async fn what_an_earlier_release_stored_is_read_and_rewritten_in_the_version_of_this_one() {
    let store: Arc<dyn Store> = Arc::new(RedbStore::in_memory(Options::default()).unwrap());
    let cache = StoreCache::start(Arc::clone(&store)).await.unwrap();
    let earlier = Collection::<FlunderV1alpha1>::new(&cache, SystemClock::shared()).unwrap();
    let spec = json!({"reference": "r", "referenceType": "Fischer"});
    let created = earlier.create(object("v1alpha1", &spec), Companion::default());
    assert!(matches!(created.await.unwrap(), Written::Committed(_)));
    assert_eq!(
        stored(&store).await["apiVersion"],
        "wardle.example.com/v1alpha1"
    );

    let flunders = both(&store).await;
    let read = flunders.get_latest("ns", "f").await.unwrap().unwrap();
    let expected = json!({"fischerReference": "r", "referenceType": "Fischer"});
    assert_eq!(value(&read)["spec"], expected);
    assert_eq!(value(&read)["metadata"]["labels"]["app"], "x");
    assert_eq!(flunders.list().len(), 1);

    let replaced = flunders.replace(read, Companion::default()).await.unwrap();
    assert!(matches!(replaced, Written::Committed(_)));
    let bytes = stored(&store).await;
    assert_eq!(bytes["apiVersion"], "wardle.example.com/v1beta1");
    assert_eq!(bytes["spec"], expected);
}

#[tokio::test]
async fn what_is_stored_in_a_version_without_a_conversion_is_named() {
    let store: Arc<dyn Store> = Arc::new(RedbStore::in_memory(Options::default()).unwrap());
    both(&store)
        .await
        .create(object("v1beta1", &json!({})), Companion::default())
        .await
        .unwrap();
    let cache = StoreCache::start(Arc::clone(&store)).await.unwrap();
    let earlier = Collection::<FlunderV1alpha1>::new(&cache, SystemClock::shared()).unwrap();
    let error = earlier.get_latest("ns", "f").await.unwrap_err().to_string();
    assert!(error.contains("wardle.example.com/v1beta1"), "{error}");
    assert!(error.contains(KEY), "{error}");
}

#[tokio::test]
async fn another_kind_or_the_same_version_twice_is_not_a_version() {
    let store: Arc<dyn Store> = Arc::new(RedbStore::in_memory(Options::default()).unwrap());
    let cache = StoreCache::start(store).await.unwrap();
    let twice = Collection::<Flunder>::with_versions(&cache, SystemClock::shared(), |versions| {
        versions.add::<FlunderV1alpha1>()?;
        versions.add::<FlunderV1alpha1>()
    });
    assert!(matches!(
        twice.err(),
        Some(DeclarationError::NotAVersion { .. })
    ));
    let other = Collection::<Fischer>::new(&cache, SystemClock::shared()).unwrap();
    assert_eq!(other.resource().resource, "fischers");
}
