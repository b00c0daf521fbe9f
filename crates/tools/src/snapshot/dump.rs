//! The header and the records of an exception store for `cairn dump`.

use std::fmt::Write;

use cairn_format::snapshot::{Header, Layout, Slot, VERSION, Walk};
use cairn_outcome::failure::Outcome;
use cairn_outcome::{exit, stdout};
use serde_json::{Value, json};

use super::{PIECE_BYTES, Store, header_json};
use crate::source::Source;

/// Shows the store that begins at `start_sector`; with `all`, also what follows the end of the
/// list.
///
/// # Errors
/// The device cannot be read or holds no store.
pub fn show(source: &Source, start_sector: u64, all: bool, as_json: bool) -> Outcome<u8> {
    let store = Store::at(source, start_sector, None)?;
    let header = Header::parse(&store.head()?).map_err(|error| store.damaged(error))?;
    let layout = Layout::new(header.chunk_size(), store.limits.device_sectors);
    let layout = layout.map_err(|error| store.damaged(error))?;
    let (mut text, mut records) = (head_text(&header, &layout), Vec::new());
    let mut walk = Walk::new(layout);
    while let Some(range) = walk.wants(PIECE_BYTES) {
        walk.feed(&store.bytes(range)?, |slot| match as_json {
            _ if slot.after_end && !all => {}
            true => records.push(record_json(&slot)),
            false => record_text(&mut text, &slot),
        });
        if !as_json {
            stdout::print(&std::mem::take(&mut text))?;
        }
    }
    if as_json {
        return stdout::print_json(&json!({
            "device": source.name,
            "header": header_json(&header),
            "layout": {
                "chunks": layout.chunks(),
                "areas": layout.area_count(),
                "records_per_area": layout.records_per_area(),
            },
            "records": records,
        }));
    }
    Ok(exit::OK)
}

fn head_text(header: &Header, layout: &Layout) -> String {
    format!(
        "valid {}\nversion {VERSION}\nchunk_size {}\nchunks {}\nareas {}\n",
        u8::from(header.is_valid()),
        header.chunk_size().sectors(),
        layout.chunks(),
        layout.area_count()
    )
}

fn record_text(text: &mut String, slot: &Slot) {
    let after = if slot.after_end { ", after the end" } else { "" };
    let (index, record) = (slot.index, slot.record);
    writeln!(text, "record {index}: old_chunk {}, new_chunk {}{after}", record.old, record.new)
        .expect("writing to a string cannot fail");
}

fn record_json(slot: &Slot) -> Value {
    json!({
        "index": slot.index,
        "old_chunk": slot.record.old.0,
        "new_chunk": slot.record.new.0,
        "after_end": slot.after_end,
    })
}
