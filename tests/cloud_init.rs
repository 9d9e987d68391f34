//! The shipped cloud-inits of squid and tinyproxy, proven by the servers themselves: what a machine
//! would run at its first boot is run here, below a folder instead of /etc.

#![allow(
    clippy::unwrap_used,
    clippy::panic,
    reason = "a test fails by panicking"
)]

use std::fs;
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::os::unix::fs::PermissionsExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use base64::Engine as _;
use proxy_operator::health::Credentials;
use proxy_operator::proxy::cloud_init::{Values, render};
use serde::Deserialize;

const POLL: Duration = Duration::from_millis(20);
const DEADLINE: Duration = Duration::from_mins(1);

#[derive(Deserialize)]
struct CloudConfig {
    packages: Vec<String>,
    write_files: Vec<File>,
}

#[derive(Deserialize)]
struct File {
    content: String,
}

/// A server with the configuration that its cloud-init makes, ended with this value.
struct Server {
    process: Child,
    port: u16,
    _folder: tempfile::TempDir,
}

impl Drop for Server {
    fn drop(&mut self) {
        let _gone_already = self.process.kill();
        let _reaped = self.process.wait();
    }
}

fn free_port() -> u16 {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    listener.local_addr().unwrap().port()
}

fn start(
    name: &str,
    credentials: &Credentials,
    networks: &[&str],
    adapt: impl FnOnce(String) -> String,
    command: impl FnOnce(&Path) -> Command,
) -> Server {
    let port = free_port();
    let networks: Vec<_> = networks.iter().map(ToString::to_string).collect();
    let values = Values {
        port,
        credentials: Some(credentials),
        allowed_cidrs: &networks,
    };
    let template = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("config/cloud-init")
        .join(format!("{name}.yaml"));
    let text = render(&fs::read_to_string(template).unwrap(), &values).unwrap();
    let config: CloudConfig = serde_saphyr::from_str(&text).unwrap();
    assert!(config.packages.iter().any(|package| package == name));

    let folder = tempfile::tempdir().unwrap();
    let etc = folder.path().join(name);
    fs::create_dir(&etc).unwrap();
    for folder in [folder.path(), &etc] {
        fs::set_permissions(folder, fs::Permissions::from_mode(0o755)).unwrap();
    }
    let script = config.write_files[0]
        .content
        .replace(&format!("/etc/{name}"), etc.to_str().unwrap());
    let set_up = Command::new("sh").args(["-c", &script]).output().unwrap();
    assert!(
        set_up.status.success(),
        "{}",
        String::from_utf8_lossy(&set_up.stderr)
    );

    let file = etc.join(format!("{name}.conf"));
    let adapted = adapt(fs::read_to_string(&file).unwrap());
    fs::write(&file, adapted).unwrap();
    let log = fs::File::create(folder.path().join("log")).unwrap();
    let mut command = command(&file);
    let process = command
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| {
            panic!("{name} cannot be started ({error}): install it with hack/proxy-servers.sh")
        });
    let server = Server {
        process,
        port,
        _folder: folder,
    };
    let mut waited = Duration::ZERO;
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        assert!(waited < DEADLINE, "{name} does not listen");
        std::thread::sleep(POLL);
        waited += POLL;
    }
    server
}

/// A site on loopback that answers 200 to everything.
fn site() -> SocketAddr {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).unwrap();
    let address = listener.local_addr().unwrap();
    std::thread::spawn(move || {
        for stream in listener.incoming() {
            let mut stream = stream.unwrap();
            let mut buffer = [0; 4096];
            if stream.read(&mut buffer).is_ok_and(|read| read > 0) {
                let _left = stream.write_all(
                    b"HTTP/1.1 200 OK\r\ncontent-length: 2\r\nconnection: close\r\n\r\nok",
                );
            }
        }
    });
    address
}

impl Server {
    /// The status of a GET, and of a CONNECT, through the proxy.
    fn statuses(&self, target: &str, credentials: Option<(&str, &str)>) -> [u16; 2] {
        let header = credentials.map_or_else(String::new, |(username, password)| {
            let pair = format!("{username}:{password}");
            let pair = base64::engine::general_purpose::STANDARD.encode(pair);
            format!("proxy-authorization: Basic {pair}\r\n")
        });
        [format!("GET http://{target}/"), format!("CONNECT {target}")].map(|request| {
            let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port)).unwrap();
            stream.set_read_timeout(Some(DEADLINE)).unwrap();
            let text = format!("{request} HTTP/1.1\r\nhost: {target}\r\n{header}\r\n");
            stream.write_all(text.as_bytes()).unwrap();
            let mut answer = Vec::new();
            let mut buffer = [0; 512];
            while !answer.contains(&b'\n') {
                let read = stream.read(&mut buffer).unwrap();
                assert_ne!(read, 0, "the proxy hung up");
                answer.extend_from_slice(&buffer[..read]);
            }
            let answer = String::from_utf8_lossy(&answer);
            answer.split(' ').nth(1).unwrap().parse().unwrap()
        })
    }
}

fn credentials(username: &str, password: &str) -> Credentials {
    Credentials {
        username: username.into(),
        password: password.into(),
    }
}

fn squid(credentials: &Credentials, networks: &[&str]) -> Server {
    let adapt = |config: String| {
        // Why: the site of the test is on loopback, which the template rightly closes.
        assert!(
            config.contains(" 127.0.0.0/8"),
            "the machine itself is out of bounds"
        );
        let config = config.replace(" 127.0.0.0/8", "");
        format!("{config}\npid_filename none\ncache_log /dev/null\n")
    };
    start("squid", credentials, networks, adapt, |file| {
        // Why the name: squid names its shared memory by it, and tests run side by side.
        let service = format!("test{}x{}", std::process::id(), free_port());
        let mut command = Command::new(program("squid"));
        command.args(["-N", "-n", &service, "-f"]).arg(file);
        command
    })
}

fn tinyproxy(credentials: &Credentials, networks: &[&str]) -> Server {
    start(
        "tinyproxy",
        credentials,
        networks,
        |config| config,
        |file| {
            let mut command = Command::new(program("tinyproxy"));
            command.arg("-d").arg("-c").arg(file);
            command
        },
    )
}

/// Debian keeps servers where the PATH of a user does not look.
fn program(name: &str) -> PathBuf {
    let folders = ["/usr/sbin", "/usr/bin"].map(Path::new);
    let found = folders
        .map(|folder| folder.join(name))
        .into_iter()
        .find(|path| path.exists());
    found.unwrap_or_else(|| name.into())
}

#[test]
fn squid_serves_those_with_the_credentials_and_nobody_else() {
    let site = site().to_string();
    for password in [
        "plain",
        r#"'"$`\;%@: {{proxy.port}}#"#,
        "gr\u{fc}\u{df}e \u{6f22}\u{5b57}",
    ] {
        let proxy = squid(&credentials("user", password), &[]);
        assert_eq!(
            proxy.statuses(&site, Some(("user", password))),
            [200, 200],
            "{password}"
        );
        assert_eq!(proxy.statuses(&site, None), [407, 407], "an open relay");
        assert_eq!(proxy.statuses(&site, Some(("user", "other"))), [407, 407]);
        assert_eq!(proxy.statuses(&site, Some(("other", password))), [407, 407]);
    }
}

#[test]
fn squid_keeps_clients_from_the_metadata_of_the_cloud_and_from_mail() {
    let proxy = squid(&credentials("user", "p"), &[]);
    for target in [
        "169.254.169.254:80",
        "10.0.0.1:80",
        "[fe80::1]:80",
        "192.0.2.1:25",
    ] {
        assert_eq!(
            proxy.statuses(target, Some(("user", "p"))),
            [403, 403],
            "{target}"
        );
    }
}

#[test]
fn squid_serves_the_allowed_networks_only() {
    let site = site().to_string();
    let elsewhere = squid(
        &credentials("user", "p"),
        &["198.51.100.0/24", "2001:db8::/32"],
    );
    assert_eq!(elsewhere.statuses(&site, Some(("user", "p"))), [403, 403]);
    let here = squid(
        &credentials("user", "p"),
        &["198.51.100.0/24", "127.0.0.1/32"],
    );
    assert_eq!(here.statuses(&site, Some(("user", "p"))), [200, 200]);
    assert_eq!(here.statuses(&site, None), [407, 407]);
}

#[test]
fn tinyproxy_serves_those_with_the_credentials_and_nobody_else() {
    let site = site().to_string();
    let proxy = tinyproxy(&credentials("user", "Pass._-word9"), &[]);
    assert_eq!(
        proxy.statuses(&site, Some(("user", "Pass._-word9"))),
        [200, 200]
    );
    assert_eq!(proxy.statuses(&site, None), [407, 407], "an open relay");
    // It says 401 where 407 is meant.
    assert_eq!(proxy.statuses(&site, Some(("user", "other"))), [401, 401]);
}

#[test]
fn tinyproxy_serves_the_allowed_networks_only() {
    let site = site().to_string();
    let elsewhere = tinyproxy(&credentials("user", "p"), &["198.51.100.0/24"]);
    assert_eq!(elsewhere.statuses(&site, Some(("user", "p"))), [403, 403]);
    let here = tinyproxy(&credentials("user", "p"), &["127.0.0.0/8"]);
    assert_eq!(here.statuses(&site, Some(("user", "p"))), [200, 200]);
}
