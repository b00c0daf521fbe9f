//! What the server reports about itself.

use std::path::PathBuf;

use serde::{Deserialize, Serialize};

use super::methods::METHODS;
use super::verb::declare;
use crate::report::{self, TargetInfo};

declare! {
    /// The names of all methods.
    RpcGetMethods = "rpc_get_methods" -> Vec<String> {}
    |_, _, _| Ok(METHODS.iter().map(|entry| entry.method.to_owned()).collect::<Vec<_>>())
}

/// A server.
#[derive(Debug, Serialize, Deserialize)]
pub struct About {
    /// Its version.
    pub version: String,
    /// Its process.
    pub pid: u32,
    /// It changes no device.
    pub read_only: bool,
    /// Its state file.
    pub state: Option<PathBuf>,
    /// Where the relative paths of tables begin.
    pub folder: PathBuf,
    /// Where its exports are.
    pub uris: Vec<String>,
}

declare! {
    /// Which server this is.
    ServerInfo = "server_info" -> About {}
    |_, verbs, _| Ok(About {
        version: env!("CARGO_PKG_VERSION").to_owned(),
        pid: std::process::id(),
        read_only: verbs.world.read_only(),
        state: verbs.state.as_ref().map(|state| state.path().to_owned()),
        folder: verbs.world.folder(),
        uris: verbs.exports.uris(),
    })
}

declare! {
    /// `targets`
    TargetList = "target_list" -> Vec<TargetInfo> {}
    |_, _, _| Ok(report::targets())
}
