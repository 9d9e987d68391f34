//! Faults that tests and demonstrations ask the cloud for, and how a proxy may misbehave.
//!
//! A [`FaultRule`] waits in the state until calls match it; it is spent call by call, so a test
//! says exactly how many calls fail. A [`Behaviour`] belongs to one instance and lasts.

use std::net::Ipv4Addr;

use serde::{Deserialize, Serialize};

use crate::model::ErrorCode;

/// The calls a rule can match.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum Op {
    /// Creating an instance.
    Create,
    /// Reading one instance.
    Get,
    /// Deleting an instance.
    Delete,
    /// Listing instances.
    List,
    /// Reading an operation.
    Operation,
    /// Reading an instance's console.
    Console,
}

/// What a failing call answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub enum FailWith {
    /// The account's quota is used up.
    Quota,
    /// The zone has no machines left.
    Stockout,
    /// The request is refused for good.
    Invalid,
    /// The caller may not do this.
    Forbidden,
    /// The credentials are not accepted.
    Unauthorized,
    /// Too many requests; come back in a second.
    RateLimited,
    /// The cloud is having a problem.
    Transient,
}

impl FailWith {
    /// The code of the answer.
    pub fn code(self) -> ErrorCode {
        match self {
            Self::Quota => ErrorCode::QuotaExceeded,
            Self::Stockout => ErrorCode::ZoneResourcesExhausted,
            Self::Invalid => ErrorCode::Invalid,
            Self::Forbidden => ErrorCode::Forbidden,
            Self::Unauthorized => ErrorCode::Unauthorized,
            Self::RateLimited => ErrorCode::RateLimited,
            Self::Transient => ErrorCode::BackendError,
        }
    }
}

/// What happens to a matching call.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(
    tag = "type",
    rename_all = "camelCase",
    rename_all_fields = "camelCase"
)]
pub enum Fault {
    /// It is refused and changes nothing.
    Fail {
        /// With what.
        with: FailWith,
    },
    /// A create is accepted, and then its operation fails: there never is an instance.
    FailOperation {
        /// With what.
        with: FailWith,
    },
    /// It is carried out, and the connection drops instead of an answer.
    LostReply,
    /// It changes nothing and is never answered.
    Hang,
    /// A create is carried out, and the instance takes this long to boot.
    SlowBoot {
        /// Instead of the cloud's own delay.
        delay_milliseconds: u64,
    },
    /// A create is carried out, and the instance boots without its proxy ever starting.
    FailBootstrap {
        /// What its console says.
        console: String,
    },
    /// A create is carried out, and the instance has this address, which must be free.
    GiveAddress {
        /// Which one.
        ip: Ipv4Addr,
    },
    /// A create is carried out, and the instance's proxy misbehaves.
    Misbehave {
        /// How.
        behaviour: Behaviour,
    },
}

impl Fault {
    /// Whether the fault can happen to calls of this kind.
    pub(crate) fn fits(&self, op: Op) -> bool {
        match self {
            Self::Fail { .. } | Self::Hang | Self::LostReply => true,
            Self::FailOperation { .. }
            | Self::SlowBoot { .. }
            | Self::FailBootstrap { .. }
            | Self::GiveAddress { .. }
            | Self::Misbehave { .. } => op == Op::Create,
        }
    }
}

/// A fault for the next `count` calls that match.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
pub struct FaultRule {
    /// The calls it matches.
    pub op: Op,
    /// Only in this zone; a list over all zones does not match a rule with a zone.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub zone: Option<String>,
    /// How many more calls it takes.
    pub count: u32,
    /// What happens to them.
    pub fault: Fault,
}

/// How an instance's proxy behaves.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "camelCase")]
pub enum Behaviour {
    /// As a proxy should.
    #[default]
    Normal,
    /// The machine runs, nothing listens.
    Dead,
    /// Accepts connections and never says a word.
    Hang,
    /// Connecting to it never ends: what is sent to it is lost.
    BlackHole,
    /// Answers every request, also `CONNECT`, with 200 and a page of its own.
    CaptivePortal,
    /// Accepts no credentials at all.
    RejectAuth,
    /// Dials from another address than it listens on.
    WrongExit {
        /// From where; some other loopback address when absent.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        ip: Option<Ipv4Addr>,
    },
}
