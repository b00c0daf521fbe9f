//! fio as a client, with its nbd engine or another one.

use std::path::Path;
use std::process::{Command, Stdio};

use cairn_block::ConfigKind;
use cairn_outcome::failure::{Outcome, refused, system};
use serde_json::Value;

use super::peers::Server;

/// True if there is a fio that has the nbd engine.
pub fn is_there() -> bool {
    has_engine("nbd")
}

/// True if there is a fio that has this engine.
pub fn has_engine(name: &str) -> bool {
    let listed = Command::new("fio").arg("--enghelp").stdin(Stdio::null()).output();
    listed.is_ok_and(|listed| {
        String::from_utf8_lossy(&listed.stdout).lines().any(|line| line.trim() == name)
    })
}

/// Runs fio on a server's disk; answers what it tells.
///
/// # Errors
/// It cannot be run, or failed.
pub fn fio(server: &Server, arguments: &[&str]) -> Outcome<Value> {
    let uri = format!("--uri={}", server.uri);
    run(server.peer.name(), &[&["--ioengine=nbd", &uri], arguments].concat(), None)
}

/// Runs fio on a device that the arguments name, with one more variable in its environment; answers
/// what it tells.
///
/// # Errors
/// It cannot be run, or failed.
pub fn run(device: &str, arguments: &[&str], variable: Option<(&str, &Path)>) -> Outcome<Value> {
    let mut command = Command::new("fio");
    command.args(["--name=job", "--group_reporting", "--output-format=json"]);
    command.args(arguments).envs(variable);
    let output = command.stdin(Stdio::null()).output();
    let output = output.map_err(|error| system("fio", "run", error))?;
    let text = String::from_utf8_lossy(&output.stdout);
    // Older versions print a line of prose before the object.
    let object = text.find('{').map_or("", |at| &text[at..]);
    serde_json::from_str(object).ok().filter(|_| output.status.success()).ok_or_else(|| {
        let said = String::from_utf8_lossy(&output.stderr);
        let said = said.lines().next().unwrap_or("nothing").to_owned();
        let found = format!("{} saying '{said}'", output.status);
        refused(ConfigKind::System, device, "fio", found, "success")
    })
}
