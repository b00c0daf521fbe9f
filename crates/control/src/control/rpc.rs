//! JSON-RPC 2.0: the documents and the error codes.
//!
//! A refusal of a verb has the code `-errno` and carries its kind and device in `data`, so that a
//! client prints the same line and exits with the same code as an offline verb.

use cairn_block::{ConfigError, ConfigKind};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// Longest line either side reads.
pub const LINE_BYTES_MAX: u64 = 1 << 20;

/// A request line.
#[derive(Debug, Serialize, Deserialize)]
pub struct Request {
    /// Always "2.0".
    pub jsonrpc: String,
    /// Comes back in the response.
    #[serde(default)]
    pub id: Value,
    /// Which method.
    pub method: String,
    /// Its parameters, by name.
    #[serde(default)]
    pub params: Value,
}

/// A response line.
#[derive(Debug, Serialize, Deserialize)]
pub struct Response {
    /// Always "2.0".
    pub jsonrpc: String,
    /// The request's.
    pub id: Value,
    /// The answer, if it went well.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub result: Option<Value>,
    /// The refusal, if not.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RpcError>,
}

impl Response {
    /// The response to request `id`.
    pub fn new(id: Value, answer: Result<Value, RpcError>) -> Response {
        let (result, error) = match answer {
            Ok(result) => (Some(result), None),
            Err(error) => (None, Some(error)),
        };
        Response { jsonrpc: "2.0".to_owned(), id, result, error }
    }
}

/// A refusal on the wire.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct RpcError {
    /// -32700 to -32600: the protocol; else a negative errno.
    pub code: i32,
    /// One line.
    pub message: String,
    /// What a refused verb adds.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<ErrorData>,
}

/// What a refused verb adds.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ErrorData {
    /// argument, damaged, busy, unsupported or system.
    pub kind: String,
}

const EIO: i32 = 5;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const EBADMSG: i32 = 74;
const EOPNOTSUPP: i32 = 95;

const KINDS: [(ConfigKind, &str, i32); 6] = [
    (ConfigKind::Argument, "argument", EINVAL),
    (ConfigKind::Damaged, "damaged", EBADMSG),
    (ConfigKind::Busy, "busy", EBUSY),
    (ConfigKind::Unsupported, "unsupported", EOPNOTSUPP),
    (ConfigKind::System, "system", EIO),
    (ConfigKind::Lost, "lost", EIO),
];

impl RpcError {
    /// The line is no JSON.
    pub fn parse(error: &serde_json::Error) -> RpcError {
        RpcError::protocol(-32700, format!("request: {error}"))
    }

    /// There is no such method.
    pub fn no_method(name: &str) -> RpcError {
        RpcError::protocol(-32601, format!("method: found '{name}', expected a known one"))
    }

    /// The parameters are not the method's.
    pub fn params(method: &str, error: &serde_json::Error) -> RpcError {
        RpcError::protocol(-32602, format!("{method}: parameters: {error}"))
    }

    /// It is JSON, but no request.
    pub fn request(error: &serde_json::Error) -> RpcError {
        RpcError::protocol(-32600, format!("request: {error}"))
    }

    fn protocol(code: i32, message: String) -> RpcError {
        RpcError { code, message, data: None }
    }

    /// A refused verb.
    pub fn of_verb(error: &ConfigError) -> RpcError {
        let row = KINDS.iter().find(|(kind, ..)| *kind == error.kind);
        let (_, kind, errno) = row.copied().unwrap_or(KINDS[4]);
        let data = Some(ErrorData { kind: kind.to_owned() });
        RpcError { code: -errno, message: cairn_outcome::failure::one_line(error), data }
    }

    /// The refusal as the client reports it.
    pub fn into_error(self) -> ConfigError {
        let kind = self.data.map(|data| data.kind);
        let row = KINDS.iter().find(|(_, name, _)| kind.as_deref() == Some(*name));
        ConfigError::new(row.map_or(ConfigKind::System, |row| row.0), "", self.message)
    }
}

impl From<ConfigError> for RpcError {
    fn from(error: ConfigError) -> RpcError {
        RpcError::of_verb(&error)
    }
}

#[cfg(test)]
mod tests {
    use super::{KINDS, RpcError};
    use cairn_block::ConfigError;

    #[test]
    fn a_refusal_keeps_its_line_and_kind_across_the_wire() {
        for (kind, ..) in KINDS {
            let error = ConfigError::new(kind, "vm", "size: found 1, expected 2");
            let wire = serde_json::to_string(&RpcError::of_verb(&error)).unwrap();
            let back: RpcError = serde_json::from_str(&wire).unwrap();
            let back = back.into_error();
            assert_eq!(back.kind, kind);
            assert_eq!(back.to_string(), error.to_string());
        }
    }
}
