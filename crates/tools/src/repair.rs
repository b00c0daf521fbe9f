//! `cairn repair`: what can be saved of a damaged exception store or pool.

use cairn_block::ConfigKind;
use cairn_outcome::failure::{Outcome, refused, wrong};

use super::room::{NOTHING, Room};
use super::source::Source;
use super::{snapshot, thin, writecache};
use crate::args::RepairArgs;

/// What can be repaired.
const EXPECTED: &str = "dm-snapshot or dm-thin, or the sizes of a pool whose superblock is lost: \
                        --data-block-size and --data-blocks";

/// Runs the verb.
///
/// # Errors
/// The device holds no store that can be repaired, or it cannot be read or written.
pub fn run(args: &RepairArgs) -> Outcome<u8> {
    let source = match args.in_place {
        true => Source::write(&args.device)?,
        false => Source::read(&args.device)?,
    };
    let start_sector = args.place.start_sector;
    if args.in_place {
        writecache::refuse_dirty(&source, start_sector, args.discard_dirty)?;
    }
    let found = source.identify(start_sector)?;
    let room = match Room::of(&found) {
        // The superblock may be what is lost.
        None if args.data_block_size.is_some() => Some(Room::Thin),
        None => Room::without_header(&source, start_sector)?,
        room => room,
    };
    match room {
        Some(Room::Snapshot) => {
            let options = [
                ("--data-block-size", args.data_block_size.is_some()),
                ("--data-blocks", args.data_blocks.is_some()),
                ("--transaction-id", args.transaction_id.is_some()),
            ];
            refuse(&source, &options, (STORE, METADATA))?;
            snapshot::repair::run(&source, args)
        }
        Some(Room::Thin) => {
            let options = [("--origin", args.origin.is_some()), ("--salvage", args.salvage)];
            refuse(&source, &options, (METADATA, STORE))?;
            thin::repair::run(&source, args)
        }
        Some(Room::Writecache) | None => {
            let kinds: Vec<_> = found.iter().map(|signature| signature.kind.name()).collect();
            let found = if kinds.is_empty() { NOTHING.to_owned() } else { kinds.join(", ") };
            let (kind, expected) = (ConfigKind::Unsupported, EXPECTED);
            Err(refused(kind, &source.name, "format", found, expected))
        }
    }
}

const STORE: &str = "an exception store";
const METADATA: &str = "a pool's metadata";

/// Refuses options that mean nothing to what was found.
fn refuse(
    source: &Source,
    options: &[(&str, bool)],
    (found, expected): (&str, &str),
) -> Outcome<()> {
    match options.iter().find(|(_, given)| *given) {
        Some((option, _)) => Err(wrong(&source.name, option, found, expected)),
        None => Ok(()),
    }
}
