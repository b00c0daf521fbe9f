//! `cairn dump`: the metadata of a cache, a store or a pool, readable.

use cairn_block::ConfigKind;
use cairn_outcome::failure::{Outcome, refused};

use super::room::{FORMATS, NOTHING, Room};
use super::{snapshot, thin, writecache};
use crate::args::DumpArgs;

/// Runs the verb.
///
/// # Errors
/// The device cannot be read or holds no header.
pub fn run(args: &DumpArgs) -> Outcome<u8> {
    let (start_sector, all, as_json) = (args.place.start_sector, args.all, args.json);
    let source = thin::open(&args.device, args.metadata_snapshot)?;
    let room = match Room::of(&source.identify(start_sector)?) {
        Some(room) => Some(room),
        None => Room::without_header(&source, start_sector)?,
    };
    match room {
        Some(Room::Thin) => {
            thin::dump::show(&source, start_sector, args.metadata_snapshot, as_json)
        }
        // Without the lock nothing else can be read.
        _ if args.metadata_snapshot => Err(thin::no_metadata(&source)),
        Some(Room::Snapshot) => snapshot::dump::show(&source, start_sector, all, as_json),
        Some(Room::Writecache) => writecache::dump::show(&source, start_sector, all, as_json),
        None => Err(refused(ConfigKind::Damaged, &source.name, "format", NOTHING, FORMATS)),
    }
}
