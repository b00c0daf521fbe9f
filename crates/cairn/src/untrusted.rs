//! The decoders of untrusted input, for fuzzers and property tests. Nothing here opens, makes or
//! changes a file or device.

use std::path::{Path, PathBuf};

use cairn_outcome::failure::one_line;
use serde_json::{Value, json};

use crate::serve::config::Config;
use cairn_control::control::rpc::RpcError;
use cairn_control::control::server::{Answer, Caller, respond};
use cairn_control::verbs::methods;

/// The text of a TOML file: how many volumes it has, or the one line that refuses it.
///
/// # Errors
/// It is no TOML, or says something that has no meaning.
pub fn toml(text: &str) -> Result<usize, String> {
    let config = Config::parse(text, Path::new("vm.toml"), PathBuf::from("/base"));
    config.map(|config| config.volumes.len()).map_err(|error| one_line(&error))
}

/// A line on the control socket: the response line, and whether the line is a call that would be
/// carried out. Such a call is answered with its method's name.
#[must_use]
pub fn rpc_line(line: &str) -> (String, bool) {
    let response = respond(line, &Decoder, &Nobody);
    let text = serde_json::to_string(&response);
    (text.expect("a response is made of strings and numbers"), response.error.is_none())
}

struct Decoder;

impl Answer for Decoder {
    fn answer(&self, method: &str, params: Value, _: &dyn Caller) -> Result<Value, RpcError> {
        (methods::method(method)?.decode)(params).map(|()| json!(method))
    }
}

struct Nobody;

impl Caller for Nobody {
    fn is_gone(&self) -> bool {
        true
    }
}
