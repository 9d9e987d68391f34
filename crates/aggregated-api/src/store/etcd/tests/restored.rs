//! An etcd that was restored from older data.

use std::path::Path;

use super::{Error, Etcd, PATIENCE, Store, StreamExt, commit, put};

fn copy(from: &Path, to: &Path) {
    std::fs::create_dir_all(to).unwrap();
    for entry in std::fs::read_dir(from).unwrap() {
        let entry = entry.unwrap();
        let target = to.join(entry.file_name());
        if entry.file_type().unwrap().is_dir() {
            copy(&entry.path(), &target);
        } else {
            std::fs::copy(entry.path(), target).unwrap();
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restored_etcd_ends_the_processes_that_knew_more_and_no_revision_is_given_twice() {
    let mut etcd = Etcd::start(&[]).await;
    let store = etcd.connect("/test").await;
    let kept = commit(&store, put("kept", "x")).await;
    etcd.kill(0);
    let (data, backup) = (etcd.data(0), etcd.data(9));
    copy(&data, &backup);
    etcd.start_again(0).await;
    let mut passed = 0;
    for n in 0..100 {
        passed = commit(&store, put("lost", &n.to_string())).await;
    }
    let mut watch = store.watch("", passed);
    assert!(watch.next().await.unwrap().unwrap().events.is_empty());
    etcd.kill(0);
    std::fs::remove_dir_all(&data).unwrap();
    copy(&backup, &data);
    etcd.start_again(0).await;

    let ended = tokio::time::timeout(PATIENCE, watch.next()).await.unwrap();
    let Some(Err(Error::Corrupt(why))) = ended else {
        panic!("{ended:?}")
    };
    assert!(why.contains("restored"), "{why}");
    assert!(matches!(store.get("kept").await, Err(Error::Corrupt(_))));

    let new = etcd.connect("/test").await;
    assert!(new.revision() > passed);
    assert_eq!(new.get("kept").await.unwrap().unwrap().mod_revision, kept);
    assert_eq!(new.get("lost").await.unwrap(), None);
    let resumed = new.watch("", passed).next().await;
    assert!(
        matches!(resumed, Some(Err(Error::Compacted { .. }))),
        "{resumed:?}"
    );
    assert!(commit(&new, put("more", "x")).await > passed);
    let again = etcd.connect("/test").await;
    assert!(again.get("more").await.unwrap().is_some());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restore_with_bumped_revisions_tells_every_watcher_to_start_over() {
    const BUMP: u64 = 1_000_000;
    let mut etcd = Etcd::start(&[]).await;
    let store = etcd.connect("/test").await;
    let kept = commit(&store, put("kept", "x")).await;
    etcd.stop(0).await;
    let backup = etcd.data(9);
    copy(&etcd.data(0), &backup);
    etcd.start_again(0).await;
    let mut passed = 0;
    for n in 0..100 {
        passed = commit(&store, put("lost", &n.to_string())).await;
    }
    let mut watch = store.watch("", passed);
    assert!(watch.next().await.unwrap().unwrap().events.is_empty());
    etcd.kill(0);
    std::fs::remove_dir_all(etcd.data(0)).unwrap();
    let bump = format!("--bump-revision={BUMP}");
    etcd.restore(&backup.join("member/snap/db"), &[&bump, "--mark-compacted"])
        .await;
    etcd.start_again(0).await;

    // A process that ran on through it ends: its caches have what was lost.
    let ended = tokio::time::timeout(PATIENCE, watch.next()).await.unwrap();
    assert!(
        matches!(
            ended,
            Some(Err(Error::Corrupt(_) | Error::Compacted { .. }))
        ),
        "{ended:?}"
    );
    assert!(watch.next().await.is_none());

    let new = etcd.connect("/test").await;
    assert!(new.revision() >= kept + BUMP);
    assert_eq!(new.get("lost").await.unwrap(), None);
    assert_eq!(new.get("kept").await.unwrap().unwrap().mod_revision, kept);
    // Clients that resume are told 410, wherever they were.
    for after in [kept, passed] {
        let resumed = new.watch("", after).next().await;
        assert!(
            matches!(resumed, Some(Err(Error::Compacted { .. }))),
            "{resumed:?}"
        );
        let old = new.list("", Some(after), None, None).await;
        assert!(matches!(old, Err(Error::Compacted { .. })), "{old:?}");
    }
    let more = commit(&new, put("more", "x")).await;
    assert!(more > passed);
    // The database is used on, also by the next process.
    let again = etcd.connect("/test").await;
    assert!(again.get("more").await.unwrap().is_some());
    assert_eq!(super::events(&again, "", more - 1, more).await.len(), 1);
}
