//! What a fuzzer does with the text of a table: parse it, construct what it names, and hold the
//! parsers to their promises.
//!
//! Shared with the ordinary property test of `crates/targets`, which runs the same body on random
//! and mutated lines in every `cargo test`. A body panics when a promise is broken, and must never
//! depend on anything but its input.

use std::sync::Arc;

use cairn_block::{Registry, Sector, SectorCount, Table, TableContext, TableLine, TargetTypes};
use cairn_sim::{DriveOptions, Image, SimWorld};

/// Sectors of each drive.
const SECTORS: u64 = 4096;
/// More lines say nothing new.
const LINES_MAX: usize = 8;

/// The text of a table over drives `a`, `b` and `c`. True if it is one.
pub fn table(bytes: &[u8]) -> bool {
    let text = String::from_utf8_lossy(bytes);
    let Ok(lines) = TableLine::parse_all(&text) else { return false };
    let mut end = Sector(0);
    for (index, line) in lines.iter().enumerate() {
        assert_eq!(line.start, end, "lines follow each other");
        let may_be_whole = index + 1 == lines.len() && line.len == TableLine::WHOLE;
        assert!(line.len > SectorCount::ZERO || may_be_whole, "a line has a length");
        assert!(!line.target.is_empty());
        end = line.start + line.len;
    }
    lines.len() <= LINES_MAX && construct(lines)
}

/// Constructing writes nothing; what a target prints constructs the same target.
fn construct(lines: Vec<TableLine>) -> bool {
    let world = SimWorld::new(1, 1);
    for name in ["a", "b", "c"] {
        world.add_drive(DriveOptions::named(name), Image::new(SectorCount(SECTORS)));
    }
    let registry = Arc::new(Registry::new(Box::new(world.opener())));
    let device = registry.create_volume("v").expect("a name");
    let built = world.block_on(0, |env| async move {
        let types = TargetTypes::new(cairn_targets::types());
        let context = TableContext { types: &types, registry: &registry, read_only: false };
        let table = Table::build(&env, &device, &lines, context).await.ok()?;
        let again: Vec<TableLine> = table.lines().iter().map(reprinted).collect();
        let reread = Table::build(&env, &device, &again, context).await;
        let reread = reread.unwrap_or_else(|error| panic!("{again:?}: {error}"));
        let printed: Vec<TableLine> = reread.lines().iter().map(reprinted).collect();
        assert_eq!(printed, again);
        Some(table.sectors())
    });
    assert!(built.is_none_or(|sectors| sectors > SectorCount::ZERO));
    assert_eq!(world.writes(), 0, "a constructor writes nothing");
    built.is_some()
}

fn reprinted(line: &cairn_block::Line) -> TableLine {
    let (start, len) = (line.start, line.len);
    let text = format!("{start} {len} {} {}", line.name, line.target.table());
    TableLine::parse(&text).unwrap_or_else(|error| panic!("{text}: {error}"))
}
