//! `cairn format thin-pool`: the metadata of a pool without volumes and without data blocks, which
//! the server counts when it opens the pool.

use std::path::Path;

use cairn_block::SECTOR_BYTES;
use cairn_format::thin::build::{BuildError, Builder};
use cairn_format::thin::stream::Pool;
use cairn_format::thin::{DataBlockSize, VERSION};
use cairn_outcome::failure::{Outcome, wrong};
use cairn_outcome::signals;

use super::output::{Leave, Output};
use super::restore::built;

/// Makes the metadata on a device that exists, with data blocks of so many bytes.
///
/// # Errors
/// The device is not blank and `--yes` is not given, is too small, or cannot be written.
pub fn run(path: &Path, block_bytes: u64, leave: Leave) -> Outcome<()> {
    let name = path.display().to_string();
    let expected = "a multiple of 64 KiB, up to 1 GiB";
    let unfit = || wrong(&name, "--block-size", format!("{block_bytes} bytes"), expected);
    let whole = block_bytes.is_multiple_of(SECTOR_BYTES);
    let sectors = whole.then_some(block_bytes / SECTOR_BYTES);
    let size = sectors.and_then(|sectors| DataBlockSize::new(u32::try_from(sectors).ok()?).ok());
    let data_block_size = size.ok_or_else(unfit)?;
    let (_, stop) = signals::watch()?;
    let command = format!("cairn format thin-pool {name} --block-size {block_bytes}");
    let mut output = Output::open(path, leave, &command, &stop)?;
    let pool = Pool {
        time: 0,
        transaction_id: 0,
        flags: 0,
        version: VERSION,
        data_block_size,
        data_blocks: 0,
    };
    let room = output.room(pool.data_blocks);
    let superblock = Builder::new(&mut output, room, pool)
        .map_err(BuildError::from)
        .and_then(Builder::finish)
        .map_err(|error| built(&name, &name, error))?;
    output.finish(&superblock)
}
