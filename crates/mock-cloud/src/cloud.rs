//! The one cloud of a process: holds the state, makes every change durable before it is told to
//! anybody, and lets the proxies follow the instances. The HTTP API ([`crate::server`]) is its
//! only caller; what a call decides is in [`crate::state`].

use std::{
    collections::HashMap,
    fmt,
    net::{Ipv4Addr, SocketAddrV4, TcpListener},
    path::PathBuf,
    sync::Arc,
    time::Duration,
};

use parking_lot::Mutex;
use runtime_kit::{Clock, chain};
use tokio::sync::{Mutex as AsyncMutex, Notify};
use tokio_util::sync::CancellationToken;

use crate::{
    addresses,
    disk::{self, Disk},
    faults::{Behaviour, Fault, FaultRule, Op},
    model::{
        Console, CreateInstance, Created, Deleting, ErrorBody, ErrorCode, Instance, InstanceList,
        InstanceState, Labels, ListInstances, Operation,
    },
    proxy::{self, Proxy},
    records::{Call, EverCreated},
    state::{Settings, State, contains, refusal},
};

/// A proxy whose port is taken is tried again this often.
const RETRY_BIND: Duration = Duration::from_millis(500);

/// How to open a cloud.
#[derive(Clone, Debug, Default)]
pub struct Config {
    /// Where the state is kept; none keeps it in memory only.
    pub directory: Option<PathBuf>,
    /// From an accepted create to a running instance; none keeps what the state says (at first
    /// 1 s).
    pub provision_delay: Option<Duration>,
    /// From an accepted delete to an instance that is not found; none keeps what the state says
    /// (at first 1 s).
    pub delete_delay: Option<Duration>,
    /// The first address of a new cloud, within 127.16.0.0 to 127.254.255.255; by default it
    /// follows from the directory (or chance), so that clouds side by side do not meet.
    pub first_address: Option<Ipv4Addr>,
    /// Faults to begin with.
    pub faults: Vec<FaultRule>,
}

/// What a call comes to.
pub(crate) enum Outcome<T> {
    /// An answer.
    Answer(Result<T, ErrorBody>),
    /// It was carried out, and the answer is lost.
    Lost,
    /// Nothing happened, and there is no answer, ever.
    Never,
}

/// A running cloud.
pub struct Cloud {
    clock: Arc<dyn Clock>,
    inner: Mutex<Inner>,
    disk: Option<Arc<Disk>>,
    /// The version of the state that is on the disk; held while writing.
    durable: Arc<AsyncMutex<u64>>,
    proxies: AsyncMutex<HashMap<u64, Proxy>>,
    changed: Notify,
}

struct Inner {
    state: State,
    /// Counts the changes to `state` since it was opened.
    version: u64,
}

impl fmt::Debug for Cloud {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Cloud")
            .field("disk", &self.disk)
            .finish_non_exhaustive()
    }
}

impl Cloud {
    /// Opens the cloud, as it was left. Its proxies run while [`Cloud::run`] does.
    pub fn open(config: Config, clock: Arc<dyn Clock>) -> Result<Arc<Self>, disk::Error> {
        let Config {
            directory,
            provision_delay,
            delete_delay,
            first_address,
            faults,
        } = config;
        let disk = directory.as_deref().map(Disk::open).transpose()?;
        let stored = disk.as_ref().map(Disk::read).transpose()?.flatten();
        let mut state = stored.unwrap_or_else(|| {
            let seed = directory.map_or_else(
                || rand::random::<[u8; 16]>().to_vec(),
                |path| path.into_os_string().into_encoded_bytes(),
            );
            State::new(first_address.unwrap_or_else(|| addresses::first_address(&seed)))
        });
        let Settings {
            provision_delay_milliseconds,
            delete_delay_milliseconds,
        } = &mut state.settings;
        for (setting, delay) in [
            (provision_delay_milliseconds, provision_delay),
            (delete_delay_milliseconds, delete_delay),
        ] {
            if let Some(delay) = delay {
                *setting = u64::try_from(delay.as_millis()).unwrap_or(u64::MAX);
            }
        }
        state.faults.extend(faults);
        Ok(Arc::new(Self {
            clock,
            inner: Mutex::new(Inner { state, version: 1 }),
            disk: disk.map(Arc::new),
            durable: Arc::new(AsyncMutex::new(0)),
            proxies: AsyncMutex::new(HashMap::new()),
            changed: Notify::new(),
        }))
    }

    /// Lets the proxies follow the instances as time passes, until `stop`; then all of them end.
    pub async fn run(&self, stop: CancellationToken) {
        loop {
            let all_listen = self.follow().await;
            let now = self.clock.now();
            let next = self.inner.lock().state.next_change(now);
            let until = next.map(|at| Duration::try_from(at - now).unwrap_or_default());
            let retry = (!all_listen).then_some(RETRY_BIND);
            let sleep = until.into_iter().chain(retry).min();
            let clock = &self.clock;
            tokio::select! {
                () = stop.cancelled() => break,
                () = self.changed.notified() => {},
                () = async {
                    match sleep {
                        Some(duration) => clock.sleep(duration).await,
                        None => std::future::pending().await,
                    }
                } => {},
            }
        }
        let proxies: Vec<_> = self.proxies.lock().await.drain().collect();
        for (_, proxy) in proxies {
            proxy.stop().await;
        }
    }

    pub(crate) async fn create(&self, zone: &str, request: CreateInstance) -> Outcome<Created> {
        let target = request.name.clone();
        self.call(
            Op::Create,
            Some(zone),
            Some(target),
            move |state, now, fault| {
                let (instance, operation) = state.create(now, zone, request, fault, is_free)?;
                Ok(Created {
                    instance,
                    operation: operation.to_string(),
                })
            },
        )
        .await
    }

    pub(crate) async fn delete(&self, zone: &str, key: &str) -> Outcome<Deleting> {
        self.call(
            Op::Delete,
            Some(zone),
            Some(key.to_owned()),
            |state, now, _| {
                let (_, operation) = state.delete(now, zone, key)?;
                Ok(Deleting {
                    operation: operation.to_string(),
                })
            },
        )
        .await
    }

    pub(crate) async fn get(&self, zone: &str, key: &str) -> Outcome<Instance> {
        self.call(Op::Get, Some(zone), None, |state, now, _| {
            state.get(now, zone, key)
        })
        .await
    }

    pub(crate) async fn console(&self, zone: &str, key: &str) -> Outcome<Console> {
        self.call(Op::Console, Some(zone), None, |state, now, _| {
            state.console(now, zone, key)
        })
        .await
    }

    pub(crate) async fn list(&self, selection: &ListInstances) -> Outcome<InstanceList> {
        let zone = selection.zone.as_deref();
        self.call(Op::List, zone, None, |state, now, _| {
            Ok(InstanceList {
                items: state.list(now, selection),
            })
        })
        .await
    }

    pub(crate) async fn operation(&self, id: &str) -> Outcome<Operation> {
        self.call(Op::Operation, None, None, |state, now, _| {
            state.get_operation(now, id)
        })
        .await
    }

    /// Changes the state from outside of the API: faults, settings, preemption.
    pub(crate) async fn administer<T>(
        &self,
        change: impl FnOnce(&mut State, jiff::Timestamp) -> Result<T, ErrorBody>,
    ) -> Result<T, ErrorBody> {
        let now = self.clock.now();
        let (result, version) = {
            let mut inner = self.inner.lock();
            inner.state.sweep(now);
            let result = change(&mut inner.state, now);
            inner.version += 1;
            (result, inner.version)
        };
        let value = result?;
        self.settle(version).await?;
        Ok(value)
    }

    /// Every mutating call so far, oldest first.
    pub fn calls(&self) -> Vec<Call> {
        self.inner
            .lock()
            .state
            .records
            .calls
            .iter()
            .cloned()
            .collect()
    }

    /// Every instance there ever was that carries these labels, oldest first.
    pub fn ever_created(&self, labels: &Labels) -> Vec<EverCreated> {
        let mut inner = self.inner.lock();
        inner.state.sweep(self.clock.now());
        let created = inner.state.records.created.iter();
        created
            .filter(|entry| contains(&entry.labels, labels))
            .cloned()
            .collect()
    }

    /// The rules that still wait for calls.
    pub fn faults(&self) -> Vec<FaultRule> {
        self.inner.lock().state.faults.clone()
    }

    /// Decides one call of the API and, when it is told to anybody, makes it durable first.
    async fn call<T>(
        &self,
        op: Op,
        zone: Option<&str>,
        target: Option<String>,
        decide: impl FnOnce(&mut State, jiff::Timestamp, Option<&Fault>) -> Result<T, ErrorBody>,
    ) -> Outcome<T> {
        let now = self.clock.now();
        let (result, fault, version) = {
            let mut inner = self.inner.lock();
            let Inner { state, version } = &mut *inner;
            let mut dirty = state.sweep(now);
            let fault = state.take_fault(op, zone);
            dirty |= fault.is_some() || target.is_some();
            let result = match &fault {
                Some(Fault::Fail { with }) => Err(refusal(with.code())),
                Some(Fault::Hang) => Err(refusal(ErrorCode::BackendError)),
                other => decide(state, now, other.as_ref()),
            };
            if let Some(target) = target {
                state.record(Call {
                    at: now,
                    op,
                    zone: zone.unwrap_or_default().to_owned(),
                    target,
                    refused: result.as_ref().err().map(|error| error.code),
                    fault: fault.clone(),
                });
            }
            *version += u64::from(dirty);
            (result, fault, *version)
        };
        if let Err(error) = self.settle(version).await {
            return Outcome::Answer(Err(error));
        }
        match fault {
            Some(Fault::LostReply) => Outcome::Lost,
            Some(Fault::Hang) => Outcome::Never,
            Some(
                Fault::Fail { .. }
                | Fault::FailOperation { .. }
                | Fault::SlowBoot { .. }
                | Fault::FailBootstrap { .. }
                | Fault::GiveAddress { .. }
                | Fault::Misbehave { .. },
            )
            | None => Outcome::Answer(result),
        }
    }

    /// Returns once version `seen` is on the disk and the proxies are as it says.
    async fn settle(&self, seen: u64) -> Result<(), ErrorBody> {
        if let Err(error) = self.persist(seen).await {
            tracing::error!(
                error = %chain(&error),
                "state not written"
            );
            return Err(ErrorBody {
                code: ErrorCode::BackendError,
                message: format!("the cloud cannot write its state: {}", chain(&error)),
            });
        }
        self.follow().await;
        self.changed.notify_one();
        Ok(())
    }

    /// Writes the newest state unless `seen` is there already: callers that wait for one write
    /// share the next.
    async fn persist(&self, seen: u64) -> Result<(), disk::Error> {
        let Some(disk) = self.disk.clone() else {
            return Ok(());
        };
        let mut durable = Arc::clone(&self.durable).lock_owned().await;
        if *durable >= seen {
            return Ok(());
        }
        let (state, version) = {
            let inner = self.inner.lock();
            (inner.state.clone(), inner.version)
        };
        // Why the guard goes along: a caller that goes away must not let the next write begin
        // while this one is still at it, on the same file.
        let write = tokio::task::spawn_blocking(move || {
            let bytes = serde_json::to_vec(&state).map_err(|source| disk::Error::Format {
                path: PathBuf::from("the state"),
                source,
            })?;
            disk.write(&bytes)?;
            *durable = version;
            Ok(())
        });
        write.await.map_err(|error| disk::Error::Io {
            what: "finish writing",
            path: PathBuf::from("the state"),
            source: std::io::Error::other(error),
        })?
    }

    /// Starts and stops proxies until they match the instances; false when a port was taken.
    async fn follow(&self) -> bool {
        let mut proxies = self.proxies.lock().await;
        let wanted: HashMap<u64, proxy::Spec> = {
            let now = self.clock.now();
            let inner = self.inner.lock();
            let alive = inner.state.alive(now);
            alive
                .filter(|(r, state)| {
                    *state == InstanceState::Running && r.behaviour != Behaviour::Dead
                })
                .map(|(record, _)| (record.id, proxy::Spec::of(record)))
                .collect()
        };
        let stale: Vec<u64> = proxies
            .iter()
            .filter(|(id, proxy)| wanted.get(id) != Some(proxy.spec()))
            .map(|(id, _)| *id)
            .collect();
        for id in stale {
            if let Some(proxy) = proxies.remove(&id) {
                proxy.stop().await;
            }
        }
        let mut all_listen = true;
        for (id, spec) in wanted {
            if proxies.contains_key(&id) {
                continue;
            }
            let address = spec.listen;
            match Proxy::start(spec) {
                Ok(proxy) => {
                    proxies.insert(id, proxy);
                },
                Err(error) => {
                    all_listen = false;
                    tracing::warn!(%address, %error, "cannot listen; trying again");
                },
            }
        }
        all_listen
    }
}

/// Whether nothing else on this machine listens there.
fn is_free(address: SocketAddrV4) -> bool {
    TcpListener::bind(address).is_ok()
}
