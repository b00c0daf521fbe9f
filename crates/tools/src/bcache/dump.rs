//! The metadata of a cache or a backing device for `cairn dump`.

use std::fmt::Write;
use std::ops::ControlFlow;

use cairn_block::SECTOR_BYTES;
use cairn_format::bcache::load::{Fault, Loaded, NodePlace, Visitor, load_now};
use cairn_format::bcache::node::Node;
use cairn_format::bcache::priorities::Record;
use cairn_format::bcache::{BackingSuperblock, CacheSuperblock, Key, Superblock};
use cairn_outcome::failure::Outcome;
use cairn_outcome::{exit, stdout};
use serde_json::{Value, json};

use super::{Sectors, backing_json, cache_json, damaged, volume_word};
use crate::source::Source;

/// Shows the device that begins at `start_sector`; `all`: also each bucket's generation.
///
/// # Errors
/// The device cannot be read or holds no cache that can be read.
pub fn show(source: &Source, start_sector: u64, all: bool, as_json: bool) -> Outcome<u8> {
    match super::superblock(source, start_sector)?.map_err(|error| damaged(source, error))? {
        Superblock::Backing(backing) => show_backing(source, &backing, as_json),
        Superblock::Cache(cache) => {
            let contents = contents(source, start_sector, &cache)?;
            match as_json {
                true => stdout::print_json(&json_of(source, &cache, contents.as_ref(), all)),
                false => stdout::print(&text_of(&cache, contents.as_ref(), all)),
            }
        }
    }
}

fn show_backing(source: &Source, backing: &BackingSuperblock, as_json: bool) -> Outcome<u8> {
    let superblock = backing_json(backing);
    match as_json {
        true => {
            stdout::print_json(&json!({ "device": source.name, "superblock": superblock }))?;
        }
        false => {
            stdout::print(&fields_text(&superblock))?;
        }
    }
    Ok(exit::OK)
}

/// What a cache that is in use holds.
struct Contents {
    loaded: Loaded,
    nodes: Vec<(NodePlace, usize, usize)>,
    extents: Vec<Key>,
}

/// Takes nodes and extents, and refuses every fault.
#[derive(Default)]
struct Collect {
    nodes: Vec<(NodePlace, usize, usize)>,
    extents: Vec<Key>,
}

impl Visitor for Collect {
    fn fault(&mut self, _: &Fault) -> ControlFlow<()> {
        ControlFlow::Break(())
    }

    fn node(&mut self, at: &NodePlace, node: &Node<'_>) {
        let keys = node.sets().iter().map(|set| set.keys().count()).sum();
        self.nodes.push((*at, node.sets().len(), keys));
    }

    fn extent(&mut self, key: Key) {
        self.extents.push(key);
    }
}

fn contents(
    source: &Source,
    start_sector: u64,
    cache: &CacheSuperblock,
) -> Outcome<Option<Contents>> {
    if !cache.is_in_use() {
        return Ok(None);
    }
    let sectors = source.area_bytes(start_sector)? / SECTOR_BYTES;
    cache.geometry().fits(sectors).map_err(|error| damaged(source, error))?;
    let mut collect = Collect::default();
    let loaded = load_now(Sectors { source, start_sector }, cache, &mut collect)
        .map_err(|error| damaged(source, error))?;
    let extents = loaded.extents(cache.geometry(), collect.extents);
    Ok(Some(Contents { loaded, nodes: collect.nodes, extents }))
}

/// The fields of an object, one per line.
fn fields_text(fields: &Value) -> String {
    let fields = fields.as_object().into_iter().flatten();
    let line = |(name, value): (&String, &Value)| match value {
        Value::String(text) => format!("{name} {text}\n"),
        Value::Null => format!("{name} -\n"),
        value => format!("{name} {value}\n"),
    };
    fields.map(line).collect()
}

fn text_of(cache: &CacheSuperblock, contents: Option<&Contents>, all: bool) -> String {
    let mut text = fields_text(&cache_json(cache));
    let Some(Contents { loaded, nodes, extents }) = contents else { return text };
    let mut line = |line: std::fmt::Arguments<'_>| {
        text.write_fmt(line).expect("writing to a string cannot fail");
        text.push('\n');
    };
    let newest = &loaded.newest;
    line(format_args!("journal entries {} to {}", newest.last_seq, newest.seq));
    for entry in &loaded.ring.entries {
        let at = entry.bytes.start;
        line(format_args!("entry {}: ring bucket {}, byte {at}", entry.header.seq, entry.index));
    }
    for (inode, volume) in loaded.volumes.iter().enumerate().filter(|(_, it)| !it.is_empty()) {
        let (uuid, label, word) = (volume.uuid, volume.label_text(), volume_word(volume));
        line(format_args!("volume {inode}: {uuid} '{label}', {word}"));
    }
    let chain: Vec<String> = loaded.priorities.iter().map(u64::to_string).collect();
    line(format_args!("priorities in buckets {}", chain.join(", ")));
    for (bucket, record) in loaded.buckets.iter().enumerate().filter(|_| all) {
        let (generation, priority) = (record.generation.0, record.priority);
        line(format_args!("bucket {bucket}: generation {generation}, priority {priority}"));
    }
    for (place, sets, keys) in nodes {
        let (inode, end) = place.key.position();
        let sector = place.key.cached_at().map_or(0, |at| at.sector());
        line(format_args!(
            "node at sector {sector}: level {}, up to {inode}:{end}, {sets} bsets, {keys} keys",
            place.level
        ));
    }
    for key in extents {
        line(format_args!("extent {key:?}"));
    }
    text
}

fn json_of(source: &Source, cache: &CacheSuperblock, of: Option<&Contents>, all: bool) -> Value {
    let mut value = json!({ "device": source.name, "superblock": cache_json(cache) });
    let Some(Contents { loaded, nodes, extents }) = of else { return value };
    let newest = &loaded.newest;
    value["journal"] = json!({
        "seq": newest.seq,
        "last_seq": newest.last_seq,
        "root_level": newest.root_level,
        "entries": loaded.ring.entries.iter().map(|entry| json!({
            "seq": entry.header.seq,
            "ring_bucket": entry.index,
            "byte": entry.bytes.start,
        })).collect::<Vec<_>>(),
    });
    let volumes = loaded.volumes.iter().enumerate().filter(|(_, volume)| !volume.is_empty());
    let volume = |(inode, volume): (usize, &cairn_format::bcache::uuids::UuidEntry)| {
        json!({
            "inode": inode,
            "uuid": volume.uuid.to_string(),
            "label": volume.label_text(),
            "state": volume_word(volume),
            "size_sectors": volume.is_flash_only().then_some(volume.sectors),
        })
    };
    value["volumes"] = volumes.map(volume).collect();
    value["priorities"] = json!(loaded.priorities);
    if all {
        let record = |record: &Record| {
            let generation = record.generation.0;
            json!({ "generation": generation, "priority": record.priority })
        };
        value["buckets"] = loaded.buckets.iter().map(record).collect();
    }
    let node = |(place, sets, keys): &(NodePlace, usize, usize)| {
        json!({
            "sector": place.key.cached_at().map(|at| at.sector()),
            "level": place.level,
            "inode": place.key.inode(),
            "end": place.key.end(),
            "bsets": sets,
            "keys": keys,
        })
    };
    value["nodes"] = nodes.iter().map(node).collect();
    let extent = |key: &Key| {
        json!({
            "inode": key.inode(),
            "sector": key.start(),
            "sectors": key.sectors(),
            "dirty": key.is_dirty(),
            "cache_sector": key.cached_at().map(|at| at.sector()),
            "generation": key.cached_at().map(|at| at.generation().0),
        })
    };
    value["extents"] = extents.iter().map(extent).collect();
    value
}
