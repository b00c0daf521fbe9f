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
//! part = [0, 50]          # of the volume, in percent: where they work
//!
//! [[client]]
//! volume = "disk"
//! block = "1M"
//! burst = "4M"            # so much at once, sequentially,
//! every = "1s"            # from each multiple of this time on
//!
//! [[client]]
//! volume = "disk"
//! mix = [                 # each operation is of one of these, by weight
//!     { weight = 9, order = "random", block = "4K", reads = 100 },
//!     { weight = 1, order = "sequential", block = "64K", durable = "fua" },
//! ]
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
use super::form::{OneOrMany, block, duration, size};
use crate::trace::Trace;
use crate::workload::{
    Behaviour, Burst, Client, Durability, Mixture, Operation, Order, Pause, Source, clients,
};

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
    /// Where in the volume they work, in percent.
    pub part: [u8; 2],
}

/// Where operations come from.
#[derive(Clone, Debug, PartialEq)]
pub enum What {
    /// A generator.
    Made(Made),
    /// Several generators with their weights.
    Mixed(Vec<(u32, Made)>),
    /// Sequential writes, much at once.
    Burst {
        /// Sectors of a write.
        block: u64,
        /// Sectors of a burst.
        length: u64,
        /// From the beginning of one to that of the next.
        every: Duration,
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

/// What a generator makes.
#[derive(Clone, Debug, PartialEq)]
pub struct Made {
    /// In what order.
    pub order: Order,
    /// Sizes of the operations in sectors.
    pub blocks: Vec<u64>,
    /// How many of a hundred operations are reads.
    pub read_percent: u8,
    /// What is done for writes.
    pub durability: Durability,
    /// How long each client waits before an operation.
    pub pause: Pause,
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
    mix: Option<Vec<RawMade>>,
    burst: Option<String>,
    every: Option<String>,
    trace: Option<String>,
    device: Option<String>,
    pace: Option<Pace>,
    depth: Option<u32>,
    count: Option<u32>,
    from: Option<String>,
    until: Option<String>,
    part: Option<[u8; 2]>,
}

/// A part of a mixture.
#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct RawMade {
    weight: u32,
    order: Option<String>,
    block: Option<OneOrMany>,
    #[serde(default)]
    reads: u8,
    durable: Option<String>,
    think: Option<String>,
}

impl Clients {
    /// What each of them sends to a volume. Operations of a trace are widened to whole blocks of
    /// the volume.
    ///
    /// # Errors
    /// A size or a number does not fit the volume, or a trace cannot be read.
    pub fn operations(&self, disk: &Arc<dyn Disk>, seed: u64) -> Outcome<Vec<Operations>> {
        let sectors = disk.sectors();
        let region = self.region(sectors);
        match &self.what {
            What::Made(made) => {
                let clients = clients(&made.behaviour(region), self.each(), false, seed)?;
                Ok(clients.into_iter().map(endless).collect())
            }
            What::Mixed(parts) => {
                let mut seeds = fastrand::Rng::with_seed(seed);
                let mixture = |_| {
                    let source = |(weight, made): &(u32, Made)| {
                        let client = Client::new(made.behaviour(region), seeds.u64(..))?;
                        Ok((*weight, Box::new(client) as Box<dyn Source>))
                    };
                    let sources = parts.iter().map(source).collect::<Outcome<_>>()?;
                    Ok(endless(Mixture::new(sources, seeds.u64(..))))
                };
                (0..self.each()).map(mixture).collect()
            }
            What::Burst { block, length, every } => {
                let (block, length) = (SectorCount(*block), SectorCount(*length));
                let burst = |_| Ok(endless(Burst::new(region, block, length, *every)?));
                (0..self.each()).map(burst).collect()
            }
            What::Trace { path, device, pace } => {
                let trace = open_trace(path, sectors, device.as_deref())?;
                let (block, pace) = (disk.limits().logical_sectors(), *pace);
                let operations = trace.filter_map(move |operation| match operation {
                    Ok(operation) => operation.of_whole_blocks(block).map(|it| Ok(pace.apply(it))),
                    Err(error) => Some(Err(error)),
                });
                Ok(vec![Box::new(operations)])
            }
        }
    }

    /// A flush follows each of their writes.
    pub fn flush(&self) -> bool {
        matches!(&self.what, What::Made(made) if made.flushes())
    }

    /// How many there are.
    fn each(&self) -> u64 {
        u64::from(self.count)
    }

    /// Their part of a volume, in whole blocks of a MiB, or of 4 KiB where it is small.
    fn region(&self, sectors: SectorCount) -> SectorRange {
        let step = if sectors.0 >= 100 * 2048 { 2048 } else { 8 };
        let [start, end] = self.part.map(|percent| match percent {
            100 => Sector(sectors.0),
            percent => Sector(sectors.0 / 100 * u64::from(percent) / step * step),
        });
        SectorRange::between(start, end)
    }

    /// What they do, in words.
    pub fn describe(&self) -> String {
        let what = match &self.what {
            What::Made(made) => made.describe(),
            What::Mixed(parts) => {
                let part =
                    |(weight, made): &(u32, Made)| format!("{weight} of {}", made.describe());
                parts.iter().map(part).collect::<Vec<_>>().join("; ")
            }
            What::Burst { block, length, every } => {
                let (block, length) = (block * 512, length * 512);
                format!("bursts of {length} B each {every:?}, in writes of {block} B")
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
        let [from, upto] = self.part;
        let place = match self.part {
            [0, 100] => self.volume.clone(),
            _ => format!("{from} to {upto} % of {}", self.volume),
        };
        format!("{} of depth {} on {place}: {what}{when}", self.count, self.depth)
    }

    /// Refuses blocks that are no multiple of those of the volume.
    ///
    /// # Errors
    /// One is none.
    pub fn expect_blocks_of(&self, file: &str, block: SectorCount) -> Outcome<()> {
        let blocks: Vec<u64> = match &self.what {
            What::Made(made) => made.blocks.clone(),
            What::Mixed(parts) => {
                parts.iter().flat_map(|(_, made)| &made.blocks).copied().collect()
            }
            What::Burst { block, .. } => vec![*block],
            What::Trace { .. } => return Ok(()),
        };
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

/// The operations of a source.
fn endless(mut source: impl Source + 'static) -> Operations {
    Box::new(std::iter::from_fn(move || Some(Ok(source.next()))))
}

impl Made {
    fn behaviour(&self, region: SectorRange) -> Behaviour {
        Behaviour {
            region,
            order: self.order,
            sizes: self.blocks.iter().map(|&sectors| (SectorCount(sectors), 1)).collect(),
            read_percent: self.read_percent,
            durability: self.durability,
            pause: self.pause,
        }
    }

    fn describe(&self) -> String {
        let Made { order, blocks, read_percent, durability, pause } = self;
        let blocks: Vec<String> = blocks.iter().map(|it| format!("{} B", it * 512)).collect();
        let blocks = blocks.join(" or ");
        let waits = format!("durable {durability:?}, think {pause:?}");
        format!("{order:?}, {blocks}, {read_percent} % reads, {waits}")
    }

    /// A flush follows each of its writes.
    fn flushes(&self) -> bool {
        matches!(self.durability, Durability::WriteAndFlush | Durability::FuaAndFlush)
    }
}

impl RawClients {
    /// # Errors
    /// A word has no meaning.
    pub(super) fn judge(mut self, file: &str, number: usize) -> Outcome<Clients> {
        let name = self.name.clone().unwrap_or_else(|| format!("clients {}", number + 1));
        let field = |field: &str| format!("client '{name}' {field}");
        let what = self.what(file, &field)?;
        let is_trace = matches!(what, What::Trace { .. });
        let (depth, count) = (self.depth.unwrap_or(if is_trace { 32 } else { 1 }), self.count);
        let count = count.unwrap_or(1);
        for (what, found, most) in
            [("depth", depth, 4096), ("count", count, if is_trace { 1 } else { 4096 })]
        {
            if !(1..=most).contains(&found) {
                return Err(wrong(file, &field(what), found, format!("1 to {most}")));
            }
        }
        if depth > 1 && matches!(&what, What::Made(made) if made.flushes()) {
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
        let part = self.part.unwrap_or([0, 100]);
        if part[0] >= part[1] || part[1] > 100 || is_trace && self.part.is_some() {
            let expected = "two numbers from 0 to 100, the second larger, and no trace";
            return Err(wrong(file, &field("part"), format!("{part:?}"), expected));
        }
        Ok(Clients { volume: self.volume, what, depth, count, from, until, name, part })
    }

    /// Where their operations come from: one of the four.
    fn what(&mut self, file: &str, field: &dyn Fn(&str) -> String) -> Outcome<What> {
        let has_words = self.order.is_some()
            || self.durable.is_some()
            || self.think.is_some()
            || self.reads > 0;
        let is_burst = self.burst.is_some() || self.every.is_some();
        let ways = [self.trace.is_some(), self.mix.is_some(), is_burst, has_words];
        if ways.into_iter().filter(|is_one| *is_one).count() > 1 {
            let named = ["a trace", "a mix", "bursts", "a generator's words"].into_iter().zip(ways);
            let named: Vec<_> = named.filter(|(_, is_one)| *is_one).map(|(name, _)| name).collect();
            let name = if ways[0] {
                "trace"
            } else if ways[1] {
                "mix"
            } else {
                "burst"
            };
            return Err(wrong(file, &field(name), named.join(" and "), "one of them"));
        }
        if (self.device.is_some() || self.pace.is_some()) && self.trace.is_none() {
            let what = if self.device.is_some() { "device" } else { "pace" };
            return Err(wrong(file, &field(what), "no trace", "a trace that has it"));
        }
        if let (true, Some(_)) = (ways[0] || ways[1], &self.block) {
            let name = if ways[0] { "trace" } else { "mix" };
            return Err(wrong(file, &field(name), "it and a block", "one of them"));
        }
        if let Some(trace) = &self.trace {
            let folder = Path::new(file).parent().unwrap_or(Path::new(""));
            let pace = self.pace.unwrap_or_default();
            return Ok(What::Trace { path: folder.join(trace), device: self.device.clone(), pace });
        }
        if let Some(parts) = self.mix.take() {
            return mixed(parts, file, field);
        }
        if is_burst {
            return self.bursts(file, field);
        }
        let (order, block, reads) = (self.order.take(), self.block.take(), self.reads);
        let (durable, think) = (self.durable.take(), self.think.take());
        let made = RawMade { weight: 1, order, block, reads, durable, think };
        Ok(What::Made(made.judge(file, field)?))
    }

    fn bursts(&self, file: &str, field: &dyn Fn(&str) -> String) -> Outcome<What> {
        let missing = |what: &str, expected: &str| wrong(file, &field(what), "none", expected);
        let length = self.burst.as_ref().ok_or_else(|| missing("burst", "a size like \"4M\""))?;
        let every = self.every.as_ref().ok_or_else(|| missing("every", "a time like \"1s\""))?;
        let Some(OneOrMany::One(each)) = &self.block else {
            return Err(missing("block", "one size like \"1M\""));
        };
        let bytes = size(file, &field("burst"), length)?;
        if bytes == 0 || bytes % 512 != 0 {
            let found = format!("'{length}'");
            return Err(wrong(file, &field("burst"), found, "whole sectors, one at least"));
        }
        Ok(What::Burst {
            block: block(file, &field("block"), each)?,
            length: bytes / 512,
            every: duration(file, &field("every"), every)?,
        })
    }
}

fn mixed(parts: Vec<RawMade>, file: &str, field: &dyn Fn(&str) -> String) -> Outcome<What> {
    if parts.iter().all(|part| part.weight == 0) {
        return Err(wrong(file, &field("mix"), "no weight above 0", "one at least"));
    }
    let part = |part: RawMade| {
        let (weight, made) = (part.weight, part.judge(file, field)?);
        if made.flushes() {
            let expected = "none or fua, as another operation may come before a flush";
            return Err(wrong(file, &field("mix durable"), "flushes", expected));
        }
        Ok((weight, made))
    };
    parts.into_iter().map(part).collect::<Outcome<_>>().map(What::Mixed)
}

impl RawMade {
    fn judge(self, file: &str, field: &dyn Fn(&str) -> String) -> Outcome<Made> {
        let wrong_word = |what: &str, found: &str, expected: &str| {
            Err(wrong(file, &field(what), format!("'{found}'"), expected))
        };
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
        Ok(Made {
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

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_block::Op;
    use cairn_sim::{DriveOptions, Image, SimDrive};

    fn disk() -> Arc<dyn Disk> {
        let image = Image::new(SectorCount(100 * 2048));
        Arc::new(SimDrive::new(DriveOptions::named("v"), image))
    }

    /// Of the first so many operations on a volume of 100 MiB: where each goes, and its time.
    fn operations(text: &str, count: usize) -> Outcome<Vec<(Op, u64, u64)>> {
        let raw: RawClients = toml::from_str(text).expect("well-formed");
        let clients = raw.judge("x.toml", 0)?;
        let mut all = clients.operations(&disk(), 1)?;
        let own = all.remove(0).take(count).map(|operation| {
            let operation = operation.expect("no trace");
            (operation.op, operation.range.start.0 / 2048, operation.not_before.0 / 1_000_000_000)
        });
        Ok(own.collect())
    }

    #[test]
    fn bursts_are_sequential_in_their_part_of_the_volume() {
        let text =
            "volume = \"v\"\nblock = \"1M\"\nburst = \"2M\"\nevery = \"5s\"\npart = [50, 53]";
        let expected = [(50, 0), (51, 0), (52, 5), (50, 5), (51, 10)];
        let found = operations(text, 5).unwrap();
        assert_eq!(found, expected.map(|(start, at)| (Op::Write, start, at)));
    }

    #[test]
    fn mixture_has_all_its_parts() {
        let text = "volume = \"v\"\npart = [10, 100]\nmix = [\
                    { weight = 3, order = \"random\", block = \"4K\", reads = 100 },\
                    { weight = 1, order = \"random\", block = \"64K\", durable = \"fua\" }]";
        let found = operations(text, 4000).unwrap();
        let reads = found.iter().filter(|(op, ..)| *op == Op::Read).count();
        assert!((2900..3100).contains(&reads), "{reads} reads");
        assert!(found.iter().all(|(_, start, _)| (10..100).contains(start)));
    }

    #[test]
    fn words_that_exclude_each_other_are_refused() {
        let mix = "mix = [{ weight = 1, order = \"random\", block = \"4K\" }]";
        for (words, expected) in [
            ("burst = \"4M\"\nblock = \"1M\"", "every: found none, expected a time"),
            ("every = \"1s\"\nblock = \"1M\"", "burst: found none, expected a size"),
            ("burst = \"4M\"\nevery = \"1s\"", "block: found none, expected one size"),
            (
                "burst = \"100\"\nevery = \"1s\"\nblock = \"1M\"",
                "burst: found '100', expected whole",
            ),
            (&format!("{mix}\ntrace = \"t\""), "trace: found a trace and a mix, expected one"),
            (&format!("{mix}\nblock = \"4K\""), "mix: found it and a block"),
            (&mix.replace("weight = 1", "weight = 0"), "mix: found no weight above 0"),
            (
                &mix.replace("order", "durable = \"write+flush\", order"),
                "mix durable: found flushes, expected none or fua",
            ),
        ] {
            let refused =
                operations(&format!("volume = \"v\"\n{words}"), 1).unwrap_err().to_string();
            assert!(refused.contains(expected), "{words}: {refused}");
        }
    }
}
