//! Partition tables: GPT with either of its headers, and MBR.

use super::view::{View, uuid_text};
use super::{Kind, SECTOR_BYTES, Signature};

const GPT_MAGIC: &[u8; 8] = b"EFI PART";
/// The first header is in the second logical block, its copy in the last one, of either common
/// size.
const LOGICAL_BLOCK_SIZES: [u64; 2] = [SECTOR_BYTES, 4096];

const BOOT_MARK: [u8; 2] = [0x55, 0xAA];
const BOOT_MARK_OFFSET: u64 = 510;
const MBR_TABLE_OFFSET: u64 = 446;
const MBR_ENTRY_BYTES: u64 = 16;
const MBR_PROTECTIVE: u8 = 0xEE;

pub(super) fn find(view: &View<'_>, found: &mut Vec<Signature>) {
    found.extend(gpt(view));
    found.extend(mbr(view));
}

/// Where the second GPT header may lie.
pub(super) fn gpt_backup_offsets(device_bytes: u64) -> impl Iterator<Item = u64> {
    LOGICAL_BLOCK_SIZES
        .into_iter()
        .filter_map(move |size| (device_bytes / size * size).checked_sub(size))
}

fn gpt(view: &View<'_>) -> Option<Signature> {
    let primary = LOGICAL_BLOCK_SIZES.into_iter().map(|offset| (offset, ""));
    let backup = gpt_backup_offsets(view.device_bytes()).map(|offset| (offset, "backup only"));
    let (offset, details) =
        primary.chain(backup).find(|(offset, _)| view.has(*offset, GPT_MAGIC))?;
    let uuid = view.array(offset + 56).and_then(guid_text);
    Some(Signature { uuid, details: details.to_owned(), ..Signature::new(Kind::Gpt, offset) })
}

/// A GUID keeps its first three groups in little-endian order.
fn guid_text(mut bytes: [u8; 16]) -> Option<String> {
    bytes[0..4].reverse();
    bytes[4..6].reverse();
    bytes[6..8].reverse();
    uuid_text(bytes)
}

/// Whether a partition of the master boot record reaches beyond this byte.
pub(super) fn mbr_reaches_beyond(view: &View<'_>, byte: u64) -> bool {
    let ends_after = |entry: u64| {
        let at = MBR_TABLE_OFFSET + entry * MBR_ENTRY_BYTES;
        let used = view.u8_at(at + 4).is_some_and(|kind| kind != 0);
        let sectors = |field| view.u32_at(at + field).map_or(0, u64::from);
        used && (sectors(8) + sectors(12)) * SECTOR_BYTES > byte
    };
    (0..4).any(ends_after)
}

fn mbr(view: &View<'_>) -> Option<Signature> {
    if !view.has(BOOT_MARK_OFFSET, &BOOT_MARK) {
        return None;
    }
    let types: Vec<u8> = (0..4)
        .filter_map(|entry| view.u8_at(MBR_TABLE_OFFSET + entry * MBR_ENTRY_BYTES + 4))
        .filter(|kind| *kind != 0)
        .collect();
    let details = match types.len() {
        0 => "boot sector".to_owned(),
        _ if types.contains(&MBR_PROTECTIVE) => "protective".to_owned(),
        count => format!("partitions {count}"),
    };
    Some(Signature { details, ..Signature::new(Kind::Mbr, 0) })
}
