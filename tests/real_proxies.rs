//! The health engine, and curl, through the proxy servers that people run: squid, tinyproxy, dante
//! and microsocks, each as it comes, with a password and without any agent beside it (case 13).

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::Duration;

use async_trait::async_trait;
use crawl_api::address::Endpoint;
use crawl_api::proxy::{HealthCheck, Proxy};
use crawl_api::scheme::Scheme;
use kube::runtime::reflector::ObjectRef;
use prometheus::Registry;
use proxy_operator::echo::{Args, Echo};
use proxy_operator::health::{Config, Credentials, Engine, Reports, Target, Transitions, Verdict};
use runtime_kit::SystemClock;
use tempfile::TempDir;
use tokio::time::timeout;
use tokio_util::sync::{CancellationToken, DropGuard};
use url::Url;

const DEADLINE: Duration = Duration::from_mins(1);
const USER: &str = "crawler";

/// No client reports anything.
struct Nobody;

#[async_trait]
impl Reports for Nobody {
    async fn last_success(&self, _: &ObjectRef<Proxy>, _: &str) -> Option<jiff::Timestamp> {
        None
    }
}

/// A server that runs, with its configuration in the directory; it ends with this value.
struct Server {
    process: Child,
    endpoint: Endpoint,
    password: &'static str,
    /// Where its connections come from.
    exit: Ipv4Addr,
    directory: TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.process.kill().unwrap();
        self.process.wait().unwrap();
    }
}

/// A directory that a server may read after it gave up its privileges.
fn directory() -> TempDir {
    let directory = tempfile::tempdir().unwrap();
    let readable = std::fs::Permissions::from_mode(0o755);
    std::fs::set_permissions(directory.path(), readable).unwrap();
    directory
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap_or_else(|error| {
        panic!(
            "{command:?} does not run ({error}): install what it needs with hack/proxy-servers.sh"
        )
    });
    assert!(output.status.success(), "{command:?}: {output:?}");
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

/// Starts a server whose log goes to a file, and waits until it listens.
fn start(
    mut command: Command,
    scheme: Scheme,
    port: u16,
    password: &'static str,
    exit: Ipv4Addr,
    directory: TempDir,
) -> Server {
    let log = directory.path().join("log");
    let file = std::fs::File::create(&log).unwrap();
    command
        .stdin(Stdio::null())
        .stdout(file.try_clone().unwrap())
        .stderr(file);
    let process = command.spawn().unwrap_or_else(|error| {
        panic!("{command:?} does not run ({error}): install it with hack/proxy-servers.sh")
    });
    let mut server = Server {
        process,
        endpoint: Endpoint {
            scheme,
            host: Ipv4Addr::LOCALHOST.to_string(),
            port,
        },
        password,
        exit,
        directory,
    };
    let pause = Duration::from_millis(20);
    let mut waited = Duration::ZERO;
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        let ended = server.process.try_wait().unwrap();
        let late = waited > DEADLINE;
        assert!(
            ended.is_none() && !late,
            "it does not listen: {}",
            std::fs::read_to_string(&log).unwrap()
        );
        std::thread::sleep(pause);
        waited += pause;
    }
    server
}

fn squid() -> Server {
    let (directory, port, exit) = (directory(), free_port(), Ipv4Addr::new(127, 88, 0, 1));
    let password = "p@ss w/rd:%41'\"";
    let hash = output(Command::new("openssl").args(["passwd", "-apr1", password]));
    let users = directory.path().join("users");
    std::fs::write(&users, format!("{USER}:{hash}\n")).unwrap();
    let config = directory.path().join("squid.conf");
    let text = format!(
        "http_port 127.0.0.1:{port}\n\
         auth_param basic program /usr/lib/squid/basic_ncsa_auth {}\n\
         auth_param basic realm proxy\n\
         acl users proxy_auth REQUIRED\n\
         http_access allow users\n\
         http_access deny all\n\
         tcp_outgoing_address {exit}\n\
         visible_hostname localhost\n\
         cache deny all\n\
         access_log none\n\
         cache_log stdio:/dev/null\n\
         pid_filename none\n",
        users.display()
    );
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new("/usr/sbin/squid");
    command.arg("-N").arg("-f").arg(&config);
    start(command, Scheme::Http, port, password, exit, directory)
}

fn tinyproxy() -> Server {
    let (directory, port, exit) = (directory(), free_port(), Ipv4Addr::new(127, 88, 0, 2));
    // Its configuration knows letters, digits, dots, dashes and underscores only.
    let password = "s3cret-pass_word.1";
    let config = directory.path().join("tinyproxy.conf");
    let text = format!(
        "Listen 127.0.0.1\nPort {port}\nBind {exit}\nTimeout 60\nMaxClients 20\n\
         Allow 127.0.0.1\nBasicAuth {USER} {password}\n"
    );
    std::fs::write(&config, text).unwrap();
    let mut command = Command::new("tinyproxy");
    command.arg("-d").arg("-c").arg(&config);
    start(command, Scheme::Http, port, password, exit, directory)
}

/// Its users are the system's. They come from files of our own.
fn dante() -> Server {
    let (directory, port, exit) = (directory(), free_port(), Ipv4Addr::new(127, 88, 0, 3));
    let password = "p@ss w/rd:%41'\"";
    let hash = output(Command::new("openssl").args(["passwd", "-6", password]));
    let known = std::fs::read_to_string("/etc/passwd").unwrap();
    let file = |name: &str, text: String| {
        let path = directory.path().join(name);
        std::fs::write(&path, text).unwrap();
        path
    };
    let users = file(
        "passwd",
        format!("{USER}:x:4242:4242::/nonexistent:/bin/false\n{known}"),
    );
    let shadow = file("shadow", format!("{USER}:{hash}:19000:0:99999:7:::\n"));
    let myself = output(Command::new("id").arg("-un"));
    let config = file(
        "danted.conf",
        format!(
            "logoutput: stderr\n\
             internal: 127.0.0.1 port = {port}\n\
             external: {exit}\n\
             clientmethod: none\n\
             socksmethod: username\n\
             user.privileged: {myself}\n\
             user.unprivileged: {myself}\n\
             client pass {{ from: 127.0.0.0/8 to: 0.0.0.0/0 }}\n\
             socks pass {{ from: 127.0.0.0/8 to: 0.0.0.0/0 command: connect }}\n"
        ),
    );
    let mut command = Command::new("/usr/sbin/danted");
    command
        .arg("-f")
        .arg(config)
        .env("LD_PRELOAD", "libnss_wrapper.so")
        .env("NSS_WRAPPER_PASSWD", users)
        .env("NSS_WRAPPER_GROUP", "/etc/group")
        .env("NSS_WRAPPER_SHADOW", shadow);
    start(command, Scheme::Socks5, port, password, exit, directory)
}

fn microsocks() -> Server {
    let (directory, port, exit) = (directory(), free_port(), Ipv4Addr::new(127, 88, 0, 4));
    let password = "p@ss w/rd:%41'\"";
    let mut command = Command::new("microsocks");
    command
        .args(["-i", "127.0.0.1", "-p", &port.to_string(), "-u", USER])
        .args(["-P", password, "-b", &exit.to_string()]);
    start(command, Scheme::Socks5, port, password, exit, directory)
}

/// The echo target and an engine that probes at it.
struct World {
    echo: SocketAddr,
    engine: Engine,
    transitions: Transitions,
    files: TempDir,
    _stop: DropGuard,
}

impl World {
    async fn new() -> Self {
        runtime_kit::tls::install_default_provider();
        let files = tempfile::tempdir().unwrap();
        let args = Args {
            listen: SocketAddr::from((Ipv4Addr::LOCALHOST, 0)),
            tls_cert: None,
            tls_key: None,
            key_file: None,
            self_signed_dir: Some(files.path().to_owned()),
            self_signed_names: vec!["127.0.0.1".into()],
        };
        let echo = Echo::bind(args, SystemClock::shared()).await.unwrap();
        let address = echo.address().unwrap();
        let stop = CancellationToken::new();
        tokio::spawn(echo.serve(stop.clone()));
        let config = Config {
            echo_url: vec![Url::parse(&format!("https://{address}/")).unwrap()],
            echo_key_file: Some(files.path().join("echo.key")),
            probe_ca_file: Some(files.path().join("ca.crt")),
            ..Config::default()
        };
        let (engine, transitions) = Engine::new(
            SystemClock::shared(),
            &Registry::new(),
            config,
            Arc::new(Nobody),
        )
        .unwrap();
        tokio::spawn(engine.clone().run(stop.clone()));
        Self {
            echo: address,
            engine,
            transitions,
            files,
            _stop: stop.drop_guard(),
        }
    }

    /// What the first probe of a server decides.
    async fn decide(&mut self, server: &Server, password: Option<&str>) -> Verdict {
        self.engine.upsert(Target {
            uid: "one".into(),
            proxy: ObjectRef::new("one").within("crawlers"),
            endpoint: server.endpoint.clone(),
            credentials: password.map(|password| Credentials {
                username: USER.into(),
                password: password.into(),
            }),
            secret: Some("vendor".into()),
            patience: DEADLINE,
            report_limit: DEADLINE,
            check: HealthCheck {
                failure_threshold: 1,
                timeout_seconds: 20,
                ..HealthCheck::default()
            },
            seed: None,
        });
        let told = timeout(DEADLINE, self.transitions.recv()).await;
        told.unwrap().unwrap();
        let verdict = self.engine.verdict("one").unwrap();
        self.engine.remove("one");
        verdict
    }

    /// What curl gets of the echo target's `/ip` through a server, or what it complains about.
    fn curl(&self, server: &Server, password: &str, ca: &Path) -> String {
        // curl takes percents in it for encoded bytes.
        let password = password
            .bytes()
            .fold(String::new(), |text, byte| text + &format!("%{byte:02X}"));
        let Endpoint { scheme, port, .. } = &server.endpoint;
        let scheme = match scheme {
            Scheme::Socks5 => "socks5h",
            Scheme::Http | Scheme::Https => "http",
        };
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--max-time", "30", "--cacert"])
            .arg(ca)
            .args(["--proxy", &format!("{scheme}://127.0.0.1:{port}")])
            .args(["--proxy-user", &format!("{USER}:{password}")])
            .arg(format!("https://{}/ip", self.echo));
        let output = curl.output().unwrap();
        let text = if output.status.success() {
            output.stdout
        } else {
            output.stderr
        };
        String::from_utf8(text).unwrap().trim().to_owned()
    }
}

async fn is_probed_and_used(server: Server) {
    let mut world = World::new().await;
    let log = server.directory.path().join("log");
    let exit = server.exit.to_string();
    let good = world.decide(&server, Some(server.password)).await;
    assert_eq!(
        (good.healthy, good.exit_ip.as_deref()),
        (Some(true), Some(exit.as_str())),
        "{}\n{}",
        good.message,
        std::fs::read_to_string(log).unwrap()
    );
    for (password, what) in [(Some("wrong"), "a wrong password"), (None, "none")] {
        let bad = world.decide(&server, password).await;
        assert_eq!(
            (bad.healthy, bad.reason.as_str()),
            (Some(false), "ProxyAuthFailed"),
            "{what}: {}",
            bad.message
        );
    }
    let ca = world.files.path().join("ca.crt");
    assert_eq!(world.curl(&server, server.password, &ca), exit);
    let refused = world.curl(&server, "wrong", &ca);
    assert!(refused.starts_with("curl: ("), "{refused}");
}

#[tokio::test(flavor = "multi_thread")]
async fn squid_is_probed_with_its_password_and_curl_goes_through() {
    is_probed_and_used(squid()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn tinyproxy_is_probed_with_its_password_and_curl_goes_through() {
    is_probed_and_used(tinyproxy()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn dante_is_probed_with_its_password_and_curl_goes_through() {
    is_probed_and_used(dante()).await;
}

#[tokio::test(flavor = "multi_thread")]
async fn microsocks_is_probed_with_its_password_and_curl_goes_through() {
    is_probed_and_used(microsocks()).await;
}
