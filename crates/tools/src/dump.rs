//! `cairn dump`: the metadata of a cache, a store, a pool or a bcache device, readable.

use cairn_block::{ConfigError, ConfigKind};
use cairn_outcome::failure::Outcome;

use super::kind::{FORMATS, Kind, not_a};
use super::{bcache, snapshot, thin, writecache};
use crate::args::DumpArgs;

/// Runs the verb.
///
/// # Errors
/// The device cannot be read or holds no header.
pub fn run(args: &DumpArgs) -> Outcome<u8> {
    let (start_sector, all, as_json) = (args.place.start_sector, args.all, args.json);
    let source = thin::open(&args.device, args.metadata_snapshot)?;
    let found = source.identify(start_sector)?;
    let kind = match Kind::of(&found) {
        Some(kind) => Some(kind),
        None => Kind::without_header(&source, start_sector)?,
    };
    match kind {
        Some(Kind::Thin) => {
            thin::dump::show(&source, start_sector, args.metadata_snapshot, as_json)
        }
        // Without the lock nothing else can be read.
        _ if args.metadata_snapshot => Err(thin::no_metadata(&source)),
        Some(Kind::Snapshot) => snapshot::dump::show(&source, start_sector, all, as_json),
        Some(Kind::Writecache) => writecache::dump::show(&source, start_sector, all, as_json),
        Some(Kind::Bcache | Kind::BcacheBacking) => {
            bcache::dump::show(&source, start_sector, all, as_json)
        }
        Some(Kind::Clone | Kind::Qcow2) | None => {
            let detail = not_a(FORMATS, &found);
            Err(ConfigError::new(ConfigKind::Damaged, &source.name, detail))
        }
    }
}
