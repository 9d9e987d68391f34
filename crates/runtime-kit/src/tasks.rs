//! Supervised tasks: who runs in this process, and what happens when one of them ends.
//!
//! A binary builds one [`Supervisor`], spawns its long-running parts by name, and awaits
//! [`Supervisor::run`]. A task that panics, fails, or ends before the process was asked to stop,
//! stops the process with that as its cause: a half-dead process is worse than a restarted one.
//!
//! Shutdown has two steps. First the ordinary tasks are told to stop; when they are through, the
//! *closing* tasks are (giving up leadership, closing a store), because others depend on them.

use std::any::Any;
use std::collections::BTreeMap;
use std::future::Future;
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use futures::FutureExt;
use parking_lot::Mutex;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::mpsc;
use tokio_util::sync::CancellationToken;
use tokio_util::task::TaskTracker;

use crate::chain::chain;

/// Any error a task may end with.
pub type BoxError = Box<dyn std::error::Error + Send + Sync>;

/// What a supervised task may return: nothing, or a result.
pub trait Outcome {
    /// The error, if it is one.
    fn into_result(self) -> Result<(), BoxError>;
}

impl Outcome for () {
    fn into_result(self) -> Result<(), BoxError> {
        Ok(())
    }
}

impl<E: Into<BoxError>> Outcome for Result<(), E> {
    fn into_result(self) -> Result<(), BoxError> {
        self.map_err(Into::into)
    }
}

/// Why a process stopped other than by being asked to.
#[derive(Debug, thiserror::Error)]
pub enum Error {
    /// A task panicked.
    #[error("task {task} panicked: {message}")]
    Panicked {
        /// Its name.
        task: String,
        /// What the panic said.
        message: String,
    },
    /// A task returned an error.
    #[error("task {task} failed")]
    Failed {
        /// Its name.
        task: String,
        /// What it returned.
        #[source]
        source: BoxError,
    },
    /// A task that runs for as long as the process returned without being asked to.
    #[error("task {task} ended although the process was not stopping")]
    Ended {
        /// Its name.
        task: String,
    },
    /// Tasks were still running when the time for a graceful stop was over.
    #[error("stopped after {} s with tasks still running: {}", grace.as_secs(), tasks.join(", "))]
    DeadlineExceeded {
        /// How long they had.
        grace: Duration,
        /// Their names.
        tasks: Vec<String>,
    },
    /// A second signal came while the process was stopping.
    #[error("stopped by a second signal with tasks still running: {}", tasks.join(", "))]
    Interrupted {
        /// Their names.
        tasks: Vec<String>,
    },
    /// Signal handlers could not be installed.
    #[error("cannot listen for SIGTERM and SIGINT")]
    Signals(#[source] std::io::Error),
}

/// Runs the tasks of a process; clones spawn into the same set.
#[derive(Debug, Clone)]
pub struct Spawner {
    ordinary: Stage,
    closing: Stage,
    failures: mpsc::UnboundedSender<Error>,
}

#[derive(Debug, Clone, Default)]
struct Stage {
    tracker: TaskTracker,
    stop: CancellationToken,
    running: Arc<Running>,
}

#[derive(Debug, Default)]
struct Running {
    next: AtomicU64,
    names: Mutex<BTreeMap<u64, String>>,
}

/// Takes the task's name off the list when it ends, however it ends.
struct Registered {
    running: Arc<Running>,
    id: u64,
}

impl Drop for Registered {
    fn drop(&mut self) {
        self.running.names.lock().remove(&self.id);
    }
}

impl Stage {
    fn register(&self, name: &str) -> Registered {
        let id = self.running.next.fetch_add(1, Ordering::Relaxed);
        self.running.names.lock().insert(id, name.to_owned());
        Registered {
            running: Arc::clone(&self.running),
            id,
        }
    }

    fn names(&self) -> Vec<String> {
        self.running.names.lock().values().cloned().collect()
    }

    async fn finish(&self) {
        self.stop.cancel();
        self.tracker.close();
        self.tracker.wait().await;
    }
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Service,
    Job,
}

impl Spawner {
    /// Cancelled when the process begins to stop; give it to everything that loops.
    pub fn shutdown(&self) -> CancellationToken {
        self.ordinary.stop.clone()
    }

    /// Cancelled when all ordinary tasks have ended.
    pub fn closing(&self) -> CancellationToken {
        self.closing.stop.clone()
    }

    /// Asks the process to stop, as SIGTERM would.
    pub fn stop(&self) {
        self.ordinary.stop.cancel();
    }

    /// Runs a task that lives until [`Spawner::shutdown`]; any earlier end stops the process.
    pub fn spawn<F>(&self, name: impl Into<String>, task: F)
    where
        F: Future<Output: Outcome> + Send + 'static,
    {
        self.spawn_on(&self.ordinary, Kind::Service, name.into(), task);
    }

    /// Runs a task that may end when its work is done; an error or a panic stops the process.
    pub fn spawn_job<F>(&self, name: impl Into<String>, task: F)
    where
        F: Future<Output: Outcome> + Send + 'static,
    {
        self.spawn_on(&self.ordinary, Kind::Job, name.into(), task);
    }

    /// Runs a task that others depend on: it lives until [`Spawner::closing`], which comes when all
    /// ordinary tasks have ended.
    pub fn spawn_closing<F>(&self, name: impl Into<String>, task: F)
    where
        F: Future<Output: Outcome> + Send + 'static,
    {
        self.spawn_on(&self.closing, Kind::Service, name.into(), task);
    }

    fn spawn_on<F>(&self, stage: &Stage, kind: Kind, name: String, task: F)
    where
        F: Future<Output: Outcome> + Send + 'static,
    {
        let registered = stage.register(&name);
        let stop = stage.stop.clone();
        let failures = self.failures.clone();
        let supervised = async move {
            let ended = AssertUnwindSafe(task).catch_unwind().await;
            drop(registered);
            let failure = match ended.map(Outcome::into_result) {
                Err(panic) => Error::Panicked {
                    task: name,
                    message: panic_message(&*panic),
                },
                Ok(Err(source)) => Error::Failed { task: name, source },
                Ok(Ok(())) if kind == Kind::Service && !stop.is_cancelled() => {
                    Error::Ended { task: name }
                },
                Ok(Ok(())) => return,
            };
            if failures.send(failure).is_err() {
                tracing::debug!("a task failed after its supervisor was gone");
            }
        };
        drop(stage.tracker.spawn(supervised));
    }
}

fn panic_message(panic: &(dyn Any + Send)) -> String {
    panic
        .downcast_ref::<&str>()
        .map(|text| (*text).to_owned())
        .or_else(|| panic.downcast_ref::<String>().cloned())
        .unwrap_or_else(|| "no message".to_owned())
}

/// Owns the tasks of a process; dereferences to the [`Spawner`] that starts them.
#[derive(Debug)]
pub struct Supervisor {
    spawner: Spawner,
    failed: mpsc::UnboundedReceiver<Error>,
}

impl std::ops::Deref for Supervisor {
    type Target = Spawner;

    fn deref(&self) -> &Spawner {
        &self.spawner
    }
}

impl Supervisor {
    /// No tasks yet.
    pub fn new() -> Self {
        let (failures, failed) = mpsc::unbounded_channel();
        let spawner = Spawner {
            ordinary: Stage::default(),
            closing: Stage::default(),
            failures,
        };
        Self { spawner, failed }
    }

    /// A handle that spawns into this set, for parts that start tasks later.
    pub fn spawner(&self) -> Spawner {
        self.spawner.clone()
    }

    /// Runs until SIGTERM, SIGINT, [`Spawner::stop`] or the first failure, then stops everything
    /// within `grace`. `Err` is why the process should exit with a failure: the first failure, or
    /// tasks that did not stop in time. A second signal ends the waiting at once.
    pub async fn run(self, grace: Duration) -> Result<(), Error> {
        let signals = Signals::new().map_err(Error::Signals)?;
        self.run_with(grace, signals).await
    }

    async fn run_with(mut self, grace: Duration, mut signals: Signals) -> Result<(), Error> {
        let cause = self.wait_for_cause(&mut signals).await;
        if let Some(error) = &cause {
            tracing::error!(error = %chain(error), "stopping");
        }
        let Spawner {
            ordinary,
            closing,
            failures: _,
        } = &self.spawner;
        let finish = async {
            ordinary.finish().await;
            closing.finish().await;
        };
        let names = || [ordinary.names(), closing.names()].concat();
        let unfinished = tokio::select! {
            () = finish => None,
            () = tokio::time::sleep(grace) => {
                Some(Error::DeadlineExceeded { grace, tasks: names() })
            },
            name = signals.next() => {
                tracing::warn!(signal = name, "second signal, not waiting any longer");
                Some(Error::Interrupted { tasks: names() })
            },
        };
        // Why: a task may fail while stopping (a store that cannot be closed); that is a cause too.
        cause
            .or(unfinished)
            .or_else(|| self.failed.try_recv().ok())
            .map_or(Ok(()), Err)
    }

    async fn wait_for_cause(&mut self, signals: &mut Signals) -> Option<Error> {
        let shutdown = self.spawner.shutdown();
        tokio::select! {
            name = signals.next() => {
                tracing::info!(signal = name, "stopping");
                None
            },
            () = shutdown.cancelled() => None,
            failure = self.failed.recv() => failure,
        }
    }
}

impl Default for Supervisor {
    fn default() -> Self {
        Self::new()
    }
}

/// The signals that ask a process to stop.
#[derive(Debug)]
struct Signals {
    terminate: Signal,
    interrupt: Signal,
}

impl Signals {
    fn new() -> std::io::Result<Self> {
        Ok(Self {
            terminate: signal(SignalKind::terminate())?,
            interrupt: signal(SignalKind::interrupt())?,
        })
    }

    async fn next(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
        }
    }
}

/// A token that is cancelled when the process is asked to stop, for programs that need no
/// [`Supervisor`].
///
/// # Errors
/// Signals cannot be received.
pub fn stop_on_signal() -> std::io::Result<CancellationToken> {
    let mut signals = Signals::new()?;
    let stop = CancellationToken::new();
    let stopping = stop.clone();
    tokio::spawn(async move {
        signals.next().await;
        stopping.cancel();
    });
    Ok(stop)
}

#[cfg(test)]
mod tests {
    use std::convert::Infallible;

    use super::*;

    const GRACE: Duration = Duration::from_secs(10);

    #[tokio::test]
    async fn a_panicking_task_stops_the_process_with_its_message() {
        let supervisor = Supervisor::new();
        let shutdown = supervisor.shutdown();
        supervisor.spawn("bystander", shutdown.clone().cancelled_owned());
        supervisor.spawn("reconciler", async {
            "x".parse::<u8>().map(|_| ()).expect("an index is a number");
        });
        let error = supervisor
            .run(GRACE)
            .await
            .expect_err("a panic is a failure");
        let text = error.to_string();
        assert!(
            text.starts_with("task reconciler panicked: an index is a number"),
            "{text}"
        );
        assert!(shutdown.is_cancelled());
    }

    #[tokio::test]
    async fn a_service_that_ends_early_stops_the_process() {
        let supervisor = Supervisor::new();
        supervisor.spawn("watch", async { Ok::<(), Infallible>(()) });
        let error = supervisor.run(GRACE).await.expect_err("ended early");
        assert!(matches!(error, Error::Ended { task } if task == "watch"));
    }

    #[tokio::test]
    async fn a_failed_task_keeps_its_source() {
        let supervisor = Supervisor::new();
        supervisor.spawn("store", async {
            Err::<(), _>(std::io::Error::other("disk full"))
        });
        let error = supervisor.run(GRACE).await.expect_err("failed");
        let source = std::error::Error::source(&error).expect("the source is kept");
        assert_eq!(source.to_string(), "disk full");
    }

    #[tokio::test]
    async fn a_job_may_end_and_a_requested_stop_is_no_failure() {
        let supervisor = Supervisor::new();
        let spawner = supervisor.spawner();
        supervisor.spawn("service", supervisor.shutdown().cancelled_owned());
        supervisor.spawn_job("warm-up", async move { spawner.stop() });
        supervisor.run(GRACE).await.expect("a clean stop");
    }

    #[tokio::test]
    async fn closing_tasks_are_told_only_after_all_others_have_ended() {
        let supervisor = Supervisor::new();
        let order = Arc::new(Mutex::new(Vec::new()));
        let (shutdown, closing) = (supervisor.shutdown(), supervisor.closing());
        let record = Arc::clone(&order);
        supervisor.spawn("controller", async move {
            shutdown.cancelled().await;
            tokio::task::yield_now().await;
            record.lock().push("controller");
        });
        let record = Arc::clone(&order);
        supervisor.spawn_closing("leader", async move {
            closing.cancelled().await;
            record.lock().push("leader");
        });
        supervisor.stop();
        supervisor.run(GRACE).await.expect("a clean stop");
        assert_eq!(*order.lock(), ["controller", "leader"]);
    }

    #[tokio::test(start_paused = true)]
    async fn tasks_that_do_not_stop_in_time_are_named() {
        let supervisor = Supervisor::new();
        supervisor.spawn("stuck", futures::future::pending::<()>());
        supervisor.stop();
        let error = supervisor.run(GRACE).await.expect_err("stuck");
        assert_eq!(
            error.to_string(),
            "stopped after 10 s with tasks still running: stuck"
        );
    }

    #[tokio::test]
    async fn a_failure_while_stopping_is_reported() {
        let supervisor = Supervisor::new();
        let closing = supervisor.closing();
        supervisor.spawn_closing("store", async move {
            closing.cancelled().await;
            Err::<(), _>(std::io::Error::other("cannot close"))
        });
        supervisor.stop();
        let error = supervisor.run(GRACE).await.expect_err("closing failed");
        assert!(matches!(error, Error::Failed { task, .. } if task == "store"));
    }
}
