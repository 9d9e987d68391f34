//! Somebody who creates, changes and deletes flunders without end.

use std::time::Duration;

use kube::Api;
use kube::api::{DeleteParams, DynamicObject, Patch, PatchParams, PostParams};
use serde_json::json;

use crate::site::{PATIENCE, flunder};

/// Pause before a request that failed is sent again: the server is being restarted.
const PAUSE: Duration = Duration::from_millis(50);

/// Does `steps` things to the flunders `<who>-0` to `<who>-10`, one after the other, and comes through restarts
/// of the server. Tells the resource versions of the writes that were acknowledged at the first try, which
/// no watch may leave out.
pub(crate) async fn churn(flunders: &Api<DynamicObject>, who: &str, steps: usize) -> Vec<u64> {
    let mut acknowledged = Vec::new();
    for step in 0..steps {
        let name = format!("{who}-{}", step % 11);
        let mut first = true;
        let written = tokio::time::timeout(PATIENCE, async {
            loop {
                match write(flunders, &name, step).await {
                    Ok(version) => break version,
                    // It may have been done, and the answer lost.
                    Err(kube::Error::Api(status)) if !first && status.code == 409 => break None,
                    Err(kube::Error::Api(status)) if !first && status.code == 404 => break None,
                    Err(kube::Error::Api(status)) if (400..500).contains(&status.code) => {
                        unreachable!("{who}, step {step}: {status:?}")
                    },
                    Err(_) => first = false,
                }
                tokio::time::sleep(PAUSE).await;
            }
        })
        .await
        .expect("the server comes back");
        if first {
            acknowledged.extend(written);
        }
    }
    acknowledged
}

/// Step `step`: creates what is not there; changes what is, moves it into or out of the selection
/// `app=x`, or deletes it. Tells the resource version this gave.
async fn write(
    flunders: &Api<DynamicObject>,
    name: &str,
    step: usize,
) -> kube::Result<Option<u64>> {
    let written = if flunders.get_opt(name).await?.is_none() {
        let labels = if step.is_multiple_of(2) {
            json!({"app": "x"})
        } else {
            json!({})
        };
        let object = flunder(
            &json!({"metadata": {"name": name, "labels": labels}, "spec": {"reference": "r"}}),
        );
        flunders.create(&PostParams::default(), &object).await?
    } else if step.is_multiple_of(5) {
        let deleted = flunders.delete(name, &DeleteParams::default()).await?;
        return Ok(deleted.left().as_ref().and_then(version));
    } else {
        let app = if step.is_multiple_of(3) {
            json!(null)
        } else {
            json!("x")
        };
        let patch = json!({"metadata": {"labels": {"app": app}}, "spec": {"reference": format!("r{step}")}});
        flunders
            .patch(name, &PatchParams::default(), &Patch::Merge(patch))
            .await?
    };
    Ok(version(&written))
}

/// The resource version.
pub(crate) fn version(object: &DynamicObject) -> Option<u64> {
    object.metadata.resource_version.as_ref()?.parse().ok()
}
