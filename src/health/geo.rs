//! Where an exit is, from local files in MaxMind's format (`--geoip-db`).

use std::net::IpAddr;
use std::path::PathBuf;

use maxminddb::{MaxMindDbError, Reader, path};

/// Where an address is, as far as known.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Location {
    /// ISO 3166 code of the country.
    pub country: Option<String>,
    /// Number of the autonomous system.
    pub asn: Option<i64>,
}

/// The files that were given. What several of them know, the first one says.
#[derive(Debug)]
pub(super) struct GeoIp {
    readers: Vec<Reader<Vec<u8>>>,
}

impl GeoIp {
    /// Reads the files; none when there are none.
    pub(super) fn open(files: &[PathBuf]) -> Result<Option<Self>, (PathBuf, MaxMindDbError)> {
        let mut readers = Vec::new();
        for file in files {
            let reader = Reader::open_readfile(file).map_err(|error| (file.clone(), error))?;
            readers.push(reader);
        }
        Ok((!readers.is_empty()).then_some(Self { readers }))
    }

    /// What the files know of an address.
    pub(super) fn locate(&self, ip: IpAddr) -> Location {
        let mut location = Location::default();
        for reader in &self.readers {
            match locate(reader, ip) {
                Ok(Location { country, asn }) => {
                    location.country = location.country.or(country);
                    location.asn = location.asn.or(asn);
                },
                Err(error) => tracing::debug!(%ip, %error, "a GeoIP file does not answer"),
            }
        }
        location
    }
}

fn locate(reader: &Reader<Vec<u8>>, ip: IpAddr) -> Result<Location, MaxMindDbError> {
    let found = reader.lookup(ip.to_canonical())?;
    if !found.has_data() {
        return Ok(Location::default());
    }
    let asn: Option<u32> = found.decode_path(&path!["autonomous_system_number"])?;
    Ok(Location {
        country: found.decode_path(&path!["country", "iso_code"])?,
        asn: asn.map(i64::from),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The few parts of the MaxMind DB format 2.0 that a test needs.
    mod format {
        pub(super) enum Value<'a> {
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

        pub(super) fn encode(value: &Value<'_>, out: &mut Vec<u8>) {
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

        /// An IPv4 database that knows one network, 192.0.2.0/24.
        pub(super) fn database(kind: &str, record: &Value<'_>) -> Vec<u8> {
            let bits = u32::from_be_bytes([192, 0, 2, 0]);
            let nodes = 24_u32;
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
    }
    use self::format::Value;

    #[test]
    fn the_country_and_the_network_come_from_the_files_that_know_them() {
        let directory = tempfile::tempdir().unwrap();
        let country = format::database(
            "GeoLite2-Country",
            &Value::Map(&[("country", Value::Map(&[("iso_code", Value::Text("DE"))]))]),
        );
        let network = format::database(
            "GeoLite2-ASN",
            &Value::Map(&[("autonomous_system_number", Value::Number(64_500))]),
        );
        let files = [("country", country), ("asn", network)].map(|(name, bytes)| {
            let file = directory.path().join(name);
            std::fs::write(&file, bytes).unwrap();
            file
        });
        let geoip = GeoIp::open(&files).unwrap().unwrap();
        let known = Location {
            country: Some("DE".into()),
            asn: Some(64_500),
        };
        assert_eq!(geoip.locate("192.0.2.7".parse().unwrap()), known);
        assert_eq!(geoip.locate("::ffff:192.0.2.7".parse().unwrap()), known);
        for unknown in ["192.0.3.7", "2001:db8::7"] {
            assert_eq!(geoip.locate(unknown.parse().unwrap()), Location::default());
        }
    }

    #[test]
    fn no_files_are_no_database_and_a_wrong_one_is_named() {
        assert!(GeoIp::open(&[]).unwrap().is_none());
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("not.mmdb");
        std::fs::write(&file, "not a database").unwrap();
        assert_eq!(
            GeoIp::open(std::slice::from_ref(&file)).unwrap_err().0,
            file
        );
    }
}
