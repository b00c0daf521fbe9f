//! The table of attributes: names of the kernel's sysfs, where it has them; sizes are in sectors.

use cairn_block::sync::atomic::{AtomicU64, Ordering};
use cairn_block::{Attribute, Target, Value};
use cairn_format::bcache::BackingSuperblock;

use super::gc::Gc;
use super::set::{Core, Set};
use super::status::Count;
use super::tunables::Tunable;
use super::volume::Bcache;

/// An attribute of a volume.
struct Row {
    name: &'static str,
    value: fn(&Bcache) -> Value,
}

const ROWS: &[Row] = &[
    // The attachment state of the backing device.
    Row { name: "state", value: |volume| Value::State(volume.state_word()) },
    // What the kernel does with writes.
    Row {
        name: "cache_mode",
        value: |volume| of_backing(volume, |it| Value::State(it.mode().word())),
    },
    // The name that was given to the volume.
    Row { name: "label", value: |volume| of_backing(volume, |it| Value::Names(vec![it.label()])) },
    // What only the cache has, in sectors.
    Row {
        name: "dirty_data",
        value: |volume| Value::Gauge(volume.dirty_sectors.load(Ordering::Relaxed)),
    },
    // What is allocated at once, in sectors.
    Row {
        name: "bucket_size",
        value: |volume| of_set(volume, |set| set.superblock.geometry().bucket_sectors()),
    },
    // What is written at once, in sectors.
    Row {
        name: "block_size",
        value: |volume| of_set(volume, |set| u64::from(set.superblock.geometry().block_sectors())),
    },
    // Levels of the tree above its leaves.
    Row { name: "tree_depth", value: |volume| of_set(volume, |set| u64::from(set.tree.root().1)) },
    // Nodes of the tree.
    Row {
        name: "btree_nodes",
        value: |volume| of_set(volume, |set| set.tree.count_nodes() as u64),
    },
    // Memory of the extents, in bytes.
    Row { name: "btree_cache_used", value: |volume| of_set(volume, |set| set.tree.memory()) },
    // Passes of collecting that have ended.
    Row { name: "gc_passes", value: |volume| of_gc(volume, |gc| &gc.passes) },
    // Buckets that were packed into others, and nodes that became fewer, since the first resume.
    Row { name: "moved_buckets", value: |volume| of_gc(volume, |gc| &gc.moved_buckets) },
    Row { name: "coalesced_nodes", value: |volume| of_gc(volume, |gc| &gc.coalesced_nodes) },
    // What is written back next, and how.
    Row {
        name: "writeback_policy",
        value: |volume| match volume.drains() {
            true => Value::State(volume.throttle.settings.policy().word()),
            false => Value::Absent,
        },
    },
    // 1 if all requests fail, after failures (`degraded`).
    Row {
        name: "io_disable",
        value: |volume| match &volume.core {
            Some(_) => Value::Gauge(u64::from(volume.is_disabled())),
            None => Value::Absent,
        },
    },
    // Buckets of the cache device.
    Row {
        name: "nbuckets",
        value: |volume| of_set(volume, |set| set.superblock.geometry().buckets()),
    },
    // Which clean data leaves first, as the superblock says; cairn takes what was used longest ago.
    Row {
        name: "cache_replacement_policy",
        value: |volume| {
            let word = volume.look(|set| set.superblock.replacement().word());
            word.map_or(Value::Absent, Value::State)
        },
    },
    // Entries of the journal that count.
    Row {
        name: "active_journal_entries",
        value: |volume| of_set(volume, |set| set.journal.counting()),
    },
    // Sectors written to the cache device since the set was opened: data of its volumes that are
    // served, nodes, and all metadata with these.
    Row { name: "written", value: |volume| done(volume, |core| core.users().written()) },
    Row { name: "btree_written", value: |volume| done(volume, |it| of(&it.cache.work.nodes)) },
    Row {
        name: "metadata_written",
        value: |volume| done(volume, |it| of(&it.cache.work.metadata)),
    },
    // How often the cache device was flushed, and the backing device for this volume.
    Row { name: "cache_flushes", value: |volume| done(volume, |it| of(&it.cache.work.flushes)) },
    Row {
        name: "backing_flushes",
        value: |volume| of_backing(volume, |_| Value::Counter(of(&volume.traffic.flushes))),
    },
    // Extents that were written back, and that could not be.
    Row { name: "writeback_keys_done", value: |volume| Value::Counter(of(&volume.keys_done)) },
    Row { name: "writeback_keys_failed", value: |volume| Value::Counter(of(&volume.keys_failed)) },
    // Reads of clean data that failed on the cache device, and were sent to the backing device.
    Row {
        name: "cache_reads_retried",
        value: |volume| Value::Counter(volume.counters.read()[Count::ReadAgain as usize]),
    },
    // What the backing device writes best at once, in sectors; 0 if it does not say so.
    Row {
        name: "stripe_size",
        value: |volume| volume.stripes.as_ref().map_or(Value::Absent, |it| Value::Gauge(it.size())),
    },
    // Which requests without a client that waits enter the cache.
    Row {
        name: "readahead_cache_policy",
        value: |volume| {
            volume.bypass.as_ref().map_or(Value::Absent, |it| Value::State(it.readahead_word()))
        },
    },
    // Whether the volume is stopped with its set.
    Row {
        name: "stop_when_cache_set_failed",
        value: |volume| match volume.drains() {
            true => Value::State(volume.stop_word()),
            false => Value::Absent,
        },
    },
    // What happens to a set in error: the kernel's word; cairn knows no other.
    Row { name: "errors", value: |volume| of_core(volume, |_| Value::State("unregister")) },
    // Errors of the backing device that count.
    Row {
        name: "io_errors",
        value: |volume| of_backing(volume, |_| Value::Gauge(volume.traffic.errors.read())),
    },
    // The same of the cache device.
    Row {
        name: "cache/io_errors",
        value: |volume| of_core(volume, |core| Value::Gauge(core.errors.read())),
    },
    // Buckets with neither dirty data nor metadata, in percent.
    Row { name: "cache_available_percent", value: Bcache::available },
];

fn of_set(volume: &Bcache, look: impl FnOnce(&Set) -> u64) -> Value {
    volume.look(look).map_or(Value::Absent, Value::Gauge)
}

fn of(number: &AtomicU64) -> u64 {
    number.load(Ordering::Relaxed)
}

fn done(volume: &Bcache, count: impl FnOnce(&Core) -> u64) -> Value {
    of_core(volume, |core| Value::Counter(count(core)))
}

fn of_gc(volume: &Bcache, look: impl FnOnce(&Gc) -> &AtomicU64) -> Value {
    done(volume, |core| of(look(&core.gc)))
}

fn of_core(volume: &Bcache, look: impl FnOnce(&Core) -> Value) -> Value {
    volume.core.as_deref().map_or(Value::Absent, look)
}

fn of_backing(volume: &Bcache, look: impl FnOnce(&BackingSuperblock) -> Value) -> Value {
    volume.backing.lock().as_ref().map_or(Value::Absent, look)
}

impl Bcache {
    /// The options of the line, what is known of the volume and its set, its tunables and its
    /// statistics.
    pub(super) fn all_attributes(&self) -> Vec<Attribute> {
        let row = |row: &Row| Attribute { name: row.name, value: (row.value)(self) };
        let mut attributes = self.config.args.attributes();
        attributes.extend(ROWS.iter().map(row));
        attributes.extend(Tunable::attributes(self));
        attributes.extend(self.statistics_attributes());
        attributes
    }
}
