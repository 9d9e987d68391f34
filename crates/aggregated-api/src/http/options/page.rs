//! The continue token: where the next page of a list starts.

use base64::Engine as _;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use serde::{Deserialize, Serialize};

use crate::http::status::ApiError;

/// Where the next page starts.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Continue {
    v: String,
    /// Revision of the first page; -1: the latest one, when the first page's is no longer kept.
    pub rv: i64,
    /// First key, relative to the list's prefix.
    pub start: String,
}

impl Continue {
    /// A token for the page that starts at `start` in the state at `rv`.
    pub fn new(rv: i64, start: String) -> Self {
        Self {
            v: "meta.k8s.io/v1".to_owned(),
            rv,
            start,
        }
    }

    /// The opaque text.
    pub fn encode(&self) -> String {
        URL_SAFE_NO_PAD.encode(serde_json::to_vec(self).unwrap_or_default())
    }

    pub(super) fn decode(text: &str) -> Result<Self, ApiError> {
        let refuse = |why: &str| {
            ApiError::bad_request(format!(
                "invalid continue token: continue key is not valid: {why}"
            ))
        };
        let bytes = URL_SAFE_NO_PAD
            .decode(text)
            .map_err(|e| refuse(&e.to_string()))?;
        let token: Self = serde_json::from_slice(&bytes).map_err(|e| refuse(&e.to_string()))?;
        if token.v != "meta.k8s.io/v1" {
            return Err(refuse(&format!(
                "server does not recognize this encoded version {}",
                token.v
            )));
        }
        if token.rv == 0 {
            return Err(refuse(
                "incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
            ));
        }
        if token.start.is_empty() {
            return Err(refuse("encoded start key empty (version meta.k8s.io/v1)"));
        }
        // No segment may lead out of what is listed.
        let relative = token.start.strip_prefix('/').unwrap_or(&token.start);
        if relative
            .split('/')
            .any(|part| matches!(part, "" | "." | ".."))
        {
            return Err(refuse(&token.start));
        }
        Ok(token)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    // The texts are those of k8s.io/apiserver/pkg/storage/continue.go.
    #[test]
    fn continue_tokens_round_trip_and_garbage_is_refused() {
        let token = Continue::new(9, "ns/x\0".to_owned());
        assert_eq!(Continue::decode(&token.encode()).unwrap(), token);
        for (bad, why) in [
            ("%%%".to_owned(), ""),
            ("e30".to_owned(), ""),
            (Continue::new(9, "../x".to_owned()).encode(), "../x"),
            (Continue::new(9, "a//x".to_owned()).encode(), "a//x"),
            (
                Continue::new(9, String::new()).encode(),
                "encoded start key empty (version meta.k8s.io/v1)",
            ),
            (
                Continue::new(0, "x".to_owned()).encode(),
                "incorrect encoded start resourceVersion (version meta.k8s.io/v1)",
            ),
            (
                Continue {
                    v: "v9".to_owned(),
                    ..token.clone()
                }
                .encode(),
                "server does not recognize this encoded version v9",
            ),
        ] {
            let error = Continue::decode(&bad).unwrap_err();
            assert_eq!(error.code(), 400, "{bad}");
            let told = error.to_string();
            assert!(
                told.starts_with("invalid continue token: continue key is not valid: ")
                    && told.ends_with(why),
                "{told}"
            );
        }
    }
}
