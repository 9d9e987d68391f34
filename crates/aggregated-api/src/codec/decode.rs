//! JSON and YAML bodies into a `Value`, remembering duplicate keys.
//!
//! A `Value` is ten times the size of the text, so it lives only within a request.

use std::fmt;

use serde::de::{DeserializeSeed, Deserializer, Error as _, MapAccess, SeqAccess, Visitor};
use serde_json::{Map, Value};

use crate::http::status::ApiError;

/// Deepest nesting accepted in a body.
const MAX_DEPTH: usize = 128;

/// A decoded body.
#[derive(Debug)]
pub struct Decoded {
    /// The document; of duplicate keys the last one won.
    pub value: Value,
    /// Paths of keys that occurred more than once.
    pub duplicates: Vec<String>,
}

/// The format of a body.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Format {
    /// `application/json`, also when no type was given.
    Json,
    /// `application/yaml`.
    Yaml,
    /// [`protobuf`](super::protobuf), which only answers can be in.
    Protobuf,
}

/// Decodes a whole body.
///
/// # Errors
/// 400 with the parser's position when the text is not one well-formed document.
pub fn decode(body: &[u8], format: Format) -> Result<Decoded, ApiError> {
    let mut duplicates = Vec::new();
    let seed = Seed {
        path: String::new(),
        duplicates: &mut duplicates,
        depth: 0,
    };
    let value = match format {
        Format::Json => {
            let mut reader = serde_json::Deserializer::from_slice(body);
            let value = seed.deserialize(&mut reader).map_err(|e| malformed(&e))?;
            reader.end().map_err(|e| malformed(&e))?;
            value
        },
        Format::Yaml => {
            let text = std::str::from_utf8(body).map_err(|e| malformed(&e))?;
            serde_saphyr::from_str::<Value>(text).map_err(|e| malformed(&e))?
        },
        Format::Protobuf => return Err(malformed(&"no kind has a message")),
    };
    Ok(Decoded { value, duplicates })
}

fn malformed(error: &dyn fmt::Display) -> ApiError {
    ApiError::bad_request(format!("the object provided is unrecognized: {error}"))
}

struct Seed<'a> {
    path: String,
    duplicates: &'a mut Vec<String>,
    depth: usize,
}

impl<'de> DeserializeSeed<'de> for Seed<'_> {
    type Value = Value;

    fn deserialize<D: Deserializer<'de>>(self, deserializer: D) -> Result<Value, D::Error> {
        deserializer.deserialize_any(self)
    }
}

impl<'de> Visitor<'de> for Seed<'_> {
    type Value = Value;

    fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("a JSON value")
    }

    fn visit_bool<E>(self, v: bool) -> Result<Value, E> {
        Ok(Value::Bool(v))
    }

    fn visit_i64<E>(self, v: i64) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_u64<E>(self, v: u64) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_f64<E>(self, v: f64) -> Result<Value, E> {
        Ok(Value::from(v))
    }

    fn visit_str<E>(self, v: &str) -> Result<Value, E> {
        Ok(Value::String(v.to_owned()))
    }

    fn visit_string<E>(self, v: String) -> Result<Value, E> {
        Ok(Value::String(v))
    }

    fn visit_unit<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_none<E>(self) -> Result<Value, E> {
        Ok(Value::Null)
    }

    fn visit_seq<A: SeqAccess<'de>>(self, mut seq: A) -> Result<Value, A::Error> {
        if self.depth >= MAX_DEPTH {
            return Err(A::Error::custom(format!(
                "nested deeper than {MAX_DEPTH} levels"
            )));
        }
        let mut items = Vec::new();
        loop {
            let seed = Seed {
                path: format!("{}[{}]", self.path, items.len()),
                duplicates: &mut *self.duplicates,
                depth: self.depth + 1,
            };
            match seq.next_element_seed(seed)? {
                Some(item) => items.push(item),
                None => return Ok(Value::Array(items)),
            }
        }
    }

    fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Value, A::Error> {
        if self.depth >= MAX_DEPTH {
            return Err(A::Error::custom(format!(
                "nested deeper than {MAX_DEPTH} levels"
            )));
        }
        let mut object = Map::new();
        while let Some(key) = map.next_key::<String>()? {
            let path = if self.path.is_empty() {
                key.clone()
            } else {
                format!("{}.{key}", self.path)
            };
            if object.contains_key(&key) && !self.duplicates.contains(&path) {
                self.duplicates.push(path.clone());
            }
            let seed = Seed {
                path,
                duplicates: &mut *self.duplicates,
                depth: self.depth + 1,
            };
            let value = map.next_value_seed(seed)?;
            object.insert(key, value);
        }
        Ok(Value::Object(object))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_duplicate_keys_wins_and_its_path_is_reported() {
        let decoded = decode(
            br#"{"spec":{"a":1,"b":[{"c":1,"c":2}],"a":2}}"#,
            Format::Json,
        )
        .unwrap();
        assert_eq!(decoded.value["spec"]["a"], 2);
        assert_eq!(decoded.duplicates, ["spec.b[0].c", "spec.a"]);
    }

    #[test]
    fn bytes_after_the_document_are_refused() {
        assert!(decode(b"{} {}", Format::Json).is_err());
        assert!(decode(b"", Format::Json).is_err());
    }

    #[test]
    fn nesting_beyond_the_limit_is_refused() {
        let deep = "[".repeat(200) + &"]".repeat(200);
        assert!(decode(deep.as_bytes(), Format::Json).is_err());
    }

    #[test]
    fn yaml_reads_as_the_same_value() {
        let decoded = decode(b"spec:\n  a: 1\n  b: [x]\n", Format::Yaml).unwrap();
        assert_eq!(
            decoded.value,
            serde_json::json!({"spec": {"a": 1, "b": ["x"]}})
        );
    }
}
