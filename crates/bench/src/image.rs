//! Synthetic metadata of a write cache: which slot holds which origin block, all committed.

use std::sync::Arc;

use cairn_block::{ConfigError, ConfigKind, Disk, Io, Sector, SectorCount, SectorRange, Segs};
use cairn_format::writecache::build::Builder;
use cairn_format::writecache::{BlockSize, Entry, Geometry, Seq};
use cairn_outcome::failure::Outcome;

use super::fixture::Fixture;

/// Bytes of one read or write.
const PIECE_BYTES: u64 = 1 << 20;

/// The layout of a cache on a device of this size.
///
/// # Errors
/// The format has no such block size or layout.
pub fn geometry(area_bytes: u64, block_bytes: u32) -> Outcome<Geometry> {
    let unfit = |error: cairn_format::writecache::Error| {
        ConfigError::new(ConfigKind::Argument, "bench", error.to_string())
    };
    let block_size = BlockSize::new(block_bytes).map_err(unfit)?;
    Geometry::for_format(area_bytes, block_size).map_err(unfit)
}

/// The metadata of a cache whose slots hold the blocks that `block_of` says, or nothing.
pub fn make(geometry: &Geometry, block_of: impl Fn(u64) -> Option<u64>) -> Vec<u8> {
    let mut bytes = Vec::new();
    let mut builder = Builder::new(*geometry, &mut bytes);
    let sectors = u64::from(geometry.sectors_per_block());
    for slot in 0..geometry.n_blocks() {
        let entry = |block| Entry { original_sector: block * sectors, seq: Seq::ZERO };
        let entry = block_of(slot).map_or(Entry::NEVER_USED, entry);
        builder.add(entry).expect("there are as many slots");
    }
    builder.finish(Seq(1)).expect("memory");
    bytes
}

fn pieces(bytes: u64) -> impl Iterator<Item = SectorRange> {
    (0..bytes).step_by(PIECE_BYTES as usize).map(move |at| {
        let len = PIECE_BYTES.min(bytes - at);
        SectorRange::new(Sector::of_byte(at), SectorCount::of_bytes(len))
    })
}

fn failed(disk: &Arc<dyn Disk>, error: cairn_block::IoError) -> ConfigError {
    ConfigError::new(ConfigKind::System, disk.name(), "bench: metadata").with_source(error)
}

/// Writes metadata to the start of a device.
///
/// # Errors
/// The device cannot be written.
pub fn store(fixture: &Fixture, disk: &Arc<dyn Disk>, bytes: &Arc<Vec<u8>>) -> Outcome<()> {
    let (to, bytes) = (disk.clone(), bytes.clone());
    let stored = fixture.on(|env| async move {
        for range in pieces(bytes.len() as u64) {
            let (start, len) = (range.start.to_bytes() as usize, range.to_bytes() as usize);
            let segs = env.segs(range.count);
            segs.copy_in(0, &bytes[start..start + len]);
            env.io(&to, Io::write(range, segs)).await?;
        }
        Ok(())
    });
    stored.map_err(|error| failed(disk, error))
}

/// Reads the metadata at the start of a device, of so many bytes.
///
/// # Errors
/// The device cannot be read.
pub fn fetch(fixture: &Fixture, disk: &Arc<dyn Disk>, len: u64) -> Outcome<Vec<u8>> {
    let from = disk.clone();
    let fetched = fixture.on(move |env| async move {
        let mut bytes = Vec::with_capacity(len as usize);
        for range in pieces(len) {
            let segs: Segs = env.segs(range.count);
            env.io(&from, Io::read(range, segs.clone())).await?;
            bytes.extend(segs.to_vec());
        }
        Ok(bytes)
    });
    fetched.map_err(|error| failed(disk, error))
}
