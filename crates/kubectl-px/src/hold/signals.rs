//! The signals that are passed on to the command.

use nix::sys::signal::Signal as Number;
use tokio::signal::unix::{Signal, SignalKind, signal};

use crate::failure::Failure;

const FORWARDED: [Number; 6] = [
    Number::SIGTERM,
    Number::SIGINT,
    Number::SIGHUP,
    Number::SIGQUIT,
    Number::SIGUSR1,
    Number::SIGUSR2,
];

/// Catches the signals from when it is built on.
pub(super) struct Signals(Vec<(Number, Signal)>);

impl Signals {
    pub(super) fn new() -> Result<Self, Failure> {
        let listen = |number: Number| {
            let kind = SignalKind::from_raw(i32::from(NumberOf(number)));
            signal(kind).map(|stream| (number, stream))
        };
        FORWARDED
            .into_iter()
            .map(listen)
            .collect::<Result<_, _>>()
            .map(Self)
            .map_err(|source| Failure::System {
                action: "cannot listen for signals",
                source,
            })
    }

    /// The next signal; nothing is lost when the wait is dropped.
    pub(super) async fn next(&mut self) -> Number {
        let waits = self.0.iter_mut().map(|(number, stream)| {
            let number = *number;
            Box::pin(async move {
                if stream.recv().await.is_none() {
                    futures::future::pending::<()>().await;
                }
                number
            })
        });
        futures::future::select_all(waits).await.0
    }
}

struct NumberOf(Number);

impl From<NumberOf> for i32 {
    #[expect(
        clippy::as_conversions,
        reason = "the enum is the number, and has no other conversion"
    )]
    fn from(number: NumberOf) -> Self {
        number.0 as Self
    }
}

/// The signal's number.
pub(super) fn number(signal: Number) -> i32 {
    NumberOf(signal).into()
}

/// Whether the terminal sends this signal to the command by itself: Ctrl-C and Ctrl-\ go to the
/// whole foreground process group, and passing them on would deliver them twice.
pub(super) fn comes_from_terminal(signal: Number) -> bool {
    if !matches!(signal, Number::SIGINT | Number::SIGQUIT) {
        return false;
    }
    let Ok(terminal) = std::fs::File::open("/dev/tty") else {
        return false;
    };
    nix::unistd::tcgetpgrp(terminal).is_ok_and(|group| group == nix::unistd::getpgrp())
}
