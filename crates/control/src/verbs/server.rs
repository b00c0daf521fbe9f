//! What the server reports about itself.

use std::path::PathBuf;
use std::sync::mpsc::channel;

use cairn_block::{ConfigError, ConfigKind};
use cairn_outcome::failure::{Outcome, refused};
use cairn_outcome::signals::Event;
use serde::{Deserialize, Serialize};

use super::Verbs;
use super::methods::METHODS;
use super::verb::declare;
use crate::metrics::{self, Format};
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
    /// Where it listens first, as the URI of an export without a name.
    #[serde(default)]
    pub uri: Option<String>,
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
        uri: verbs.exports.uri(""),
    })
}

/// What an upgrade came to.
#[derive(Debug, Serialize, Deserialize)]
pub struct Upgraded {
    /// The process that serves now.
    pub pid: u32,
}

declare! {
    /// `upgrade`
    ServerUpgrade = "server_upgrade" -> Upgraded {
        /// The program to go on with (default: the file that this server was started from)
        #[arg(long, value_name = "PATH")]
        program: Option<PathBuf>,
    }
    |verb, verbs, _| verbs.upgrade(verb.program)
}

impl Verbs {
    /// Asks the main thread for an upgrade, and waits for what comes of it.
    fn upgrade(&self, program: Option<PathBuf>) -> Outcome<Upgraded> {
        let events = self.events.lock().clone();
        let Some(events) = events else {
            let found = "a server that was started for one command (--run)";
            return Err(refused(ConfigKind::Argument, "", "upgrade", found, "a server that stays"));
        };
        let (answer, answered) = channel();
        let gone = |()| ConfigError::new(ConfigKind::Busy, "", "upgrade: the server is going away");
        events.send(Event::Upgrade { program, answer }).map_err(|_| gone(()))?;
        let pid = answered.recv().map_err(|_| gone(()))??;
        Ok(Upgraded { pid })
    }
}

/// What a server tells for monitoring.
#[derive(Debug, Serialize, Deserialize)]
pub struct Exposition {
    /// In a text format of Prometheus.
    pub text: String,
}

declare! {
    /// `metrics`
    ServerMetrics = "server_metrics" -> Exposition {
        /// prometheus (the default) or openmetrics
        #[arg(long, value_name = "FORMAT")]
        format: Option<String>,
    }
    |verb, verbs, _| {
        let format = match verb.format.as_deref() {
            None | Some("prometheus") => Format::Prometheus,
            Some("openmetrics") => Format::OpenMetrics,
            Some(other) => {
                let (found, expected) = (format!("'{other}'"), "prometheus or openmetrics");
                return Err(refused(ConfigKind::Argument, "metrics", "format", found, expected));
            }
        };
        let families = metrics::gather(&verbs.world, &verbs.exports);
        Ok(Exposition { text: metrics::write(families, format) })
    }
}

declare! {
    /// `targets`
    TargetList = "target_list" -> Vec<TargetInfo> {}
    |_, _, _| Ok(report::targets())
}
