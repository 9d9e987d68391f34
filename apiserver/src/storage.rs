//! Opens the store that `--store` names, and says meanwhile what it is busy with. Called by
//! [`crate::app::run`].

use std::io::ErrorKind;
use std::path::Path;
use std::sync::Arc;

use aggregated_api::store::Store;
use aggregated_api::store::redb::{Opening, Options, RedbStore};
use anyhow::Context;
use runtime_kit::admin::ReadyFlag;

use crate::args::StoreUrl;

/// Bytes of database pages kept in memory.
const DATABASE_CACHE_BYTES: usize = 16 << 20;

/// Opens the store. `ready` tells why it takes long, and is ready in the end.
///
/// # Errors
/// The file cannot be opened, is damaged, or another process keeps it open.
pub async fn open(url: StoreUrl, ready: ReadyFlag) -> anyhow::Result<Arc<dyn Store>> {
    // Reads come from the watch cache: the database's own can be small.
    let options = Options {
        cache_bytes: DATABASE_CACHE_BYTES,
        ..Options::default()
    };
    let store = match url {
        StoreUrl::Memory => RedbStore::in_memory(options).context("--store cannot be opened")?,
        StoreUrl::Redb(path) => {
            let flag = ready.clone();
            let opened = tokio::task::spawn_blocking(move || open_file(&path, options, &flag));
            opened.await??
        },
    };
    ready.set_ready();
    Ok(Arc::new(store))
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
    use runtime_kit::admin::Health;

    use super::*;

    #[tokio::test]
    async fn readiness_says_that_the_store_is_awaited_until_it_is_open() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("db");
        let holder = RedbStore::open(&path, Options::default()).unwrap();
        let health = Health::new();
        let ready = health.ready_flag("store", "the store is being opened");
        let opening = tokio::spawn(open(StoreUrl::Redb(path.clone()), ready));
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
        tokio::time::timeout(std::time::Duration::from_secs(30), waits)
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
        let Err(err) = open(StoreUrl::Redb(path.clone()), ready).await else {
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
