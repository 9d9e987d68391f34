//! Puts what only the operator knows into a cloud-init: credentials, port, client networks.
//!
//! Called by `observe` before a create request is built, so that what is put in belongs to the hash
//! of the request: other credentials are another machine. Pure. The placeholders and the templates
//! that use them are described in docs/credentials.md.

use crate::health::Credentials;

/// What a cloud-init may ask for.
#[derive(Clone, Copy, Debug)]
pub struct Values<'a> {
    /// The TCP port on which the proxy listens.
    pub port: u16,
    /// What the proxy asks its clients for.
    pub credentials: Option<&'a Credentials>,
    /// Networks from which clients may come; empty: all.
    pub allowed_cidrs: &'a [String],
}

/// Why a cloud-init cannot be completed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// A placeholder of ours that does not exist.
    #[error(
        "cloudInit has the placeholder {{{{proxy.{0}}}}}, which does not exist: use one of {KNOWN}"
    )]
    Unknown(String),
    /// A placeholder that is not closed.
    #[error("cloudInit has a placeholder {{{{proxy. without }}}} on its line: close it")]
    Unclosed,
    /// Credentials are asked for, and there are none.
    #[error(
        "cloudInit asks for credentials ({{{{proxy.{0}}}}}) and auth has none: set auth.generate or \
         auth.secretRef, or everybody could use the proxy"
    )]
    NoCredentials(&'static str),
    /// Networks are let in without a password, and none are named.
    #[error(
        "cloudInit lets clients in by their network and asks for no password, and auth.allowedCIDRs \
         is {0}, so everybody could use the proxy: name the networks of the crawlers, and of the \
         operator, which probes"
    )]
    Open(&'static str),
    /// Credentials that cannot be delivered to any server.
    #[error("the {0} in the Secret of auth {1}: change it")]
    Unusable(&'static str, &'static str),
    /// Credentials that the server of this template cannot take.
    #[error(
        "cloudInit needs a {0} of letters, digits, dots, underscores and dashes \
         ({{{{proxy.{0}Plain}}}}), and the one in the Secret has others: change it, or use a template \
         whose server takes any {0}"
    )]
    NotPlain(&'static str),
}

/// As [`Refusal::Unknown`] lists them.
const KNOWN: &str =
    "port, allowedCIDRs, usernameBase64, passwordBase64, usernamePlain, passwordPlain";

const OPEN: &str = "{{proxy.";
const CLOSE: &str = "}}";
const ASKS_FOR_PASSWORD: &str = "{{proxy.password";

/// The cloud-init with every placeholder replaced. One pass: what is put in is not looked at again.
///
/// Base64 stands for itself wherever it is put, in YAML as in a shell; so does what is plain. There
/// is no placeholder for anything that would have to be quoted.
///
/// # Errors
/// A placeholder that is not known, or a value that is not there or cannot be delivered.
pub fn render(template: &str, values: &Values<'_>) -> Result<String, Refusal> {
    let mut out = String::with_capacity(template.len());
    let mut rest = template;
    while let Some((before, from)) = rest.split_once(OPEN) {
        out.push_str(before);
        let line = from.split('\n').next().unwrap_or_default();
        let (name, _) = line.split_once(CLOSE).ok_or(Refusal::Unclosed)?;
        if name == "allowedCIDRs" && !template.contains(ASKS_FOR_PASSWORD) {
            check_closed(values.allowed_cidrs)?;
        }
        out.push_str(&value(name, values)?);
        rest = &from[name.len() + CLOSE.len()..];
    }
    out.push_str(rest);
    Ok(out)
}

fn value(name: &str, values: &Values<'_>) -> Result<String, Refusal> {
    let credentials = |placeholder| {
        let found = values
            .credentials
            .ok_or(Refusal::NoCredentials(placeholder))?;
        check(found)?;
        Ok(found)
    };
    match name {
        "port" => Ok(values.port.to_string()),
        "allowedCIDRs" if values.allowed_cidrs.is_empty() => Ok("0.0.0.0/0 ::/0".into()),
        "allowedCIDRs" => Ok(values.allowed_cidrs.join(" ")),
        "usernameBase64" => Ok(base64(&credentials("usernameBase64")?.username)),
        "passwordBase64" => Ok(base64(&credentials("passwordBase64")?.password)),
        "usernamePlain" => plain("username", &credentials("usernamePlain")?.username),
        "passwordPlain" => plain("password", &credentials("passwordPlain")?.password),
        _ => Err(Refusal::Unknown(name.to_owned())),
    }
}

/// For a server that knows its clients by their address alone.
fn check_closed(networks: &[String]) -> Result<(), Refusal> {
    if networks.is_empty() {
        Err(Refusal::Open("empty"))
    } else if networks.iter().any(|network| network.ends_with("/0")) {
        Err(Refusal::Open("the whole Internet"))
    } else {
        Ok(())
    }
}

/// Why refused: no server's configuration, no password file and no HTTP header (RFC 7617, section 2)
/// can hold these, and an empty password is one that everybody knows.
fn check(credentials: &Credentials) -> Result<(), Refusal> {
    let Credentials { username, password } = credentials;
    let control = |text: &str| text.chars().any(char::is_control);
    if username.is_empty() {
        Err(Refusal::Unusable("username", "is empty"))
    } else if password.is_empty() {
        Err(Refusal::Unusable("password", "is empty"))
    } else if control(username) {
        Err(Refusal::Unusable("username", "has control characters"))
    } else if control(password) {
        Err(Refusal::Unusable(
            "password",
            "has control characters (a line break at its end, perhaps)",
        ))
    } else if username.contains(':') {
        Err(Refusal::Unusable("username", "has a colon"))
    } else {
        Ok(())
    }
}

fn base64(text: &str) -> String {
    data_encoding::BASE64.encode(text.as_bytes())
}

fn plain(what: &'static str, text: &str) -> Result<String, Refusal> {
    let fits = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
    // Why: a word that begins with a dash is an option to most programs.
    if text.chars().all(fits) && !text.starts_with('-') {
        Ok(text.to_owned())
    } else {
        Err(Refusal::NotPlain(what))
    }
}

#[cfg(test)]
#[path = "cloud_init_tests.rs"]
mod tests;
