//! `cairn repair`: recovers what is readable of a damaged exception store or pool.

use cairn_block::{ConfigError, ConfigKind};
use cairn_outcome::failure::{Outcome, wrong};

use super::kind::{Kind, not_a};
use super::source::Source;
use super::{dirty, snapshot, thin};
use crate::args::RepairArgs;

/// The formats that can be repaired.
const FORMATS: &str = "a dm-snapshot store or a dm-thin metadata device";

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
    let logs = match args.in_place {
        true => dirty::refuse(&source, start_sector, args.discard_dirty)?,
        false => Vec::new(),
    };
    let found = source.identify(start_sector)?;
    let kind = match Kind::of(&found) {
        // The superblock may be lost: the option says that the device is a pool's.
        None if args.data_block_size.is_some() => Some(Kind::Thin),
        None => Kind::without_header(&source, start_sector)?,
        kind => kind,
    };
    match kind {
        Some(Kind::Snapshot) => {
            let options = [
                ("--data-block-size", args.data_block_size.is_some()),
                ("--data-blocks", args.data_blocks.is_some()),
                ("--transaction-id", args.transaction_id.is_some()),
            ];
            refuse(&source, &options, (STORE, METADATA))?;
            snapshot::repair::run(&source, args, logs)
        }
        Some(Kind::Thin) => {
            let options = [("--origin", args.origin.is_some()), ("--salvage", args.salvage)];
            refuse(&source, &options, (METADATA, STORE))?;
            thin::repair::run(&source, args, logs)
        }
        Some(Kind::Writecache | Kind::Clone | Kind::Bcache | Kind::BcacheBacking | Kind::Qcow2)
        | None => {
            let detail = format!(
                "{}; of a pool whose superblock is lost, give --data-block-size and --data-blocks",
                not_a(FORMATS, &found)
            );
            Err(ConfigError::new(ConfigKind::Unsupported, &source.name, detail))
        }
    }
}

const STORE: &str = "an exception store";
const METADATA: &str = "a pool's metadata";

/// Refuses options of the other format.
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
