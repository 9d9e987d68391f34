//! GeoIP files: what they say, and that they may be replaced.

use super::*;

#[path = "../../tests/support/maxmind.rs"]
mod maxmind;

use self::maxmind::{Value, database, in_country};

/// 192.0.2.0/24.
const NETWORK: ([u8; 4], u32) = ([192, 0, 2, 0], 24);

#[test]
fn the_country_and_the_network_come_from_the_files_that_know_them() {
    let directory = tempfile::tempdir().unwrap();
    let country = in_country(NETWORK, "DE");
    let network = database(
        "GeoLite2-ASN",
        NETWORK,
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

#[tokio::test]
async fn a_file_that_is_replaced_is_taken_over_and_a_broken_one_is_not() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("country.mmdb");
    std::fs::write(&file, in_country(NETWORK, "DE")).unwrap();
    let geoip = GeoIp::open(std::slice::from_ref(&file)).unwrap().unwrap();
    let country = || geoip.locate("192.0.2.7".parse().unwrap()).country;

    // As geoipupdate and mounted volumes replace files: another one takes the name.
    let replace = |content: &[u8]| {
        let next = directory.path().join("next");
        std::fs::write(&next, content).unwrap();
        std::fs::rename(&next, &file).unwrap();
    };
    replace(&in_country(NETWORK, "FR"));
    geoip.reload().await;
    assert_eq!(country().as_deref(), Some("FR"));

    let whole = in_country(NETWORK, "AT");
    for broken in [b"not a database".as_slice(), &whole[..whole.len() / 2]] {
        replace(broken);
        geoip.reload().await;
        assert_eq!(country().as_deref(), Some("FR"));
    }
    std::fs::remove_file(&file).unwrap();
    geoip.reload().await;
    assert_eq!(country().as_deref(), Some("FR"));

    std::fs::write(&file, &whole).unwrap();
    geoip.reload().await;
    assert_eq!(country().as_deref(), Some("AT"));
}

/// Every byte of it may be another: what is taken over answers, and nothing panics.
#[tokio::test]
async fn a_file_with_a_damaged_middle_is_not_taken_over() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("country.mmdb");
    let whole = in_country(NETWORK, "DE");
    std::fs::write(&file, &whole).unwrap();
    let geoip = GeoIp::open(std::slice::from_ref(&file)).unwrap().unwrap();
    let known = || geoip.locate("192.0.2.7".parse().unwrap());
    let data = 24 * 6 + 16;
    for (from, to) in [(data, data + 1), (data + 9, data + 10), (6, 60)] {
        let mut damaged = whole.clone();
        damaged[from..to].fill(0xff);
        std::fs::remove_file(&file).unwrap();
        std::fs::write(&file, &damaged).unwrap();
        geoip.reload().await;
        assert_eq!(known().country.as_deref(), Some("DE"), "{from}..{to}");
        assert!(GeoIp::open(std::slice::from_ref(&file)).is_err());
    }
    for at in 0..whole.len() {
        for byte in [0, 0x7f, 0xff] {
            let mut damaged = whole.clone();
            damaged[at] = byte;
            if let Ok(reader) = parse(&file, damaged) {
                for ip in ["192.0.2.7", "0.0.0.0", "255.255.255.255"] {
                    assert!(locate(&reader, ip.parse().unwrap()).is_ok(), "{at} {byte}");
                }
            }
        }
    }
}

/// A country is compared with `expect.country` and becomes the value of a label.
#[test]
fn a_country_that_is_no_code_is_none() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("country.mmdb");
    for country in ["Germany", "de", "\u{1b}[", ""] {
        std::fs::write(&file, in_country(NETWORK, country)).unwrap();
        let geoip = GeoIp::open(std::slice::from_ref(&file)).unwrap().unwrap();
        let known = geoip.locate("192.0.2.7".parse().unwrap());
        assert_eq!(known, Location::default(), "{country:?}");
    }
}

#[tokio::test]
async fn what_is_no_file_or_far_too_large_is_not_read() {
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("country.mmdb");
    std::fs::write(&file, in_country(NETWORK, "DE")).unwrap();
    let geoip = GeoIp::open(std::slice::from_ref(&file)).unwrap().unwrap();
    std::fs::File::create(&file)
        .unwrap()
        .set_len(1 << 40)
        .unwrap();
    geoip.reload().await;
    let country = geoip.locate("192.0.2.7".parse().unwrap()).country;
    assert_eq!(country.as_deref(), Some("DE"));
    for file in [file.as_path(), directory.path(), Path::new("/dev/zero")] {
        let error = GeoIp::open(&[file.to_owned()]).unwrap_err().to_string();
        assert!(error.contains("cannot be read"), "{error}");
    }
}

#[test]
fn no_files_are_no_database_and_a_wrong_one_is_named() {
    assert!(GeoIp::open(&[]).unwrap().is_none());
    let directory = tempfile::tempdir().unwrap();
    let file = directory.path().join("not.mmdb");
    std::fs::write(&file, "not a database").unwrap();
    for (file, says) in [
        (file, "not.mmdb is no database"),
        (directory.path().join("none"), "none cannot be read"),
    ] {
        let error = GeoIp::open(&[file]).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}
