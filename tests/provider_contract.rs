//! What every provider promises, run against each of them: the mock against its cloud, the real
//! ones against fakes of their clouds, through the operator's own configuration.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    clippy::large_futures,
    reason = "a test fails by panicking, and its stack has room"
)]

#[path = "provider_contract/fake.rs"]
mod fake;
#[allow(dead_code, reason = "the crash tests use the rest")]
#[path = "provider_contract/fake_gce.rs"]
mod fake_gce;
#[path = "provider_contract/fake_hetzner.rs"]
mod fake_hetzner;
#[path = "provider_contract/gcp.rs"]
mod gcp;
#[path = "provider_contract/hetzner.rs"]
mod hetzner;
#[path = "provider_contract/mock.rs"]
mod mock;
#[path = "provider_contract/suite.rs"]
mod suite;

/// One test per promise and provider.
macro_rules! contract {
    ($module:ident, $site:path: $($promise:ident),+ $(,)?) => {
        mod $module {
            $(
                #[tokio::test]
                async fn $promise() {
                    use crate::suite::Site;
                    let site = <$site>::start().await;
                    crate::suite::$promise(&site).await;
                    site.finish().await;
                }
            )+
        }
    };
}

macro_rules! contracts {
    ($($module:ident, $site:path);+ $(;)?) => {
        $(
            contract! {
                $module, $site:
                an_instance_comes_up_with_everything_that_was_asked_for,
                a_repeated_create_is_answered_with_the_same_instance,
                a_lost_reply_and_a_repeat_make_one_instance,
                a_create_that_is_given_up_and_repeated_makes_one_instance,
                a_name_that_is_somebody_elses_is_a_conflict,
                a_deleted_instance_goes_away_and_deleting_it_again_is_success,
                a_replacement_is_another_instance_and_the_old_id_stays_gone,
                a_list_has_what_carries_all_tags_over_every_zone,
                a_quota_that_shows_in_the_operation_is_read_and_the_next_create_is_a_new_one,
                a_stockout_that_shows_in_the_operation_is_read,
                a_create_that_is_refused_for_quota_names_the_zone,
                an_operation_that_went_well_or_is_unknown_has_no_error,
                every_kind_of_failure_has_its_class_and_keeps_its_cause,
                an_account_that_asks_for_rest_gets_it,
                an_instance_that_was_stopped_is_told_so_until_it_is_deleted,
                a_check_tells_whether_the_account_can_be_used,
                an_id_of_another_kind_is_refused,
            }
        )+
    };
}

contracts! {
    contract_mock, crate::mock::MockSite;
    contract_gcp, crate::gcp::GcpSite;
    contract_hetzner, crate::hetzner::HetznerSite;
}

contract! {
    contract_fake_gce, crate::gcp::GcpSite:
    an_address_that_is_used_again_does_not_make_one_machine_of_two,
}

contract! {
    contract_fake_hetzner, crate::hetzner::HetznerSite:
    an_address_that_is_used_again_does_not_make_one_machine_of_two,
}
