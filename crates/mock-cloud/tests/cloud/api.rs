//! The cloud's API: names, states, selection, faults, books.

use std::{
    net::{Ipv4Addr, SocketAddr},
    time::Duration,
};

use crate::common::{ZONE, request, start, without_delays};
use mock_cloud::{
    Config, Settings,
    client::Error,
    faults::{Behaviour, FailWith, Fault, FaultRule, Op},
    model::{CreateInstance, ErrorCode, InstanceState, Labels, ListInstances, OperationKind},
};
use runtime_kit::SteppedClock;

fn rule(op: Op, fault: Fault) -> FaultRule {
    FaultRule {
        op,
        zone: None,
        count: 1,
        fault,
    }
}

#[tokio::test]
async fn a_name_is_given_once_per_zone_until_it_is_not_found() {
    let cloud = start(without_delays()).await;
    let client = cloud.client();
    let first = client
        .create(ZONE, &request("one"))
        .await
        .expect("created")
        .instance;
    let again = client
        .create(ZONE, &request("one"))
        .await
        .expect_err("the name is taken");
    let Error::Refused { status, code, .. } = again else {
        panic!("{again:?}")
    };
    assert_eq!((status, code), (409, ErrorCode::AlreadyExists));
    client
        .create("mock-b", &request("one"))
        .await
        .expect("another zone, another name");
    client.delete(ZONE, "one").await.expect("deleted");
    let second = client
        .create(ZONE, &request("one"))
        .await
        .expect("the name is free")
        .instance;
    assert_ne!(first.id, second.id);
    let books = cloud.cloud.ever_created(&Labels::new());
    assert_eq!(books.len(), 3);
    cloud.stop().await;
}

#[tokio::test]
async fn an_instance_goes_through_its_states_as_the_clock_goes() {
    let clock = SteppedClock::default();
    let config = Config {
        provision_delay: Some(Duration::from_secs(30)),
        delete_delay: Some(Duration::from_secs(20)),
        ..Config::default()
    };
    let any = SocketAddr::from((Ipv4Addr::LOCALHOST, 0));
    let cloud = mock_cloud::start(config, any, std::sync::Arc::new(clock.clone()))
        .await
        .expect("starts");
    let client = cloud.client();
    let state = async || {
        client
            .get(ZONE, "one")
            .await
            .map(|instance| (instance.state, instance.ip.is_some()))
    };

    let insert = client
        .create(ZONE, &request("one"))
        .await
        .expect("created")
        .operation;
    assert_eq!(
        state().await.expect("found"),
        (InstanceState::Provisioning, false)
    );
    clock.advance(Duration::from_secs(29));
    assert_eq!(
        state().await.expect("found"),
        (InstanceState::Provisioning, false)
    );
    assert!(!client.operation(&insert).await.expect("found").done);
    clock.advance(Duration::from_secs(1));
    assert_eq!(
        state().await.expect("found"),
        (InstanceState::Running, true)
    );
    let operation = client.operation(&insert).await.expect("found");
    assert_eq!(
        (operation.done, operation.kind),
        (true, OperationKind::Insert)
    );

    client.preempt(ZONE, "one").await.expect("preempted");
    assert_eq!(
        state().await.expect("found"),
        (InstanceState::Stopping, false)
    );
    clock.advance(Duration::from_secs(20));
    assert_eq!(
        state().await.expect("found"),
        (InstanceState::Terminated, false)
    );
    clock.advance(Duration::from_hours(1));
    assert_eq!(
        state().await.expect("found"),
        (InstanceState::Terminated, false)
    );

    client.delete(ZONE, "one").await.expect("deleted");
    assert_eq!(
        state().await.expect("found"),
        (InstanceState::Stopping, false)
    );
    clock.advance(Duration::from_secs(20));
    let gone = state().await.expect_err("not found");
    assert_eq!(gone.code(), Some(ErrorCode::NotFound));
    let gone = client.delete(ZONE, "one").await.expect_err("not found");
    assert_eq!(gone.code(), Some(ErrorCode::NotFound));
    assert!(
        cloud.cloud.ever_created(&Labels::new())[0]
            .deleted_at
            .is_some()
    );
    cloud.stop().await;
}

#[tokio::test]
async fn lists_select_by_zone_and_by_all_labels() {
    let cloud = start(without_delays()).await;
    let client = cloud.client();
    for (zone, name, labels) in [
        ("z-a", "one", vec![("cluster", "c=1 &"), ("uid", "1")]),
        ("z-a", "two", vec![("cluster", "c=1 &"), ("uid", "2")]),
        ("z-b", "three", vec![("cluster", "c=1 &"), ("uid", "1")]),
    ] {
        let labels = labels
            .into_iter()
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .collect();
        client
            .create(
                zone,
                &CreateInstance {
                    labels,
                    ..request(name)
                },
            )
            .await
            .expect("created");
    }
    let names = async |zone: Option<&str>, labels: &[(&str, &str)]| {
        let labels = labels
            .iter()
            .map(|(k, v)| ((*k).to_owned(), (*v).to_owned()))
            .collect();
        let selection = ListInstances {
            zone: zone.map(str::to_owned),
            labels,
        };
        let items = client.list(&selection).await.expect("listed");
        items
            .into_iter()
            .map(|instance| instance.name)
            .collect::<Vec<_>>()
    };
    assert_eq!(names(None, &[]).await, ["one", "two", "three"]);
    assert_eq!(names(Some("z-a"), &[]).await, ["one", "two"]);
    assert_eq!(
        names(None, &[("cluster", "c=1 &"), ("uid", "1")]).await,
        ["one", "three"]
    );
    assert_eq!(names(Some("z-b"), &[("uid", "2")]).await, [""; 0]);
    cloud.stop().await;
}

#[tokio::test]
async fn every_kind_of_refusal_arrives_with_its_status_and_code_and_changes_nothing() {
    let cloud = start(without_delays()).await;
    let client = cloud.client();
    for (with, wanted_status, wanted_code) in [
        (FailWith::Quota, 403, ErrorCode::QuotaExceeded),
        (FailWith::Stockout, 503, ErrorCode::ZoneResourcesExhausted),
        (FailWith::Invalid, 400, ErrorCode::Invalid),
        (FailWith::Forbidden, 403, ErrorCode::Forbidden),
        (FailWith::Unauthorized, 401, ErrorCode::Unauthorized),
        (FailWith::RateLimited, 429, ErrorCode::RateLimited),
        (FailWith::Transient, 503, ErrorCode::BackendError),
    ] {
        client.fail_next_creates(1, with).await.expect("asked");
        let refused = client
            .create(ZONE, &request("one"))
            .await
            .expect_err("refused");
        let Error::Refused {
            status,
            code,
            retry_after,
            ..
        } = refused
        else {
            panic!("{refused:?}")
        };
        assert_eq!((status, code), (wanted_status, wanted_code));
        assert_eq!(retry_after.is_some(), with == FailWith::RateLimited);
    }
    assert!(
        client
            .ever_created(&Labels::new())
            .await
            .expect("books")
            .is_empty()
    );
    client
        .create(ZONE, &request("one"))
        .await
        .expect("the faults are spent");
    let calls = client.calls().await.expect("books");
    assert_eq!(calls.len(), 8);
    assert_eq!(
        calls.iter().filter(|call| call.refused.is_none()).count(),
        1
    );
    cloud.stop().await;
}

#[tokio::test]
async fn a_lost_reply_has_done_its_work() {
    let cloud = start(without_delays()).await;
    let client = cloud.client();
    client
        .add_fault(&rule(Op::Create, Fault::LostReply))
        .await
        .expect("asked");
    let lost = client
        .create(ZONE, &request("one"))
        .await
        .expect_err("no reply");
    assert!(matches!(lost, Error::Send { .. }), "{lost:?}");
    let again = client
        .create(ZONE, &request("one"))
        .await
        .expect_err("it is there");
    assert_eq!(again.code(), Some(ErrorCode::AlreadyExists));
    client
        .add_fault(&rule(Op::Delete, Fault::LostReply))
        .await
        .expect("asked");
    client.delete(ZONE, "one").await.expect_err("no reply");
    assert_eq!(
        client.get(ZONE, "one").await.expect_err("gone").code(),
        Some(ErrorCode::NotFound)
    );
    assert_eq!(
        client
            .ever_created(&Labels::new())
            .await
            .expect("books")
            .len(),
        1
    );
    cloud.stop().await;
}

#[tokio::test]
async fn a_call_that_hangs_changes_nothing() {
    let cloud = start(without_delays()).await;
    let client = cloud.client().timeout(Duration::from_millis(200));
    client
        .add_fault(&rule(Op::Create, Fault::Hang))
        .await
        .expect("asked");
    let hung = client
        .create(ZONE, &request("one"))
        .await
        .expect_err("no answer");
    assert!(matches!(hung, Error::Timeout { .. }), "{hung:?}");
    client
        .create(ZONE, &request("one"))
        .await
        .expect("nothing was there");
    cloud.stop().await;
}

#[tokio::test]
async fn a_failed_operation_tells_why_there_is_no_instance() {
    let cloud = start(without_delays()).await;
    let client = cloud.client();
    let fault = Fault::FailOperation {
        with: FailWith::Stockout,
    };
    client
        .add_fault(&rule(Op::Create, fault))
        .await
        .expect("asked");
    let created = client
        .create(ZONE, &request("one"))
        .await
        .expect("accepted");
    assert_eq!(created.instance.state, InstanceState::Provisioning);
    assert_eq!(
        client.get(ZONE, "one").await.expect_err("none").code(),
        Some(ErrorCode::NotFound)
    );
    let operation = client.operation(&created.operation).await.expect("found");
    assert!(operation.done);
    assert_eq!(
        operation.error.map(|e| e.code),
        Some(ErrorCode::ZoneResourcesExhausted)
    );
    assert!(
        client
            .ever_created(&Labels::new())
            .await
            .expect("books")
            .is_empty()
    );
    cloud.stop().await;
}

#[tokio::test]
async fn faults_match_by_call_and_zone_and_are_spent_one_by_one() {
    let cloud = start(without_delays()).await;
    let client = cloud.client();
    let fault = Fault::Fail {
        with: FailWith::Transient,
    };
    let only_b = FaultRule {
        op: Op::List,
        zone: Some("z-b".to_owned()),
        count: 2,
        fault,
    };
    client.add_fault(&only_b).await.expect("asked");
    let list = async |zone: &str| {
        let zone = Some(zone.to_owned());
        client
            .list(&ListInstances {
                zone,
                labels: Labels::new(),
            })
            .await
            .map(drop)
    };
    list("z-a").await.expect("another zone");
    list("z-b").await.expect_err("first");
    list("z-b").await.expect_err("second");
    list("z-b").await.expect("spent");
    assert!(cloud.cloud.faults().is_empty());
    let wrong = rule(
        Op::Get,
        Fault::SlowBoot {
            delay_milliseconds: 1,
        },
    );
    let refused = client
        .add_fault(&wrong)
        .await
        .expect_err("slow boot is for creates");
    assert_eq!(refused.code(), Some(ErrorCode::Invalid));
    cloud.stop().await;
}

#[tokio::test]
async fn slow_boots_and_bad_proxies_are_asked_for_before_the_create() {
    let cloud = start(without_delays()).await;
    let client = cloud.client();
    let slow = Fault::SlowBoot {
        delay_milliseconds: 3_600_000,
    };
    client
        .add_fault(&rule(Op::Create, slow))
        .await
        .expect("asked");
    let bad = Fault::Misbehave {
        behaviour: Behaviour::CaptivePortal,
    };
    client
        .add_fault(&rule(Op::Create, bad))
        .await
        .expect("asked");
    client
        .create(ZONE, &request("slow"))
        .await
        .expect("created");
    let (_, proxy) = crate::common::running(&client, &request("bad")).await;
    let slow = client.get(ZONE, "slow").await.expect("found");
    assert_eq!(slow.state, InstanceState::Provisioning);
    let page = crate::common::exchange(
        proxy,
        "GET http://x/ HTTP/1.1\r\nHost: x\r\nConnection: close\r\n\r\n",
    );
    assert!(page.await.contains("guest network"));
    cloud.stop().await;
}

#[tokio::test]
async fn a_bootstrap_that_fails_and_an_address_that_comes_back_are_asked_for_before_the_create() {
    let cloud = start(without_delays()).await;
    let client = cloud.client();
    let console = "cloud-init failed\n".to_owned();
    let failing = Fault::FailBootstrap { console };
    let asked = client.add_fault(&rule(Op::Create, failing)).await;
    asked.expect("asked");
    client
        .create(ZONE, &request("broken"))
        .await
        .expect("created");
    let broken = client.get(ZONE, "broken").await.expect("found");
    assert_eq!(broken.state, InstanceState::Running);
    let ip = broken.ip.expect("it has an address");
    let address = SocketAddr::from((ip, broken.port));
    tokio::net::TcpStream::connect(address)
        .await
        .expect_err("nothing listens");
    let console = client.console(ZONE, &broken.id).await.expect("it has one");
    assert_eq!(console.contents, "cloud-init failed\n");
    client.delete(ZONE, "broken").await.expect("deleted");

    let again = Fault::GiveAddress { ip };
    let asked = client.add_fault(&rule(Op::Create, again)).await;
    asked.expect("asked");
    let (next, _) = crate::common::running(&client, &request("next")).await;
    assert_eq!(next.ip, Some(ip));
    let console = client.console(ZONE, "next").await.expect("it has one");
    assert_eq!(console.contents, "");
    let gone = client.console(ZONE, "broken").await.expect_err("gone");
    assert_eq!(gone.code(), Some(ErrorCode::NotFound));
    cloud.stop().await;
}

#[tokio::test]
async fn malformed_requests_name_the_field() {
    let cloud = start(without_delays()).await;
    let client = cloud.client();
    for (bad, field) in [
        (request("Upper"), "name"),
        (request(""), "name"),
        (
            CreateInstance {
                port: 0,
                ..request("one")
            },
            "port",
        ),
        (
            CreateInstance {
                labels: Labels::from([("x".repeat(64), String::new())]),
                ..request("one")
            },
            "labels",
        ),
    ] {
        let Err(Error::Refused {
            status: 400,
            message,
            ..
        }) = client.create(ZONE, &bad).await
        else {
            panic!("{bad:?} was accepted")
        };
        assert!(message.starts_with(field), "{message}");
    }
    let raw = "POST /v1/zones/a/instances HTTP/1.1\r\nHost: x\r\nConnection: close\r\nContent-Length: 30\r\n\r\n{\"name\":\"a\",\"port\":1,\"nme\":\"b\"}";
    let answer = crate::common::exchange(cloud.address, raw).await;
    assert!(answer.starts_with("HTTP/1.1 400 "), "{answer}");
    cloud.stop().await;
}

#[tokio::test]
async fn delays_can_be_set_while_it_runs() {
    let cloud = start(without_delays()).await;
    let client = cloud.client();
    let slow = Settings {
        provision_delay_milliseconds: 3_600_000,
        delete_delay_milliseconds: 3_600_000,
    };
    client.set_settings(&slow).await.expect("set");
    client.create(ZONE, &request("one")).await.expect("created");
    let instance = client.get(ZONE, "one").await.expect("found");
    assert_eq!(instance.state, InstanceState::Provisioning);
    client.delete(ZONE, "one").await.expect("deleted");
    let again = client
        .create(ZONE, &request("one"))
        .await
        .expect_err("still there");
    assert_eq!(again.code(), Some(ErrorCode::AlreadyExists));
    cloud.stop().await;
}
