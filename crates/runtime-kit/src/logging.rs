//! Log output of a process: where it goes, in which form, and from which level on.
//!
//! Called once by each binary, before anything is logged. Logs go to standard error; standard
//! output belongs to what a command was asked for.

use std::io::IsTerminal;

use tracing_subscriber::EnvFilter;

/// Flags about logs, flattened into the arguments of a binary.
#[derive(Debug, Clone, clap::Args)]
pub struct LogArgs {
    /// Which lines are logged: a level (error, warn, info, debug, trace), or directives like
    /// `info,kube=debug`.
    #[arg(long, default_value = "info", value_name = "FILTER")]
    pub log_level: String,

    /// How lines are written.
    #[arg(long, value_enum, default_value_t = LogFormat::Text)]
    pub log_format: LogFormat,
}

/// The form of a log line.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum LogFormat {
    /// One line of text, with colours on a terminal.
    Text,
    /// One JSON object a line; the fields of spans are included.
    Json,
}

/// Why logging could not be set up.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// The filter does not parse.
    #[error(
        "--log-level {value:?} is neither a level nor a list of directives like info,kube=debug"
    )]
    ParseFilter {
        /// What was given.
        value: String,
        /// What the parser said.
        #[source]
        source: tracing_subscriber::filter::ParseError,
    },
    /// A subscriber is installed already.
    #[error("logging was set up twice in this process")]
    AlreadyInstalled(#[source] tracing_subscriber::util::TryInitError),
}

/// Installs the subscriber for this process.
pub fn init(args: &LogArgs) -> Result<(), Error> {
    use tracing_subscriber::util::SubscriberInitExt;

    let filter = build_filter(&args.log_level)?;
    let builder = tracing_subscriber::fmt()
        .with_env_filter(filter)
        .with_writer(std::io::stderr)
        .with_ansi(std::io::stderr().is_terminal());
    let installed = match args.log_format {
        LogFormat::Text => builder.finish().try_init(),
        LogFormat::Json => builder.json().flatten_event(true).finish().try_init(),
    };
    installed.map_err(Error::AlreadyInstalled)
}

/// Why: kube logs an error of its own for each request that fails, several a second while an API
/// server is down; the callers say once what does not work. Who asks for debug lines, or for those
/// of kube, gets them all.
const QUIET: &str = "kube_client::client::builder=off";

fn build_filter(value: &str) -> Result<EnvFilter, Error> {
    let verbose = value.split(',').any(|directive| {
        let directive = directive.trim().to_ascii_lowercase();
        matches!(directive.as_str(), "debug" | "trace") || directive.contains("kube")
    });
    let directives = if verbose || value.trim().is_empty() {
        value.to_owned()
    } else {
        format!("{value},{QUIET}")
    };
    EnvFilter::builder()
        .parse(directives)
        .map_err(|source| Error::ParseFilter {
            value: value.to_owned(),
            source,
        })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_level_and_directives_are_accepted_and_nonsense_names_the_flag() {
        assert!(build_filter("debug").is_ok());
        assert!(build_filter("info,kube=debug").is_ok());
        let error = build_filter("info,kube=loud").expect_err("no such level");
        assert!(error.to_string().contains("--log-level"));
    }

    #[test]
    fn kubes_own_error_lines_are_off_unless_debug_lines_or_those_of_kube_are_asked_for() {
        for (value, quiet) in [
            ("info", true),
            ("warn,proxy_operator=debug", true),
            ("debug", false),
            ("TRACE", false),
            ("info,kube_client=info", false),
        ] {
            let filter = build_filter(value).expect("a filter").to_string();
            assert_eq!(filter.contains(QUIET), quiet, "{value}: {filter}");
        }
    }
}
