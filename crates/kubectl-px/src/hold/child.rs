//! The command that uses the proxy: starting it, passing signals on, and its exit status.

use std::ffi::OsString;
use std::future::Future;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;

use super::keepalive::Loss;
use super::signals::{Signals, comes_from_terminal, number};
use crate::failure::Failure;
use crate::terminal;

/// `--on-loss`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(super) enum OnLoss {
    /// Say so, and let the command go on.
    Warn,
    /// Say so, and send the command SIGTERM.
    Terminate,
}

/// Why the command did not start.
#[derive(Debug, thiserror::Error)]
#[error("cannot run {program}: {source}")]
pub(super) struct StartError {
    program: String,
    source: std::io::Error,
}

impl StartError {
    /// As shells report it: 127 not found, 126 found and not runnable.
    pub(super) fn exit_code(&self) -> u8 {
        if self.source.kind() == std::io::ErrorKind::NotFound {
            127
        } else {
            126
        }
    }
}

/// A running command.
pub(super) struct Child(tokio::process::Child);

impl Child {
    pub(super) fn start(
        command: &[OsString],
        variables: Vec<(&'static str, String)>,
    ) -> Result<Self, StartError> {
        let (program, arguments) = match command {
            [program, arguments @ ..] => (program.clone(), arguments),
            [] => (OsString::new(), &[][..]),
        };
        tokio::process::Command::new(&program)
            .args(arguments)
            .envs(variables)
            .spawn()
            .map(Self)
            .map_err(|source| StartError {
                program: program.display().to_string(),
                source,
            })
    }

    /// Runs until the command ends; its exit status as a shell would report it.
    pub(super) async fn run(
        &mut self,
        signals: &mut Signals,
        keepalive: impl Future<Output = Loss>,
        on_loss: OnLoss,
    ) -> Result<u8, Failure> {
        tokio::pin!(keepalive);
        let mut lost = false;
        loop {
            tokio::select! {
                ended = self.0.wait() => {
                    let failed = |source| {
                        Failure::System { action: "cannot wait for the command", source }
                    };
                    return ended.map(code_for_status).map_err(failed);
                },
                signal = signals.next() => {
                    if !comes_from_terminal(signal) {
                        self.send(signal);
                    }
                },
                loss = &mut keepalive, if !lost => {
                    lost = true;
                    terminal::warn(&loss.to_string());
                    if on_loss == OnLoss::Terminate {
                        self.send(Signal::SIGTERM);
                    }
                },
            }
        }
    }

    fn send(&self, signal: Signal) {
        let Some(pid) = self.0.id().and_then(|pid| i32::try_from(pid).ok()) else {
            return;
        };
        if let Err(error) = kill(Pid::from_raw(pid), signal) {
            terminal::warn(&format!("cannot pass {signal} on to the command: {error}"));
        }
    }
}

fn code_for_status(status: ExitStatus) -> u8 {
    let code = status
        .code()
        .or_else(|| status.signal().map(|signal| 128 + signal));
    code.and_then(|code| u8::try_from(code).ok())
        .unwrap_or(u8::MAX)
}

/// The exit status of a process that `signal` ended.
pub(super) fn code_for_signal(signal: Signal) -> u8 {
    u8::try_from(128 + number(signal)).unwrap_or(u8::MAX)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exit_statuses_are_those_of_a_shell() {
        assert_eq!(code_for_status(ExitStatus::from_raw(3 << 8)), 3);
        assert_eq!(code_for_status(ExitStatus::from_raw(15)), 143);
        assert_eq!(code_for_signal(Signal::SIGINT), 130);
        let start = |program: &str| match Child::start(&[program.into()], Vec::new()) {
            Ok(_) => panic!("{program} cannot start"),
            Err(error) => error.exit_code(),
        };
        assert_eq!(start("/nonexistent/program"), 127);
        assert_eq!(start("/etc/passwd"), 126);
    }
}
