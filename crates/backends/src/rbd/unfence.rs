//! Removes a client from the blocklist, once its host has restarted.

use cairn_block::{ConfigError, ConfigKind};

use super::image::{Cluster, text_of};
use super::uri::Target;
use super::within::within;

/// Removes the blocklist entry of `address` from the cluster of an image. Blocks the thread.
///
/// # Errors
/// It is no URI of RBD or no address, or the cluster refuses.
pub fn unfence(device: &str, address: &str) -> Result<(), ConfigError> {
    let target = Target::parse(device)?;
    let is_address = |byte: u8| byte.is_ascii_hexdigit() || b"[].:/v".contains(&byte);
    if address.is_empty() || !address.bytes().all(is_address) {
        let found = format!("'{address}'");
        return Err(ConfigError::argument(device, "address", found, "IP:PORT/NONCE"));
    }
    let (unfenced, address) = (target.clone(), address.to_owned());
    within(&target, move |_| remove_entry(&unfenced, &address))
}

fn remove_entry(target: &Target, address: &str) -> Result<(), ConfigError> {
    let cluster = Cluster::connect(target)?;
    // Older clusters have the older word only.
    let commands = [("osd blocklist", "blocklistop"), ("osd blacklist", "blacklistop")];
    let mut last = None;
    for (prefix, operation) in commands {
        let json = format!(r#"{{"prefix":"{prefix}","{operation}":"rm","addr":"{address}"}}"#);
        match cluster.command(&json) {
            Ok(()) => return Ok(()),
            Err(error) => last = last.or(Some(error)),
        }
    }
    let (errno, said) = last.expect("a command was refused");
    let detail = match said.trim() {
        "" => format!("blocklist: {address}: {}", text_of(errno)),
        said => format!("blocklist: {said}"),
    };
    Err(target.refused(ConfigKind::System, detail))
}
