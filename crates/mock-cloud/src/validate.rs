//! What the cloud accepts in a request to create an instance.

use crate::model::{CreateInstance, ErrorBody, ErrorCode};

/// Refuses what a real cloud would refuse, naming the field.
pub(crate) fn create(zone: &str, request: &CreateInstance) -> Result<(), ErrorBody> {
    let CreateInstance {
        name,
        labels,
        metadata: _,
        cloud_init: _,
        port,
        auth,
    } = request;
    if !is_name(zone) {
        return Err(invalid("zone", zone, NAME));
    }
    if !is_name(name) {
        return Err(invalid("name", name, NAME));
    }
    if *port == 0 {
        return Err(invalid("port", "0", "1 to 65535"));
    }
    for (key, value) in labels {
        if key.is_empty() || key.len() > 63 || value.len() > 63 {
            return Err(invalid(
                "labels",
                key,
                "names of 1 to 63 and values of at most 63 bytes",
            ));
        }
    }
    if let Some(auth) = auth
        && (auth.username.is_empty() || auth.username.contains(':'))
    {
        return Err(invalid(
            "auth.username",
            &auth.username,
            "not empty and without a colon",
        ));
    }
    Ok(())
}

const NAME: &str = "lower-case letters, digits and dashes, starting with a letter, at most 63";

fn is_name(text: &str) -> bool {
    let inner = |b: u8| b.is_ascii_lowercase() || b.is_ascii_digit() || b == b'-';
    text.len() <= 63
        && text.bytes().all(inner)
        && text.starts_with(|c: char| c.is_ascii_lowercase())
        && !text.ends_with('-')
}

fn invalid(field: &str, value: &str, wanted: &str) -> ErrorBody {
    ErrorBody {
        code: ErrorCode::Invalid,
        message: format!("{field} is {value:?}; it must be {wanted}"),
    }
}
