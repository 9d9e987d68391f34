//! The process that owns a cluster started by `devcluster up`, and how the other subcommands find it.
//!
//! The owner holds a lock on `DIR/lock` while it lives, so "is it running" is never a guess from a process
//! id that may belong to somebody else by now. It writes its id to `DIR/pid`, and the ids of the components
//! to `DIR/pids`, once the cluster is ready.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context as _, bail};
use devcluster::{Cluster, Options, wait_for};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use tokio::signal::unix::{SignalKind, signal};

/// Generous: a first start builds the binaries.
const UP_TIMEOUT: Duration = Duration::from_hours(1);
const DOWN_TIMEOUT: Duration = Duration::from_secs(30);

struct Files {
    dir: PathBuf,
}

impl Files {
    fn new(dir: &Path) -> anyhow::Result<Self> {
        Ok(Self {
            dir: std::path::absolute(dir).context("cannot tell the current folder")?,
        })
    }

    fn lock(&self) -> PathBuf {
        self.dir.join("lock")
    }

    fn pid(&self) -> PathBuf {
        self.dir.join("pid")
    }

    fn pids(&self) -> PathBuf {
        self.dir.join("pids")
    }

    fn kubeconfig(&self) -> PathBuf {
        self.dir.join("kubeconfig")
    }

    fn owner_log(&self) -> PathBuf {
        self.dir.join("owner.log")
    }

    fn is_running(&self) -> bool {
        File::open(self.lock()).is_ok_and(|lock| lock.try_lock().is_err())
    }

    fn is_ready(&self) -> bool {
        self.is_running() && self.pids().is_file()
    }
}

/// Owns a cluster in `dir` until SIGINT or SIGTERM.
pub(crate) async fn run(dir: &Path, kwok: bool) -> anyhow::Result<()> {
    let files = Files::new(dir)?;
    fs::create_dir_all(&files.dir)
        .with_context(|| format!("cannot create {}", files.dir.display()))?;
    let lock = File::create(files.lock()).context("cannot create the lock file")?;
    if lock.try_lock().is_err() {
        return Err(devcluster::Error::AlreadyRunning { path: files.dir }.into());
    }
    let mut interrupt = signal(SignalKind::interrupt())?;
    let mut terminate = signal(SignalKind::terminate())?;
    remove_if_there(&files.pids())?;
    // Why: a folder inside a checkout must not be committed with its keys.
    fs::write(files.dir.join(".gitignore"), "*\n").context("cannot write .gitignore")?;
    fs::write(files.pid(), std::process::id().to_string()).context("cannot write the pid file")?;
    let mut options = Options::default().dir(&files.dir);
    if kwok {
        options = options.kwok();
    }
    let cluster = tokio::select! {
        started = Cluster::start(options) => started?,
        _ = interrupt.recv() => return Ok(()),
        _ = terminate.recv() => return Ok(()),
    };
    let pids: String = cluster
        .processes()
        .iter()
        .fold(String::new(), |text, process| {
            text + &format!("{} {}\n", process.pid(), process.name())
        });
    fs::write(files.pids(), pids).context("cannot write the list of processes")?;
    print_ready(&files, "Ctrl-C");
    let watch = async {
        loop {
            if let Err(error) = cluster.check_running() {
                return error;
            }
            tokio::time::sleep(Duration::from_secs(1)).await;
        }
    };
    let ended = tokio::select! {
        error = watch => Err(error.into()),
        _ = interrupt.recv() => Ok(()),
        _ = terminate.recv() => Ok(()),
    };
    drop(cluster);
    remove_if_there(&files.pids())?;
    ended
}

/// Starts an owner of its own session, and returns when the cluster is ready.
pub(crate) async fn up(dir: &Path, kwok: bool) -> anyhow::Result<()> {
    let files = Files::new(dir)?;
    if files.is_ready() {
        print_line(&format!("Already running in {}.", files.dir.display()));
        print_ready(
            &files,
            &format!("devcluster --dir {} down", files.dir.display()),
        );
        return Ok(());
    }
    // Why here and not in the owner: whoever waits for the build sees its progress.
    let wanted = devcluster::binaries::Binary::ALL;
    let wanted: Vec<_> = wanted
        .into_iter()
        .filter(|binary| match binary {
            devcluster::binaries::Binary::Kwok => kwok,
            devcluster::binaries::Binary::SampleApiserver
            | devcluster::binaries::Binary::OlderKubectl
            | devcluster::binaries::Binary::Etcdutl => false,
            devcluster::binaries::Binary::Etcd
            | devcluster::binaries::Binary::KubeApiserver
            | devcluster::binaries::Binary::KubeControllerManager
            | devcluster::binaries::Binary::Kubectl => true,
        })
        .collect();
    tokio::task::spawn_blocking(move || devcluster::binaries::Binaries::ensure(&wanted)).await??;
    fs::create_dir_all(&files.dir)
        .with_context(|| format!("cannot create {}", files.dir.display()))?;
    let log = File::create(files.owner_log()).context("cannot create the log of the owner")?;
    let program = std::env::current_exe().context("cannot tell the path of this program")?;
    let mut command = Command::new("setsid");
    command
        .arg(program)
        .arg("--dir")
        .arg(&files.dir)
        .args(["up", "--foreground"]);
    if kwok {
        command.arg("--kwok");
    }
    let mut owner = command
        .stdin(Stdio::null())
        .stdout(log.try_clone()?)
        .stderr(log)
        .spawn()
        .context("cannot start the owner of the cluster (setsid, of util-linux)")?;
    wait_for("the control plane", UP_TIMEOUT, async || {
        let exited = owner.try_wait().ok().flatten();
        Ok((exited.is_some() || files.is_ready()).then_some(()))
    })
    .await?;
    if !files.is_ready() {
        let said = fs::read_to_string(files.owner_log()).unwrap_or_default();
        bail!("the control plane did not start:\n{}", said.trim_end());
    }
    print_ready(
        &files,
        &format!("devcluster --dir {} down", files.dir.display()),
    );
    Ok(())
}

/// Registers an aggregated API on the running cluster.
pub(crate) async fn register(
    dir: &Path,
    group: &str,
    version: &str,
    port: u16,
) -> anyhow::Result<()> {
    let files = Files::new(dir)?;
    if !files.is_ready() {
        bail!(
            "no control plane runs in {}; start it with: devcluster --dir {} up",
            files.dir.display(),
            files.dir.display()
        );
    }
    let registered = devcluster::register_apiservice(&files.dir, group, version, port).await?;
    print_line(&format!("certificate {}", registered.files.cert.display()));
    print_line(&format!("key {}", registered.files.key.display()));
    print_line(&format!("ca {}", registered.ca_file.display()));
    Ok(())
}

/// Ends the owner and with it the cluster; nothing to do is success.
pub(crate) async fn down(dir: &Path, purge: bool) -> anyhow::Result<()> {
    let files = Files::new(dir)?;
    if files.is_running() {
        let pid = fs::read_to_string(files.pid()).context("cannot read the pid file")?;
        let pid = Pid::from_raw(pid.trim().parse().context("the pid file holds no number")?);
        kill(pid, Signal::SIGTERM).with_context(|| format!("cannot stop process {pid}"))?;
        wait_for("the control plane to stop", DOWN_TIMEOUT, async || {
            Ok((!files.is_running()).then_some(()))
        })
        .await?;
        print_line(&format!(
            "Stopped the control plane in {}.",
            files.dir.display()
        ));
    } else {
        print_line(&format!(
            "No control plane runs in {}.",
            files.dir.display()
        ));
    }
    // Why the test for a lock file: only a folder that `up` made is deleted.
    if purge && files.lock().is_file() {
        fs::remove_dir_all(&files.dir)
            .with_context(|| format!("cannot delete {}", files.dir.display()))?;
    }
    Ok(())
}

/// Prints the path of the kubeconfig.
pub(crate) fn print_kubeconfig(dir: &Path) -> anyhow::Result<()> {
    let files = Files::new(dir)?;
    if !files.is_ready() {
        bail!(
            "no control plane runs in {}; start one with `devcluster up`",
            files.dir.display()
        );
    }
    print_line(&files.kubeconfig().display().to_string());
    Ok(())
}

/// Prints the log of one component, or of all.
pub(crate) fn print_logs(dir: &Path, component: Option<&str>) -> anyhow::Result<()> {
    let files = Files::new(dir)?;
    let folder = files.dir.join("logs");
    let mut names: Vec<String> = fs::read_dir(&folder)
        .with_context(|| {
            format!(
                "no logs in {}; start one with `devcluster up`",
                files.dir.display()
            )
        })?
        .filter_map(|entry| {
            entry
                .ok()?
                .file_name()
                .to_str()?
                .strip_suffix(".log")
                .map(str::to_owned)
        })
        .collect();
    names.sort();
    if let Some(component) = component {
        if !names.iter().any(|name| name == component) {
            bail!("no log of {component:?}; there are {}", names.join(", "));
        }
        names = vec![component.to_owned()];
    }
    for name in &names {
        if names.len() > 1 {
            print_line(&format!("--- {name} ---"));
        }
        let text = fs::read(folder.join(format!("{name}.log")))?;
        print_line(String::from_utf8_lossy(&text).trim_end());
    }
    Ok(())
}

fn print_ready(files: &Files, how_to_stop: &str) {
    print_line(&format!(
        "The control plane is ready. To use it:\n\n    export KUBECONFIG={}\n\nTo stop it: {how_to_stop}",
        files.kubeconfig().display()
    ));
}

fn remove_if_there(path: &Path) -> anyhow::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != std::io::ErrorKind::NotFound => {
            Err(error).with_context(|| format!("cannot delete {}", path.display()))
        },
        _ => Ok(()),
    }
}

/// Writes a line to standard output; a reader that has gone away (`| head`) is no error.
fn print_line(text: &str) {
    use std::io::Write as _;
    writeln!(std::io::stdout(), "{text}").unwrap_or_default();
}
