//! What a file says about clients.
//!
//! ```toml
//! [[client]]
//! volume = "disk"
//! order = "random"        # random-once, sequential, zipf-1.2, neighbours-16x4 (pieces, runs)
//! block = "4K"            # or ["4K", "64K"], each as often
//! reads = 30              # percent
//! durable = "fua+flush"   # none, fua, write+flush
//! depth = 1               # operations in flight of each
//! count = 4               # clients
//! think = "1ms"           # or "about 1ms": as if operations came independently
//! from = "1m"             # it begins then, as reported
//! until = "10m"           # it stops then
//!
//! [[client]]
//! volume = "disk"
//! trace = "monday.log"    # beside this file: fio's iologs of version 2 or 3, or blkparse's text
//! device = "8,0"          # of several in the trace
//! depth = 32              # at most; each operation waits for its time in the trace
//! pace = "full"           # or it does not wait ("trace", if this is left out)
//! ```

use std::fs::File;
use std::io::BufReader;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, Sector, SectorCount, SectorRange, Time};
use cairn_outcome::failure::{Outcome, system, wrong};
use serde::Deserialize;

use super::client::Operations;
use super::form::{OneOrMany, block, duration};
use crate::trace::Trace;
use crate::workload::{Behaviour, Client, Durability, Operation, Order, Pause, Source, clients};

/// Clients of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Clients {
    /// How they are called.
    pub name: String,
    /// The volume that they use.
    pub volume: String,
    /// What they send.
    pub what: What,
    /// Operations in flight of each.
    pub depth: u32,
    /// How many there are.
    pub count: u32,
    /// They begin then, as reported.
    pub from: Option<Duration>,
    /// They stop then, as reported.
    pub until: Option<Duration>,
}

/// Where operations come from.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// A generator.
    Made {
        /// In what order.
        order: Order,
        /// Sizes of their operations in sectors.
        blocks: Vec<u64>,
        /// How many of a hundred operations are reads.
        read_percent: u8,
        /// What they do for their writes.
        durability: Durability,
        /// How long each waits before an operation.
        pause: Pause,
    },
    /// A file.
    Trace {
        /// Which one.
        path: PathBuf,
        /// The device of it, if it has several.
        device: Option<String>,
        /// When its operations start.
        pace: Pace,
    },
}

/// When operations of a trace start.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Pace {
    /// At their times in the trace, or later if there is no room.
    #[default]
    Trace,
    /// As soon as there is room.
    Full,
}

impl Pace {
    fn apply(self, operation: Operation) -> Operation {
        match self {
            Pace::Trace => operation,
            Pace::Full => Operation { not_before: Time(0), ..operation },
        }
    }
}

/// The operations of a trace of a device of so many sectors.
///
/// # Errors
/// There is no such file.
pub fn open_trace(
    path: &Path,
    sectors: SectorCount,
    device: Option<&str>,
) -> Outcome<Trace<BufReader<File>>> {
    let shown = path.display().to_string();
    let file = File::open(path).map_err(|error| system(&shown, "read", error))?;
    Ok(Trace::new(&shown, BufReader::new(file), sectors, device))
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawClients {
    name: Option<String>,
    volume: String,
    order: Option<String>,
    block: Option<OneOrMany>,
    #[serde(default)]
    reads: u8,
    durable: Option<String>,
    think: Option<String>,
    trace: Option<String>,
    device: Option<String>,
    pace: Option<Pace>,
    depth: Option<u32>,
    count: Option<u32>,
    from: Option<String>,
    until: Option<String>,
}

impl Clients {
    /// What each of them sends to a volume. Operations of a trace are widened to whole blocks of
    /// the volume.
    ///
    /// # Errors
    /// A size or a number does not fit the volume, or a trace cannot be read.
    pub fn operations(&self, disk: &Arc<dyn Disk>, seed: u64) -> Outcome<Vec<Operations>> {
        let sectors = disk.sectors();
        let (order, blocks, read_percent, durability, pause) = match &self.what {
            What::Made { order, blocks, read_percent, durability, pause } => {
                (*order, blocks, *read_percent, *durability, *pause)
            }
            What::Trace { path, device, pace } => {
                let trace = open_trace(path, sectors, device.as_deref())?;
                let (block, pace) = (disk.limits().logical_sectors(), *pace);
                let operations = trace.filter_map(move |operation| match operation {
                    Ok(operation) => operation.of_whole_blocks(block).map(|it| Ok(pace.apply(it))),
                    Err(error) => Some(Err(error)),
                });
                return Ok(vec![Box::new(operations)]);
            }
        };
        let behaviour = Behaviour {
            region: SectorRange::new(Sector(0), sectors),
            order,
            sizes: blocks.iter().map(|&sectors| (SectorCount(sectors), 1)).collect(),
            read_percent,
            durability,
            pause,
        };
        let clients = clients(&behaviour, u64::from(self.count), false, seed)?;
        let operations = |mut client: Client| -> Operations {
            Box::new(std::iter::from_fn(move || Some(Ok(client.next()))))
        };
        Ok(clients.into_iter().map(operations).collect())
    }

    /// What they do, in words.
    pub fn describe(&self) -> String {
        let what = match &self.what {
            What::Made { order, blocks, read_percent, durability, pause } => {
                let blocks: Vec<String> =
                    blocks.iter().map(|it| format!("{} B", it * 512)).collect();
                let blocks = blocks.join(" or ");
                let waits = format!("durable {durability:?}, think {pause:?}");
                format!("{order:?}, {blocks}, {read_percent} % reads, {waits}")
            }
            What::Trace { path, pace, .. } => {
                let when = match pace {
                    Pace::Trace => "at its times",
                    Pace::Full => "without waiting",
                };
                format!("trace {} {when}, widened to whole blocks", path.display())
            }
        };
        let moment = |word: &str, moment: Option<Duration>| {
            moment.map(|moment| format!(", {word} {moment:?}")).unwrap_or_default()
        };
        let when = moment("from", self.from) + &moment("until", self.until);
        format!("{} of depth {} on {}: {what}{when}", self.count, self.depth, self.volume)
    }

    /// Refuses blocks that are no multiple of those of the volume.
    ///
    /// # Errors
    /// One is none.
    pub fn expect_blocks_of(&self, file: &str, block: SectorCount) -> Outcome<()> {
        let What::Made { blocks, .. } = &self.what else { return Ok(()) };
        match blocks.iter().find(|sectors| !sectors.is_multiple_of(block.0)) {
            None => Ok(()),
            Some(found) => {
                let (found, expected) =
                    (found * 512, format!("a multiple of {}", block.to_bytes()));
                Err(wrong(file, &format!("client '{}' block", self.name), found, expected))
            }
        }
    }
}

impl RawClients {
    /// # Errors
    /// A word has no meaning.
    pub(super) fn judge(self, file: &str, number: usize) -> Outcome<Clients> {
        let name = self.name.clone().unwrap_or_else(|| format!("clients {}", number + 1));
        let field = |field: &str| format!("client '{name}' {field}");
        let what = match &self.trace {
            Some(trace) => self.traced(trace, file, &field)?,
            None => self.made(file, &field)?,
        };
        let is_trace = self.trace.is_some();
        let (depth, count) = (self.depth.unwrap_or(if is_trace { 32 } else { 1 }), self.count);
        let count = count.unwrap_or(1);
        for (what, found, most) in
            [("depth", depth, 4096), ("count", count, if is_trace { 1 } else { 4096 })]
        {
            if !(1..=most).contains(&found) {
                return Err(wrong(file, &field(what), found, format!("1 to {most}")));
            }
        }
        let flushes =
            |it: &Durability| matches!(it, Durability::WriteAndFlush | Durability::FuaAndFlush);
        if depth > 1 && matches!(&what, What::Made { durability, .. } if flushes(durability)) {
            let expected = "1, as a flush follows its write";
            return Err(wrong(file, &field("depth"), depth, expected));
        }
        let moment = |what: &str, text: &Option<String>| {
            text.as_ref().map(|text| duration(file, &field(what), text)).transpose()
        };
        let (from, until) = (moment("from", &self.from)?, moment("until", &self.until)?);
        if until.is_some_and(|until| from.is_some_and(|from| from >= until)) {
            let found = format!("{:?}", from.unwrap_or_default());
            return Err(wrong(file, &field("from"), found, "a time before 'until'"));
        }
        Ok(Clients { volume: self.volume, what, depth, count, from, until, name })
    }

    fn traced(&self, trace: &str, file: &str, field: &dyn Fn(&str) -> String) -> Outcome<What> {
        let has_more = self.order.is_some()
            || self.block.is_some()
            || self.durable.is_some()
            || self.think.is_some()
            || self.reads > 0;
        if has_more {
            let found = "a trace and a generator's words";
            return Err(wrong(file, &field("trace"), found, "one of them"));
        }
        let folder = Path::new(file).parent().unwrap_or(Path::new(""));
        let pace = self.pace.unwrap_or_default();
        Ok(What::Trace { path: folder.join(trace), device: self.device.clone(), pace })
    }

    fn made(&self, file: &str, field: &dyn Fn(&str) -> String) -> Outcome<What> {
        let wrong_word = |what: &str, found: &str, expected: &str| {
            Err(wrong(file, &field(what), format!("'{found}'"), expected))
        };
        if self.device.is_some() || self.pace.is_some() {
            let what = if self.device.is_some() { "device" } else { "pace" };
            return Err(wrong(file, &field(what), "no trace", "a trace that has it"));
        }
        let durability = match self.durable.as_deref() {
            None | Some("none") => Durability::None,
            Some("fua") => Durability::Fua,
            Some("write+flush") => Durability::WriteAndFlush,
            Some("fua+flush") => Durability::FuaAndFlush,
            Some(other) => {
                let expected = "none, fua, write+flush or fua+flush";
                return wrong_word("durable", other, expected);
            }
        };
        let word = self.order.as_deref().unwrap_or_default();
        let Some(order) = order_of(word) else {
            let expected = "random, random-once, sequential, zipf-1.2 or neighbours-16x4";
            return wrong_word("order", word, expected);
        };
        let pause = match self.think.as_deref() {
            None => Pause::None,
            Some(text) => match text.strip_prefix("about ") {
                Some(text) => Pause::Exponential(duration(file, &field("think"), text)?),
                None => Pause::Fixed(duration(file, &field("think"), text)?),
            },
        };
        let Some(blocks) = &self.block else {
            return Err(wrong(file, &field("block"), "none", "a size like \"4K\""));
        };
        let sectors = |text: &String| block(file, &field("block"), text);
        Ok(What::Made {
            order,
            blocks: blocks.words().iter().map(sectors).collect::<Outcome<_>>()?,
            read_percent: self.reads,
            durability,
            pause,
        })
    }
}

fn order_of(word: &str) -> Option<Order> {
    let (name, rest) = word.split_once('-').unwrap_or((word, ""));
    match (name, rest) {
        ("random", "") => Some(Order::Random),
        ("random", "once") => Some(Order::RandomOnce),
        ("sequential", "") => Some(Order::Sequential),
        ("zipf", exponent) => Some(Order::Zipf(exponent.parse().ok()?)),
        ("neighbours", numbers) => {
            let (pieces, runs) = numbers.split_once('x')?;
            Some(Order::Neighbours { pieces: pieces.parse().ok()?, runs: runs.parse().ok()? })
        }
        _ => None,
    }
}
