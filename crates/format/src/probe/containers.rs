//! Layers that hold other volumes: LUKS, LVM2 physical volumes, software RAID members.

use super::view::{View, uuid_text};
use super::{Kind, SECTOR_BYTES, Signature};

const LUKS_MAGIC: &[u8; 6] = b"LUKS\xba\xbe";
/// Where the second copy of a LUKS2 header may begin: directly behind a first copy of any legal
/// size. The second copy alone can restore a volume whose first sectors were wiped.
pub(super) const LUKS_SECONDARY_OFFSETS: [u64; 9] =
    [16 << 10, 32 << 10, 64 << 10, 128 << 10, 256 << 10, 512 << 10, 1 << 20, 2 << 20, 4 << 20];
const LUKS_SECONDARY_MAGIC: &[u8; 6] = b"SKUL\xba\xbe";

const LVM_LABEL: &[u8; 8] = b"LABELONE";
const LVM_LABEL_TYPE: &[u8; 8] = b"LVM2 001";
/// The label lies in one of these sectors.
const LVM_LABEL_SECTORS: u64 = 4;

const MD_MAGIC: u32 = 0xa92b_4efc;
/// Version 0.90 lies in the last whole 64 KiB but one boundary of the device.
const MD_090_RESERVED_BYTES: u64 = 64 << 10;

pub(super) fn find(view: &View<'_>, found: &mut Vec<Signature>) {
    found.extend(luks(view));
    found.extend((0..LVM_LABEL_SECTORS).filter_map(|sector| lvm2(view, sector * SECTOR_BYTES)));
    found.extend(md_raid(view));
}

fn luks(view: &View<'_>) -> Option<Signature> {
    let primary = view.has(0, LUKS_MAGIC).then_some((0, ""));
    let secondary = || {
        let mut offsets = LUKS_SECONDARY_OFFSETS.into_iter();
        let offset = offsets.find(|offset| view.has(*offset, LUKS_SECONDARY_MAGIC))?;
        Some((offset, "second header only"))
    };
    let (offset, details) = primary.or_else(secondary)?;
    let version = u16::from_be_bytes(view.array(offset + 6)?);
    let (kind, label) = match version {
        1 => (Kind::Luks1, None),
        _ => (Kind::Luks2, view.text(offset + 24, 48)),
    };
    let uuid = view.text(offset + 168, 40);
    Some(Signature { label, uuid, details: details.to_owned(), ..Signature::new(kind, offset) })
}

fn lvm2(view: &View<'_>, offset: u64) -> Option<Signature> {
    if !view.has(offset, LVM_LABEL) || !view.has(offset + 24, LVM_LABEL_TYPE) {
        return None;
    }
    let header = u64::from(view.u32_at(offset + 20)?);
    let uuid = view.text(offset + header, 32).and_then(|digits| lvm_uuid(&digits));
    Some(Signature { uuid, ..Signature::new(Kind::Lvm2, offset) })
}

/// LVM groups its 32 letters and digits as 6-4-4-4-4-4-6.
fn lvm_uuid(digits: &str) -> Option<String> {
    if digits.len() != 32 || !digits.bytes().all(|digit| digit.is_ascii_graphic()) {
        return None;
    }
    let bounds = [0, 6, 10, 14, 18, 22, 26, 32];
    let groups: Vec<&str> = bounds.windows(2).map(|pair| &digits[pair[0]..pair[1]]).collect();
    Some(groups.join("-"))
}

/// Byte offsets of the RAID superblocks that are placed from the end: versions 0.90 and 1.0.
pub(super) fn md_offsets_at_end(device_bytes: u64) -> [Option<u64>; 2] {
    let sectors = device_bytes / SECTOR_BYTES;
    let whole = device_bytes / MD_090_RESERVED_BYTES * MD_090_RESERVED_BYTES;
    let version_1_0 = sectors.checked_sub(16).map(|sector| (sector & !7) * SECTOR_BYTES);
    [whole.checked_sub(MD_090_RESERVED_BYTES), version_1_0]
}

fn md_raid(view: &View<'_>) -> Vec<Signature> {
    let [version_090, version_1_0] = md_offsets_at_end(view.device_bytes());
    let places = [(Some(0), "1.1"), (Some(4096), "1.2"), (version_1_0, "1.0")];
    let mut found: Vec<Signature> = Vec::new();
    for (offset, version) in places {
        let Some(offset) = offset.filter(|offset| view.u32_at(*offset) == Some(MD_MAGIC)) else {
            continue;
        };
        let known = found.iter().any(|signature| signature.offset == offset);
        // Version 0.90 on a small device can lie where another version would; its own version
        // number distinguishes it.
        if !known && view.u32_at(offset + 4) != Some(0) {
            found.push(md_version_1(view, offset, version));
        }
    }
    found.extend(version_090.and_then(|offset| md_version_090(view, offset)));
    found
}

fn md_version_1(view: &View<'_>, offset: u64, version: &str) -> Signature {
    Signature {
        label: view.text(offset + 32, 32),
        uuid: view.uuid(offset + 16),
        details: format!("version {version}"),
        ..Signature::new(Kind::MdRaid, offset)
    }
}

/// Version 0.90 was written in the byte order of its machine, and its UUID in four words apart.
fn md_version_090(view: &View<'_>, offset: u64) -> Option<Signature> {
    let magic = view.u32_at(offset)?;
    let major = view.u32_at(offset + 4)?;
    if (magic != MD_MAGIC && magic.swap_bytes() != MD_MAGIC) || major != 0 {
        return None;
    }
    let mut uuid = [0; 16];
    for (word, place) in uuid.chunks_exact_mut(4).zip([20, 52, 56, 60]) {
        let mut bytes: [u8; 4] = view.array(offset + place)?;
        if magic == MD_MAGIC {
            bytes.reverse();
        }
        word.copy_from_slice(&bytes);
    }
    Some(Signature {
        uuid: uuid_text(uuid),
        details: "version 0.90".to_owned(),
        ..Signature::new(Kind::MdRaid, offset)
    })
}
