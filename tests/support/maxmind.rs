//! The few parts of the MaxMind DB format 2.0 that a test needs to make a database.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

/// A value of a database.
pub(crate) enum Value<'a> {
    Text(&'a str),
    Short(u16),
    Number(u32),
    Long(u64),
    Map(&'a [(&'a str, Self)]),
    Texts(&'a [&'a str]),
}

fn control(kind: u8, size: usize, out: &mut Vec<u8>) {
    let size = u8::try_from(size).unwrap();
    assert!(size < 29);
    if kind < 8 {
        out.push(kind << 5 | size);
    } else {
        out.extend([size, kind - 7]);
    }
}

fn encode(value: &Value<'_>, out: &mut Vec<u8>) {
    match value {
        Value::Text(text) => {
            control(2, text.len(), out);
            out.extend(text.as_bytes());
        },
        Value::Short(number) => {
            control(5, 2, out);
            out.extend(number.to_be_bytes());
        },
        Value::Long(number) => {
            control(9, 8, out);
            out.extend(number.to_be_bytes());
        },
        Value::Number(number) => {
            control(6, 4, out);
            out.extend(number.to_be_bytes());
        },
        Value::Map(pairs) => {
            control(7, pairs.len(), out);
            for (key, value) in *pairs {
                encode(&Value::Text(key), out);
                encode(value, out);
            }
        },
        Value::Texts(texts) => {
            control(11, texts.len(), out);
            for text in *texts {
                encode(&Value::Text(text), out);
            }
        },
    }
}

/// An IPv4 database of this kind that knows one network: the first `nodes` bits of an address.
pub(crate) fn database(
    kind: &str,
    (network, nodes): ([u8; 4], u32),
    record: &Value<'_>,
) -> Vec<u8> {
    let bits = u32::from_be_bytes(network);
    let mut out = Vec::new();
    for depth in 0..nodes {
        let next = if depth + 1 == nodes {
            nodes + 16 // the first record of the data
        } else {
            depth + 1
        };
        let set = bits >> (31 - depth) & 1 == 1;
        let pair = if set { [nodes, next] } else { [next, nodes] };
        for record in pair {
            out.extend(&record.to_be_bytes()[1..]);
        }
    }
    out.extend([0; 16]);
    encode(record, &mut out);
    out.extend(b"\xab\xcd\xefMaxMind.com");
    let metadata = Value::Map(&[
        ("binary_format_major_version", Value::Short(2)),
        ("binary_format_minor_version", Value::Short(0)),
        ("build_epoch", Value::Long(1_700_000_000)),
        ("database_type", Value::Text(kind)),
        ("description", Value::Map(&[])),
        ("ip_version", Value::Short(4)),
        ("languages", Value::Texts(&["en"])),
        ("node_count", Value::Number(nodes)),
        ("record_size", Value::Short(24)),
    ]);
    encode(&metadata, &mut out);
    out
}

/// A database in which a network is in a country.
pub(crate) fn in_country(network: ([u8; 4], u32), country: &str) -> Vec<u8> {
    let code = [("iso_code", Value::Text(country))];
    let record = Value::Map(&[("country", Value::Map(&code))]);
    database("GeoLite2-Country", network, &record)
}
