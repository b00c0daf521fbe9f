//! The log of verbs: the caller, the request and the result.
//!
//! One line for each request that may change something, after its answer. Requests that only read
//! are not logged.

use std::time::Instant;

use serde_json::Value;

use super::rpc::RpcError;

/// Parameters are cut after so many bytes.
const PARAMS_BYTES_MAX: usize = 400;

/// The last words of methods that change nothing.
const READING: [&str; 12] = [
    "methods", "list", "info", "status", "table", "diff", "show", "wait", "get", "metrics",
    "figures", "events",
];

/// A request that may change something, until it is answered.
pub struct Verb {
    text: String,
    began: Instant,
}

impl Verb {
    /// Remembers a request; none if it only reads.
    pub fn begin(method: &str, params: &Value) -> Option<Verb> {
        let last = method.rsplit('_').next().unwrap_or(method);
        (!READING.contains(&last))
            .then(|| Verb { text: text(method, params), began: Instant::now() })
    }

    /// Logs the request with its answer.
    pub fn end(self, who: &str, answer: &Result<Value, RpcError>) {
        let (text, milliseconds) = (self.text, self.began.elapsed().as_millis());
        match answer {
            Ok(_) => tracing::info!("{text} by {who}: done in {milliseconds} ms"),
            Err(error) => tracing::info!("{text} by {who}: refused: {}", error.message),
        }
    }
}

/// The object first, then the method, then its other parameters.
fn text(method: &str, params: &Value) -> String {
    let mut others = params.clone();
    let name = others.as_object_mut().and_then(|params| params.remove("name"));
    let name = name.as_ref().and_then(Value::as_str).unwrap_or("server");
    let mut text = format!("{}: {method}", name.escape_debug());
    if others.as_object().is_some_and(|params| !params.is_empty()) {
        let shown = others.to_string();
        text.push(' ');
        text.push_str(&shown[..shown.floor_char_boundary(PARAMS_BYTES_MAX)]);
    }
    text
}

#[cfg(test)]
mod tests {
    use super::{PARAMS_BYTES_MAX, Verb, text};
    use serde_json::{Value, json};

    #[test]
    fn a_verb_is_one_line_with_its_object_first() {
        let load = json!({"name": "vm", "table": "0 8 zero\n8 8 error"});
        assert_eq!(
            text("volume_load", &load),
            r#"vm: volume_load {"table":"0 8 zero\n8 8 error"}"#
        );
        assert_eq!(text("volume_resume", &json!({"name": "a\nb"})), r"a\nb: volume_resume");
        assert_eq!(text("frob", &Value::Null), "server: frob");
        let long = json!({"name": "vm", "table": "é".repeat(1000)});
        assert!(text("volume_load", &long).len() <= PARAMS_BYTES_MAX + 30);
    }

    #[test]
    fn only_methods_that_may_change_something_are_logged() {
        for method in [
            "volume_status",
            "server_info",
            "server_metrics",
            "server_figures",
            "server_events",
            "rpc_get_methods",
            "thin_diff",
        ] {
            assert!(Verb::begin(method, &Value::Null).is_none(), "{method}");
        }
        for method in ["volume_suspend", "snap_create", "thin_remove", "anything_else"] {
            assert!(Verb::begin(method, &Value::Null).is_some(), "{method}");
        }
    }
}
