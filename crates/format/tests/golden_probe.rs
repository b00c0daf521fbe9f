//! Volumes made by their own tools, recognised with label, UUID and state.

use cairn_format::probe::{Signature, identify, windows};
use cairn_testkit::image;

const MIB: u64 = 1 << 20;
/// What the tools were told to use; UUID in the expectations.
const UUID: &str = "11111111-2222-3333-4444-555555555555";

fn head(name: &str) -> Vec<u8> {
    image("probe", &format!("{name}.head"))
}

/// Probes a device that begins with `head` and is zero behind it.
fn probe(head: &[u8], device_bytes: u64) -> Vec<Signature> {
    let windows = windows(device_bytes);
    let read: Vec<(u64, Vec<u8>)> = windows
        .into_iter()
        .map(|window| {
            let byte = |offset| head.get(offset as usize).copied().unwrap_or(0);
            (window.start, window.map(byte).collect())
        })
        .collect();
    let pieces: Vec<(u64, &[u8])> =
        read.iter().map(|(start, bytes)| (*start, bytes.as_slice())).collect();
    identify(device_bytes, &pieces).expect("every window was given")
}

#[test]
fn every_volume_is_described_as_its_own_tools_describe_it() {
    let cases: [(&str, u64, &str); 17] = [
        ("ext2", 8 * MIB, "ext2 at byte 1024, uuid bfc6311d-5b92-48ce-8b6c-ddcd063019a8"),
        ("ext3", 8 * MIB, "ext3 at byte 1024, uuid f9cb3224-5413-452c-87a2-e3da9c0c3753"),
        ("ext4", 8 * MIB, "ext4 at byte 1024, label slow-disk, UUID"),
        ("xfs", 320 * MIB, "xfs at byte 0, label fastxfs, UUID"),
        ("btrfs", 128 * MIB, "btrfs at byte 65536, label leaf, UUID"),
        ("luks1", 20 * MIB, "luks1 at byte 0, UUID"),
        ("luks2", 32 * MIB, "luks2 at byte 0, label vault, UUID"),
        ("swap", MIB, "swap at byte 4086, label swappy, UUID, page size 4096"),
        ("swap-64k", 8 * MIB, "swap at byte 65526, label swappy, UUID, page size 65536"),
        ("mbr", 8 * MIB, "mbr at byte 0, partitions 1"),
        ("snapshot", MIB, "dm-snapshot at byte 0, valid, version 1, chunk size 8"),
        ("snapshot-invalid", MIB, "dm-snapshot at byte 0, invalidated, version 1, chunk size 1"),
        (
            "thin-metadata",
            MIB,
            "thin-pool-metadata at byte 0, version 2, transaction 0, data block size 128",
        ),
        (
            "thin-needs-check",
            MIB,
            "thin-pool-metadata at byte 0, version 2, transaction 0, data block size 128, \
             needs check",
        ),
        (
            "bcache-cache",
            16 * MIB,
            "bcache-cache at byte 4096, uuid 4ad0b8fc-594e-42dd-90ad-703f8e840826, version 3, \
             in use, set UUID",
        ),
        (
            "bcache-backing",
            16 * MIB,
            "bcache-backing at byte 4096, uuid c546da0b-3d78-4e13-b624-3fdcfc6e3df9, version 1, \
             writeback, dirty, set UUID",
        ),
        ("writecache", MIB, "dm-writecache at byte 0, block size 4096, n_blocks 63, seq_count 2"),
    ];
    for (name, device_bytes, expected) in cases {
        let found: Vec<String> =
            probe(&head(name), device_bytes).iter().map(Signature::to_string).collect();
        let expected = expected.replace(", UUID", &format!(", uuid {UUID}"));
        assert_eq!(found, [expected.replace("set UUID", &format!("set {UUID}"))], "{name}");
    }
}

#[test]
fn partition_table_is_reported_with_its_protective_boot_record() {
    let found: Vec<String> =
        probe(&head("gpt"), 8 * MIB).iter().map(Signature::to_string).collect();
    assert_eq!(
        found,
        [format!("gpt at byte 512, uuid {UUID}"), "mbr at byte 0, protective".to_owned()]
    );
}

#[test]
fn a_writecache_behind_a_start_sector_is_found_by_probing_from_there() {
    let head = head("writecache-start-sector-9");
    assert_eq!(probe(&head, MIB), []);
    let found = probe(&head[9 * 512..], MIB - 9 * 512);
    assert_eq!(
        found[0].to_string(),
        "dm-writecache at byte 0, block size 512, n_blocks 68, seq_count 2"
    );
}
