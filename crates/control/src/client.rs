//! The client of the control socket: one request, one answer.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};

use cairn_block::{ConfigError, ConfigKind};
use cairn_outcome::failure::{Outcome, system};
use serde_json::Value;

use crate::control::rpc::{LINE_BYTES_MAX, Request, Response};
use crate::sockets;
use crate::verbs::verb::Verb;

/// A server to ask.
#[derive(Clone)]
pub struct Client {
    path: PathBuf,
}

impl Client {
    /// The server that `--control`, `$CAIRN_CONTROL` or the default names.
    ///
    /// # Errors
    /// There is no folder for a default.
    pub fn new(given: Option<&Path>) -> Outcome<Client> {
        let path = match (given, std::env::var_os("CAIRN_CONTROL")) {
            (Some(path), _) => path.to_owned(),
            (None, Some(path)) if !path.is_empty() => path.into(),
            _ => sockets::user_folder()?.join(sockets::CONTROL_NAME),
        };
        Ok(Client { path })
    }

    /// Asks for a verb and waits for the answer.
    ///
    /// # Errors
    /// There is no server, or it refuses.
    pub fn ask<V: Verb>(&self, verb: &V) -> Outcome<V::Answer> {
        let answer = self.call(V::METHOD, verb.params())?;
        serde_json::from_value(answer).map_err(|error| {
            let detail = "answer: not understood";
            ConfigError::new(ConfigKind::System, V::METHOD, detail).with_source(error)
        })
    }

    fn call(&self, method: &str, params: Value) -> Outcome<Value> {
        let shown = self.path.display().to_string();
        let mut stream = UnixStream::connect(&self.path).map_err(|error| {
            let detail = "no server listens on this control socket; start one with cairn serve, \
                          or name its socket with --control PATH";
            ConfigError::new(ConfigKind::System, &shown, detail).with_source(error)
        })?;
        let failed = |error| system(&shown, "control socket", error);
        let (jsonrpc, id, method) = ("2.0".to_owned(), Value::from(1), method.to_owned());
        let request = Request { jsonrpc, id, method, params };
        let mut line = serde_json::to_string(&request).map_err(|error| failed(error.into()))?;
        line.push('\n');
        stream.write_all(line.as_bytes()).map_err(failed)?;
        let mut answer = String::new();
        BufReader::new(stream.take(LINE_BYTES_MAX * 64)).read_line(&mut answer).map_err(failed)?;
        if answer.is_empty() {
            let detail = "control socket: the server ended without an answer";
            return Err(ConfigError::new(ConfigKind::System, shown, detail));
        }
        let response: Response =
            serde_json::from_str(&answer).map_err(|error| failed(error.into()))?;
        match response.error {
            Some(error) => Err(error.into_error()),
            None => Ok(response.result.unwrap_or(Value::Null)),
        }
    }
}
