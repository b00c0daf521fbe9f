//! File systems and swap: ext2, ext3, ext4, XFS, btrfs.

use super::view::View;
use super::{Kind, Signature};

const EXT_OFFSET: u64 = 1024;
const EXT_MAGIC: u16 = 0xEF53;
const EXT3_COMPAT_HAS_JOURNAL: u32 = 0x4;
const EXT_INCOMPAT_JOURNAL_DEVICE: u32 = 0x8;
/// Incompatible features that ext2 and ext3 know: compression, filetype, recover, journal device,
/// meta block groups. Any other makes it ext4.
const EXT3_INCOMPAT: u32 = 0x1 | 0x2 | 0x4 | 0x8 | 0x10;
/// Read-only compatible features that ext2 and ext3 know: sparse superblocks, large files, btree
/// directories. Any other makes it ext4.
const EXT3_RO_COMPAT: u32 = 0x1 | 0x2 | 0x4;

const XFS_MAGIC: &[u8; 4] = b"XFSB";
const BTRFS_OFFSET: u64 = 64 << 10;
const BTRFS_MAGIC: &[u8; 8] = b"_BHRfS_M";

const SWAP_PAGE_SIZES: [u64; 5] = [4 << 10, 8 << 10, 16 << 10, 32 << 10, 64 << 10];
/// Magic bytes at the end of the first page. All but the first two mean that a machine hibernated
/// into the swap space.
const SWAP_MARKS: [&[u8]; 6] =
    [b"SWAPSPACE2", b"SWAP-SPACE", b"S1SUSPEND", b"S2SUSPEND", b"ULSUSPEND", b"LINHIB0001"];

pub(super) fn find(view: &View<'_>, found: &mut Vec<Signature>) {
    found.extend(ext(view));
    found.extend(xfs(view));
    found.extend(btrfs(view));
    found.extend(swap(view));
}

fn ext(view: &View<'_>) -> Option<Signature> {
    let at = |field: u64| EXT_OFFSET + field;
    if view.u16_at(at(56))? != EXT_MAGIC {
        return None;
    }
    let (compat, incompat, ro_compat) =
        (view.u32_at(at(92))?, view.u32_at(at(96))?, view.u32_at(at(100))?);
    let kind = if incompat & EXT_INCOMPAT_JOURNAL_DEVICE != 0 {
        Kind::ExtJournal
    } else if incompat & !EXT3_INCOMPAT != 0 || ro_compat & !EXT3_RO_COMPAT != 0 {
        Kind::Ext4
    } else if compat & EXT3_COMPAT_HAS_JOURNAL != 0 {
        Kind::Ext3
    } else {
        Kind::Ext2
    };
    Some(Signature {
        label: view.text(at(120), 16),
        uuid: view.uuid(at(104)),
        ..Signature::new(kind, EXT_OFFSET)
    })
}

fn xfs(view: &View<'_>) -> Option<Signature> {
    view.has(0, XFS_MAGIC).then(|| Signature {
        label: view.text(108, 12),
        uuid: view.uuid(32),
        ..Signature::new(Kind::Xfs, 0)
    })
}

fn btrfs(view: &View<'_>) -> Option<Signature> {
    view.has(BTRFS_OFFSET + 64, BTRFS_MAGIC).then(|| Signature {
        label: view.text(BTRFS_OFFSET + 299, 256),
        uuid: view.uuid(BTRFS_OFFSET + 32),
        ..Signature::new(Kind::Btrfs, BTRFS_OFFSET)
    })
}

fn swap(view: &View<'_>) -> Option<Signature> {
    let page_bytes = SWAP_PAGE_SIZES
        .into_iter()
        .find(|page| SWAP_MARKS.iter().any(|mark| view.has(page - 10, mark)))?;
    let hibernated = !SWAP_MARKS[..2].iter().any(|mark| view.has(page_bytes - 10, mark));
    let image = if hibernated { ", hibernation image" } else { "" };
    Some(Signature {
        label: view.text(1052, 16),
        uuid: view.uuid(1036),
        details: format!("page size {page_bytes}{image}"),
        ..Signature::new(Kind::Swap, page_bytes - 10)
    })
}
