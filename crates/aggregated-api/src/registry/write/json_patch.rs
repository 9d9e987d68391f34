//! JSON patches (RFC 6902) on what is stored. They are small texts that can ask for much: a copy doubles
//! what it copies, and moves nest without end.

use json_patch::PatchOperation;
use serde_json::Value;

use crate::http::status::ApiError;

/// Most bytes that the copies of one patch may add, `JSONPatchMaxCopyBytes` of upstream.
const MAX_COPIED: usize = 3 * 1024 * 1024;
/// Deepest nesting of what a patch leaves, as of bodies: nothing deeper could be read from the store.
const MAX_DEPTH: usize = 127;

/// Applies a patch, one operation after the other.
///
/// # Errors
/// 422 for an operation that fails, copies too much or nests too deep. `document` is of no use then.
pub(super) fn apply(document: &mut Value, patch: &json_patch::Patch) -> Result<(), ApiError> {
    let mut copied = 0;
    // Not below the true depth, which is looked at only when this has grown over the limit.
    let mut depth = depth_of(document);
    for (index, operation) in patch.0.iter().enumerate() {
        if let PatchOperation::Copy(copy) = operation
            && let Some(value) = document.pointer(copy.from.as_str())
        {
            copied += value.to_string().len();
            if copied > MAX_COPIED {
                return Err(refused(&format!(
                    "Unable to complete the copy, the accumulated size increase of copy is {copied}, exceeding the limit {MAX_COPIED}"
                )));
            }
        }
        json_patch::patch_unsafe(document, std::slice::from_ref(operation))
            .map_err(|error| refused(&format!("operation {index} failed: {}", error.kind)))?;
        depth = depth.max(depth_after(operation, depth));
        if depth > MAX_DEPTH {
            depth = depth_of(document);
        }
        if depth > MAX_DEPTH {
            let why = format!("operation {index} nests deeper than {MAX_DEPTH}");
            return Err(refused(&why));
        }
    }
    Ok(())
}

fn refused(why: &str) -> ApiError {
    ApiError::refusal(
        http::StatusCode::UNPROCESSABLE_ENTITY,
        "Invalid",
        format!("the server rejected our request due to an error in our request: {why}"),
    )
    .with_empty_details()
}

/// How deep what an operation puts somewhere can reach, in a document that was not deeper than `before`.
fn depth_after(operation: &PatchOperation, before: usize) -> usize {
    let moved = |from: &json_patch::jsonptr::Pointer, to: &json_patch::jsonptr::Pointer| {
        to.count() + before.saturating_sub(from.count())
    };
    match operation {
        PatchOperation::Add(add) => add.path.count() + depth_of(&add.value),
        PatchOperation::Replace(replace) => replace.path.count() + depth_of(&replace.value),
        PatchOperation::Move(moving) => moved(&moving.from, &moving.path),
        PatchOperation::Copy(copy) => moved(&copy.from, &copy.path),
        PatchOperation::Remove(_) | PatchOperation::Test(_) => 0,
    }
}

/// Lists and objects within each other. The value must not be much deeper than [`MAX_DEPTH`].
fn depth_of(value: &Value) -> usize {
    match value {
        Value::Array(items) => 1 + items.iter().map(depth_of).max().unwrap_or(0),
        Value::Object(members) => 1 + members.values().map(depth_of).max().unwrap_or(0),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => 0,
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn read(operations: &[Value]) -> json_patch::Patch {
        serde_json::from_value(json!(operations)).unwrap()
    }

    fn patched(document: Value, operations: &[Value]) -> Result<Value, String> {
        let mut document = document;
        apply(&mut document, &read(operations))
            .map(|()| document)
            .map_err(|refusal| refusal.to_string())
    }

    /// Each copies the whole into itself: forty of them would fill any memory.
    #[test]
    fn copies_that_double_what_they_copy_are_refused() {
        let copies: Vec<_> = (0..40)
            .map(|i| json!({"op": "copy", "from": "/a", "path": format!("/a/{i}")}))
            .collect();
        let refusal = patched(json!({"a": {"x": "y".repeat(1000)}}), &copies).unwrap_err();
        assert!(refusal.contains("exceeding the limit 3145728"), "{refusal}");
    }

    #[test]
    fn small_copies_add_up() {
        let copy = |i| json!({"op": "copy", "from": "/a", "path": format!("/b{i}")});
        let document = || json!({"a": "x".repeat(1024 * 1024)});
        assert!(patched(document(), &[copy(1), copy(2)]).is_ok());
        assert!(patched(document(), &[copy(1), copy(2), copy(3)]).is_err());
    }

    /// Three short operations put one more object around what there is.
    #[test]
    fn moves_that_nest_without_end_are_refused() {
        let wrap = [
            json!({"op": "add", "path": "/b", "value": {}}),
            json!({"op": "move", "from": "/a", "path": "/b/a"}),
            json!({"op": "move", "from": "/b", "path": "/a"}),
        ];
        let times = |n: usize| wrap.iter().cycle().take(3 * n).cloned().collect::<Vec<_>>();
        assert!(patched(json!({"a": {}}), &times(100)).is_ok());
        let refusal = patched(json!({"a": {}}), &times(3000)).unwrap_err();
        assert!(refusal.contains("nests deeper than 127"), "{refusal}");
    }

    #[test]
    fn many_moves_of_what_is_flat_are_not_deep() {
        let members: serde_json::Map<_, _> =
            (0..500).map(|i| (format!("a{i}"), json!(i))).collect();
        let moves: Vec<_> = (0..500)
            .map(|i| json!({"op": "move", "from": format!("/a{i}"), "path": format!("/b/c/a{i}")}))
            .collect();
        let mut document = Value::Object(members);
        document["b"] = json!({"c": {}});
        let document = patched(document, &moves).unwrap();
        assert_eq!(document["b"]["c"]["a499"], 499);
    }

    #[test]
    fn an_operation_that_fails_is_named() {
        let operations = [
            json!({"op": "test", "path": "/a", "value": 1}),
            json!({"op": "remove", "path": "/b"}),
        ];
        let refusal = patched(json!({"a": 1}), &operations).unwrap_err();
        assert!(refusal.contains("operation 1 failed"), "{refusal}");
    }
}
