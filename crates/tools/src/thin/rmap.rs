//! `cairn rmap`: which volumes map a data block, in the lines that thin_rmap prints.

use std::fmt::Write;
use std::ops::Range;

use cairn_format::thin::rmap::{Owned, rmap};
use cairn_outcome::failure::{Outcome, wrong};
use cairn_outcome::{exit, stdout};

use super::{MetadataDevice, expect_volumes, open, stopped, superblock, while_held};
use crate::args::RmapArgs;

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
    let mut printer = Printer::new(args.json);
    let mut shown = regions.into_iter().try_for_each(|region| {
        let each = &mut |run| printer.put(&run);
        let shown = rmap(&mut device, &superblock, args.metadata_snapshot, region, each);
        shown.map_err(|stop| stopped(&device, stop))
    });
    if args.metadata_snapshot {
        shown = while_held(&mut device, &superblock, shown);
    }
    device.done();
    // Runs before an error are printed.
    let printed = printer.end(shown.is_ok());
    shown.and(printed).map(|()| exit::OK)
}

/// `BEGIN..END`, half-open.
fn region(text: &str) -> Outcome<Range<u64>> {
    let ends = text.split_once("..").and_then(|(begin, end)| {
        let (begin, end) = (begin.parse().ok()?, end.parse().ok()?);
        (begin < end).then_some(begin..end)
    });
    ends.ok_or_else(|| wrong("rmap", "--region", text, "BEGIN..END in data blocks, END left out"))
}

const PIECE_BYTES: usize = 1 << 16;

/// Prints runs as lines or as a JSON array.
struct Printer {
    text: String,
    as_json: bool,
    /// The separator before the next run in JSON.
    comma: &'static str,
}

impl Printer {
    fn new(as_json: bool) -> Printer {
        Printer { text: String::new(), as_json, comma: "[" }
    }

    fn put(&mut self, run: &Owned) -> Outcome<()> {
        let Owned { data, device, origin, len } = *run;
        let (data_end, origin_end) = (data + len, origin.saturating_add(len));
        let comma = std::mem::replace(&mut self.comma, ",");
        let written = match self.as_json {
            true => write!(
                self.text,
                "{comma}\n  {{\"data\": {data}, \"device\": {device}, \"origin\": {origin}, \
                 \"length\": {len}}}"
            ),
            false => writeln!(
                self.text,
                "data {data}..{data_end} -> thin({device}) {origin}..{origin_end}"
            ),
        };
        written.expect("writing to a string cannot fail");
        if self.text.len() < PIECE_BYTES { Ok(()) } else { self.hand_on() }
    }

    /// Prints the rest; the array is closed only if it is complete.
    fn end(mut self, whole: bool) -> Outcome<()> {
        if self.as_json && whole {
            self.text.push_str(if self.comma == "[" { "[]\n" } else { "\n]\n" });
        }
        self.hand_on()
    }

    fn hand_on(&mut self) -> Outcome<()> {
        let handed = stdout::print(&self.text).map(drop);
        self.text.clear();
        handed
    }
}
