//! `--dry-run`: what would be created or deleted is logged and told, and not done.

use crawl_api::conditions;
use crawl_api::proxy::Proxy;

use super::budget::Withheld;
use super::observe::Observation;
use super::plan::{Action, Cause};

/// What is withheld, before it is known what that is.
pub(super) fn undecided() -> Withheld {
    Withheld {
        reason: conditions::REASON_DRY_RUN,
        message: String::new(),
        wait: None,
    }
}

/// What is withheld, for status; logged when the object does not tell it yet.
pub(super) fn withheld(proxy: &Proxy, observation: &Observation, action: Action) -> Withheld {
    let call = call(observation, action);
    let message = format!("the operator runs with --dry-run; without it: {call}");
    let told = proxy.condition(conditions::WITHHELD);
    if told.is_none_or(|told| told.message != message) {
        let provider = proxy.spec.provider.as_deref();
        tracing::info!(provider, call, "dry run: a call is not made");
    }
    Withheld {
        message,
        ..undecided()
    }
}

fn call(observation: &Observation, action: Action) -> String {
    match (&observation.instance, &observation.wanted) {
        (Some(found), _) => {
            let why = if let Action::Delete(cause) = action {
                because(cause)
            } else {
                conditions::REASON_REPLACING
            };
            format!("delete instance {} ({why})", found.id)
        },
        (None, Some(wanted)) => {
            let zone = wanted.placement.zone.as_deref();
            let zone = zone.unwrap_or("the provider's first zone");
            format!("create instance {} in {zone}", wanted.name)
        },
        (None, None) => "nothing".into(),
    }
}

fn because(cause: Cause) -> &'static str {
    match cause {
        Cause::ProvisioningTimedOut => conditions::REASON_PROVISIONING_TIMED_OUT,
        Cause::UnhealthyTimedOut => conditions::REASON_UNHEALTHY_TIMED_OUT,
        Cause::Preempted => conditions::REASON_PREEMPTED,
        Cause::Replaced => conditions::REASON_REPLACING,
        Cause::ObjectDeleted => conditions::REASON_DELETING,
        Cause::AddressReissued => conditions::REASON_ADDRESS_REISSUED,
    }
}
