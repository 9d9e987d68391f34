//! What is put into a cloud-init arrives at the server as it is in the Secret, whatever it is.

use std::process::Command;

use proptest::prelude::*;
use serde::Deserialize;

use super::*;

fn credentials(username: &str, password: &str) -> Credentials {
    Credentials {
        username: username.into(),
        password: password.into(),
    }
}

fn rendered(template: &str, credentials: &Credentials) -> Result<String, Refusal> {
    let values = Values {
        port: 8128,
        credentials: Some(credentials),
        allowed_cidrs: &[],
    };
    render(template, &values)
}

fn template(name: &str) -> String {
    let path = format!(
        "{}/config/cloud-init/{name}.yaml",
        env!("CARGO_MANIFEST_DIR")
    );
    std::fs::read_to_string(path).unwrap()
}

/// What a template's YAML says, as cloud-init reads it.
#[derive(Deserialize)]
struct CloudConfig {
    write_files: Vec<File>,
}

#[derive(Deserialize)]
struct File {
    content: String,
}

fn script(text: &str) -> String {
    let config: CloudConfig = serde_saphyr::from_str(text).unwrap();
    config.write_files.into_iter().next().unwrap().content
}

/// Templates that ask clients for credentials.
const TEMPLATES: [&str; 4] = ["squid", "tinyproxy", "dante", "gost"];
/// The one that knows clients by their networks.
const ALLOWLIST: &str = "squid-allowlist";

#[test]
fn every_placeholder_is_known_and_every_template_asks_for_credentials() {
    for name in TEMPLATES {
        let text = template(name);
        let done = rendered(&text, &credentials("user", "secret")).unwrap();
        assert!(!done.contains("{{"), "{name}");
        assert!(script(&done).contains("8128"), "{name}");
        let nobody = Values {
            port: 1,
            credentials: None,
            allowed_cidrs: &[],
        };
        let refused = render(&text, &nobody).unwrap_err();
        assert!(matches!(refused, Refusal::NoCredentials(_)), "{name}");
        assert!(
            refused.to_string().contains("set auth.generate"),
            "{refused}"
        );
    }
    let shipped = std::fs::read_dir(concat!(env!("CARGO_MANIFEST_DIR"), "/config/cloud-init"));
    assert_eq!(shipped.unwrap().count(), TEMPLATES.len() + 1);
}

/// Case 20: clients that cannot give credentials are known by their networks, and a template that
/// asks for nothing else is never rendered for everybody.
#[test]
fn without_a_password_there_are_no_clients_but_those_of_named_networks() {
    let text = template(ALLOWLIST);
    let secret = credentials("user", "secret");
    let render = |credentials, networks: &[&str]| {
        let networks: Vec<_> = networks.iter().map(ToString::to_string).collect();
        let values = Values {
            port: 8128,
            credentials,
            allowed_cidrs: &networks,
        };
        render(&text, &values)
    };
    // Credentials change nothing: this server does not ask for them.
    for credentials in [None, Some(&secret)] {
        for (networks, says) in [
            ([].as_slice(), "allowedCIDRs is empty"),
            (
                ["198.51.100.0/24", "0.0.0.0/0"].as_slice(),
                "the whole Internet",
            ),
            (["::/0"].as_slice(), "the whole Internet"),
        ] {
            let refused = render(credentials, networks).unwrap_err().to_string();
            assert!(refused.contains(says), "{refused}");
        }
        let done = render(credentials, &["198.51.100.0/24", "2001:db8::/32"]).unwrap();
        assert!(script(&done).contains("acl clients src 198.51.100.0/24 2001:db8::/32\n"));
        assert!(!done.contains("{{"));
    }
}

#[test]
fn what_cannot_be_delivered_is_refused_with_the_reason() {
    let base64 = "{{proxy.usernameBase64}} {{proxy.passwordBase64}}";
    for (username, password, says) in [
        ("", "p", "username in the Secret of auth is empty"),
        ("u", "", "password in the Secret of auth is empty"),
        ("u", "p\n", "control characters (a line break at its end"),
        ("u", "p\0q", "control characters"),
        (
            "u\r",
            "p",
            "username in the Secret of auth has control characters",
        ),
        ("u:v", "p", "colon"),
    ] {
        let refused = rendered(base64, &credentials(username, password)).unwrap_err();
        assert!(refused.to_string().contains(says), "{refused}");
    }
    let plain = "{{proxy.usernamePlain}} {{proxy.passwordPlain}}";
    for (username, password, says) in [
        ("u v", "hunter2", "needs a username of letters"),
        ("-u", "hunter2", "needs a username of letters"),
        ("u", "hunter;2", "needs a password of letters"),
        ("u", "-hunter2", "needs a password of letters"),
        ("u", "hünter2", "needs a password of letters"),
    ] {
        let refused = rendered(plain, &credentials(username, password)).unwrap_err();
        assert!(refused.to_string().contains(says), "{refused}");
        assert!(!refused.to_string().contains(password), "no secret is told");
    }
    assert_eq!(
        rendered(plain, &credentials("u._-9", "P._-9")).unwrap(),
        "u._-9 P._-9"
    );
}

#[test]
fn a_placeholder_that_does_not_exist_is_refused_and_others_texts_are_left_alone() {
    let any = credentials("u", "p");
    let refused = rendered("a {{proxy.pass}}", &any).unwrap_err().to_string();
    assert!(refused.contains("{{proxy.pass}}"), "{refused}");
    assert!(refused.contains("passwordBase64"), "{refused}");
    assert_eq!(rendered("{{proxy.port", &any), Err(Refusal::Unclosed));
    assert_eq!(rendered("{{proxy.port\n}}", &any), Err(Refusal::Unclosed));
    let jinja = "{{ v1.instance_id }} ${x} {{session}} $(y)";
    assert_eq!(rendered(jinja, &any).unwrap(), jinja);
}

#[test]
fn networks_stand_as_a_list_of_words() {
    let networks = ["198.51.100.0/24".to_owned(), "2001:db8::/32".to_owned()];
    let any = credentials("u", "p");
    let values = |allowed_cidrs| Values {
        port: 1,
        credentials: Some(&any),
        allowed_cidrs,
    };
    let text = "{{proxy.allowedCIDRs}} {{proxy.passwordPlain}}";
    let some = render(text, &values(&networks)).unwrap();
    assert_eq!(some, "198.51.100.0/24 2001:db8::/32 p");
    assert_eq!(render(text, &values(&[])).unwrap(), "0.0.0.0/0 ::/0 p");
}

/// Everything but control characters; the ones that some layer interprets come often.
fn password() -> impl Strategy<Value = String> {
    let evil = proptest::sample::select(vec![
        '\'', '"', '$', '`', '\\', ';', '%', '{', '}', '#', ' ', '@', ':', '\u{e9}',
    ]);
    let any = any::<char>().prop_filter("no control characters", |c| !c.is_control());
    proptest::collection::vec(prop_oneof![evil, any], 1..24)
        .prop_map(|chars| chars.into_iter().collect())
}

/// What a shell that reads `script` makes of the line of the template with `command`, ended by a
/// decoder in place of the server's own program.
fn through_shell(script: &str) -> Vec<u8> {
    let line = script
        .lines()
        .find(|line| line.starts_with("hash="))
        .unwrap();
    let decoded = line.replace("| openssl passwd -6 -stdin)", "| od -An -v -tx1)");
    let output = Command::new("sh")
        .args(["-euc", &format!("{decoded}\nprintf %s \"$hash\"")])
        .output()
        .unwrap();
    assert!(output.status.success());
    let hex: String = String::from_utf8(output.stdout)
        .unwrap()
        .split_whitespace()
        .collect();
    data_encoding::HEXLOWER.decode(hex.as_bytes()).unwrap()
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Case 19.
    #[test]
    fn any_password_survives_yaml_and_shell(password in password()) {
        let credentials = credentials("user", &password);
        for name in ["squid", "dante"] {
            let text = rendered(&template(name), &credentials).unwrap();
            prop_assert_eq!(through_shell(&script(&text)), password.as_bytes());
        }
    }

    #[test]
    fn any_credentials_survive_yaml_and_python(password in password(), username in password()) {
        prop_assume!(!username.contains(':'));
        let text = rendered(&template("gost"), &credentials(&username, &password)).unwrap();
        let folder = tempfile::tempdir().unwrap();
        let etc = folder.path().to_str().unwrap();
        let script = script(&text).replace("/etc/gost", etc);
        let status = Command::new("python3").args(["-c", &script]).status().unwrap();
        prop_assert!(status.success());
        let config = std::fs::read(folder.path().join("gost.json")).unwrap();
        let config: serde_json::Value = serde_json::from_slice(&config).unwrap();
        let auth = &config["services"][0]["handler"]["auth"];
        prop_assert_eq!(auth["username"].as_str(), Some(username.as_str()));
        prop_assert_eq!(auth["password"].as_str(), Some(password.as_str()));
    }

    #[test]
    fn nothing_else_than_base64_or_plain_words_is_ever_put_in(password in password()) {
        let text = rendered("{{proxy.passwordBase64}}", &credentials("u", &password)).unwrap();
        prop_assert!(text.bytes().all(|b| b.is_ascii_alphanumeric() || b"+/=".contains(&b)));
    }
}

/// Case 20: never an open proxy by default. The mock's machines are on loopback only.
#[test]
fn no_sample_makes_an_open_proxy() {
    let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/config/samples");
    let mut managed = Vec::new();
    for file in std::fs::read_dir(folder).unwrap() {
        let path = file.unwrap().path();
        let text = std::fs::read_to_string(&path).unwrap();
        let object: serde_json::Value = serde_saphyr::from_str(&text).unwrap();
        let spec = match object["kind"].as_str() {
            Some("Proxy") => &object["spec"],
            Some("ProxyPool") => &object["spec"]["template"]["spec"],
            _ => continue,
        };
        let spec: crawl_api::proxy::ProxySpec = serde_json::from_value(spec.clone()).unwrap();
        if spec.provider.as_deref().is_none_or(|name| name == "local") {
            continue;
        }
        let sample = path.display();
        let auth = spec.auth.unwrap_or_else(|| panic!("{sample} has no auth"));
        let source = spec.cloud_init.and_then(|source| source.secret_ref);
        let source = source.unwrap_or_else(|| panic!("{sample} has no cloudInit"));
        if source.name == ALLOWLIST {
            assert!(check_closed(&auth.allowed_cidrs).is_ok(), "{sample}");
        } else {
            let asks = TEMPLATES.contains(&source.name.as_str());
            let has = auth.generate || auth.secret_ref.is_some();
            assert!(asks && has, "{sample}");
        }
        managed.push(source.name);
    }
    managed.sort();
    assert_eq!(managed, ["dante", "squid", ALLOWLIST]);
}
