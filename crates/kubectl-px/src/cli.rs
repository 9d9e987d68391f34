//! The command lines of the two plugins.

use std::process::ExitCode;

use clap::{CommandFactory, Parser};
use clap_complete::Shell;

use crate::complete::complete;
use crate::create::CreateLease;
use crate::doctor::Doctor;
use crate::failure::Failure;
use crate::hold::Hold;
use crate::mark::{DrainFlags, Mark, MarkFlags, run_drain, run_mark};
use crate::report::Report;
use crate::resume::Resume;
use crate::terminal;

const DOCTOR: &str = "\
Examples:
  # Is everything there, and is anything held back? Ends with status 1 if something does not work
  kubectl px doctor

  # One proxy: object, provider, probes and leases side by side, and what happens next
  kubectl px doctor eu-1";

const DRAIN: &str = "\
Examples:
  # Empty one proxy, and wait until no lease is left
  kubectl px drain eu-1 --wait

  # Everything in a zone, for ten minutes at most
  kubectl px drain --zone europe-west1-b --wait --timeout 10m";

const NOTES: &str = "\
With kubectl_complete-px on the PATH, kubectl's own completion knows this plugin. It asks no plugin
below a built-in command, so `kubectl create lease` is completed under its file name only: see
`kubectl px completion`. For the same reason `kubectl plugin list` warns that kubectl-create-lease
overshadows `kubectl create`; it works, and `kubectl create` of anything else is unchanged.";

/// Crawling proxies, and leases on them.
#[derive(Debug, Parser)]
#[command(name = "kubectl-px", bin_name = "kubectl px", version, after_help = NOTES)]
struct Px {
    #[command(subcommand)]
    command: PxCommand,
}

#[derive(Debug, clap::Subcommand)]
enum PxCommand {
    /// Use leases.
    #[command(subcommand)]
    Lease(LeaseCommand),
    /// Say what is wrong with the installation, or with one proxy, and what to do.
    #[command(after_help = DOCTOR)]
    Doctor(Box<Doctor>),
    /// Grant no new leases on proxies; leases that exist stay.
    Cordon(Box<MarkFlags>),
    /// Take proxies back into use: ends cordon and drain.
    Uncordon(Box<MarkFlags>),
    /// Grant no new leases on proxies, and ask those that exist to end within drainTimeoutSeconds.
    #[command(after_help = DRAIN)]
    Drain(Box<DrainFlags>),
    /// Create again what went away: ends the pause after a mass deletion at the provider.
    Resume(Box<Resume>),
    /// Print a completion script for both plugins, to be sourced by the shell.
    Completion {
        /// The shell.
        shell: Shell,
    },
}

#[derive(Debug, clap::Subcommand)]
enum LeaseCommand {
    /// Run a command with a leased proxy.
    #[command(long_about = None)]
    Hold(Box<Hold>),
    /// Say how a request through a leased proxy went.
    #[command(long_about = None)]
    Report(Box<Report>),
}

/// `kubectl create lease`.
pub fn run_create_lease() -> ExitCode {
    with_runtime(async || match parse::<CreateLease>() {
        Ok(command) => Box::pin(command.run()).await,
        Err(code) => code,
    })
}

/// `kubectl px`.
pub fn run_px() -> ExitCode {
    with_runtime(async || match parse::<Px>() {
        Ok(Px { command }) => match command {
            PxCommand::Lease(LeaseCommand::Hold(hold)) => Box::pin(hold.run()).await,
            PxCommand::Lease(LeaseCommand::Report(report)) => Box::pin(report.run()).await,
            PxCommand::Doctor(doctor) => Box::pin(doctor.run()).await,
            PxCommand::Cordon(flags) => Box::pin(run_mark(Mark::Cordon, *flags)).await,
            PxCommand::Uncordon(flags) => Box::pin(run_mark(Mark::Uncordon, *flags)).await,
            PxCommand::Drain(flags) => Box::pin(run_drain(*flags)).await,
            PxCommand::Resume(resume) => Box::pin(resume.run()).await,
            PxCommand::Completion { shell } => print_completion(shell),
        },
        Err(code) => code,
    })
}

/// What kubectl runs to complete `kubectl px`.
pub fn run_px_completion() -> ExitCode {
    let mut command = Px::command();
    command.build();
    let words: Vec<_> = std::env::args_os()
        .skip(1)
        .map(|word| word.to_string_lossy().into_owned())
        .collect();
    print(&complete(&command, &words))
}

/// Usage errors end with status 1, as kubectl's do; clap would end with 2.
fn parse<C: Parser>() -> Result<C, ExitCode> {
    C::try_parse().map_err(|error| {
        let failed = error.use_stderr();
        match error.print() {
            Ok(()) if !failed => ExitCode::SUCCESS,
            Ok(()) | Err(_) => ExitCode::FAILURE,
        }
    })
}

fn print_completion(shell: Shell) -> ExitCode {
    let mut script = Vec::new();
    for (mut command, name) in [
        (Px::command(), "kubectl-px"),
        (CreateLease::command(), "kubectl-create-lease"),
    ] {
        command = command.bin_name(name);
        clap_complete::generate(shell, &mut command, name, &mut script);
    }
    print(&String::from_utf8_lossy(&script))
}

fn print(text: &str) -> ExitCode {
    match terminal::print(text) {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            terminal::say(&Failure::Output(error).to_string());
            ExitCode::FAILURE
        },
    }
}

fn with_runtime(main: impl AsyncFnOnce() -> ExitCode) -> ExitCode {
    runtime_kit::tls::install_default_provider();
    match tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    {
        Ok(runtime) => runtime.block_on(main()),
        Err(source) => {
            let failure = Failure::System {
                action: "cannot start",
                source,
            };
            terminal::say(&failure.to_string());
            ExitCode::FAILURE
        },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn both_command_lines_are_consistent() {
        Px::command().debug_assert();
        CreateLease::command().debug_assert();
    }

    #[test]
    fn hold_needs_a_command_after_the_dashes() {
        let parse = |args: &[&str]| Px::try_parse_from([&["x", "lease", "hold"], args].concat());
        assert!(parse(&["--pool", "eu"]).is_err());
        assert!(parse(&["shop-0", "--pool", "eu", "--", "curl", "--pool", "x"]).is_ok());
    }

    #[test]
    fn a_report_has_a_result_and_perhaps_a_status() {
        let parse = |args: &[&str]| Px::try_parse_from([&["x", "lease", "report"], args].concat());
        assert!(parse(&["shop-0", "--result", "OK", "--http-status", "403"]).is_ok());
        assert!(parse(&["shop-0", "--result", "Error"]).is_ok());
        assert!(parse(&["shop-0"]).is_err());
        assert!(parse(&["shop-0", "--result", "Banned"]).is_err());
        assert!(parse(&["shop-0", "--result", "OK", "--http-status", "600"]).is_err());
    }

    #[test]
    fn proxies_are_named_or_selected_and_not_both() {
        let parse = |args: &[&str]| Px::try_parse_from([&["x"], args].concat());
        assert!(parse(&["drain", "a", "b", "--wait", "--timeout", "5m"]).is_ok());
        assert!(parse(&["cordon", "-l", "geo=eu", "--pool", "eu", "--zone", "z"]).is_ok());
        assert!(parse(&["cordon", "a", "--pool", "eu"]).is_err());
        assert!(parse(&["uncordon", "--all", "-o", "json"]).is_ok());
        assert!(
            parse(&["cordon", "a", "--wait"]).is_err(),
            "there is nothing to wait for"
        );
        assert!(parse(&["resume"]).is_err());
        assert!(parse(&["resume", "eu"]).is_ok());
        assert!(parse(&["resume", "--proxy", "eu-1"]).is_ok());
        assert!(parse(&["doctor"]).is_ok());
    }

    #[test]
    fn words_are_completed_to_commands_flags_and_values() {
        let px = |words: &[&str]| {
            let mut command = Px::command();
            command.build();
            let words: Vec<_> = words.iter().map(ToString::to_string).collect();
            complete(&command, &words)
        };
        let create = |words: &[&str]| {
            let words: Vec<_> = words.iter().map(ToString::to_string).collect();
            complete(&CreateLease::command(), &words)
        };
        assert_eq!(px(&["le"]), "lease\tUse leases\n:4\n");
        let commands = px(&["lease", "h"]);
        assert!(commands.starts_with("hold\tRun a command with a leased proxy\n"));
        assert!(px(&["lease", "hold", "--po"]).contains("--pool\tThe pool to lease from"));
        assert!(px(&["completion", ""]).contains("bash\n"));
        assert!(px(&["dr"]).starts_with("drain\tGrant no new leases"));
        assert!(px(&["drain", "--z"]).contains("--zone\tProxies whose instance is in this zone"));
        assert_eq!(
            px(&["doctor", "-o", "j"]),
            "json\tThe findings, or the views of the proxy, for programs\n:4\n"
        );
        assert_eq!(px(&["lease", "hold", "--pool", "eu", "--", ""]), ":0\n");
        assert_eq!(create(&["--scheme", "so"]), "socks5\n:4\n");
        assert_eq!(create(&["--scheme=so"]), "--scheme=socks5\n:4\n");
        assert_eq!(create(&["--kubeconfig", ""]), ":0\n");
        assert_eq!(create(&["--pool", ""]), ":4\n");
    }

    #[test]
    fn a_negative_duration_is_refused_with_the_range() {
        for (flag, range) in [("--ttl", "10 to 86400"), ("--wait", "0 to 3600")] {
            for value in ["-5", "-5m"] {
                let parsed = CreateLease::try_parse_from(["x", "--pool", "eu", flag, value]);
                let message = parsed.expect_err(flag).to_string();
                assert!(message.contains(range), "{message}");
            }
        }
    }
}
