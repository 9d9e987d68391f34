//! The shipped cloud-inits of squid, tinyproxy and dante, proven by the servers themselves: what a
//! machine would run at its first boot is run here, below a folder instead of /etc.

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

/// A template, and the file below /etc that it makes for the server.
struct Recipe {
    template: &'static str,
    package: &'static str,
    file: &'static str,
}

/// Programs that set up the machine itself, and what they are here: scripts that a folder of the
/// test holds.
type Stubs<'a> = &'a [(&'a str, &'a str)];

fn start(
    recipe: &Recipe,
    stubs: Stubs<'_>,
    credentials: Option<&Credentials>,
    networks: &[&str],
    adapt: impl FnOnce(String) -> String,
    command: impl FnOnce(&Path) -> Command,
) -> Server {
    let Recipe {
        template,
        package,
        file,
    } = recipe;
    let port = free_port();
    let networks: Vec<_> = networks.iter().map(ToString::to_string).collect();
    let values = Values {
        port,
        credentials,
        allowed_cidrs: &networks,
    };
    let path = Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("config/cloud-init")
        .join(format!("{template}.yaml"));
    let text = render(&fs::read_to_string(path).unwrap(), &values).unwrap();
    let config: CloudConfig = serde_saphyr::from_str(&text).unwrap();
    assert!(config.packages.iter().any(|found| found == package));

    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join(file);
    let readable = |path: &Path| {
        fs::set_permissions(path, fs::Permissions::from_mode(0o755)).unwrap();
    };
    fs::create_dir_all(file.parent().unwrap()).unwrap();
    for folder in [folder.path(), file.parent().unwrap()] {
        readable(folder);
    }
    let programs = folder.path().join("programs");
    fs::create_dir(&programs).unwrap();
    for (name, body) in stubs {
        let stub = programs.join(name);
        fs::write(&stub, format!("#!/bin/sh\n{body}\n")).unwrap();
        readable(&stub);
    }
    let etc = format!("{}/", folder.path().display());
    let script = config.write_files[0].content.replace("/etc/", &etc);
    let set_up = Command::new("sh")
        .args(["-c", &format!("PATH=\"$FOLDER/programs:$PATH\"\n{script}")])
        .env("FOLDER", folder.path())
        .output()
        .unwrap();
    assert!(
        set_up.status.success(),
        "{}",
        String::from_utf8_lossy(&set_up.stderr)
    );

    let adapted = adapt(fs::read_to_string(&file).unwrap());
    fs::write(&file, adapted).unwrap();
    let log_file = folder.path().join("log");
    let log = fs::File::create(&log_file).unwrap();
    let mut command = command(&file);
    let process = command
        .stdin(Stdio::null())
        .stdout(log.try_clone().unwrap())
        .stderr(log)
        .spawn()
        .unwrap_or_else(|error| {
            panic!("{package} cannot be started ({error}): install it with hack/proxy-servers.sh")
        });
    let mut server = Server {
        process,
        port,
        _folder: folder,
    };
    let mut waited = Duration::ZERO;
    while TcpStream::connect((Ipv4Addr::LOCALHOST, port)).is_err() {
        let ended = server.process.try_wait().unwrap();
        assert!(
            ended.is_none() && waited < DEADLINE,
            "{package} does not listen: {}",
            fs::read_to_string(&log_file).unwrap()
        );
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

/// Why: the site of the test is on loopback, which templates rightly close.
fn open_loopback(config: &str) -> String {
    assert!(
        config.contains("127.0.0.0/8"),
        "the machine itself is out of bounds"
    );
    config
        .lines()
        .filter(|line| !line.contains("to: 127.0.0.0/8"))
        .map(|line| line.replace(" 127.0.0.0/8", "") + "\n")
        .collect()
}

fn squid_of(
    template: &'static str,
    credentials: Option<&Credentials>,
    networks: &[&str],
) -> Server {
    let recipe = Recipe {
        template,
        package: "squid",
        file: "squid/squid.conf",
    };
    let adapt = |config: String| {
        let config = open_loopback(&config);
        format!("{config}\npid_filename none\ncache_log /dev/null\n")
    };
    start(&recipe, &[], credentials, networks, adapt, |file| {
        // Why the name: squid names its shared memory by it, and tests run side by side.
        let service = format!("test{}x{}", std::process::id(), free_port());
        let mut command = Command::new(program("squid"));
        command.args(["-N", "-n", &service, "-f"]).arg(file);
        command
    })
}

fn squid(credentials: &Credentials, networks: &[&str]) -> Server {
    squid_of("squid", Some(credentials), networks)
}

fn tinyproxy(credentials: &Credentials, networks: &[&str]) -> Server {
    let recipe = Recipe {
        template: "tinyproxy",
        package: "tinyproxy",
        file: "tinyproxy/tinyproxy.conf",
    };
    let run = |file: &Path| {
        let mut command = Command::new(program("tinyproxy"));
        command.arg("-d").arg("-c").arg(file);
        command
    };
    start(
        &recipe,
        &[],
        Some(credentials),
        networks,
        |config| config,
        run,
    )
}

/// Its users are the system's. The template's commands make them in files of the test's.
fn dante(credentials: &Credentials, networks: &[&str]) -> Server {
    let recipe = Recipe {
        template: "dante",
        package: "dante-server",
        file: "danted.conf",
    };
    let stubs = [
        ("id", "exit 1"),
        (
            "useradd",
            r#"for user; do :; done
            echo "$user:x:4242:4242::/nonexistent:/usr/sbin/nologin" > "$FOLDER/passwd"
            cat /etc/passwd >> "$FOLDER/passwd""#,
        ),
        (
            "usermod",
            r#"[ "$1" = --password ] && echo "$3:$2:19000:0:99999:7:::" > "$FOLDER/shadow""#,
        ),
        ("ip", "echo default via 192.0.2.1 dev lo"),
    ];
    let adapt = |config: String| {
        let myself = Command::new("id").arg("-un").output().unwrap().stdout;
        let myself = String::from_utf8(myself).unwrap();
        open_loopback(&config)
            .replace("logoutput: syslog", "logoutput: stderr")
            .replace(
                "privileged: root",
                &format!("privileged: {}", myself.trim()),
            )
            .replace(
                "unprivileged: nobody",
                &format!("unprivileged: {}", myself.trim()),
            )
    };
    start(
        &recipe,
        &stubs,
        Some(credentials),
        networks,
        adapt,
        |file| {
            let folder = file.parent().unwrap();
            for name in ["passwd", "shadow"] {
                let readable = fs::Permissions::from_mode(0o644);
                fs::set_permissions(folder.join(name), readable).unwrap();
            }
            let mut command = Command::new(program("danted"));
            command
                .arg("-f")
                .arg(file)
                .env("LD_PRELOAD", "libnss_wrapper.so")
                .env("NSS_WRAPPER_PASSWD", folder.join("passwd"))
                .env("NSS_WRAPPER_GROUP", "/etc/group")
                .env("NSS_WRAPPER_SHADOW", folder.join("shadow"));
            command
        },
    )
}

/// How far a SOCKS5 client gets.
#[derive(Debug, PartialEq, Eq)]
enum Socks5 {
    /// The connection was cut without a word.
    Cut,
    /// None of the ways to authenticate that were offered is accepted.
    NoMethod,
    /// The credentials are wrong.
    Refused,
    /// The request was answered with this code (RFC 1928, section 6).
    Reply(u8),
    /// The target's answer has this status.
    Status(u16),
}

impl Server {
    /// A CONNECT and a GET through SOCKS5, with user name and password or without.
    fn socks5(&self, host: &str, port: u16, credentials: Option<(&str, &str)>) -> Socks5 {
        self.try_socks5(host, port, credentials)
            .unwrap_or(Socks5::Cut)
    }

    fn try_socks5(
        &self,
        host: &str,
        port: u16,
        credentials: Option<(&str, &str)>,
    ) -> std::io::Result<Socks5> {
        let short = |text: &str| u8::try_from(text.len()).unwrap_or(u8::MAX);
        let mut stream = TcpStream::connect((Ipv4Addr::LOCALHOST, self.port))?;
        stream.set_read_timeout(Some(DEADLINE))?;
        let method = if credentials.is_some() { 2 } else { 0 };
        stream.write_all(&[5, 1, method])?;
        let mut answer = [0; 2];
        stream.read_exact(&mut answer)?;
        if answer == [5, 0xff] {
            return Ok(Socks5::NoMethod);
        }
        assert_eq!(answer, [5, method]);
        if let Some((username, password)) = credentials {
            let mut request = vec![1, short(username)];
            request.extend_from_slice(username.as_bytes());
            request.push(short(password));
            request.extend_from_slice(password.as_bytes());
            stream.write_all(&request)?;
            stream.read_exact(&mut answer)?;
            if answer[1] != 0 {
                return Ok(Socks5::Refused);
            }
        }
        let mut request = vec![5, 1, 0, 3, short(host)];
        request.extend_from_slice(host.as_bytes());
        request.extend_from_slice(&port.to_be_bytes());
        stream.write_all(&request)?;
        let mut reply = [0; 10];
        stream.read_exact(&mut reply)?;
        if reply[1] != 0 {
            return Ok(Socks5::Reply(reply[1]));
        }
        stream.write_all(b"GET / HTTP/1.1\r\nhost: site\r\n\r\n")?;
        let mut text = String::new();
        stream.read_to_string(&mut text)?;
        let status = text.split(' ').nth(1).and_then(|code| code.parse().ok());
        status
            .map(Socks5::Status)
            .ok_or_else(|| std::io::Error::other(text))
    }
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

/// Case 20.
#[test]
fn squid_without_passwords_serves_the_allowed_networks_and_nobody_else() {
    let site = site().to_string();
    let elsewhere = squid_of("squid-allowlist", None, &["198.51.100.0/24"]);
    assert_eq!(elsewhere.statuses(&site, None), [403, 403], "an open relay");
    let here = squid_of("squid-allowlist", None, &["2001:db8::/32", "127.0.0.1/32"]);
    assert_eq!(here.statuses(&site, None), [200, 200]);
    for inside in ["169.254.169.254:80", "10.0.0.1:80", "192.0.2.1:25"] {
        assert_eq!(here.statuses(inside, None), [403, 403], "{inside}");
    }
}

#[test]
fn dante_serves_those_with_the_credentials_and_nobody_else() {
    let site = site();
    let (host, port) = (site.ip().to_string(), site.port());
    for password in [
        "plain",
        r#"'"$`\;%@: {{proxy.port}}#"#,
        "gr\u{fc}\u{df}e \u{6f22}\u{5b57}",
    ] {
        let proxy = dante(&credentials("user", password), &[]);
        let with = |credentials| proxy.socks5(&host, port, credentials);
        assert_eq!(
            with(Some(("user", password))),
            Socks5::Status(200),
            "{password}"
        );
        assert_eq!(with(None), Socks5::NoMethod, "an open relay");
        assert_eq!(with(Some(("user", "other"))), Socks5::Refused);
        assert_eq!(with(Some(("other", password))), Socks5::Refused);
    }
}

#[test]
fn dante_keeps_clients_from_the_metadata_of_the_cloud_and_from_mail() {
    let proxy = dante(&credentials("user", "p"), &[]);
    for (host, port) in [("169.254.169.254", 80), ("10.0.0.1", 80), ("192.0.2.1", 25)] {
        // Not allowed by the ruleset (RFC 1928, section 6).
        assert_eq!(
            proxy.socks5(host, port, Some(("user", "p"))),
            Socks5::Reply(2),
            "{host}"
        );
    }
}

#[test]
fn dante_serves_the_allowed_networks_only() {
    let site = site();
    let (host, port) = (site.ip().to_string(), site.port());
    let known = Some(("user", "p"));
    let elsewhere = dante(
        &credentials("user", "p"),
        &["198.51.100.0/24", "2001:db8::/32"],
    );
    assert_eq!(elsewhere.socks5(&host, port, known), Socks5::Cut);
    let here = dante(
        &credentials("user", "p"),
        &["198.51.100.0/24", "127.0.0.1/32"],
    );
    assert_eq!(here.socks5(&host, port, known), Socks5::Status(200));
    assert_eq!(here.socks5(&host, port, None), Socks5::NoMethod);
}
