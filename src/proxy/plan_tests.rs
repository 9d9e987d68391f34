//! One test per row of the action table, and properties over all situations.

use std::collections::BTreeSet;

use proptest::prelude::*;

use super::*;

/// A managed, live, running Proxy that is as wanted.
fn running() -> Situation {
    Situation {
        standing: Standing::Managed,
        life: Life::Live,
        identity: Identity::Set,
        drift: Drift::Same,
        sight: Sight::Running { failing: false },
        lacking: Lacking::Nothing,
        leases: Leases::MayExist,
        abandon: false,
        permit: Permit::Granted,
    }
}

fn with(change: impl FnOnce(&mut Situation)) -> Action {
    let mut situation = running();
    change(&mut situation);
    plan(&situation)
}

fn unidentified(sight: Sight, lacking: Lacking) -> Action {
    with(|s| {
        s.identity = Identity::None;
        s.drift = Drift::Unknown;
        s.sight = sight;
        s.lacking = lacking;
    })
}

fn deleting(identity: Identity, sight: Sight, leases: Leases) -> Action {
    with(|s| {
        s.life = Life::Deleting;
        s.identity = identity;
        s.sight = sight;
        s.leases = leases;
    })
}

const PRESENT: [Sight; 7] = [
    Sight::Starting { overdue: false },
    Sight::Starting { overdue: true },
    Sight::Running { failing: false },
    Sight::Running { failing: true },
    Sight::Reissued,
    Sight::Stopping,
    Sight::Stopped,
];

#[test]
fn an_external_proxy_is_served_whatever_else_is_so() {
    assert_eq!(with(|s| s.standing = Standing::External), Action::Serve);
}

#[test]
fn a_proxy_that_is_paused_held_refused_or_of_an_unknown_provider_is_left_alone() {
    for standing in [
        Standing::Paused,
        Standing::Held,
        Standing::AwaitingChange,
        Standing::UnknownProvider,
    ] {
        assert_eq!(with(|s| s.standing = standing), Action::Rest);
        let deleted = with(|s| {
            s.standing = standing;
            s.life = Life::Deleting;
        });
        assert_eq!(deleted, Action::Rest);
    }
}

#[test]
fn without_an_instance_the_finalizer_comes_first_then_credentials_then_the_create() {
    assert_eq!(
        unidentified(Sight::Missing, Lacking::Finalizer),
        Action::AddFinalizer
    );
    assert_eq!(
        unidentified(Sight::Missing, Lacking::Credentials),
        Action::GenerateCredentials
    );
    assert_eq!(
        unidentified(Sight::Missing, Lacking::Nothing),
        Action::Create
    );
}

#[test]
fn a_create_that_the_budgets_withhold_waits() {
    let action = with(|s| {
        s.identity = Identity::None;
        s.sight = Sight::Missing;
        s.permit = Permit::Withheld;
    });
    assert_eq!(action, Action::Withhold);
}

/// Cases 58 to 60.
#[test]
fn an_instance_found_by_tag_is_recorded_and_not_created_again() {
    for sight in PRESENT {
        assert_eq!(unidentified(sight, Lacking::Nothing), Action::Record);
        assert_eq!(
            deleting(Identity::None, sight, Leases::Gone),
            Action::Record
        );
    }
}

/// Case 51.
#[test]
fn a_hash_of_another_version_is_adopted_and_replaces_nothing() {
    for sight in PRESENT.into_iter().chain([Sight::Missing]) {
        let action = with(|s| {
            s.drift = Drift::Unknown;
            s.sight = sight;
        });
        assert_eq!(action, Action::Adopt);
    }
}

#[test]
fn provisioning_is_awaited_until_its_timeout() {
    assert_eq!(
        with(|s| s.sight = Sight::Starting { overdue: false }),
        Action::AwaitRunning
    );
    let overdue = |leases, permit| {
        with(|s| {
            s.sight = Sight::Starting { overdue: true };
            s.leases = leases;
            s.permit = permit;
        })
    };
    assert_eq!(
        overdue(Leases::Gone, Permit::Granted),
        Action::Delete(Cause::ProvisioningTimedOut)
    );
    assert_eq!(
        overdue(Leases::MayExist, Permit::Granted),
        Action::Drain(Cause::ProvisioningTimedOut)
    );
    assert_eq!(
        overdue(Leases::Gone, Permit::Withheld),
        Action::AwaitRunning
    );
}

#[test]
fn a_running_instance_is_served_until_it_was_unhealthy_for_too_long_then_drained_and_deleted() {
    assert_eq!(with(|_| ()), Action::Serve);
    let failing = |leases, permit| {
        with(|s| {
            s.sight = Sight::Running { failing: true };
            s.leases = leases;
            s.permit = permit;
        })
    };
    assert_eq!(
        failing(Leases::MayExist, Permit::Granted),
        Action::Drain(Cause::UnhealthyTimedOut)
    );
    assert_eq!(
        failing(Leases::Gone, Permit::Granted),
        Action::Delete(Cause::UnhealthyTimedOut)
    );
    for leases in [Leases::MayExist, Leases::Gone] {
        assert_eq!(failing(leases, Permit::Withheld), Action::Serve);
    }
}

/// Case 66.
#[test]
fn a_stopped_instance_is_deleted_without_waiting_for_leases() {
    for drift in [Drift::Same, Drift::Changed] {
        let action = with(|s| {
            s.sight = Sight::Stopped;
            s.drift = drift;
        });
        assert_eq!(action, Action::Delete(Cause::Preempted));
    }
    assert_eq!(
        deleting(Identity::Set, Sight::Stopped, Leases::MayExist),
        Action::Delete(Cause::Preempted)
    );
}

#[test]
fn an_instance_that_is_gone_is_forgotten() {
    for drift in [Drift::Same, Drift::Changed] {
        let action = with(|s| {
            s.drift = drift;
            s.sight = Sight::Missing;
        });
        assert_eq!(action, Action::Forget);
    }
}

/// "Not found" of an instance that was never seen may be a read that lags behind.
#[test]
fn an_instance_that_may_not_be_shown_yet_is_neither_forgotten_nor_left_behind() {
    let unseen = |drift| {
        with(|s| {
            s.drift = drift;
            s.sight = Sight::Unseen;
            s.leases = Leases::Gone;
        })
    };
    assert_eq!(unseen(Drift::Same), Action::AwaitRunning);
    assert_eq!(unseen(Drift::Changed), Action::Delete(Cause::Replaced));
    assert_eq!(unseen(Drift::Unknown), Action::Adopt);
    let deleted = |identity| deleting(identity, Sight::Unseen, Leases::Gone);
    assert_eq!(
        deleted(Identity::Set),
        Action::Delete(Cause::ObjectDeleted),
        "by its id, which needs no read"
    );
    assert_eq!(deleted(Identity::None), Action::AwaitGone);
    assert_eq!(
        unidentified(Sight::Unseen, Lacking::Nothing),
        Action::Create,
        "a repeated create finds what there is"
    );
}

/// Case 49. It serves nobody yet, so there are no leases to wait for.
#[test]
fn a_machine_with_an_address_that_was_given_up_is_replaced_before_it_serves() {
    let reissued = |drift| {
        with(|s| {
            s.drift = drift;
            s.sight = Sight::Reissued;
        })
    };
    assert_eq!(
        reissued(Drift::Same),
        Action::Delete(Cause::AddressReissued)
    );
    assert_eq!(reissued(Drift::Changed), Action::Drain(Cause::Replaced));
}

#[test]
fn a_changed_spec_drains_deletes_and_waits_for_not_found() {
    let changed = |sight, leases| {
        with(|s| {
            s.drift = Drift::Changed;
            s.sight = sight;
            s.leases = leases;
        })
    };
    for sight in [
        Sight::Starting { overdue: false },
        Sight::Starting { overdue: true },
        Sight::Running { failing: false },
        Sight::Running { failing: true },
    ] {
        assert_eq!(
            changed(sight, Leases::MayExist),
            Action::Drain(Cause::Replaced)
        );
        assert_eq!(
            changed(sight, Leases::Gone),
            Action::Delete(Cause::Replaced)
        );
    }
    assert_eq!(changed(Sight::Stopping, Leases::Gone), Action::AwaitGone);
}

#[test]
fn a_changed_spec_waits_for_its_turn_while_the_machine_works() {
    for leases in [Leases::MayExist, Leases::Gone] {
        let action = with(|s| {
            s.drift = Drift::Changed;
            s.leases = leases;
            s.permit = Permit::Withheld;
        });
        assert_eq!(action, Action::Serve);
    }
}

#[test]
fn replacement_waits_for_not_found_before_creating() {
    assert_eq!(with(|s| s.sight = Sight::Stopping), Action::AwaitGone);
}

#[test]
fn a_deleted_object_goes_when_no_instance_is_found() {
    for identity in [Identity::None, Identity::Set] {
        let action = deleting(identity, Sight::Missing, Leases::MayExist);
        assert_eq!(action, Action::RemoveFinalizer);
    }
}

#[test]
fn a_deleted_object_drains_then_deletes_its_instance_then_waits() {
    for sight in [
        Sight::Starting { overdue: false },
        Sight::Starting { overdue: true },
        Sight::Running { failing: false },
        Sight::Running { failing: true },
    ] {
        let set = Identity::Set;
        assert_eq!(
            deleting(set, sight, Leases::MayExist),
            Action::Drain(Cause::ObjectDeleted)
        );
        assert_eq!(
            deleting(set, sight, Leases::Gone),
            Action::Delete(Cause::ObjectDeleted)
        );
    }
    assert_eq!(
        deleting(Identity::Set, Sight::Stopping, Leases::Gone),
        Action::AwaitGone
    );
}

#[test]
fn an_abandoned_instance_is_drained_and_left_whatever_its_provider_says() {
    for standing in [
        Standing::Managed,
        Standing::Held,
        Standing::AwaitingChange,
        Standing::UnknownProvider,
    ] {
        for sight in PRESENT.into_iter().chain([Sight::Missing]) {
            let abandoned = |leases| {
                with(|s| {
                    s.standing = standing;
                    s.life = Life::Deleting;
                    s.sight = sight;
                    s.abandon = true;
                    s.leases = leases;
                })
            };
            assert_eq!(
                abandoned(Leases::MayExist),
                Action::Drain(Cause::ObjectDeleted)
            );
            assert_eq!(abandoned(Leases::Gone), Action::RemoveFinalizer);
        }
    }
    let paused = with(|s| {
        s.standing = Standing::Paused;
        s.life = Life::Deleting;
        s.abandon = true;
    });
    assert_eq!(paused, Action::Rest, "a deletion waits too");
}

fn any_situation() -> impl Strategy<Value = Situation> {
    let standing = prop_oneof![
        4 => Just(Standing::Managed),
        1 => Just(Standing::External),
        1 => Just(Standing::Paused),
        1 => Just(Standing::Held),
        1 => Just(Standing::AwaitingChange),
        1 => Just(Standing::UnknownProvider),
    ];
    let sight = prop::sample::select(
        PRESENT
            .into_iter()
            .chain([Sight::Missing, Sight::Unseen])
            .collect::<Vec<_>>(),
    );
    (
        standing,
        prop::sample::select(vec![Life::Live, Life::Deleting]),
        prop::sample::select(vec![Identity::None, Identity::Set]),
        prop::sample::select(vec![Drift::Same, Drift::Changed, Drift::Unknown]),
        sight,
        prop::sample::select(vec![
            Lacking::Finalizer,
            Lacking::Credentials,
            Lacking::Nothing,
        ]),
        prop::sample::select(vec![Leases::MayExist, Leases::Gone]),
        any::<bool>(),
        prop::sample::select(vec![Permit::Granted, Permit::Withheld]),
    )
        .prop_map(
            |(standing, life, identity, drift, sight, lacking, leases, abandon, permit)| {
                Situation {
                    standing,
                    life,
                    identity,
                    drift,
                    sight,
                    lacking,
                    leases,
                    abandon,
                    permit,
                }
            },
        )
}

#[test]
fn the_rows_in_the_code_are_those_of_the_documented_table() {
    let code = include_str!("plan.rs");
    let page = include_str!("../../docs/architecture.md");
    let named = |line: &str| {
        let (_, row) = line.split_once("// row: ")?;
        Some(row.split(':').next()?.trim().to_owned())
    };
    let in_code: BTreeSet<_> = code.lines().filter_map(named).collect();
    let table = page.split("## Action table of Proxy").nth(1).unwrap();
    let table = table.split("**Budgets**").next().unwrap();
    let rows = table.lines().filter(|line| line.starts_with("| "));
    let in_page: BTreeSet<_> = rows
        .filter_map(|line| line.split('|').nth(1))
        .map(|row| row.trim().to_owned())
        .filter(|row| row != "row")
        .collect();
    assert_eq!(in_code, in_page);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(2_000))]

    #[test]
    fn every_situation_gives_one_action_and_always_the_same(situation in any_situation()) {
        prop_assert_eq!(plan(&situation), plan(&situation));
    }

    #[test]
    fn nothing_is_created_beside_an_instance_or_without_a_finalizer(situation in any_situation()) {
        if plan(&situation) == Action::Create {
            prop_assert!(matches!(situation.sight, Sight::Missing | Sight::Unseen));
            prop_assert_eq!(situation.identity, Identity::None);
            prop_assert_eq!(situation.life, Life::Live);
            prop_assert_eq!(situation.lacking, Lacking::Nothing);
            prop_assert_eq!(situation.permit, Permit::Granted);
        }
    }

    #[test]
    fn only_a_machine_that_stopped_or_never_served_is_deleted_while_leases_may_exist(
        situation in any_situation(),
    ) {
        if let Action::Delete(_) = plan(&situation) {
            let unused = matches!(situation.sight, Sight::Stopped | Sight::Reissued);
            prop_assert!(situation.leases == Leases::Gone || unused);
        }
    }

    #[test]
    fn nothing_is_replaced_that_the_budgets_withhold(mut situation in any_situation()) {
        situation.life = Life::Live;
        situation.permit = Permit::Withheld;
        if let Action::Delete(cause) | Action::Drain(cause) = plan(&situation) {
            // Neither a machine that stopped nor one that never ran or served works.
            let starts = matches!(situation.sight, Sight::Unseen | Sight::Starting { .. });
            let reissued = situation.sight == Sight::Reissued;
            let allowed = cause == Cause::Preempted
                || reissued && cause == Cause::AddressReissued
                || (starts || reissued) && cause == Cause::Replaced;
            prop_assert!(allowed, "{:?}", situation);
        }
    }

    #[test]
    fn the_finalizer_goes_only_when_no_instance_is_left_or_it_is_abandoned(
        situation in any_situation(),
    ) {
        if plan(&situation) == Action::RemoveFinalizer {
            prop_assert_eq!(situation.life, Life::Deleting);
            prop_assert!(situation.sight == Sight::Missing || situation.abandon);
        }
    }
}
