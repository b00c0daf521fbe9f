//! Metadata that the kernel and thin_restore made: opened, read to the end, gone on with.

use std::collections::BTreeMap;

use cairn_block::Disk;
use cairn_sim::Image;
use cairn_testkit::{image, manifest};
use sha2::{Digest, Sha256};

use super::fixture::{StoreFixture, holes, id, mapping, world};
use crate::persistent::model::audit;

fn open(record: &serde_json::Value) -> StoreFixture {
    let name = record["meta"].as_str().unwrap();
    let bytes = image("thin", name);
    StoreFixture::open(world(3, Image::of_bytes(&bytes)))
        .unwrap_or_else(|error| panic!("{name}: {error}"))
}

#[test]
fn every_image_has_the_devices_counts_and_contents_of_its_manifest() {
    for record in manifest("thin") {
        let name = record["meta"].as_str().unwrap();
        let mut test = open(&record);
        let found = test.audit();
        assert_eq!(test.working().needs_check(), record["needs_check"] == 1, "{name}");
        let (used, total) = test.store.data_use();
        assert_eq!(used, record["used_data"], "{name}");
        assert_eq!(total, record["data_blocks"], "{name}");
        assert_eq!(test.store.data().free(), total - used, "{name}");
        for (device, (details, mappings)) in &found.devices {
            let read = test.read_all(id(*device), 5).unwrap();
            assert!(read.into_iter().eq(mappings.iter().map(|(key, own)| (*key, *own))), "{name}");
            assert_eq!(test.store.device(id(*device)).unwrap().details, *details, "{name}");
        }
        for (device, expected) in record["devs"].as_object().unwrap() {
            let (details, mappings) = &found.devices[&device.parse().unwrap()];
            assert_eq!(details.mapped_blocks, expected["mapped"], "{name}");
            if let (Some(data), None) = (record["data"].as_str(), record["ext"].as_str()) {
                let bytes =
                    content(mappings, &image("thin", data), expected["sectors"].as_u64().unwrap());
                let hash: String =
                    Sha256::digest(&bytes).iter().map(|byte| format!("{byte:02x}")).collect();
                assert_eq!(hash, expected["sha256"], "{name}: device {device}");
            }
        }
    }
}

/// What a volume without an external origin reads as.
fn content(
    mappings: &BTreeMap<u64, cairn_format::thin::Mapping>,
    data: &[u8],
    sectors: u64,
) -> Vec<u8> {
    const BLOCK: usize = 128 * 512;
    let mut bytes = vec![0; sectors as usize * 512];
    for (key, mapping) in mappings {
        let (to, from) = (*key as usize * BLOCK, mapping.block.0 as usize * BLOCK);
        let len = BLOCK.min(bytes.len().saturating_sub(to)).min(data.len().saturating_sub(from));
        bytes[to..to + len].copy_from_slice(&data[from..from + len]);
    }
    bytes
}

#[test]
fn every_sound_image_is_gone_on_with() {
    for record in manifest("thin").iter().filter(|record| record["needs_check"] == 0) {
        let name = record["meta"].as_str().unwrap();
        let mut test = open(record);
        if name == "oom.meta" {
            let blocks = test.working().metadata_blocks() + 64;
            test.drive().resize(cairn_block::SectorCount(blocks * 8));
            test.working().grow_metadata(blocks).unwrap();
        }
        let devices: Vec<_> = test.store.devices().into_iter().map(|(id, _)| id).collect();
        let before = test.audit();
        for device in devices {
            let taken = test.store.data().take(5);
            let blocks = taken.iter().flat_map(|run| run.blocks());
            let time = test.working().time();
            let changes: Vec<_> = (0..)
                .zip(blocks)
                .map(|(n, block)| (n * 37, Some(mapping(block.0, time))))
                .collect();
            test.run(async move |env, working| {
                working.apply(env, device, &changes).await?;
                working.apply(env, device, &holes(40..70)).await
            })
            .unwrap_or_else(|error| panic!("{name}: {error}"));
            test.commit();
            let found = audit(&test.drive().visible().to_vec());
            let own = &found.devices[&device.key()].1;
            assert!(own.range(40..70).all(|(key, _)| *key < 40), "{name}");
            assert_eq!(found.held, before.held, "{name}: the metadata snapshot stays as it was");
        }
        if before.held.is_some() {
            test.run(async |env, working| working.release_metadata_snap(env).await).unwrap();
        }
        for (device, _) in test.store.devices() {
            test.run(async move |env, working| working.delete_device(env, device).await).unwrap();
        }
        test.commit();
        assert_eq!(test.audit().data.len(), 0, "{name}: nothing is left of the devices");
        assert!(test.drive().sectors().0 > 0);
    }
}
