//! Whether an answer is what the target sends. Pure.

use std::net::IpAddr;

use crawl_api::proxy::{Expectations, HealthCheck};
use http::StatusCode;
use regex::bytes::Regex;
use url::Url;

use super::exchange::Answer;
use super::{Learnt, Question};
use crate::echo::answer::Answer as EchoAnswer;
use crate::health::config::Echo;
use crate::health::failure::Failure;

/// Said of a healthy proxy whose exit nobody can tell.
const EXIT_UNKNOWN: &str = "the exit IP is unknown, since this target does not tell it: \
     the operator's --echo-url does";

/// Judges an answer.
pub(super) fn judge(
    question: &Question,
    echo: Option<&Echo>,
    check: &HealthCheck,
    url: &Url,
    answer: &Answer,
) -> Result<Learnt, Failure> {
    if answer.status == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
        return Err(Failure::ProxyAuth);
    }
    // An assertion that is not made would be worse than none.
    if check
        .expect
        .as_ref()
        .is_some_and(|expect| expect.country.is_some())
    {
        return Err(Failure::InvalidCheck(
            "expect.country needs a GeoIP database, which this operator does not have; remove it, \
             or use expect.exitIP"
                .into(),
        ));
    }
    match (question, echo) {
        (Question::Echo { nonce }, Some(echo)) => {
            let exit = judge_echo(nonce, echo, answer)?;
            judge_exit(check.expect.as_ref(), exit)?;
            Ok(Learnt {
                exit_ip: Some(exit),
                remark: format!("{}, and came out at {exit}", went_through(url)),
            })
        },
        (Question::Plain | Question::Echo { .. }, _) => {
            judge_plain(check, url, answer)?;
            Ok(Learnt {
                exit_ip: None,
                remark: if echo.is_some() {
                    went_through(url)
                } else {
                    format!("{}; {EXIT_UNKNOWN}", went_through(url))
                },
            })
        },
    }
}

/// Said of a healthy proxy. Why the URL: with an echo target it is not the one in the spec.
fn went_through(url: &Url) -> String {
    format!("a probe of {url} went through")
}

fn judge_echo(nonce: &str, echo: &Echo, answer: &Answer) -> Result<IpAddr, Failure> {
    if answer.status != StatusCode::OK {
        return Err(Failure::UnexpectedStatus(answer.status.as_u16()));
    }
    let parsed: EchoAnswer = serde_json::from_slice(&answer.body)
        .map_err(|_| Failure::UnexpectedContent("it is not the echo target's".into()))?;
    parsed
        .verify(&echo.key, nonce)
        .map_err(|forged| Failure::UnexpectedContent(forged.to_string()))
}

fn judge_exit(expect: Option<&Expectations>, seen: IpAddr) -> Result<(), Failure> {
    let Some(expected) = expect.and_then(|expect| expect.exit_ip.as_ref()) else {
        return Ok(());
    };
    let wanted: IpAddr = expected.parse().map_err(|_| {
        Failure::InvalidCheck(format!("expect.exitIP {expected:?} is no IP address"))
    })?;
    if wanted.to_canonical() == seen.to_canonical() {
        Ok(())
    } else {
        Err(Failure::UnexpectedExitIp {
            seen,
            expected: expected.clone(),
        })
    }
}

fn judge_plain(check: &HealthCheck, url: &Url, answer: &Answer) -> Result<(), Failure> {
    let status = answer.status.as_u16();
    if !check.expected_status_codes.contains(&status) {
        return Err(Failure::UnexpectedStatus(status));
    }
    if url.path().ends_with("/generate_204") && !answer.body.is_empty() {
        return Err(Failure::UnexpectedContent(
            "a page where there should be nothing, as a captive portal sends".into(),
        ));
    }
    let Some(pattern) = check.expect.as_ref().and_then(|e| e.body_regex.as_ref()) else {
        return Ok(());
    };
    let regex = Regex::new(pattern).map_err(|_| {
        Failure::InvalidCheck(format!(
            "expect.bodyRegex {pattern:?} is no regular expression"
        ))
    })?;
    if regex.is_match(&answer.body) {
        Ok(())
    } else {
        Err(Failure::UnexpectedContent(
            "its body does not match expect.bodyRegex".into(),
        ))
    }
}

#[cfg(test)]
mod tests {
    use jiff::Timestamp;

    use super::*;
    use crate::echo::answer::Key;

    const NONCE: &str = "0123456789abcdef";

    fn echo() -> Echo {
        Echo {
            url: Url::parse("https://echo.test/").unwrap(),
            key: Key::new(b"a key of enough bytes").unwrap(),
        }
    }

    fn answer(status: u16, body: &str) -> Answer {
        Answer {
            status: StatusCode::from_u16(status).unwrap(),
            body: body.to_owned().into(),
        }
    }

    #[test]
    fn status_and_content_decide_about_plain_targets() {
        let default = HealthCheck::default();
        let matching = HealthCheck {
            expect: Some(Expectations {
                body_regex: Some("(?i)price: [0-9]+".into()),
                ..Expectations::default()
            }),
            ..HealthCheck::default()
        };
        let broken = HealthCheck {
            expect: Some(Expectations {
                body_regex: Some("(".into()),
                ..Expectations::default()
            }),
            ..HealthCheck::default()
        };
        let placed = HealthCheck {
            expect: Some(Expectations {
                country: Some("DE".into()),
                ..Expectations::default()
            }),
            ..HealthCheck::default()
        };
        for (check, path, answer, wanted) in [
            (&default, "/", answer(200, "hello"), Ok(())),
            (&default, "/generate_204", answer(204, ""), Ok(())),
            (&default, "/generate_204", answer(200, ""), Ok(())),
            (
                &default,
                "/generate_204",
                answer(200, "<html>"),
                Err("UnexpectedContent"),
            ),
            (&default, "/", answer(302, ""), Err("UnexpectedStatus")),
            (&default, "/", answer(503, ""), Err("UnexpectedStatus")),
            (&default, "/", answer(407, ""), Err("ProxyAuthFailed")),
            (&matching, "/", answer(200, "Price: 12"), Ok(())),
            (
                &matching,
                "/",
                answer(200, "account unpaid"),
                Err("UnexpectedContent"),
            ),
            (&broken, "/", answer(200, ""), Err("InvalidHealthCheck")),
            (&placed, "/", answer(200, ""), Err("InvalidHealthCheck")),
        ] {
            let url = Url::parse(&format!("http://target.test{path}")).unwrap();
            let judged = judge(&Question::Plain, None, check, &url, &answer);
            let judged = judged.map(drop).map_err(|failure| failure.reason());
            assert_eq!(judged, wanted, "{path} {answer:?}");
        }
    }

    #[test]
    fn an_echo_answer_must_be_signed_for_this_very_request() {
        let echo = echo();
        let question = Question::Echo {
            nonce: NONCE.into(),
        };
        let seen: IpAddr = "192.0.2.7".parse().unwrap();
        let sign = |key: &Key, nonce: &str| {
            let signed = EchoAnswer::sign(key, nonce.into(), seen, Timestamp::UNIX_EPOCH);
            answer(200, &serde_json::to_string(&signed).unwrap())
        };
        let ask = |answer: &Answer| {
            judge(
                &question,
                Some(&echo),
                &HealthCheck::default(),
                &echo.url,
                answer,
            )
            .map(|learnt| learnt.exit_ip)
            .map_err(|failure| failure.reason())
        };
        assert_eq!(ask(&sign(&echo.key, NONCE)), Ok(Some(seen)));
        assert_eq!(
            ask(&sign(&echo.key, "fedcba9876543210")),
            Err("UnexpectedContent")
        );
        let other = Key::new(b"another key of enough bytes").unwrap();
        assert_eq!(ask(&sign(&other, NONCE)), Err("UnexpectedContent"));
        assert_eq!(ask(&answer(200, "<html>")), Err("UnexpectedContent"));
        assert_eq!(ask(&answer(204, "")), Err("UnexpectedStatus"));
    }

    #[test]
    fn an_expected_exit_is_compared_as_an_address() {
        let seen: IpAddr = "2001:db8::7".parse().unwrap();
        let expect = |text: &str| Expectations {
            exit_ip: Some(text.into()),
            ..Expectations::default()
        };
        let reason = |text: &str| judge_exit(Some(&expect(text)), seen).map_err(|f| f.reason());
        assert_eq!(reason("2001:0db8:0::0007"), Ok(()));
        assert_eq!(reason("2001:db8::8"), Err("UnexpectedExitIP"));
        assert_eq!(reason("nowhere"), Err("InvalidHealthCheck"));
        assert_eq!(judge_exit(None, seen), Ok(()));
    }
}
