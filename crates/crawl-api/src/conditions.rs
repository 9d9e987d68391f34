//! Condition types and reasons of Proxy and ProxyPool, one reason per cause.
//!
//! The operator sets them, people and alerts match on them: a constant here is part of the API.
//! [`set`] and [`find`] are the only ways in which the project reads and writes condition lists.

use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{Condition, Time};

// === Types ===

/// The instance (Managed) or the endpoint (External) exists and has an address.
pub const PROVISIONED: &str = "Provisioned";
/// Real traffic went through the proxy and came out where it should.
pub const HEALTHY: &str = "Healthy";
/// Present only while the proxy is being drained: False while leases may remain, True when none
/// can. Its transition time starts the drain timeout.
pub const DRAINED: &str = "Drained";
/// The proxy can be leased: provisioned, healthy and not draining. Of a pool: all members are.
pub const READY: &str = "Ready";
/// Present only while something that would be done to the instance is withheld; the reason says by
/// which rule, the message until when or what to do.
pub const WITHHELD: &str = "Withheld";
/// Present and True only while the verdict on a proxy changes too often; it is then told at most
/// once a minute.
pub const FLAPPING: &str = "Flapping";
/// Present and True only while a proxy fails for a cause that is hardly its own: it is not leased,
/// but not replaced either. The reason says what fails instead.
pub const CORRELATED: &str = "FailureCorrelated";

/// Of a pool: True while members are replaced as they should be, or all are as the template says;
/// False when a roll does not go on by itself. As of a Deployment.
pub const PROGRESSING: &str = "Progressing";

// === Reasons of Provisioned ===

/// The instance runs and has an address.
pub const REASON_CREATED: &str = "Created";
/// The object names an endpoint that somebody else runs.
pub const REASON_EXTERNAL_ENDPOINT: &str = "ExternalEndpoint";
/// Nothing was requested yet.
pub const REASON_PENDING: &str = "Pending";
/// The instance was requested and does not run, or has no address, yet.
pub const REASON_PROVISIONING: &str = "Provisioning";
/// The instance did not run within provisioningTimeoutSeconds and is being replaced.
pub const REASON_PROVISIONING_TIMED_OUT: &str = "ProvisioningTimedOut";
/// What was sent to the provider differs from the spec: the instance is being replaced.
pub const REASON_REPLACING: &str = "Replacing";
/// The instance was unhealthy for longer than unhealthyTimeoutSeconds and is being replaced.
pub const REASON_UNHEALTHY_TIMED_OUT: &str = "UnhealthyTimedOut";
/// The provider stopped or took back the instance.
pub const REASON_PREEMPTED: &str = "Preempted";
/// The instance is gone without our doing.
pub const REASON_INSTANCE_LOST: &str = "InstanceLost";
/// The object is being deleted and its instance with it.
pub const REASON_DELETING: &str = "Deleting";
/// `spec.provider` is not in the operator's providers file.
pub const REASON_UNKNOWN_PROVIDER: &str = "UnknownProvider";
/// A Secret that the spec refers to is missing or incomplete.
pub const REASON_SECRET_NOT_FOUND: &str = "SecretNotFound";
/// The operator may not read, or make, a Secret that the spec refers to.
pub const REASON_SECRET_FORBIDDEN: &str = "SecretForbidden";
/// A Secret that the spec refers to cannot be read at the moment.
pub const REASON_SECRET_UNREADABLE: &str = "SecretUnreadable";
/// `spec.cloudInit` asks for something that cannot be put in: a placeholder that does not exist,
/// credentials that there are not, or such as its server cannot take.
pub const REASON_CLOUD_INIT_INVALID: &str = "CloudInitInvalid";
/// The provider gave out an address again that was given up shortly before because it failed. False:
/// the instance is replaced, once; True: it came again, and is used.
pub const REASON_ADDRESS_REISSUED: &str = "AddressReissued";
/// `spec.paused`: nothing was requested, and nothing is until it is unset.
pub const REASON_PAUSED: &str = "Paused";
/// The provider refused for lack of quota or stock.
pub const REASON_QUOTA_EXCEEDED: &str = "QuotaExceeded";
/// The provider asked us to slow down.
pub const REASON_RATE_LIMITED: &str = "RateLimited";
/// The provider rejected the operator's credentials.
pub const REASON_CREDENTIALS_REJECTED: &str = "CredentialsRejected";
/// The operator's account may not do this at the provider.
pub const REASON_FORBIDDEN: &str = "Forbidden";
/// The provider refused the request as malformed: only a changed spec can help.
pub const REASON_INVALID_SPEC: &str = "InvalidSpec";
/// An instance of this name exists and is not ours.
pub const REASON_NAME_TAKEN: &str = "NameTaken";
/// The provider failed in a way that may pass.
pub const REASON_PROVIDER_ERROR: &str = "ProviderError";

// === Reasons of Healthy ===

/// The last probes succeeded.
pub const REASON_PROBE_SUCCEEDED: &str = "ProbeSucceeded";
/// Probes of one target fail, but holders of leases report that traffic goes through.
pub const REASON_TRAFFIC_REPORTED: &str = "TrafficReported";
/// No probe has decided yet.
pub const REASON_PROBE_PENDING: &str = "ProbePending";
/// There is no address to probe.
pub const REASON_NO_ENDPOINT: &str = "NoEndpoint";
/// The proxy's port refused the connection.
pub const REASON_CONNECTION_REFUSED: &str = "ConnectionRefused";
/// The proxy did not accept the connection in time.
pub const REASON_CONNECT_TIMEOUT: &str = "ConnectTimeout";
/// The proxy closed the connection before it answered.
pub const REASON_CONNECT_ABORTED: &str = "ConnectAborted";
/// The proxy cannot be connected to for another reason: its name, or no route to it.
pub const REASON_CONNECT_FAILED: &str = "ConnectFailed";
/// The proxy refused our credentials (407).
pub const REASON_PROXY_AUTH_FAILED: &str = "ProxyAuthFailed";
/// The proxy accepted the connection but did not reach the probe's target.
pub const REASON_TARGET_UNREACHABLE: &str = "TargetUnreachable";
/// The probe did not finish within timeoutSeconds.
pub const REASON_PROBE_TIMED_OUT: &str = "ProbeTimedOut";
/// The certificate seen through the proxy is not the target's: somebody sits in between.
pub const REASON_TLS_INTERCEPTED: &str = "TLSIntercepted";
/// TLS through the proxy failed for another reason than its certificate.
pub const REASON_TLS_FAILED: &str = "TLSFailed";
/// TLS with the proxy itself does not come about: its certificate, perhaps.
pub const REASON_PROXY_TLS_FAILED: &str = "ProxyTLSFailed";
/// The answer's status is not among expectedStatusCodes.
pub const REASON_UNEXPECTED_STATUS: &str = "UnexpectedStatus";
/// The answer's body is not what the target sends (a captive portal, for example).
pub const REASON_UNEXPECTED_CONTENT: &str = "UnexpectedContent";
/// The request came out at another address than expected.
pub const REASON_WRONG_EXIT_IP: &str = "WrongExitIP";
/// The request came out in another country than expected.
pub const REASON_GEO_MISMATCH: &str = "GeoMismatch";
/// The last probes succeeded, but no echo target is configured that could tell where they came
/// out; assertions about the exit are skipped.
pub const REASON_EXIT_IP_UNKNOWN: &str = "ExitIPUnknown";
/// No probe has succeeded within provisioningTimeoutSeconds; the message has the last cause.
pub const REASON_PROBE_NEVER_SUCCEEDED: &str = "ProbeNeverSucceeded";
/// As ProbeNeverSucceeded, and cloud-init says on the machine's console that it failed; the message
/// has its line.
pub const REASON_BOOTSTRAP_FAILED: &str = "BootstrapFailed";
/// The health check itself cannot be carried out; only a changed spec can help.
pub const REASON_INVALID_HEALTH_CHECK: &str = "InvalidHealthCheck";
/// The request came out at our own address: the proxy proxies nothing.
pub const REASON_EXIT_IP_IS_OWN: &str = "ExitIPIsOwn";

// === Reasons of Flapping ===

/// More than five changes of the verdict within ten minutes.
pub const REASON_FREQUENT_TRANSITIONS: &str = "FrequentTransitions";

// === Reasons of FailureCorrelated ===

/// The probe's target cannot be reached without the proxy either: the target or the operator's own
/// network is to blame.
pub const REASON_CONTROL_PROBE_FAILED: &str = "ControlProbeFailed";
/// Most proxies that use one Secret fail: the vendor or the account is to blame.
pub const REASON_VENDOR_FAILING: &str = "VendorFailing";

// === Reasons of Drained ===

/// Waiting until the lease-apiserver grants nothing on this proxy and every lease has ended.
pub const REASON_DRAINING: &str = "Draining";
/// The lease API cannot be asked; drained at the latest when drainTimeoutSeconds are over.
pub const REASON_LEASE_API_UNAVAILABLE: &str = "LeaseAPIUnavailable";
/// No lease is left and none can be granted.
pub const REASON_NO_LEASES: &str = "NoLeases";
/// drainTimeoutSeconds passed; leases that were left are cut.
pub const REASON_DRAIN_TIMED_OUT: &str = "DrainTimedOut";
/// No lease API is installed in this cluster, so there are no leases to wait for.
pub const REASON_NO_LEASE_API: &str = "NoLeaseAPI";

/// Of the event when a proxy is not drained any more.
pub const REASON_DRAIN_ENDED: &str = "DrainEnded";

// === Reasons of Withheld ===
// Also Paused, from above.

/// A replacement of an instance that works waits until enough others are available.
pub const REASON_DISRUPTION_BUDGET: &str = "DisruptionBudget";
/// So many proxies fail at once that their machines are hardly the cause: none is replaced.
pub const REASON_REMEDIATION_PAUSED: &str = "RemediationPaused";
/// Replacing this instance did not help before; the next attempt waits longer.
pub const REASON_REMEDIATION_BACKOFF: &str = "RemediationBackoff";
/// cloud-init failed on the instance and on the one before it: none is replaced until the spec
/// changes or somebody resumes.
pub const REASON_BOOTSTRAP_FAILING: &str = "BootstrapFailing";
/// Many instances went away without our doing: none is created again until somebody resumes.
pub const REASON_MASS_EXTERNAL_DELETION: &str = "MassExternalDeletion";
/// The pool's limits.createsPerHour is used up.
pub const REASON_CREATE_LIMIT: &str = "CreateLimit";
/// The operator runs with `--dry-run`: what would be created or deleted is only logged.
pub const REASON_DRY_RUN: &str = "DryRun";
/// Several instances in a row could not be created; attempts are spaced out.
pub const REASON_CREATES_FAILING: &str = "CreatesFailing";

/// Of the event when an object goes and its instance is left behind on request.
pub const REASON_ABANDONED: &str = "Abandoned";

// === Reasons of Ready ===

/// Provisioned, healthy and not draining.
pub const REASON_READY: &str = "Ready";
/// Not provisioned; the condition Provisioned says why.
pub const REASON_NOT_PROVISIONED: &str = "NotProvisioned";
/// Not healthy; the condition Healthy says why.
pub const REASON_NOT_HEALTHY: &str = "NotHealthy";
/// The pool has as many ready members as it asks for.
pub const REASON_ALL_MEMBERS_READY: &str = "AllMembersReady";
/// Some members of the pool are not ready.
pub const REASON_MEMBERS_NOT_READY: &str = "MembersNotReady";
/// The pool asks for no members.
pub const REASON_SCALED_TO_ZERO: &str = "ScaledToZero";
/// A member could not be created or deleted.
pub const REASON_MEMBER_WRITE_FAILED: &str = "MemberWriteFailed";

// === Reasons of Progressing ===

/// Members of the pool are being replaced.
pub const REASON_ROLLING_OUT: &str = "RollingOut";
/// Members are being replaced, and deleted before others are created: there is no room for more.
pub const REASON_DELETING_FIRST: &str = "DeletingFirst";
/// New members fail, so no further one is replaced until they recover or the template changes.
pub const REASON_ROLLOUT_HALTED: &str = "RolloutHalted";
/// Every member of the pool is as the template says.
pub const REASON_ROLLOUT_COMPLETE: &str = "RolloutComplete";

// === Reasons of Withheld, of a pool ===

/// The pool's limits.replicas is reached.
pub const REASON_REPLICA_LIMIT: &str = "ReplicaLimit";
/// The pool's limits.pricePerHour is reached.
pub const REASON_PRICE_LIMIT: &str = "PriceLimit";

/// Of the event when a change of the template was written into members.
pub const REASON_MEMBERS_UPDATED: &str = "MembersUpdated";
/// Of the event when a pool has created members.
pub const REASON_MEMBERS_CREATED: &str = "MembersCreated";
/// Of the event when a pool has deleted members.
pub const REASON_MEMBERS_DELETED: &str = "MembersDeleted";
/// Of the event when a pool's placement has no capacity and others are used for a while.
pub const REASON_PLACEMENT_EXHAUSTED: &str = "PlacementExhausted";

/// The condition of a type, if the list has it.
pub fn find<'a>(conditions: &'a [Condition], type_: &str) -> Option<&'a Condition> {
    conditions.iter().find(|condition| condition.type_ == type_)
}

/// Whether the condition of a type is there and True.
pub fn is_true(conditions: &[Condition], type_: &str) -> bool {
    find(conditions, type_).is_some_and(|condition| condition.status == "True")
}

/// One condition as a controller states it; [`set`] adds the times.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Statement {
    /// The condition type, one of the constants above.
    pub type_: &'static str,
    /// True, False, or Unknown for `None`.
    pub status: Option<bool>,
    /// The reason, one of the constants above or a provider's PascalCase reason.
    pub reason: String,
    /// What a person needs to know, and what to do about it.
    pub message: String,
}

impl Statement {
    /// States a condition.
    pub fn new(
        type_: &'static str,
        status: impl Into<Option<bool>>,
        reason: &str,
        message: impl Into<String>,
    ) -> Self {
        Self {
            type_,
            status: status.into(),
            reason: reason.into(),
            message: message.into(),
        }
    }
}

/// A time as the API keeps it, in whole seconds; anything finer would differ from what is read back.
pub fn api_time(at: Timestamp) -> Time {
    Time(Timestamp::from_second(at.as_second()).unwrap_or(at))
}

/// Puts a condition into the list. The transition time moves only when the status does.
pub fn set(
    conditions: &mut Vec<Condition>,
    statement: Statement,
    generation: Option<i64>,
    now: Timestamp,
) {
    let Statement {
        type_,
        status,
        reason,
        message,
    } = statement;
    let status = match status {
        Some(true) => "True",
        Some(false) => "False",
        None => "Unknown",
    };
    let old = conditions
        .iter_mut()
        .find(|condition| condition.type_ == type_);
    match old {
        Some(old) => {
            if old.status != status {
                status.clone_into(&mut old.status);
                old.last_transition_time = api_time(now);
            }
            old.reason = reason;
            old.message = message;
            old.observed_generation = generation;
        },
        None => conditions.push(Condition {
            type_: type_.into(),
            status: status.into(),
            reason,
            message,
            observed_generation: generation,
            last_transition_time: api_time(now),
        }),
    }
}

/// Takes a condition out of the list.
pub fn remove(conditions: &mut Vec<Condition>, type_: &str) {
    conditions.retain(|condition| condition.type_ != type_);
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(second: i64) -> Timestamp {
        Timestamp::from_second(second).unwrap()
    }

    #[test]
    fn the_transition_time_moves_with_the_status_only() {
        let mut list = Vec::new();
        set(
            &mut list,
            Statement::new(READY, false, REASON_NOT_HEALTHY, "a"),
            Some(1),
            at(10),
        );
        set(
            &mut list,
            Statement::new(READY, false, REASON_NOT_PROVISIONED, "b"),
            Some(2),
            at(20),
        );
        let ready = find(&list, READY).unwrap();
        assert_eq!(ready.last_transition_time.0, at(10));
        assert_eq!(
            (ready.reason.as_str(), ready.observed_generation),
            ("NotProvisioned", Some(2))
        );

        set(
            &mut list,
            Statement::new(READY, true, REASON_READY, ""),
            Some(2),
            at(30),
        );
        assert_eq!(find(&list, READY).unwrap().last_transition_time.0, at(30));
        assert!(is_true(&list, READY));
        assert_eq!(list.len(), 1);
    }

    #[test]
    fn a_removed_condition_is_not_found() {
        let mut list = Vec::new();
        set(
            &mut list,
            Statement::new(DRAINED, None, REASON_DRAINING, ""),
            None,
            at(1),
        );
        assert_eq!(find(&list, DRAINED).unwrap().status, "Unknown");
        remove(&mut list, DRAINED);
        assert!(find(&list, DRAINED).is_none());
    }
}
