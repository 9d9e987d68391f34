//! `proxy-operator echo`: the probe target that we ship, so that nobody depends on a third party.
//!
//! It tells a caller the address it came from: signed with a key shared with the health engine
//! (`/?nonce=…`), or as plain text for people (`/ip`). It must see its callers' addresses: put
//! nothing in front of it that rewrites them.

pub mod answer;
pub mod self_signed;
mod serve;

use std::io::Write;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use anyhow::Context;
use runtime_kit::tls::{KeyPairFiles, RELOAD_INTERVAL, ReloadingCertificate};
use runtime_kit::{Clock, Supervisor, SystemClock};
use tokio::net::TcpListener;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use self::answer::Key;

/// How long open connections may take to end.
const GRACE: Duration = Duration::from_secs(5);

/// The flags of `proxy-operator echo`.
#[derive(Debug, Clone, clap::Args)]
pub struct Args {
    /// Where to listen. Proxies must reach it, and their addresses must arrive unchanged.
    #[arg(long, value_name = "ADDRESS:PORT", default_value = "0.0.0.0:8443")]
    pub listen: SocketAddr,
    /// The serving certificate, PEM; reloaded when it changes.
    #[arg(
        long,
        value_name = "FILE",
        requires = "tls_key",
        required_unless_present = "self_signed_dir"
    )]
    pub tls_cert: Option<PathBuf>,
    /// The key of the serving certificate, PEM.
    #[arg(long, value_name = "FILE", requires = "tls_cert")]
    pub tls_key: Option<PathBuf>,
    /// The key that answers are signed with; the operator's --echo-key-file has the same content.
    #[arg(long, value_name = "FILE", required_unless_present = "self_signed_dir")]
    pub key_file: Option<PathBuf>,
    /// For trying out: makes ca.crt, tls.crt, tls.key and echo.key in this directory unless they
    /// are there, and uses them.
    #[arg(long, value_name = "DIR", conflicts_with_all = ["tls_cert", "tls_key", "key_file"])]
    pub self_signed_dir: Option<PathBuf>,
    /// The names and addresses the self-signed certificate is for.
    #[arg(
        long,
        value_name = "NAME",
        requires = "self_signed_dir",
        value_delimiter = ',',
        default_value = "localhost,127.0.0.1,::1"
    )]
    pub self_signed_names: Vec<String>,
}

/// An echo endpoint that listens and can be served.
pub struct Echo {
    listener: TcpListener,
    certificate: Arc<ReloadingCertificate>,
    tls: TlsAcceptor,
    endpoint: serve::Endpoint,
}

// === impl Echo ===

impl Echo {
    /// Reads the files and listens.
    ///
    /// # Errors
    /// A file cannot be used, or the address is taken.
    pub async fn bind(args: Args, clock: Arc<dyn Clock>) -> anyhow::Result<Self> {
        let Args {
            listen,
            tls_cert,
            tls_key,
            key_file,
            self_signed_dir,
            self_signed_names,
        } = args;
        let (serving, key_file) = match (self_signed_dir, tls_cert, tls_key, key_file) {
            (Some(directory), ..) => {
                let files = self_signed::ensure(&directory, &self_signed_names)?;
                (files.serving, files.echo_key)
            },
            (None, Some(certificate), Some(key), Some(key_file)) => {
                (KeyPairFiles { certificate, key }, key_file)
            },
            (None, ..) => anyhow::bail!(
                "give --tls-cert, --tls-key and --key-file, or --self-signed-dir for trying out"
            ),
        };
        let key = Key::read(&key_file)?;
        let certificate = ReloadingCertificate::load(serving).await?;
        let resolver: Arc<ReloadingCertificate> = Arc::clone(&certificate);
        let mut tls = rustls::ServerConfig::builder()
            .with_no_client_auth()
            .with_cert_resolver(resolver);
        tls.alpn_protocols = vec![b"http/1.1".to_vec()];
        let listener = TcpListener::bind(listen)
            .await
            .with_context(|| format!("cannot listen on {listen}"))?;
        Ok(Self {
            listener,
            certificate,
            tls: TlsAcceptor::from(Arc::new(tls)),
            endpoint: serve::Endpoint { key, clock },
        })
    }

    /// Where it listens.
    pub fn address(&self) -> std::io::Result<SocketAddr> {
        self.listener.local_addr()
    }

    /// Serves until `shutdown`.
    pub async fn serve(self, shutdown: CancellationToken) {
        let Self {
            listener,
            certificate,
            tls,
            endpoint,
        } = self;
        let reloading = certificate.watch(
            RELOAD_INTERVAL,
            Arc::clone(&endpoint.clock),
            shutdown.clone(),
        );
        tokio::join!(serve::serve(listener, tls, endpoint, shutdown), reloading);
    }
}

/// Serves until a signal asks it to stop.
///
/// # Errors
/// It cannot listen, or stopped by itself.
pub async fn run(args: Args) -> anyhow::Result<()> {
    runtime_kit::tls::install_default_provider();
    let echo = Echo::bind(args, SystemClock::shared()).await?;
    let mut out = std::io::stdout();
    writeln!(out, "listening on https://{}", echo.address()?)?;
    out.flush()?;
    let tasks = Supervisor::new();
    tasks.spawn("echo", echo.serve(tasks.shutdown()));
    tasks.run(GRACE).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use clap::Parser;

    use super::*;

    #[derive(Debug, Parser)]
    struct Command {
        #[command(flatten)]
        args: Args,
    }

    #[test]
    fn files_come_from_flags_or_from_one_directory_never_both() {
        let files = ["--tls-cert", "c", "--tls-key", "k", "--key-file", "e"];
        let directory = ["--self-signed-dir", "d"];
        let parses = |flags: &[&str]| {
            Command::try_parse_from(["echo"].iter().chain(flags)).map(|command| command.args)
        };
        assert!(parses(&files).unwrap().self_signed_dir.is_none());
        let names = parses(&directory).unwrap().self_signed_names;
        assert_eq!(names, ["localhost", "127.0.0.1", "::1"]);
        assert!(parses(&[]).is_err());
        assert!(parses(&files[..4]).is_err(), "the echo key is missing");
        assert!(parses(&files[2..]).is_err(), "the certificate is missing");
        assert!(parses(&[&files[..], &directory[..]].concat()).is_err());
    }
}
