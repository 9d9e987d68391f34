//! `kubectl px doctor`: what is wrong with the installation, or with one proxy, and what to do.
//!
//! It reads API objects as the caller may, and the operator's admin endpoint when told where it is.
//! It changes nothing.

mod checks;
mod next;
mod one;
mod operator;
mod report;

use std::process::ExitCode;

use clap::ValueHint;

use self::report::{Finding, Level};
use crate::failure::Failure;
use crate::kube_flags::KubeFlags;
use crate::mark::print;
use crate::terminal;

/// `-o`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub(crate) enum DoctorOutput {
    /// The findings, or the views of the proxy, for programs.
    Json,
}

/// `kubectl px doctor`.
#[derive(Debug, clap::Args)]
pub(crate) struct Doctor {
    /// A proxy to look at; without it: the whole installation.
    name: Option<String>,

    /// How the result is printed.
    #[arg(short, long, value_enum, value_name = "FORMAT")]
    output: Option<DoctorOutput>,

    /// Namespace in which proxy-operator runs.
    #[arg(long, value_name = "NAME", default_value = "proxy-operator")]
    operator_namespace: String,

    /// Where the operator's admin endpoint can be reached, like http://127.0.0.1:8080 behind kubectl
    /// port-forward; without it: what only the operator can find out is left out.
    #[arg(long, value_name = "URL", value_hint = ValueHint::Url)]
    operator_url: Option<String>,

    #[command(flatten)]
    kube: KubeFlags,
}

impl Doctor {
    /// Runs the command; the status is 1 when something is wrong or cannot be found out.
    pub(crate) async fn run(self) -> ExitCode {
        match self.examine().await {
            Ok(Level::Ok | Level::Note | Level::Warn) => ExitCode::SUCCESS,
            Ok(Level::Fail) => ExitCode::FAILURE,
            Err(failure) => {
                terminal::say(&failure.to_string());
                ExitCode::FAILURE
            },
        }
    }

    async fn examine(&self) -> Result<Level, Failure> {
        let session = self.kube.session().await.map_err(Failure::Configure)?;
        if let Some(name) = &self.name {
            let views = one::look(&session, name, self.operator_url.as_deref()).await?;
            let text = match self.output {
                None => report::visible(&views.render()),
                Some(DoctorOutput::Json) => format!("{:#}\n", views.to_json()),
            };
            print(&text)?;
            return Ok(Level::Ok);
        }
        let findings = checks::run(
            &session,
            &self.operator_namespace,
            self.operator_url.as_deref(),
        )
        .await?;
        let text = match self.output {
            None => report::visible(&report::render(&findings)),
            Some(DoctorOutput::Json) => format!("{:#}\n", report::to_json(&findings)),
        };
        print(&text)?;
        let worst = findings.iter().map(|Finding { level, .. }| *level).max();
        Ok(worst.unwrap_or(Level::Ok))
    }
}
