//! [`Model`]: what each sector of a volume may hold, for clients that send requests in batches: all
//! requests of a batch are in flight together, and have ended before the next one begins.
//!
//! A content is named by one byte that fills a sector. The model knows nothing of caches:
//! - In a batch a read may find what was there before it, or what any write of the batch puts
//!   there.
//! - After it a sector holds what one of the writes put there that touched it.
//! - What a discard touched may hold anything until it is written by a later batch.
//! - What a read found that no write of its batch touched is what the sector holds.

use cairn_block::{Flags, Op};
use cairn_format::bcache::SECTOR_BYTES;

/// A request of a client.
#[derive(Clone, Copy, Debug)]
pub struct Ask {
    pub op: Op,
    pub flags: Flags,
    pub start: u64,
    pub count: u64,
    /// What a write puts there.
    pub byte: u8,
}

impl Ask {
    fn touches(&self, sector: u64) -> bool {
        self.op.is_write() && (self.start..self.start + self.count).contains(&sector)
    }

    fn sectors(&self) -> std::ops::Range<u64> {
        self.start..self.start + self.count
    }
}

/// What a sector may hold.
#[derive(Clone, Debug, PartialEq, Eq)]
enum Held {
    OneOf(Vec<u8>),
    Anything,
}

/// See the module's description.
pub struct Model {
    sectors: Vec<Held>,
}

impl Model {
    /// Zeros.
    pub fn new(sectors: u64) -> Model {
        Model { sectors: vec![Held::OneOf(vec![0]); sectors as usize] }
    }

    pub fn sectors(&self) -> u64 {
        self.sectors.len() as u64
    }

    /// A batch has ended: each request, and what it read.
    ///
    /// # Errors
    /// A read found what it may not find.
    pub fn end_batch(&mut self, batch: &[(Ask, Vec<u8>)]) -> Result<(), String> {
        for (ask, bytes) in batch.iter().filter(|(ask, _)| ask.op == Op::Read) {
            for (sector, bytes) in ask.sectors().zip(bytes.chunks(SECTOR_BYTES)) {
                let writes: Vec<&Ask> =
                    batch.iter().map(|(other, _)| other).filter(|it| it.touches(sector)).collect();
                self.judge(sector, bytes, &writes).map_err(|text| format!("{ask:?}: {text}"))?;
            }
        }
        for (ask, _) in batch.iter().filter(|(ask, _)| ask.op.is_write()) {
            for sector in ask.sectors() {
                let writes = batch.iter().map(|(other, _)| other).filter(|it| it.touches(sector));
                self.sectors[sector as usize] = writes.fold(Held::OneOf(Vec::new()), after);
            }
        }
        Ok(())
    }

    fn judge(&mut self, sector: u64, bytes: &[u8], writes: &[&Ask]) -> Result<(), String> {
        let held = &mut self.sectors[sector as usize];
        let Held::OneOf(allowed) = held else { return Ok(()) };
        if writes.iter().any(|write| write.op == Op::Discard) {
            return Ok(());
        }
        let byte = bytes[0];
        if bytes.iter().any(|other| *other != byte) {
            return Err(format!("sector {sector}: found two contents"));
        }
        if !allowed.contains(&byte) && !writes.iter().any(|write| content(write) == byte) {
            return Err(format!("sector {sector}: found {byte}, expected one of {allowed:?}"));
        }
        if writes.is_empty() {
            *held = Held::OneOf(vec![byte]);
        }
        Ok(())
    }

    /// The whole volume was read in some way.
    ///
    /// # Errors
    /// A sector holds what it may not.
    pub fn judge_all(&mut self, bytes: &[u8]) -> Result<(), String> {
        let sectors = bytes.chunks(SECTOR_BYTES);
        (0..).zip(sectors).try_for_each(|(sector, bytes)| self.judge(sector, bytes, &[]))
    }
}

fn content(write: &Ask) -> u8 {
    if write.op == Op::WriteZeroes { 0 } else { write.byte }
}

/// What a sector may hold after one more write.
fn after(held: Held, write: &Ask) -> Held {
    match (held, write.op) {
        (Held::Anything, _) | (_, Op::Discard) => Held::Anything,
        (Held::OneOf(mut bytes), _) => {
            bytes.push(content(write));
            Held::OneOf(bytes)
        }
    }
}
