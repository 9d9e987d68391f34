//! What kubectl's own TAB completion asks of a plugin: the words that may follow.
//!
//! kubectl runs `kubectl_complete-NAME` with the words after the plugin's name, the last of them
//! the one that is being typed, and reads one candidate a line, a tab and a description, then a
//! colon and what the shell may add. Called by `cli`; pure.

use clap::builder::StyledStr;
use clap::{Arg, Command, ValueHint};

/// The shell may offer files.
const FILES: &str = ":0";
/// Nothing but the candidates fits.
const NO_FILES: &str = ":4";

/// The answer for these words, ready to be printed.
pub(crate) fn complete(root: &Command, words: &[String]) -> String {
    let (typed, before) = match words.split_last() {
        Some((typed, before)) => (typed.as_str(), before),
        None => ("", words),
    };
    // Why: what follows the dashes is a command of its own, with files among its words.
    if before.iter().any(|word| word == "--") {
        return format!("{FILES}\n");
    }
    let command = before.iter().fold(root, |command, word| {
        command.find_subcommand(word).unwrap_or(command)
    });
    let waiting = before
        .last()
        .and_then(|word| find_flag(command, word))
        .filter(|flag| takes_value(flag));
    if let Some(flag) = waiting {
        return render(values(flag, "", typed), flag);
    }
    if let Some((name, typed)) = typed.split_once('=')
        && let Some(flag) = find_flag(command, name)
    {
        return render(values(flag, &format!("{name}="), typed), flag);
    }
    let candidates = if typed.starts_with('-') {
        let flags = command.get_arguments().filter(|flag| !flag.is_hide_set());
        flags
            .filter_map(|flag| Some((format!("--{}", flag.get_long()?), summary(flag.get_help()))))
            .filter(|(name, _)| name.starts_with(typed))
            .collect()
    } else {
        let commands = command.get_subcommands().filter(|sub| !sub.is_hide_set());
        let commands = commands.map(|sub| (sub.get_name().to_owned(), summary(sub.get_about())));
        let positional = command.get_positionals().next();
        let values = positional.map(|argument| values(argument, "", typed));
        commands
            .filter(|(name, _)| name.starts_with(typed))
            .chain(values.unwrap_or_default())
            .collect()
    };
    list(candidates, NO_FILES)
}

type Candidate = (String, String);

fn find_flag<'a>(command: &'a Command, word: &str) -> Option<&'a Arg> {
    let mut flags = command.get_opts();
    if let Some(long) = word.strip_prefix("--") {
        return flags.find(|flag| flag.get_long() == Some(long));
    }
    let short = word.strip_prefix('-')?.chars().next_back()?;
    flags.find(|flag| flag.get_short() == Some(short))
}

fn takes_value(flag: &Arg) -> bool {
    flag.get_action().takes_values()
}

fn values(flag: &Arg, prefix: &str, typed: &str) -> Vec<Candidate> {
    let possible = flag.get_possible_values().into_iter();
    possible
        .filter(|value| value.get_name().starts_with(typed))
        .map(|value| {
            let name = format!("{prefix}{}", value.get_name());
            (name, summary(value.get_help()))
        })
        .collect()
}

fn render(candidates: Vec<Candidate>, flag: &Arg) -> String {
    let hint = flag.get_value_hint();
    let files = if matches!(hint, ValueHint::FilePath | ValueHint::AnyPath) {
        FILES
    } else {
        NO_FILES
    };
    list(candidates, files)
}

fn list(candidates: Vec<Candidate>, directive: &str) -> String {
    let mut text = String::new();
    for (name, about) in candidates {
        text.push_str(&name);
        if !about.is_empty() {
            text.push('\t');
            text.push_str(&about);
        }
        text.push('\n');
    }
    text.push_str(directive);
    text.push('\n');
    text
}

fn summary(text: Option<&StyledStr>) -> String {
    let text = text.map(ToString::to_string).unwrap_or_default();
    text.lines().next().unwrap_or_default().to_owned()
}
