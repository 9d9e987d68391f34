//! Whether an answer is what the target sends. Pure.

use std::net::IpAddr;

use aws_lc_rs::digest;
use crawl_api::conditions::{REASON_EXIT_IP_UNKNOWN, REASON_PROBE_SUCCEEDED};
use crawl_api::proxy::{Expectations, HealthCheck};
use data_encoding::HEXLOWER;
use http::StatusCode;
use regex::bytes::RegexBuilder;
use url::Url;

use super::exchange::Answer;
use super::{Known, Learnt, Question};
use crate::echo::answer::Answer as EchoAnswer;
use crate::health::config::Echo;
use crate::health::failure::Failure;
use crate::health::geo::Location;

/// Bytes of a compiled regular expression, a tenth of the library's default: every probe compiles it.
const MAX_REGEX: usize = 1024 * 1024;

/// Said of a healthy proxy whose exit nobody can tell.
const EXIT_UNKNOWN: &str = "the exit IP is unknown and nothing expected of it is checked: give the \
     operator an echo target with --echo-url";

/// Judges an answer.
pub(super) fn judge(
    question: &Question,
    known: &Known,
    check: &HealthCheck,
    url: &Url,
    answer: &Answer,
) -> Result<Learnt, Failure> {
    let Known { echo, geoip } = known;
    if answer.status == StatusCode::PROXY_AUTHENTICATION_REQUIRED {
        return Err(Failure::ProxyAuth);
    }
    // An assertion that is not made would be worse than none.
    let expect = check.expect.as_ref();
    if geoip.is_none() && expect.is_some_and(|expect| expect.country.is_some()) {
        return Err(Failure::InvalidCheck(
            "expect.country needs a GeoIP database, which this operator does not have: give it \
             one with --geoip-db"
                .into(),
        ));
    }
    match (question, echo) {
        (Question::Echo { nonce }, Some(echo)) => {
            let exit = judge_echo(nonce, echo, answer)?;
            let location = geoip.as_ref().map(|geoip| geoip.locate(exit));
            let location = location.unwrap_or_default();
            if let Some(expect) = expect {
                judge_exit(expect, exit, &location)?;
            }
            Ok(Learnt {
                exit_ip: Some(exit),
                location,
                reason: REASON_PROBE_SUCCEEDED,
                remark: format!("{}, and came out at {exit}", went_through(url)),
            })
        },
        (Question::Plain | Question::Echo { .. }, _) => {
            judge_plain(check, url, answer)?;
            let (reason, remark) = match echo {
                Some(_) => (REASON_PROBE_SUCCEEDED, went_through(url)),
                None => (
                    REASON_EXIT_IP_UNKNOWN,
                    format!("{}; {EXIT_UNKNOWN}", went_through(url)),
                ),
            };
            Ok(Learnt {
                exit_ip: None,
                location: Location::default(),
                reason,
                remark,
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

fn judge_exit(expect: &Expectations, seen: IpAddr, location: &Location) -> Result<(), Failure> {
    if let Some(expected) = &expect.country
        && location.country.as_ref() != Some(expected)
    {
        return Err(Failure::GeoMismatch {
            exit: seen,
            seen: location.country.clone(),
            expected: expected.clone(),
        });
    }
    let Some(expected) = &expect.exit_ip else {
        return Ok(());
    };
    let wanted: IpAddr = expected.parse().map_err(|_| {
        Failure::InvalidCheck(format!("expect.exitIP {expected:?} is no IP address"))
    })?;
    if wanted.to_canonical() == seen.to_canonical() {
        Ok(())
    } else {
        Err(Failure::WrongExitIp {
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
    match &check.expect {
        Some(expect) => judge_body(expect, answer),
        None => Ok(()),
    }
}

fn judge_body(expect: &Expectations, answer: &Answer) -> Result<(), Failure> {
    if let Some(expected) = &expect.body_sha256 {
        let seen = digest::digest(&digest::SHA256, &answer.body);
        if answer.truncated || HEXLOWER.encode(seen.as_ref()) != *expected {
            return Err(Failure::UnexpectedContent(
                "its body has another SHA-256 than expect.bodySHA256".into(),
            ));
        }
    }
    let Some(pattern) = &expect.body_regex else {
        return Ok(());
    };
    let regex = RegexBuilder::new(pattern).size_limit(MAX_REGEX).build();
    let regex = regex.map_err(|error| {
        Failure::InvalidCheck(if let regex::Error::CompiledTooBig(_) = error {
            format!(
                "expect.bodyRegex {pattern:?} is too large when compiled: repeat less, or narrower \
                 classes"
            )
        } else {
            format!("expect.bodyRegex {pattern:?} is no regular expression")
        })
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
            urls: vec![Url::parse("https://echo.test/").unwrap()],
            key: Key::new(b"a key of enough bytes").unwrap(),
        }
    }

    fn answer(status: u16, body: &str) -> Answer {
        Answer {
            status: StatusCode::from_u16(status).unwrap(),
            body: body.to_owned().into(),
            truncated: false,
        }
    }

    fn known(echo: Option<Echo>) -> Known {
        Known { echo, geoip: None }
    }

    /// Each probe compiles it, and whoever may create a Proxy writes it.
    #[test]
    fn an_expression_that_costs_too_much_is_refused_and_a_usual_one_is_not() {
        let told = |pattern: &str| {
            let expect = Expectations {
                body_regex: Some(pattern.into()),
                ..Expectations::default()
            };
            judge_body(&expect, &answer(200, "a price of 12.50 EUR"))
        };
        let refused = told(r"\pL{200}").unwrap_err();
        assert_eq!(refused.reason(), "InvalidHealthCheck");
        assert!(refused.to_string().contains("too large"), "{refused}");
        assert_eq!(told(r"(?i)PRICE of \d{1,4}\.\d{2} (EUR|USD)"), Ok(()));
        assert_eq!(told(r"\b\w{3,12} of\b"), Ok(()));
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
        let hashed = HealthCheck {
            expect: Some(Expectations {
                // What `printf hello | sha256sum` says.
                body_sha256: Some(
                    "2cf24dba5fb0a30e26e83b2ac5b9e29e1b161e5c1fa7425e73043362938b9824".into(),
                ),
                ..Expectations::default()
            }),
            ..HealthCheck::default()
        };
        let long = Answer {
            truncated: true,
            ..answer(200, "hello")
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
            (&hashed, "/", answer(200, "hello"), Ok(())),
            (
                &hashed,
                "/",
                answer(200, "hello<script>"),
                Err("UnexpectedContent"),
            ),
            (&hashed, "/", long, Err("UnexpectedContent")),
            (&broken, "/", answer(200, ""), Err("InvalidHealthCheck")),
            (&placed, "/", answer(200, ""), Err("InvalidHealthCheck")),
        ] {
            let url = Url::parse(&format!("http://target.test{path}")).unwrap();
            let judged = judge(&Question::Plain, &known(None), check, &url, &answer);
            let judged = judged.map(drop).map_err(|failure| failure.reason());
            assert_eq!(judged, wanted, "{path} {answer:?}");
        }
    }

    #[test]
    fn an_echo_answer_must_be_signed_for_this_very_request() {
        let echo = echo();
        let known = known(Some(echo.clone()));
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
                &known,
                &HealthCheck::default(),
                &echo.urls[0],
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
        let judge = |expect: &Expectations, location: &Location| {
            judge_exit(expect, seen, location).map_err(|failure| failure.reason())
        };
        let reason = |text: &str| judge(&expect(text), &Location::default());
        assert_eq!(reason("2001:0db8:0::0007"), Ok(()));
        assert_eq!(reason("2001:db8::8"), Err("WrongExitIP"));
        assert_eq!(reason("nowhere"), Err("InvalidHealthCheck"));
    }

    #[test]
    fn an_expected_country_must_be_known_to_be_right() {
        let seen: IpAddr = "192.0.2.7".parse().unwrap();
        let german = Expectations {
            country: Some("DE".into()),
            ..Expectations::default()
        };
        let reason = |country: Option<&str>| {
            let location = Location {
                country: country.map(str::to_owned),
                asn: None,
            };
            judge_exit(&german, seen, &location).map_err(|failure| failure.reason())
        };
        assert_eq!(reason(Some("DE")), Ok(()));
        assert_eq!(reason(Some("FR")), Err("GeoMismatch"));
        assert_eq!(reason(None), Err("GeoMismatch"));
    }

    #[test]
    fn without_an_echo_target_it_is_said_that_the_exit_is_unknown_and_its_assertions_are_skipped() {
        let check = HealthCheck {
            expect: Some(Expectations {
                exit_ip: Some("192.0.2.7".into()),
                ..Expectations::default()
            }),
            ..HealthCheck::default()
        };
        let url = Url::parse("http://target.test/").unwrap();
        let of = |known: &Known| {
            let judged = judge(&Question::Plain, known, &check, &url, &answer(200, ""));
            judged.map(|learnt| learnt.reason)
        };
        assert_eq!(of(&known(None)), Ok("ExitIPUnknown"));
        assert_eq!(of(&known(Some(echo()))), Ok("ProbeSucceeded"));
    }
}
