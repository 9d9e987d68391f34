//! The cloud's books: every mutating call and every instance there ever was, so that a test can
//! prove that a crash around a call led to exactly one machine.

use std::collections::VecDeque;

use jiff::Timestamp;
use serde::{Deserialize, Serialize};

use crate::{
    faults::{Fault, Op},
    model::{ErrorCode, Labels},
};

/// Entries beyond the newest this many are forgotten, the oldest first.
const KEPT: usize = 50_000;

/// A mutating call (create or delete) the cloud received, also one that was refused.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct Call {
    /// When it was decided.
    pub at: Timestamp,
    /// Which call.
    pub op: Op,
    /// As in the path.
    pub zone: String,
    /// The name (create) or the name or id (delete) asked for.
    pub target: String,
    /// The refusal; none when it was carried out.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub refused: Option<ErrorCode>,
    /// The fault it met.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub fault: Option<Fault>,
}

/// An instance there is or was.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct EverCreated {
    /// Its id.
    pub id: String,
    /// Its name.
    pub name: String,
    /// Its zone.
    pub zone: String,
    /// Its labels.
    pub labels: Labels,
    /// When it was accepted.
    pub created_at: Timestamp,
    /// When it was gone; none while it exists.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub deleted_at: Option<Timestamp>,
}

/// The books.
#[derive(Clone, Debug, Default, Serialize, Deserialize)]
pub(crate) struct Records {
    pub(crate) calls: VecDeque<Call>,
    pub(crate) created: VecDeque<EverCreated>,
}

impl Records {
    pub(crate) fn call(&mut self, call: Call) {
        self.calls.push_back(call);
        while self.calls.len() > KEPT {
            self.calls.pop_front();
        }
    }

    pub(crate) fn created(&mut self, instance: EverCreated) {
        self.created.push_back(instance);
        while self.created.len() > KEPT {
            self.created.pop_front();
        }
    }

    pub(crate) fn gone(&mut self, id: u64, at: Timestamp) {
        let id = id.to_string();
        if let Some(entry) = self.created.iter_mut().rev().find(|entry| entry.id == id) {
            entry.deleted_at = Some(at);
        }
    }
}
