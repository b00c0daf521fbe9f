//! The table of attributes: names and meanings of the kernel's sysfs, where it has them.

use cairn_block::sync::atomic::Ordering;
use cairn_block::{Attribute, Value};
use cairn_format::bcache::{BackingSuperblock, CacheMode};

use super::set::Set;
use super::volume::Bcache;

/// An attribute of a volume.
struct Row {
    name: &'static str,
    unit: Option<&'static str>,
    doc: &'static str,
    value: fn(&Bcache) -> Value,
}

const ROWS: &[Row] = &[
    Row {
        name: "state",
        unit: None,
        doc: "how the backing device stands to its cache",
        value: |volume| Value::State(volume.state_word()),
    },
    Row {
        name: "cache_mode",
        unit: None,
        doc: "what the kernel does with writes",
        value: |volume| of_backing(volume, |it| Value::State(mode_word(it.mode()))),
    },
    Row {
        name: "label",
        unit: None,
        doc: "the name that was given to the volume",
        value: |volume| of_backing(volume, |it| Value::Names(vec![it.label()])),
    },
    Row {
        name: "dirty_data",
        unit: Some("sectors"),
        doc: "what only the cache has",
        value: |volume| Value::Gauge(volume.dirty_sectors.load(Ordering::Relaxed)),
    },
    Row {
        name: "bucket_size",
        unit: Some("sectors"),
        doc: "what is allocated at once",
        value: |volume| of_set(volume, |set| set.superblock.geometry().bucket_sectors()),
    },
    Row {
        name: "block_size",
        unit: Some("sectors"),
        doc: "what is written at once",
        value: |volume| of_set(volume, |set| u64::from(set.superblock.geometry().block_sectors())),
    },
    Row {
        name: "tree_depth",
        unit: None,
        doc: "levels of the tree above its leaves",
        value: |volume| of_set(volume, |set| u64::from(set.tree.root().1)),
    },
    Row {
        name: "btree_nodes",
        unit: None,
        doc: "nodes of the tree",
        value: |volume| of_set(volume, |set| set.tree.nodes().count() as u64),
    },
    Row {
        name: "cache_available_percent",
        unit: Some("percent"),
        doc: "buckets with neither dirty data nor metadata",
        value: Bcache::available,
    },
];

fn of_set(volume: &Bcache, look: impl FnOnce(&Set) -> u64) -> Value {
    volume.set.lock().as_ref().map_or(Value::Absent, |set| Value::Gauge(look(set)))
}

fn of_backing(volume: &Bcache, look: impl FnOnce(&BackingSuperblock) -> Value) -> Value {
    volume.backing.lock().as_ref().map_or(Value::Absent, look)
}

fn mode_word(mode: CacheMode) -> &'static str {
    match mode {
        CacheMode::Writethrough => "writethrough",
        CacheMode::Writeback => "writeback",
        CacheMode::Writearound => "writearound",
        CacheMode::None => "none",
    }
}

impl Bcache {
    /// The options of the line, and what is known of the volume and its set.
    pub(super) fn all_attributes(&self) -> Vec<Attribute> {
        let row = |row: &Row| Attribute {
            name: row.name,
            unit: row.unit,
            doc: row.doc,
            settable: false,
            value: (row.value)(self),
        };
        let mut attributes = self.config.args.attributes();
        attributes.extend(ROWS.iter().map(row));
        attributes
    }
}
