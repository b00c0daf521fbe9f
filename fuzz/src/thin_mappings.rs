//! What can still be read of damaged pool metadata: nobody who meets the damage may make it less.
//!
//! Shared with the tests of `crates/targets`.

use std::collections::BTreeMap;

use cairn_format::thin::blocks::MemoryBlocks;
use cairn_format::thin::check::{Finding, Limits, check};
use cairn_format::thin::leaves::entries;
use cairn_format::thin::{BLOCK_BYTES, Mapping, MetadataBlock, Superblock, block};

/// Every mapping that can be read, by device and virtual block. None of an image whose maps call
/// blocks free that are in use: without a check nobody can tell these from free ones.
pub fn readable(image: &[u8]) -> BTreeMap<(u64, u64), Mapping> {
    let mut all = BTreeMap::new();
    let mut blocks = MemoryBlocks::new(image);
    let Ok(report) = check(&mut blocks, Limits::default());
    let too_low = |finding: &Finding| {
        matches!(finding, Finding::Count { found, expected, .. } if found < expected)
            || matches!(finding, Finding::NoLargeCount { .. })
    };
    if report.findings_left_out > 0 || report.findings.iter().any(too_low) {
        return all;
    }
    let at = MetadataBlock::SUPERBLOCK;
    let bytes = block::of(&image[..BLOCK_BYTES]).expect("there is a first block");
    let Ok(superblock) = Superblock::decode(bytes, at) else { return all };
    let top = superblock.mapping_root;
    let Ok(roots) = entries::<MetadataBlock, _>(&mut blocks, top, &mut |_, _| {});
    for (device, root) in roots {
        let Ok(own) = entries::<Mapping, _>(&mut blocks, root, &mut |_, _| {});
        all.extend(own.into_iter().map(|(key, mapping)| ((device, key), mapping)));
    }
    all
}

/// Panics if a mapping of a device that nobody changed is not there any more, or another one.
pub fn assert_kept(
    before: &BTreeMap<(u64, u64), Mapping>,
    after: &[u8],
    is_changed: impl Fn(u64) -> bool,
) {
    let after = readable(after);
    for (key, mapping) in before.iter().filter(|((device, _), _)| !is_changed(*device)) {
        let now = after.get(key);
        assert_eq!(now, Some(mapping), "device {}, virtual block {}", key.0, key.1);
    }
}
