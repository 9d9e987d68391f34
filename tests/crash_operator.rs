//! The operator, killed: whatever it was doing, each Proxy has exactly one instance in the end, and a
//! deleted one has none. Counted in the books of the cloud, which forget nothing.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod support;

use crawl_api::conditions;
use crawl_api::proxy::{Proxy, ProxySpec};
use devcluster::wait_for;
use kube::ResourceExt;
use kube::api::DeleteParams;
use mock_cloud::faults::{Fault, FaultRule, Op};
use support::{Operator, Site, TIMEOUT, create, gone, proxy, ready, reason, uid_label, until};

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_is_killed_around_the_create_makes_one_instance() {
    let site = Site::new("killed").await;
    let proxies = site.proxies();

    // Killed as soon as the cloud has the request in its books.
    let first = site.operator();
    let made = create(&proxies, &proxy("books", ProxySpec::managed("local"))).await;
    wait_for("the create to reach the cloud", TIMEOUT, async || {
        let calls = site.cloud.client.calls().await.unwrap();
        Ok((!calls.is_empty()).then_some(()))
    })
    .await
    .unwrap();
    first.process.kill9().unwrap();

    // The reply to the create is lost, and the operator is killed while it backs off.
    let lost = FaultRule {
        op: Op::Create,
        zone: None,
        count: 1,
        fault: Fault::LostReply,
    };
    site.cloud.client.add_fault(&lost).await.unwrap();
    let second = site.operator();
    let other = create(&proxies, &proxy("reply", ProxySpec::managed("local"))).await;
    until(&proxies, "reply", "the failure to be reported", |proxy| {
        (reason(proxy?, conditions::PROVISIONED) == "ProviderError").then_some(())
    })
    .await;
    second.process.kill9().unwrap();

    // The create hangs, and the operator is killed meanwhile.
    let hang = FaultRule {
        op: Op::Create,
        zone: None,
        count: 1,
        fault: Fault::Hang,
    };
    site.cloud.client.add_fault(&hang).await.unwrap();
    let third = site.operator();
    let hung = create(&proxies, &proxy("hang", ProxySpec::managed("local"))).await;
    wait_for("the hanging create", TIMEOUT, async || {
        let calls = site.cloud.client.calls().await.unwrap();
        Ok(calls
            .iter()
            .any(|call| call.fault == Some(Fault::Hang))
            .then_some(()))
    })
    .await
    .unwrap();
    third.process.kill9().unwrap();

    let _fourth = site.operator();
    for made in [&made, &other, &hung] {
        until(&proxies, &made.name_any(), "the proxy to be ready", ready).await;
        let books = site
            .cloud
            .client
            .ever_created(&uid_label(made))
            .await
            .unwrap();
        assert_eq!(books.len(), 1, "{}: {books:?}", made.name_any());
    }
}

/// Waits until the operator has carried out an action of the action table for a Proxy.
async fn carried_out(operator: &Operator, proxy: &Proxy, generation: u32, action: &str) {
    let uid = proxy.uid().unwrap();
    let line = format!(
        "uid=\"{uid}\" generation={generation}}}: proxy_operator::proxy: decided action={action}"
    );
    operator.process.wait_for_log(&line, TIMEOUT).await.unwrap();
}

#[tokio::test(flavor = "multi_thread")]
async fn an_operator_that_is_killed_after_any_step_has_one_instance_or_none_in_the_end() {
    let site = Site::new("steps").await;
    let proxies = site.proxies();
    let mut made = Vec::new();
    for (name, action) in [
        ("finalizer", "AddFinalizer"),
        ("create", "Create"),
        ("await", "AwaitRunning"),
        ("serve", "Serve"),
    ] {
        let operator = site.operator();
        let proxy = create(&proxies, &proxy(name, ProxySpec::managed("local"))).await;
        carried_out(&operator, &proxy, 1, action).await;
        operator.process.kill9().unwrap();
        made.push(proxy);
    }
    let operator = site.operator();
    for proxy in &made {
        until(&proxies, &proxy.name_any(), "the proxy to be ready", ready).await;
        let books = site
            .cloud
            .client
            .ever_created(&uid_label(proxy))
            .await
            .unwrap();
        assert_eq!(books.len(), 1, "{}: {books:?}", proxy.name_any());
    }
    operator.process.kill9().unwrap();

    for (proxy, action) in
        made.iter()
            .zip(["Delete(ObjectDeleted)", "AwaitGone", "RemoveFinalizer"])
    {
        let operator = site.operator();
        proxies
            .delete(&proxy.name_any(), &DeleteParams::default())
            .await
            .unwrap();
        carried_out(&operator, proxy, 2, action).await;
        operator.process.kill9().unwrap();
    }
    let _last = site.operator();
    for proxy in &made[..3] {
        until(&proxies, &proxy.name_any(), "the object to go", gone).await;
        let books = site
            .cloud
            .client
            .ever_created(&uid_label(proxy))
            .await
            .unwrap();
        assert_eq!(books.len(), 1);
        assert!(books[0].deleted_at.is_some(), "{books:?}");
    }
    let kept = site
        .cloud
        .client
        .ever_created(&uid_label(&made[3]))
        .await
        .unwrap();
    assert!(kept[0].deleted_at.is_none());
}
