//! `cairn dump`: the metadata of a cache, a store or a pool, readable.

use super::room::Room;
use super::{snapshot, thin, writecache};
use crate::cli::DumpArgs;
use crate::failure::Outcome;

/// Runs the verb.
///
/// # Errors
/// The device cannot be read or holds no header.
pub fn run(args: &DumpArgs) -> Outcome<u8> {
    let (start_sector, all, as_json) = (args.place.start_sector, args.all, args.json);
    let source = thin::open(&args.device, args.metadata_snapshot)?;
    match Room::of(&source.identify(start_sector)?) {
        Some(Room::Thin) => {
            thin::dump::show(&source, start_sector, args.metadata_snapshot, as_json)
        }
        // Without the lock nothing else can be read.
        _ if args.metadata_snapshot => Err(thin::no_metadata(&source)),
        Some(Room::Snapshot) => snapshot::dump::show(&source, start_sector, all, as_json),
        Some(Room::Writecache) | None => {
            writecache::dump::show(&source, start_sector, all, as_json)
        }
    }
}
