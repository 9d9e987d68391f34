//! Processes that end with their owner.
//!
//! Every process of a cluster runs in one process group, whose leader is the *reaper*: a shell that
//! blocks reading a pipe. The owner holds the only write end. However the owner ends (drop, panic, exit,
//! `kill -9`), the kernel closes the pipe, and the reaper kills the group. [`crate::Cluster`] has one
//! [`ProcessGroup`]; tests add their own programs to it with [`crate::Cluster::spawn`].

use std::fs;
use std::io::Write as _;
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::Duration;

use nix::sys::signal::{Signal, kill, killpg};
use nix::unistd::Pid;
use parking_lot::Mutex;

use crate::error::{Error, Result};
use crate::logs::{self, LogFile};
use crate::wait::wait_for;

/// `$1` is a folder to remove at the end, or empty. Any line read means: keep it.
const REAPER: &str = r#"
while read -r line; do keep=$line; done
trap '' TERM
kill -s TERM 0
if [ -n "$1" ] && [ -z "$keep" ]; then rm -rf -- "$1"; fi
kill -s KILL 0
"#;

/// How long [`Process::terminate`] waits before it gives up.
pub const TERMINATE_TIMEOUT: Duration = Duration::from_secs(20);

/// Processes that end together. Clones are handles to the same group.
#[derive(Debug, Clone)]
pub struct ProcessGroup {
    shared: Arc<Shared>,
}

#[derive(Debug)]
pub(crate) struct Shared {
    id: Pid,
    /// `None` once the group has ended.
    reaper: Mutex<Option<Child>>,
    log_folder: PathBuf,
    pub(crate) logs: Mutex<Vec<LogFile>>,
}

impl ProcessGroup {
    /// An empty group whose logs go to `log_folder`. When the owner dies without having called
    /// [`Self::end`], `remove` is deleted, unless a thread of the owner has panicked.
    pub fn start(log_folder: &Path, remove: Option<&Path>) -> Result<Self> {
        fs::create_dir_all(log_folder).map_err(Error::file("create", log_folder))?;
        let reaper = Command::new("/bin/sh")
            .args(["-c", REAPER, "devcluster-reaper"])
            .arg(remove.unwrap_or_else(|| Path::new("")))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .process_group(0)
            .spawn()
            .map_err(|source| Error::Spawn {
                name: "the reaper".to_owned(),
                source,
            })?;
        let shared = Arc::new(Shared {
            id: pid_of(&reaper),
            reaper: Mutex::new(Some(reaper)),
            log_folder: log_folder.to_owned(),
            logs: Mutex::new(Vec::new()),
        });
        logs::print_on_panic(&shared);
        Ok(Self { shared })
    }

    /// Starts `command` in this group; its output goes to `<name>.log`. A second process of the same
    /// name appends to the same log.
    pub fn spawn(&self, name: &str, mut command: Command) -> Result<Process> {
        // Why: held over the spawn, so that no process joins a group that is being ended.
        let reaper = self.shared.reaper.lock();
        if reaper.is_none() {
            return Err(Error::Ended {
                name: name.to_owned(),
            });
        }
        let log = LogFile::new(name, &self.shared.log_folder);
        let file = log.open()?;
        let err = file.try_clone().map_err(Error::file("open", log.path()))?;
        let child = command
            .stdin(Stdio::null())
            .stdout(file)
            .stderr(err)
            .process_group(self.shared.id.as_raw())
            .spawn()
            .map_err(|source| Error::Spawn {
                name: name.to_owned(),
                source,
            })?;
        drop(reaper);
        let mut logs = self.shared.logs.lock();
        if !logs.iter().any(|known| known.path() == log.path()) {
            logs.push(log.clone());
        }
        Ok(Process {
            name: name.to_owned(),
            pid: pid_of(&child),
            child: Mutex::new(child),
            log,
        })
    }

    /// The process group id.
    pub fn id(&self) -> i32 {
        self.shared.id.as_raw()
    }

    /// The folder of the logs.
    pub fn log_folder(&self) -> &Path {
        &self.shared.log_folder
    }

    /// Kills every process of the group (SIGKILL). A second call does nothing.
    pub fn end(&self) {
        let Some(mut reaper) = self.shared.reaper.lock().take() else {
            return;
        };
        // The reaper is not waited for before this, so the group id cannot have been reused.
        if let Err(error) = killpg(self.shared.id, Signal::SIGKILL) {
            tracing::warn!(%error, "cannot kill the process group of a cluster");
        }
        if let Err(error) = reaper.wait() {
            tracing::warn!(%error, "cannot wait for the reaper of a cluster");
        }
    }
}

impl Shared {
    /// Tells the reaper to leave the data where it is. Never blocks: a panic hook calls it.
    pub(crate) fn keep_data(&self) {
        let Some(mut reaper) = self.reaper.try_lock() else {
            return;
        };
        if let Some(pipe) = reaper.as_mut().and_then(|reaper| reaper.stdin.as_mut()) {
            // Why ignored: a reaper that is gone removes nothing either.
            pipe.write_all(b"keep\n").unwrap_or_default();
        }
    }
}

/// A running program with its log. It is killed when this value is dropped, and at the latest when its
/// [`ProcessGroup`] ends.
#[derive(Debug)]
pub struct Process {
    name: String,
    pid: Pid,
    child: Mutex<Child>,
    log: LogFile,
}

impl Process {
    /// The name it was started under.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The process id.
    pub fn pid(&self) -> i32 {
        self.pid.as_raw()
    }

    /// The file its standard output and standard error go to.
    pub fn log_path(&self) -> &Path {
        self.log.path()
    }

    /// Everything logged so far under this name; empty when nothing can be read.
    pub fn log(&self) -> String {
        self.log.text()
    }

    /// How it ended, or `None` while it runs.
    pub fn exit_status(&self) -> Result<Option<ExitStatus>> {
        self.child
            .lock()
            .try_wait()
            .map_err(|source| self.failed("wait for", source))
    }

    /// Fails with the end of its log when it has exited.
    pub fn check_running(&self) -> Result<()> {
        match self.exit_status()? {
            None => Ok(()),
            Some(status) => Err(Error::Exited {
                name: self.name.clone(),
                status,
                log: self.log.tail(40),
            }),
        }
    }

    /// Waits until it has exited by itself.
    pub async fn wait(&self, timeout: Duration) -> Result<ExitStatus> {
        wait_for(&format!("{} to exit", self.name), timeout, async || {
            self.exit_status()
        })
        .await
    }

    /// Waits until its log contains `text`; fails at once when it exits before.
    pub async fn wait_for_log(&self, text: &str, timeout: Duration) -> Result<()> {
        wait_for(
            &format!("{text:?} in the log of {}", self.name),
            timeout,
            async || {
                if self.log().contains(text) {
                    return Ok(Some(()));
                }
                self.check_running().map(|()| None)
            },
        )
        .await
    }

    /// Sends SIGTERM and waits for the end, [`TERMINATE_TIMEOUT`] at most.
    pub async fn terminate(&self) -> Result<ExitStatus> {
        self.signal(Signal::SIGTERM)?;
        self.wait(TERMINATE_TIMEOUT).await
    }

    /// Kills it at once (SIGKILL) and waits for its end.
    pub fn kill9(&self) -> Result<ExitStatus> {
        let mut child = self.child.lock();
        child.kill().map_err(|source| self.failed("kill", source))?;
        child
            .wait()
            .map_err(|source| self.failed("wait for", source))
    }

    /// Sends a signal; a process that has ended already is left alone.
    pub fn signal(&self, signal: Signal) -> Result<()> {
        // Why under the lock: nobody else can reap the child meanwhile, so the pid is still its own.
        let mut child = self.child.lock();
        if child
            .try_wait()
            .map_err(|source| self.failed("wait for", source))?
            .is_some()
        {
            return Ok(());
        }
        kill(self.pid, signal).map_err(|errno| self.failed("signal", errno.into()))
    }

    fn failed(&self, action: &'static str, source: std::io::Error) -> Error {
        Error::Process {
            action,
            name: self.name.clone(),
            source,
        }
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        if let Err(error) = self.kill9() {
            tracing::warn!(%error, "a process may still run");
        }
    }
}

#[expect(clippy::expect_used, reason = "process ids of Linux are below 2^22")]
fn pid_of(child: &Child) -> Pid {
    Pid::from_raw(i32::try_from(child.id()).expect("a process id fits into pid_t"))
}
