//! The Python client.

use std::path::Path;

use tokio::process::Command;

use crate::site::{file, run, shared};

const NAMESPACE: &str = "python";

#[test]
fn the_python_client_writes_lists_watches_and_is_told_why_not() {
    run(async {
        let site = shared().await;
        site.namespace(NAMESPACE).await;
        let environment = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../hack/python.sh");
        let environment = Command::new(environment).output().await.unwrap();
        let folder = String::from_utf8(environment.stdout).unwrap();
        let output = Command::new(Path::new(folder.trim()).join("python3"))
            .arg(file("python/client.py"))
            .arg(NAMESPACE)
            .env("KUBECONFIG", site.cluster.kubeconfig_path())
            .kill_on_drop(true)
            .output()
            .await
            .unwrap();
        let text = |bytes| String::from_utf8_lossy(bytes).into_owned();
        let (stdout, stderr) = (text(&output.stdout), text(&output.stderr));
        assert!(output.status.success(), "{stdout}{stderr}");
        assert_eq!(
            stdout.lines().count(),
            5,
            "every scenario was played: {stdout}"
        );
    });
}
