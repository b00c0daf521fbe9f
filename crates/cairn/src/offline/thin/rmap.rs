//! `cairn rmap`: which volumes map a data block, in the lines that thin_rmap prints.

use std::fmt::Write;
use std::ops::Range;

use cairn_format::thin::rmap::{Owned, rmap};
use serde_json::{Value, json};

use super::{MetadataDevice, expect_volumes, open, stopped, superblock, while_held};
use crate::cli::RmapArgs;
use crate::exit;
use crate::failure::{Outcome, wrong};
use crate::remote;

/// Runs the verb.
///
/// # Errors
/// The device cannot be read or holds no metadata, or something in it is damaged.
pub fn run(args: &RmapArgs) -> Outcome<u8> {
    let source = open(&args.device, args.metadata_snapshot)?;
    let mut device = MetadataDevice::at(&source, args.place.start_sector, "rmap")?;
    let superblock = superblock(&mut device, args.metadata_snapshot)?;
    expect_volumes(&mut device, &superblock, args.metadata_snapshot);
    let mut regions: Vec<_> =
        args.region.iter().map(|text| region(text)).collect::<Outcome<_>>()?;
    if regions.is_empty() {
        regions.push(0..u64::MAX);
    }
    let mut values = Vec::new();
    let mut text = String::new();
    let mut shown = regions.into_iter().try_for_each(|region| {
        let shown = rmap(&mut device, &superblock, args.metadata_snapshot, region, &mut |run| {
            if args.json {
                values.push(json(&run));
                return Ok(());
            }
            line(&mut text, &run);
            match text.len() < (1 << 16) {
                true => Ok(()),
                false => remote::print(&std::mem::take(&mut text)).map(drop),
            }
        });
        shown.map_err(|stop| stopped(&device, stop))
    });
    if args.metadata_snapshot {
        shown = while_held(&mut device, &superblock, shown);
    }
    device.done();
    shown?;
    if args.json {
        return remote::print_json(&Value::from(values));
    }
    remote::print(&text)?;
    Ok(exit::OK)
}

/// `BEGIN..END`, half-open.
fn region(text: &str) -> Outcome<Range<u64>> {
    let ends = text.split_once("..").and_then(|(begin, end)| {
        let (begin, end) = (begin.parse().ok()?, end.parse().ok()?);
        (begin < end).then_some(begin..end)
    });
    ends.ok_or_else(|| wrong("rmap", "--region", text, "BEGIN..END in data blocks, END left out"))
}

fn line(text: &mut String, run: &Owned) {
    let Owned { data, device, origin, len } = *run;
    let (data_end, origin_end) = (data + len, origin.saturating_add(len));
    writeln!(text, "data {data}..{data_end} -> thin({device}) {origin}..{origin_end}")
        .expect("writing to a string cannot fail");
}

fn json(run: &Owned) -> Value {
    json!({
        "data": run.data,
        "device": run.device.get(),
        "origin": run.origin,
        "length": run.len,
    })
}
