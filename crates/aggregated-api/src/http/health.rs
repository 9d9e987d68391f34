//! `/healthz`, `/livez` and `/readyz`, after `k8s.io/apiserver/pkg/server/healthz`.

use std::sync::Arc;

use axum::body::Body;
use http::header::{CONTENT_TYPE, HeaderValue, X_CONTENT_TYPE_OPTIONS};
use http::{Response, StatusCode};

use super::options::Query;

/// A condition of `/readyz`: `Err` says what is missing.
pub type ReadyCheck = Arc<dyn Fn() -> Result<(), String> + Send + Sync>;

/// The name of the check that only says that somebody answers.
const PING: &str = "ping";

/// The checks of a server. Only `/readyz` asks them: a process that waits for others is alive.
pub(super) struct Health {
    checks: Vec<(String, ReadyCheck)>,
    /// So many of them, the first ones, must hold before anything is served.
    needed: usize,
}

impl Health {
    /// Those of `roles` may fail while the server answers.
    pub(super) fn new(checks: Vec<(String, ReadyCheck)>, roles: Vec<(String, ReadyCheck)>) -> Self {
        let ping: ReadyCheck = Arc::new(|| Ok(()));
        let needed = 1 + checks.len();
        let checks = std::iter::once((PING.to_owned(), ping))
            .chain(checks)
            .chain(roles)
            .collect();
        Self { checks, needed }
    }

    /// Whether every check passes that must before anything is served.
    pub(super) fn can_serve(&self) -> bool {
        let mut needed = self.checks.iter().take(self.needed);
        needed.all(|(_, check)| check().is_ok())
    }

    /// The paths that are served.
    pub(super) fn paths(&self) -> Vec<String> {
        ["healthz", "livez", "readyz"]
            .into_iter()
            .flat_map(|name| {
                let each = self.checks(name).iter();
                std::iter::once(format!("/{name}"))
                    .chain(each.map(move |(check, _)| format!("/{name}/{check}")))
            })
            .collect()
    }

    fn checks(&self, name: &str) -> &[(String, ReadyCheck)] {
        if name == "readyz" {
            &self.checks
        } else {
            self.checks.get(..1).unwrap_or_default()
        }
    }

    /// The answer at a path, unless it is none of health.
    pub(super) fn answer(&self, path: &str, query: &Query) -> Option<Response<Body>> {
        let path = path.strip_prefix('/')?;
        let (name, single) = path
            .split_once('/')
            .map_or((path, None), |(name, check)| (name, Some(check)));
        if !matches!(name, "healthz" | "livez" | "readyz") {
            return None;
        }
        let checks = self.checks(name);
        match single {
            None => Some(all(name, checks, query)),
            Some(single) => checks
                .iter()
                .find(|(check, _)| check == single)
                .map(|(_, check)| match check() {
                    Ok(()) => text(StatusCode::OK, "ok".to_owned()),
                    Err(why) => failed(format!("internal server error: {why}\n")),
                }),
        }
    }
}

/// Reasons are for the log, and for who may read the single check: everybody may read this.
fn all(name: &str, checks: &[(String, ReadyCheck)], query: &Query) -> Response<Body> {
    let excluded: Vec<_> = query.all("exclude").collect();
    let mut lines = String::new();
    let mut red = false;
    for (check, ask) in checks {
        let line = if excluded.contains(&check.as_str()) {
            format!("[+]{check} excluded: ok\n")
        } else if let Err(why) = ask() {
            tracing::info!(check, why, "{name} check failed");
            red = true;
            format!("[-]{check} failed: reason withheld\n")
        } else {
            format!("[+]{check} ok\n")
        };
        lines.push_str(&line);
    }
    let mut unknown: Vec<_> = excluded
        .iter()
        .filter(|name| !checks.iter().any(|(check, _)| check == *name))
        .map(|name| format!("{name:?}"))
        .collect();
    if !unknown.is_empty() {
        unknown.sort();
        unknown.dedup();
        let unknown = unknown.join(",");
        let line =
            format!("warn: some health checks cannot be excluded: no matches for {unknown}\n");
        lines.push_str(&line);
    }
    if red {
        return failed(format!("{lines}{name} check failed\n"));
    }
    if query.get("verbose").is_none() {
        return text(StatusCode::OK, "ok".to_owned());
    }
    text(StatusCode::OK, format!("{lines}{name} check passed\n"))
}

fn failed(body: String) -> Response<Body> {
    text(StatusCode::INTERNAL_SERVER_ERROR, body)
}

/// Plain text that a browser shall not take for anything else.
pub(super) fn text(status: StatusCode, body: String) -> Response<Body> {
    let mut response = Response::new(Body::from(body));
    *response.status_mut() = status;
    let headers = response.headers_mut();
    headers.insert(
        CONTENT_TYPE,
        HeaderValue::from_static("text/plain; charset=utf-8"),
    );
    headers.insert(X_CONTENT_TYPE_OPTIONS, HeaderValue::from_static("nosniff"));
    response
}

#[cfg(test)]
mod tests {
    use http_body_util::BodyExt as _;

    use super::*;

    async fn ask(path: &str, query: &str) -> Option<(u16, String)> {
        let red: ReadyCheck = Arc::new(|| Err("not yet".to_owned()));
        let health = Health::new(vec![("store".to_owned(), red)], Vec::new());
        let response = health.answer(path, &Query::parse(query))?;
        let status = response.status().as_u16();
        let body = response.into_body().collect().await.unwrap().to_bytes();
        Some((status, String::from_utf8(body.to_vec()).unwrap()))
    }

    #[test]
    fn a_replica_without_its_role_is_not_ready_and_answers() {
        let red = || -> ReadyCheck { Arc::new(|| Err("not yet".to_owned())) };
        let waiting = Health::new(vec![("store".to_owned(), red())], Vec::new());
        assert!(!waiting.can_serve());
        let standby = Health::new(Vec::new(), vec![("role".to_owned(), red())]);
        assert!(standby.can_serve());
        let readyz = standby.answer("/readyz", &Query::parse("")).unwrap();
        assert_eq!(readyz.status(), StatusCode::INTERNAL_SERVER_ERROR);
    }

    /// Texts of `handleRootHealth` and `adaptCheckToHandler`.
    #[tokio::test]
    async fn a_red_check_makes_readyz_red_and_leaves_the_process_alive() {
        for (path, query, expected) in [
            ("/healthz", "", Some((200, "ok"))),
            (
                "/livez",
                "verbose",
                Some((200, "[+]ping ok\nlivez check passed\n")),
            ),
            (
                "/readyz",
                "",
                Some((
                    500,
                    "[+]ping ok\n[-]store failed: reason withheld\nreadyz check failed\n",
                )),
            ),
            ("/readyz", "exclude=store", Some((200, "ok"))),
            (
                "/readyz",
                "verbose&exclude=store&exclude=x",
                Some((
                    200,
                    "[+]ping ok\n[+]store excluded: ok\nwarn: some health checks cannot be excluded: no matches for \"x\"\nreadyz check passed\n",
                )),
            ),
            ("/readyz/ping", "", Some((200, "ok"))),
            (
                "/readyz/store",
                "",
                Some((500, "internal server error: not yet\n")),
            ),
            ("/livez/store", "", None),
            ("/livez/", "", None),
            ("/health", "", None),
        ] {
            let expected = expected.map(|(status, body)| (status, body.to_owned()));
            assert_eq!(ask(path, query).await, expected, "{path}?{query}");
        }
    }
}
