//! What a machine's console says of its cloud-init. Pure.
//!
//! Called by `observe` for a machine that runs and never answered a probe. Only the one line in
//! which cloud-init or systemd says that it failed leaves this module: a console holds whatever the
//! scripts printed.

use crate::health::Credentials;

/// The longest line that is shown, in characters.
const LONGEST: usize = 200;
/// What stands for a secret.
const MASK: &str = "***";
/// What is put between a probe's message and the line.
const SAYS: &str = "; cloud-init says on its console: ";

/// The line in which cloud-init says that it failed, if it did, fit to be shown.
pub(super) fn failure(console: &str, credentials: Option<&Credentials>) -> Option<String> {
    let lines: Vec<_> = console.split(['\n', '\r']).map(printable).collect();
    // Why its own words first: systemd only says which stage failed.
    let told = lines.iter().find(|line| is_of_cloud_init(line));
    let line = told.or_else(|| lines.iter().find(|line| is_of_systemd(line)))?;
    let masked = mask(line.trim(), credentials);
    Some(shortened(&masked))
}

/// The message of a probe, with the line.
pub(super) fn message(probe: &str, line: &str) -> String {
    format!("{probe}{SAYS}{line}")
}

/// The message of the probe alone.
pub(super) fn without_line(message: &str) -> &str {
    message.split(SAYS).next().unwrap_or_default()
}

/// `… - util.py[WARNING]: Failed running /var/lib/cloud/instance/scripts/runcmd [1]`. Why not every
/// warning: several are harmless.
fn is_of_cloud_init(line: &str) -> bool {
    let after = |level: &str| line.split_once(level).map(|(_, text)| text);
    if after(".py[ERROR]: ").is_some() || after(".py[CRITICAL]: ").is_some() {
        return true;
    }
    after(".py[WARNING]: ").is_some_and(|text| {
        // Why: said of every machine that has none, and of no consequence.
        let harmless = text.contains("empty cloud config");
        let failed = text.contains("ailed") || text.contains("ailure");
        let unusable = text.starts_with("Unhandled ") || text.starts_with("Invalid ");
        !harmless && (failed || unusable)
    })
}

/// `[FAILED] Failed to start cloud-final.service - Cloud-init: Final Stage.`
fn is_of_systemd(line: &str) -> bool {
    line.split_once("Failed to start ")
        .is_some_and(|(_, unit)| unit.to_ascii_lowercase().contains("cloud"))
}

/// Without colours and other control characters.
fn printable(line: &str) -> String {
    let mut out = String::with_capacity(line.len());
    let mut rest = line.chars();
    while let Some(next) = rest.next() {
        if next == '\u{1b}' {
            // A control sequence (ECMA-48, 5.4) ends with a character from @ to ~.
            if rest.next() == Some('[') {
                rest.find(|c| ('@'..='~').contains(c));
            }
        } else if !next.is_control() {
            out.push(next);
        }
    }
    out
}

/// Without the password, as it is and as templates and URLs write it.
fn mask(line: &str, credentials: Option<&Credentials>) -> String {
    let Some(Credentials { username, password }) = credentials else {
        return line.to_owned();
    };
    let base64 = |text: &str| data_encoding::BASE64.encode(text.as_bytes());
    let in_url: String = url::form_urlencoded::byte_serialize(password.as_bytes()).collect();
    let forms = [
        password.clone(),
        base64(password),
        base64(&format!("{username}:{password}")),
        in_url,
    ];
    let forms = forms.iter().filter(|form| !form.is_empty());
    forms.fold(line.to_owned(), |line, form| line.replace(form, MASK))
}

fn shortened(line: &str) -> String {
    match line.char_indices().nth(LONGEST) {
        None => line.to_owned(),
        Some((at, _)) => format!("{}…", &line[..at]),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn credentials(password: &str) -> Credentials {
        Credentials {
            username: "user".into(),
            password: password.into(),
        }
    }

    const RUNCMD: &str = "2026-11-30 10:00:00,000 - util.py[WARNING]: Failed running \
                          /var/lib/cloud/instance/scripts/runcmd [100]";

    #[test]
    fn the_first_line_in_which_cloud_init_says_that_it_failed_is_the_one() {
        let console = format!(
            "[  OK  ] Started cron\r\n\
             [\u{1b}[0;1;31mFAILED\u{1b}[0m] Failed to start cloud-final.service - Final Stage.\r\n\
             E: Unable to locate package squid\n{RUNCMD}\n\
             2026-11-30 10:00:01,000 - cc_scripts_user.py[WARNING]: Failed to run module scripts_user\n\
             Cloud-init v. 22.4.2 finished at Mon, 30 Nov 2026 10:00:01 +0000. Up 21 seconds\n"
        );
        assert_eq!(failure(&console, None).as_deref(), Some(RUNCMD));
    }

    #[test]
    fn every_way_to_say_so_is_known_and_a_good_boot_says_nothing() {
        for line in [
            "x - schema.py[WARNING]: Invalid cloud-config provided: apt: wrong",
            "x - __init__.py[WARNING]: Unhandled non-multipart (text/x-not-multipart) userdata",
            "x - util.py[WARNING]: Failed loading yaml blob. Invalid format at line 3",
            "x - main.py[ERROR]: failed stage init",
            "x - main.py[CRITICAL]: no datasource",
            "[FAILED] Failed to start Execute cloud user/final scripts.",
            "Failed to start cloud-config.service - Apply settings specified in cloud-config.",
        ] {
            assert_eq!(failure(line, None).as_deref(), Some(line));
        }
        let good = "[  OK  ] Finished cloud-final.service\n\
                    x - util.py[WARNING]: Failed at merging in cloud config part: empty cloud config\n\
                    x - cc_ssh.py[WARNING]: no keys were generated\n\
                    [FAILED] Failed to start exim4.service\n\
                    Cloud-init v. 22.4.2 finished at Mon, 30 Nov 2026. Up 21 seconds\n";
        assert_eq!(failure(good, None), None);
        assert_eq!(failure("", None), None);
    }

    #[test]
    fn neither_control_characters_nor_more_than_a_line_are_shown() {
        let long = format!("\u{1b}[31m{RUNCMD}\u{1b}[0m\u{7} {}", "é".repeat(500));
        let shown = failure(&long, None).unwrap();
        assert!(shown.starts_with(RUNCMD), "{shown}");
        assert_eq!(shown.chars().count(), LONGEST + 1);
        assert!(!shown.chars().any(char::is_control));
    }

    /// Nothing else of a console is shown, and of this line the password is masked in every form
    /// that the operator writes it in.
    #[test]
    fn a_password_in_the_line_is_masked() {
        let password = "s3cr+t /x";
        let base64 = data_encoding::BASE64.encode(password.as_bytes());
        let line = format!(
            "x - util.py[WARNING]: Failed running curl -u user:{password} {base64} s3cr%2Bt+%2Fx"
        );
        let console = format!("+ PASSWORD={password}\n{line}\n");
        let shown = failure(&console, Some(&credentials(password))).unwrap();
        assert_eq!(
            shown,
            "x - util.py[WARNING]: Failed running curl -u user:*** *** ***"
        );
    }

    #[test]
    fn a_line_can_be_taken_off_a_message_again() {
        let both = message("no probe has succeeded", RUNCMD);
        assert!(both.ends_with(RUNCMD));
        assert_eq!(without_line(&both), "no probe has succeeded");
        assert_eq!(without_line("plain"), "plain");
    }
}
