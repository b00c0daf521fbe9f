//! Drains of sets whose journal has keys that do not count, as their buckets were reused.

use std::time::Duration;

use cairn_block::{ConfigError, Sector, SuspendMode};
use cairn_format::bcache::journal::{ENTRY_HEADER_BYTES, encode};
use cairn_format::bcache::{Generation, Key, Pointer, SECTOR_BYTES};

use super::bcache_lab::make::{FIRST, Made, Shape, make};
use super::bcache_lab::{Cache, Lab};
use super::{FULL, check, without_clean};

/// Makes the dirty keys of the journal stale that begin before a sector of the volume; holes there
/// go as far behind it.
fn outdate(made: &mut Made, upto: u64) {
    let Cache { superblock, loaded, .. } = Cache::read(&made.cache);
    let (geometry, magic) = (superblock.geometry(), superblock.set_uuid().set_magic());
    let mut keys = loaded.journal.iter().copied();
    for entry in &loaded.ring.entries {
        let (mut words, mut changed) = (0, Vec::new());
        while words < (entry.bytes.end - entry.bytes.start - ENTRY_HEADER_BYTES) / 8 {
            let key = keys.next().expect("the journal has the keys of its entries");
            words += key.word_count();
            changed.push(match key.cached_at() {
                _ if key.start() >= upto => key,
                // One before that of the bucket.
                Some(place) => key.at(Pointer::new(place.sector(), Generation(u8::MAX))),
                None => Key::new(key.inode(), key.end() + upto, key.sectors()),
            });
        }
        let bytes = encode(&entry.header, &changed, magic, geometry.block_bytes());
        let bucket = superblock.journal_buckets().start + entry.index as u64;
        let at = geometry.sector_of(bucket) as usize * SECTOR_BYTES + entry.bytes.start;
        made.cache[at..at + bytes.len()].copy_from_slice(&bytes);
    }
    let cache = Cache::read(&made.cache);
    made.content = without_clean(&cache, &made.cache, &made.backing);
}

#[test]
fn a_replay_in_parts_keeps_leaves_for_which_the_journal_has_stale_keys_alone() {
    let shape = Shape { clean: 0, free: 40, ..FULL };
    let mut made = make(&mut fastrand::Rng::with_seed(1), shape);
    let (before, upto) = (made.content.clone(), FIRST + shape.sectors / 3);
    outdate(&mut made, upto);
    assert_ne!(made.content, before);
    let set = Cache::read(&made.cache);
    let is_whole = |node: &Key| node.inode() == 0 && node.end() <= upto;
    assert!(set.loaded.newest.root_level > 0 && set.nodes.iter().any(is_whole));
    let lab = Lab::new(1, Some(made.cache.clone()), Some(made.backing.clone()));
    let used = lab.open_and_use(&made.line, async |env, volume| {
        let limit = ["set", "btree_cache_size", "0"];
        volume.message(&env, Sector(0), &limit).await.map_err(|error| error.to_string())?;
        // The set is read again, and the leaves leave memory that may.
        let text = |error: ConfigError| error.to_string();
        volume.suspend(&env, SuspendMode::Flush).await.map_err(text)?;
        volume.resume(&env).await.and_then(cairn_block::Resumed::whole).map_err(text)?;
        env.sleep(Duration::from_secs(1)).await;
        volume.drain_caches(&env).await.map_err(|error| error.to_string())?;
        volume.suspend(&env, SuspendMode::Flush).await.map_err(text)?;
        volume.remove(&env).await.map_err(text)
    });
    used.expect("no power cut").expect("it is drained");
    check(&made, &lab.images(), true).expect("it is sound");
}
