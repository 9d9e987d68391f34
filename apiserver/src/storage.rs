//! Opens the store that `--store` names, and says meanwhile what it is busy with. Called by
//! [`crate::app::run`].

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use aggregated_api::store::etcd::{self, EtcdStore};
use aggregated_api::store::redb::{Opening, Options, RedbStore};
use aggregated_api::store::transform::TransformedStore;
use aggregated_api::store::transform::encryption::Encryption;
use aggregated_api::store::{Error, Store};
use anyhow::Context;
use runtime_kit::admin::ReadyFlag;
use runtime_kit::clock::Clock;

use crate::args::{StoreArgs, StoreUrl};

/// Bytes of database pages kept in memory.
const DATABASE_CACHE_BYTES: usize = 16 << 20;

/// Pause before etcd is tried again.
const PAUSE: Duration = Duration::from_secs(1);

/// An open store.
pub struct Opened {
    /// The store, which encrypts as configured.
    pub store: Arc<TransformedStore>,
    /// Whether other processes may use it at the same time.
    pub shared: bool,
}

/// Opens the store. `ready` tells why it takes long, and is ready in the end.
///
/// # Errors
/// The file cannot be opened, is damaged, or another process keeps it open; etcd cannot be used with
/// these flags; or the encryption configuration is refused.
pub async fn open(args: StoreArgs, ready: ReadyFlag, clock: &dyn Clock) -> anyhow::Result<Opened> {
    let encryption = match &args.encryption_provider_config {
        None => Encryption::none(),
        Some(path) => encryption(path)
            .with_context(|| format!("--encryption-provider-config={}", path.display()))?,
    };
    // Reads come from the watch cache: the database's own can be small.
    let options = Options {
        cache_bytes: DATABASE_CACHE_BYTES,
        ..Options::default()
    };
    let shared = args.store == StoreUrl::Etcd;
    let store: Arc<dyn Store> = match args.store.clone() {
        StoreUrl::Memory => {
            Arc::new(RedbStore::in_memory(options).context("--store cannot be opened")?)
        },
        StoreUrl::Redb(path) => {
            let flag = ready.clone();
            let opened = tokio::task::spawn_blocking(move || open_file(&path, options, &flag));
            Arc::new(opened.await??)
        },
        StoreUrl::Etcd => Arc::new(connect(args, &ready, clock).await?),
    };
    ready.set_ready();
    Ok(Opened {
        store: Arc::new(TransformedStore::new(store, Arc::new(encryption))),
        shared,
    })
}

fn encryption(path: &Path) -> anyhow::Result<Encryption> {
    let text = std::fs::read_to_string(path).context("it cannot be read")?;
    Ok(Encryption::from_yaml(&text)?)
}

/// Waits until etcd answers.
async fn connect(
    args: StoreArgs,
    ready: &ReadyFlag,
    clock: &dyn Clock,
) -> anyhow::Result<EtcdStore> {
    let tls = args.etcd_cafile.map(|ca_file| etcd::Tls {
        ca_file,
        client: args.etcd_certfile.zip(args.etcd_keyfile),
    });
    let options = etcd::Options {
        endpoints: args.etcd_servers,
        tls,
        ..etcd::Options::new("", args.etcd_prefix)
    };
    EtcdStore::check(&options).context("--store=etcd, --etcd-…")?;
    loop {
        match EtcdStore::connect(options.clone()).await {
            Err(error @ Error::Unavailable { .. }) => {
                let error = runtime_kit::chain(&error).to_string();
                tracing::warn!(error, "etcd cannot be used yet");
                ready.set_unready(error);
                clock.sleep(PAUSE).await;
            },
            connected => return connected.context("--store=etcd"),
        }
    }
}

fn open_file(path: &Path, options: Options, ready: &ReadyFlag) -> anyhow::Result<RedbStore> {
    let context = || format!("--store={} cannot be opened", path.display());
    let bytes = match std::fs::metadata(path) {
        Ok(metadata) => metadata.len(),
        Err(err) if err.kind() == ErrorKind::NotFound => 0,
        Err(err) => return Err(err).with_context(context),
    };
    let megabytes = bytes.div_ceil(1_000_000);
    tracing::info!(path = %path.display(), megabytes, "opening the store");
    let (flag, named) = (ready.clone(), path.to_owned());
    let store = RedbStore::open_reporting(path, options, move |what| {
        let path = named.display();
        match what {
            Opening::Waiting => {
                tracing::warn!(%path, "another process has the store open: waiting for its end");
                flag.set_unready(format!(
                    "another process has {path} open: waiting for its end"
                ));
            },
            Opening::Checking => {
                tracing::info!(%path, megabytes, "checking the store, which was not closed");
                flag.set_unready(format!(
                    "the store is being checked ({megabytes} MB), since it was not closed"
                ));
            },
        }
    })
    .with_context(context)?;
    tracing::info!(path = %path.display(), "the store is open");
    Ok(store)
}

#[cfg(test)]
mod tests {
    use runtime_kit::SteppedClock;
    use runtime_kit::admin::Health;

    use super::*;

    fn args(store: StoreUrl) -> StoreArgs {
        StoreArgs {
            store,
            etcd_servers: Vec::new(),
            etcd_prefix: "/test".to_owned(),
            etcd_cafile: None,
            etcd_certfile: None,
            etcd_keyfile: None,
            encryption_provider_config: None,
        }
    }

    async fn fails(args: StoreArgs) -> String {
        let ready = Health::new().ready_flag("store", "the store is being opened");
        match open(args, ready, &SteppedClock::default()).await {
            Ok(_) => panic!("it cannot be opened"),
            Err(error) => format!("{error:#}"),
        }
    }

    #[tokio::test]
    async fn flags_of_etcd_that_cannot_be_used_are_refused_at_once() {
        let etcd = |server: &str, prefix: &str| StoreArgs {
            etcd_servers: vec![server.to_owned()],
            etcd_prefix: prefix.to_owned(),
            ..args(StoreUrl::Etcd)
        };
        let without_authority = fails(etcd("https://127.0.0.1:1", "/test")).await;
        assert!(without_authority.contains("http://"), "{without_authority}");
        let prefix = fails(etcd("http://127.0.0.1:1", "test/")).await;
        assert!(prefix.contains("\"test/\""), "{prefix}");
    }

    #[tokio::test]
    async fn an_encryption_configuration_is_refused_with_its_file_and_used_with_any_store() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("encryption.yaml");
        let encrypted = |store| StoreArgs {
            encryption_provider_config: Some(file.clone()),
            ..args(store)
        };
        let named = format!("--encryption-provider-config={}: ", file.display());
        let missing = fails(encrypted(StoreUrl::Memory)).await;
        assert!(missing.starts_with(&named), "{missing}");
        std::fs::write(&file, "kind: Secret").unwrap();
        let other = fails(encrypted(StoreUrl::Memory)).await;
        assert!(other.starts_with(&named), "{other}");
        let configuration = "apiVersion: apiserver.config.k8s.io/v1\n\
             kind: EncryptionConfiguration\nresources:\n- resources: ['*.*']\n  providers:\n  \
             - aesgcm: {keys: [{name: k, secret: MDEyMzQ1Njc4OWFiY2RlZg==}]}\n";
        std::fs::write(&file, configuration).unwrap();
        let path = folder.path().join("db");
        let ready = || Health::new().ready_flag("store", "opening");
        let clock = SteppedClock::default();
        let opened = open(encrypted(StoreUrl::Redb(path.clone())), ready(), &clock);
        let opened = opened.await.unwrap();
        let put = aggregated_api::store::Op::Put("/a".into(), "swordfish".into());
        opened.store.txn(Vec::new(), vec![put]).await.unwrap();
        drop(opened);
        let clear = open(args(StoreUrl::Redb(path)), ready(), &clock);
        let why = clear.await.unwrap().store.get("/a").await.unwrap_err();
        assert!(why.to_string().contains("the key \"k\""), "{why}");
    }

    #[tokio::test]
    async fn readiness_says_that_the_store_is_awaited_until_it_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
        let holder = RedbStore::open(&path, Options::default()).unwrap();
        let health = Health::new();
        let ready = health.ready_flag("store", "the store is being opened");
        let opened = path.clone();
        let opening = tokio::spawn(async move {
            let clock = SteppedClock::default();
            open(args(StoreUrl::Redb(opened)), ready, &clock).await
        });
        let expected = format!(
            "another process has {} open: waiting for its end",
            path.display()
        );
        let waits = async {
            loop {
                let [(_, why)] = &*health.ready().unwrap_err() else {
                    panic!("there is one check")
                };
                if *why == expected {
                    break;
                }
                assert_eq!(why, "the store is being opened");
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(Duration::from_secs(30), waits)
            .await
            .unwrap();
        drop(holder);
        opening.await.unwrap().unwrap();
        assert_eq!(health.ready(), Ok(()));
    }

    #[tokio::test]
    async fn a_store_that_cannot_be_opened_is_named_and_stays_not_ready() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
        std::fs::write(&path, "this is not a database").unwrap();
        let health = Health::new();
        let ready = health.ready_flag("store", "the store is being opened");
        let clock = SteppedClock::default();
        let Err(err) = open(args(StoreUrl::Redb(path.clone())), ready, &clock).await else {
            panic!("it is not a database")
        };
        let text = format!("{err:#}");
        assert!(
            text.starts_with(&format!("--store={} cannot be opened: ", path.display())),
            "{text}"
        );
        assert!(health.ready().is_err());
    }
}
