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
//! until = "10m"           # it stops then, as reported
//! ```

use std::time::Duration;

use cairn_block::{Sector, SectorCount, SectorRange};
use cairn_outcome::failure::{Outcome, wrong};
use serde::Deserialize;

use super::form::{OneOrMany, duration, size};
use crate::workload::{Behaviour, Durability, Order, Pause};

/// Clients of one kind.
#[derive(Clone, Debug, PartialEq)]
pub struct Clients {
    /// How they are called.
    pub name: String,
    /// The volume that they use.
    pub volume: String,
    /// In what order.
    pub order: Order,
    /// Sizes of their operations in sectors.
    pub blocks: Vec<u64>,
    /// How many of a hundred operations are reads.
    pub read_percent: u8,
    /// What they do for their writes.
    pub durability: Durability,
    /// Operations in flight of each.
    pub depth: u32,
    /// How many there are.
    pub count: u32,
    /// How long each waits before an operation.
    pub pause: Pause,
    /// They stop then, as reported.
    pub until: Option<Duration>,
}

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RawClients {
    name: Option<String>,
    volume: String,
    order: String,
    block: OneOrMany,
    #[serde(default)]
    reads: u8,
    durable: Option<String>,
    depth: Option<u32>,
    count: Option<u32>,
    think: Option<String>,
    until: Option<String>,
}

impl Clients {
    /// What each does to a volume of so many sectors.
    pub fn behaviour(&self, sectors: SectorCount) -> Behaviour {
        Behaviour {
            region: SectorRange::new(Sector(0), sectors),
            order: self.order,
            sizes: self.blocks.iter().map(|&sectors| (SectorCount(sectors), 1)).collect(),
            read_percent: self.read_percent,
            durability: self.durability,
            pause: self.pause,
        }
    }
}

impl RawClients {
    /// # Errors
    /// A word has no meaning.
    pub(super) fn judge(self, file: &str, number: usize) -> Outcome<Clients> {
        let name = self.name.unwrap_or_else(|| format!("clients {}", number + 1));
        let field = |field: &str| format!("client '{name}' {field}");
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
        let Some(order) = order_of(&self.order) else {
            let expected = "random, random-once, sequential, zipf-1.2 or neighbours-16x4";
            return wrong_word("order", &self.order, expected);
        };
        let pause = match self.think.as_deref() {
            None => Pause::None,
            Some(text) => match text.strip_prefix("about ") {
                Some(text) => Pause::Exponential(duration(file, &field("think"), text)?),
                None => Pause::Fixed(duration(file, &field("think"), text)?),
            },
        };
        let block = |text: &String| Ok(size(file, &field("block"), text)? / 512);
        let until = self.until.map(|text| duration(file, &field("until"), &text));
        let (depth, count) = (self.depth.unwrap_or(1), self.count.unwrap_or(1));
        for (what, found) in [("depth", depth), ("count", count)] {
            if !(1..=4096).contains(&found) {
                return Err(wrong(file, &field(what), found, "1 to 4096"));
            }
        }
        if depth > 1 && matches!(durability, Durability::WriteAndFlush | Durability::FuaAndFlush) {
            let expected = "1, as a flush follows its write";
            return Err(wrong(file, &field("depth"), depth, expected));
        }
        Ok(Clients {
            volume: self.volume,
            order,
            blocks: self.block.into_vec().iter().map(block).collect::<Outcome<_>>()?,
            read_percent: self.reads,
            durability,
            depth,
            count,
            pause,
            until: until.transpose()?,
            name,
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
