//! Tests of encryption: the contract through it, rotation, and every refusal.

use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use bytes::Bytes;
use futures::StreamExt;

use super::{Encryption, Opened, ValueTransformer};
use crate::store::redb::{Options, RedbStore};
use crate::store::transform::TransformedStore;
use crate::store::{Batch, Error, Op, Outcome, Store, contract};

const SECRETS: [&str; 3] = [
    "MDEyMzQ1Njc4OWFiY2RlZjAxMjM0NTY3ODlhYmNkZWY=",
    "QUFBQUFBQUFBQUFBQUFBQUFBQUFBQUFB",
    "enp6enp6enp6enp6enp6eg==",
];

/// Keys by number, the first one writing; `clear`: values in clear may be read.
fn keys(numbers: &[usize], clear: bool) -> String {
    let mut text = String::from(
        "apiVersion: apiserver.config.k8s.io/v1\nkind: EncryptionConfiguration\nresources:\n\
         - resources: ['*.*']\n  providers:\n  - aesgcm:\n      keys:\n",
    );
    for number in numbers {
        text += "      - name: key";
        text += &number.to_string();
        text += "\n        secret: ";
        text += SECRETS[*number];
        text += "\n";
    }
    if clear {
        text += "  - identity: {}\n";
    }
    text
}

fn with_keys(numbers: &[usize], clear: bool) -> Encryption {
    Encryption::from_yaml(&keys(numbers, clear)).unwrap()
}

fn over(inner: &Arc<RedbStore>, encryption: Encryption) -> TransformedStore {
    TransformedStore::new(Arc::<RedbStore>::clone(inner), Arc::new(encryption))
}

async fn put(store: &dyn Store, key: &str, value: &'static str) {
    let op = Op::Put(Arc::from(key), Bytes::from_static(value.as_bytes()));
    let outcome = store.txn(Vec::new(), vec![op]).await.unwrap();
    assert!(matches!(outcome, Outcome::Committed(_)));
}

async fn raw(inner: &RedbStore, key: &str) -> Bytes {
    inner.get(key).await.unwrap().unwrap().value
}

fn unreadable<T: std::fmt::Debug>(result: Result<T, Error>) -> String {
    match result {
        Err(Error::Unreadable(why)) => why,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_encrypted_store_keeps_the_contract() {
    let folder = tempfile::tempdir().unwrap();
    let number = AtomicUsize::new(0);
    contract::run(async || {
        let number = number.fetch_add(1, Ordering::Relaxed);
        let options = Options {
            window_bytes: 2048,
            ..Options::default()
        };
        let store = RedbStore::open(folder.path().join(number.to_string()), options).unwrap();
        over(&Arc::new(store), with_keys(&[0], false))
    })
    .await;
}

#[tokio::test]
async fn nothing_of_a_value_is_on_the_medium_and_all_ways_of_reading_give_it_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("db");
    let inner = Arc::new(RedbStore::open(&path, Options::default()).unwrap());
    let store = over(&inner, with_keys(&[0], false));
    put(&store, "/registry/g/r/ns/a", "swordfish one").await;
    let first = store.revision();
    put(&store, "/registry/g/r/ns/a", "swordfish two").await;
    let listing = store.list("", Some(first), None, None).await.unwrap();
    assert_eq!(&listing.records[0].value[..], b"swordfish one");
    let now = store.get("/registry/g/r/ns/a").await.unwrap().unwrap();
    assert_eq!(&now.value[..], b"swordfish two");
    let mut watch = store.watch("", first);
    let Some(Ok(Batch { events, .. })) = watch.next().await else {
        panic!("there was a change")
    };
    let previous = events[0].previous.as_ref().unwrap();
    assert_eq!(&previous.value[..], b"swordfish one");
    assert_eq!(events[0].current.as_ref(), Some(&now));
    let stored = raw(&inner, "/registry/g/r/ns/a").await;
    assert!(stored.starts_with(b"enc:aesgcm:v1:key0:"));
    drop((watch, store, inner));
    let file = std::fs::read(&path).unwrap();
    let holds = |needle: &[u8]| file.windows(needle.len()).any(|window| window == needle);
    assert!(
        holds(b"enc:aesgcm:v1:key0:"),
        "the file is what is looked at"
    );
    assert!(!holds(b"swordfish"));
}

#[test]
fn one_value_is_stored_in_another_form_each_time_and_is_bound_to_its_key() {
    let encryption = with_keys(&[0], false);
    let value = Bytes::from_static(b"value");
    let one = encryption.seal("/a", value.clone()).unwrap();
    let two = encryption.seal("/a", value.clone()).unwrap();
    assert_ne!(one, two);
    assert!(one.len() <= value.len() + encryption.overhead());
    let opened = Opened {
        value,
        stale: false,
    };
    assert_eq!(encryption.open("/a", one.clone()).unwrap(), opened);
    let why = unreadable(encryption.open("/b", one.clone()));
    assert!(why.contains("/b") && why.contains("\"key0\""), "{why}");
    for at in 0..one.len() {
        let mut damaged = one.to_vec();
        damaged[at] ^= 1;
        assert!(encryption.open("/a", damaged.into()).is_err(), "byte {at}");
        assert!(
            encryption.open("/a", one.slice(..at)).is_err(),
            "{at} bytes"
        );
    }
}

#[tokio::test]
async fn keys_are_rotated_in_three_starts_and_clear_values_are_encrypted_on_the_way() {
    let inner = Arc::new(RedbStore::in_memory(Options::default()).unwrap());
    let clear = over(&inner, Encryption::none());
    for n in 0..1200 {
        put(&clear, &format!("/registry/g/r/ns/{n}"), "clear").await;
    }
    assert_eq!(&raw(&inner, "/registry/g/r/ns/7").await[..], b"clear");
    assert_eq!(clear.renew().await.unwrap(), 0);

    let first = over(&inner, with_keys(&[0], true));
    put(&first, "/registry/g/r/ns/7", "changed").await;
    let before = first.get("/registry/g/r/ns/8").await.unwrap().unwrap();
    assert_eq!(first.renew().await.unwrap(), 1199);
    assert_eq!(first.renew().await.unwrap(), 0);
    let renewed = first.get("/registry/g/r/ns/8").await.unwrap().unwrap();
    assert_eq!(
        (renewed.version, renewed.value),
        (before.version + 1, before.value)
    );

    // The next key is known before it writes, writes, and is alone.
    let both = over(&inner, with_keys(&[0, 1], false));
    assert_eq!(both.renew().await.unwrap(), 0);
    let second = over(&inner, with_keys(&[1, 0], false));
    assert_eq!(second.renew().await.unwrap(), 1200);
    inner.compact(inner.revision()).await.unwrap();
    let alone = over(&inner, with_keys(&[1], false));
    let records = alone.list("", None, None, None).await.unwrap().records;
    assert_eq!(records.len(), 1200);
    let changed = records
        .iter()
        .filter(|record| &record.value[..] == b"changed");
    assert_eq!(changed.count(), 1);

    // And back.
    let clear = keys(&[1], false).replace("  - aesgcm", "  - identity: {}\n  - aesgcm");
    let clear = over(&inner, Encryption::from_yaml(&clear).unwrap());
    assert_eq!(clear.renew().await.unwrap(), 1200);
    assert_eq!(&raw(&inner, "/registry/g/r/ns/8").await[..], b"clear");
}

#[tokio::test]
async fn a_value_that_changes_while_it_is_renewed_keeps_the_change() {
    let inner = Arc::new(RedbStore::in_memory(Options::default()).unwrap());
    for n in 0..300 {
        put(&*inner, &format!("/k/{n}"), "old").await;
    }
    let store = over(&inner, with_keys(&[0], true));
    let writing = async {
        for n in 0..300 {
            put(&store, &format!("/k/{n}"), "new").await;
        }
    };
    let (renewed, ()) = tokio::join!(store.renew(), writing);
    renewed.unwrap();
    let records = store.list("", None, None, None).await.unwrap().records;
    assert!(records.iter().all(|record| &record.value[..] == b"new"));
    assert_eq!(store.renew().await.unwrap(), 0);
}

#[tokio::test]
async fn what_cannot_be_read_is_named_with_its_key_and_the_remedy() {
    let inner = Arc::new(RedbStore::in_memory(Options::default()).unwrap());
    put(&over(&inner, with_keys(&[0], false)), "/a", "value").await;
    let other_secret = keys(&[0], false).replace(SECRETS[0], SECRETS[1]);
    for (encryption, remedy) in [
        (Encryption::none(), "add it behind the key that writes"),
        (with_keys(&[1], true), "add it behind the key that writes"),
        (
            Encryption::from_yaml(&other_secret).unwrap(),
            "must be restored under this name",
        ),
    ] {
        let store = over(&inner, encryption);
        let whys = [
            unreadable(store.get("/a").await),
            unreadable(store.list("", None, None, None).await),
            unreadable(store.renew().await),
        ];
        for why in whys {
            let named = "/a is encrypted with the key \"key0\"";
            assert!(why.contains(named) && why.contains(remedy), "{why}");
        }
        let mut watch = store.watch("", 0);
        unreadable(watch.next().await.unwrap());
        assert!(watch.next().await.is_none(), "an error ends the watch");
    }
    put(&*inner, "/clear", "value").await;
    let why = unreadable(over(&inner, with_keys(&[0], false)).get("/clear").await);
    assert!(
        why.contains("/clear is not encrypted") && why.contains("identity"),
        "{why}"
    );
}

#[test]
fn a_configuration_that_is_not_offered_is_refused_with_its_place_and_without_secrets() {
    let good = keys(&[0], true);
    let changed = |from: &str, to: &str| {
        assert!(good.contains(from), "{from}");
        good.replace(from, to)
    };
    let again = format!(
        "      - name: key0\n        secret: {}\n  - identity",
        SECRETS[1]
    );
    let twice = format!("{good}- resources: ['*.*']\n  providers:\n  - identity: {{}}\n");
    for (text, named) in [
        (changed("config.k8s.io/v1", "config.k8s.io/v2"), "k8s.io/v2"),
        (changed("kind: E", "kind: F"), "FncryptionConfiguration"),
        (changed("'*.*'", "secrets"), "resources[0].resources"),
        (twice, "one entry"),
        (changed("aesgcm:", "aescbc:"), "[0]: aescbc is not offered"),
        (changed("aesgcm:", "secretbox:"), "[0]: secretbox is not"),
        (
            changed("identity: {}", "kms: {}"),
            "[1]: kms is not offered",
        ),
        (
            changed("  - identity", "    identity"),
            "[0]: must have one",
        ),
        (changed("name: key0", "name: ''"), "keys[0].name"),
        (changed("name: key0", "name: 'a:b'"), "keys[0].name"),
        (changed("  - identity", &again), "keys[1].name: another key"),
        (changed(SECRETS[0], "c2hvcnQ="), "has 5 bytes"),
        (changed(SECRETS[0], "'!!'"), "is not base64"),
        (
            changed("name: key0", "label: key0"),
            "unknown field \"label\"",
        ),
        (
            changed("- name: key0\n        ", "- "),
            "missing field \"name\"",
        ),
        (changed("secret: ", "secret: \n        - "), "line "),
        (changed("keys:", "keys: {}\n      other:"), "line "),
        ("providers".to_owned(), "line 1"),
        (String::new(), "line 1"),
    ] {
        let error = Encryption::from_yaml(&text).unwrap_err().to_string();
        assert!(error.contains(named), "{named}: {error}\n{text}");
        assert!(!error.contains(SECRETS[0]), "{error}");
    }
    let shown = format!("{:?}", with_keys(&[0, 1], true));
    assert_eq!(shown, "[AesGcm([key0, key1]), Identity]");
}
