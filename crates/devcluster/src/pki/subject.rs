//! Puts a subject with several organisations into a certificate, and signs it anew.
//!
//! Kubernetes reads a user's groups from repeated `O` attributes. The certificate library keeps one value
//! per attribute, so the finished certificate is taken apart at its first level (RFC 5280, 4.1), the
//! subject replaced, and the result signed with the authority's key. Only P-256 with SHA-256 is handled:
//! it is what [`super::Authority`] uses.

use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use rcgen::{KeyPair, SigningKey as _};

use crate::error::{Error, Result};

const SEQUENCE: u8 = 0x30;
const SET: u8 = 0x31;
const UTF8_STRING: u8 = 0x0c;
const BIT_STRING: u8 = 0x03;
const ORGANIZATION: [u8; 5] = [0x06, 0x03, 0x55, 0x04, 0x0a];
const COMMON_NAME: [u8; 5] = [0x06, 0x03, 0x55, 0x04, 0x03];
/// Position of the subject among the fields of a v3 TBSCertificate.
const SUBJECT_FIELD: usize = 5;

/// The certificate `der` with common name `user` and one organisation per group, PEM.
pub(super) fn with_subject(
    der: &[u8],
    user: &str,
    groups: &[&str],
    authority: &KeyPair,
) -> Result<String> {
    let certificate = elements(content(der)?)?;
    let [tbs, algorithm, _signature] = certificate[..] else {
        return Err(Error::Encoding("a certificate has three parts"));
    };
    let mut fields = elements(content(tbs)?)?;
    let subject = subject(user, groups)?;
    *fields
        .get_mut(SUBJECT_FIELD)
        .ok_or(Error::Encoding("no subject"))? = &subject;
    let tbs = encode(SEQUENCE, &fields.concat())?;
    let mut signature = vec![0];
    signature.extend(authority.sign(&tbs)?);
    let signature = encode(BIT_STRING, &signature)?;
    Ok(pem(&encode(
        SEQUENCE,
        &[&tbs, algorithm, &signature].concat(),
    )?))
}

fn subject(user: &str, groups: &[&str]) -> Result<Vec<u8>> {
    let attribute = |kind: &[u8], value: &str| {
        let value = encode(UTF8_STRING, value.as_bytes())?;
        encode(SET, &encode(SEQUENCE, &[kind, &value].concat())?)
    };
    let mut names = Vec::new();
    for group in groups {
        names.extend(attribute(&ORGANIZATION, group)?);
    }
    names.extend(attribute(&COMMON_NAME, user)?);
    encode(SEQUENCE, &names)
}

fn encode(tag: u8, content: &[u8]) -> Result<Vec<u8>> {
    let length = u16::try_from(content.len()).map_err(|_| Error::Encoding("over 64 kB"))?;
    let [high, low] = length.to_be_bytes();
    let mut out = match length {
        0..0x80 => vec![tag, low],
        0x80..0x100 => vec![tag, 0x81, low],
        _ => vec![tag, 0x82, high, low],
    };
    out.extend_from_slice(content);
    Ok(out)
}

/// Splits the first element off `der`: (header length, whole length).
fn measure(der: &[u8]) -> Result<(usize, usize)> {
    let (header, content) = match *der {
        [_, length @ 0..=0x7f, ..] => (2, usize::from(length)),
        [_, 0x81, length, ..] => (3, usize::from(length)),
        [_, 0x82, high, low, ..] => (4, usize::from(u16::from_be_bytes([high, low]))),
        _ => return Err(Error::Encoding("unexpected length")),
    };
    if header + content > der.len() {
        return Err(Error::Encoding("truncated"));
    }
    Ok((header, header + content))
}

fn content(der: &[u8]) -> Result<&[u8]> {
    let (header, whole) = measure(der)?;
    Ok(&der[header..whole])
}

fn elements(mut der: &[u8]) -> Result<Vec<&[u8]>> {
    let mut found = Vec::new();
    while !der.is_empty() {
        let (element, rest) = der.split_at(measure(der)?.1);
        found.push(element);
        der = rest;
    }
    Ok(found)
}

fn pem(der: &[u8]) -> String {
    let text = STANDARD.encode(der);
    let mut out = String::from("-----BEGIN CERTIFICATE-----\n");
    for start in (0..text.len()).step_by(64) {
        out.push_str(&text[start..text.len().min(start + 64)]);
        out.push('\n');
    }
    out.push_str("-----END CERTIFICATE-----\n");
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lengths_are_written_in_the_shortest_form_and_read_back() {
        for length in [0, 1, 127, 128, 255, 256, 40_000] {
            let element = encode(SEQUENCE, &vec![7; length]).unwrap();
            assert_eq!(content(&element).unwrap().len(), length);
            assert_eq!(
                elements(&[&element[..], &element[..]].concat())
                    .unwrap()
                    .len(),
                2
            );
        }
    }
}
