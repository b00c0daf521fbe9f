//! The formats of the device mapper and bcache: writecache, snapshot store, thin-pool metadata.

use super::view::View;
use super::{Kind, Signature};
use crate::writecache;

const SNAPSHOT_MAGIC: &[u8; 4] = b"SnAp";
const THIN_MAGIC: u64 = 27_022_010;
const THIN_MAGIC_OFFSET: u64 = 32;
const BCACHE_OFFSET: u64 = 4096;
const BCACHE_MAGIC_OFFSET: u64 = BCACHE_OFFSET + 24;
const BCACHE_MAGIC: [u8; 16] = [
    0xc6, 0x85, 0x73, 0xf6, 0x4e, 0x1a, 0x45, 0xca, 0x82, 0x65, 0xf5, 0x7f, 0x48, 0xba, 0x6d, 0x81,
];

pub(super) fn find(view: &View<'_>, found: &mut Vec<Signature>) {
    found.extend(writecache_header(view));
    found.extend(snapshot_store(view));
    found.extend(thin_metadata(view));
    found.extend(bcache(view));
}

fn writecache_header(view: &View<'_>) -> Option<Signature> {
    let bytes = view.bytes(0, writecache::SUPERBLOCK_BYTES)?;
    let details = match writecache::Superblock::parse(bytes) {
        Ok(superblock) => format!(
            "block size {}, n_blocks {}, seq_count {}",
            superblock.block_size().bytes(),
            superblock.n_blocks(),
            superblock.seq()
        ),
        // With a magic of 0 it is a writecache only if its version is the one that formatting
        // writes first.
        Err(writecache::Error::WrongMagic { .. }) => return None,
        Err(writecache::Error::InterruptedFormat { version }) if version != writecache::VERSION => {
            return None;
        }
        Err(writecache::Error::InterruptedFormat { .. }) if !looks_formatted(view) => return None,
        Err(error) => error.to_string(),
    };
    Some(Signature { details, ..Signature::new(Kind::Writecache, 0) })
}

/// Distinguishes an interrupted format from other data that begins with 0 and 1, by its block size.
fn looks_formatted(view: &View<'_>) -> bool {
    view.u32_at(8).is_some_and(|bytes| writecache::BlockSize::new(bytes).is_ok())
}

fn snapshot_store(view: &View<'_>) -> Option<Signature> {
    if !view.has(0, SNAPSHOT_MAGIC) {
        return None;
    }
    let valid = if view.u32_at(4)? == 0 { "invalidated" } else { "valid" };
    let details = format!("{valid}, version {}, chunk size {}", view.u32_at(8)?, view.u32_at(12)?);
    Some(Signature { details, ..Signature::new(Kind::Snapshot, 0) })
}

fn thin_metadata(view: &View<'_>) -> Option<Signature> {
    if view.u64_at(THIN_MAGIC_OFFSET)? != THIN_MAGIC {
        return None;
    }
    let needs_check = if view.u32_at(4)? & 1 == 0 { "" } else { ", needs check" };
    let details = format!(
        "version {}, transaction {}, data block size {}{needs_check}",
        view.u32_at(40)?,
        view.u64_at(48)?,
        view.u32_at(336)?
    );
    Some(Signature { uuid: view.uuid(16), details, ..Signature::new(Kind::ThinMetadata, 0) })
}

fn bcache(view: &View<'_>) -> Option<Signature> {
    if !view.has(BCACHE_MAGIC_OFFSET, &BCACHE_MAGIC) {
        return None;
    }
    let at = |field: u64| BCACHE_OFFSET + field;
    let version = view.u64_at(at(16))?;
    let flags = view.u64_at(at(104))?;
    let kind = if matches!(version, 1 | 4 | 6) { Kind::BcacheBacking } else { Kind::BcacheCache };
    let role = match kind {
        Kind::BcacheBacking => format!("{}, {}", backing_mode(flags), backing_state(flags)),
        _ if flags & 1 == 0 => "fresh".to_owned(),
        _ => "in use".to_owned(),
    };
    let set = view.uuid(at(56)).map_or(", no set".to_owned(), |uuid| format!(", set {uuid}"));
    Some(Signature {
        label: view.text(at(72), 32).filter(|_| kind == Kind::BcacheBacking),
        uuid: view.uuid(at(40)),
        details: format!("version {version}, {role}{set}"),
        ..Signature::new(kind, BCACHE_OFFSET)
    })
}

fn backing_mode(flags: u64) -> &'static str {
    match flags & 0xF {
        0 => "writethrough",
        1 => "writeback",
        2 => "writearound",
        3 => "none",
        _ => "unknown mode",
    }
}

fn backing_state(flags: u64) -> &'static str {
    match flags >> 61 & 3 {
        0 => "not attached",
        1 => "clean",
        2 => "dirty",
        _ => "inconsistent",
    }
}
