//! `cairn dump`: the metadata of a cache or a store, readable.

use std::path::Path;

use super::room::Room;
use super::source::Source;
use super::{snapshot, writecache};
use crate::cli::PlaceArgs;
use crate::failure::Outcome;

/// Runs the verb.
///
/// # Errors
/// The device cannot be read or holds no header.
pub fn run(device: &Path, place: PlaceArgs, all: bool, as_json: bool) -> Outcome<u8> {
    let source = Source::read(device)?;
    match Room::of(&source.identify(place.start_sector)?) {
        Some(Room::Snapshot) => snapshot::dump::show(&source, place.start_sector, all, as_json),
        Some(Room::Writecache) | None => {
            writecache::dump::show(&source, place.start_sector, all, as_json)
        }
    }
}
