//! The remote disks of a world, and those that a volume stands on.

use cairn_backends::RemoteFigures;
use cairn_block::MappedDevice;

use super::World;

impl World {
    /// The figures of all open remote disks, by name.
    pub fn remotes(&self) -> Vec<RemoteFigures> {
        self.handles.remote_figures()
    }
}

/// Of these, the ones that the lines of a volume's live table name.
pub fn remotes_of<'a>(volume: &MappedDevice, all: &'a [RemoteFigures]) -> Vec<&'a RemoteFigures> {
    if all.is_empty() {
        return Vec::new();
    }
    let table = volume.live_table();
    let lowers = table.iter().flat_map(|table| table.lines()).flat_map(|line| line.target.lowers());
    let names: Vec<String> = lowers.map(|lower| lower.name()).collect();
    all.iter().filter(|remote| names.contains(&remote.uri)).collect()
}
