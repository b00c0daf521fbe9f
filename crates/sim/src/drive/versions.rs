//! [`Versions`]: a memory that knows every write since the last flush, sector by sector, to lose
//! and to tear them. The fault model is that of the parent module.

use std::collections::BTreeMap;
use std::sync::Arc;

use cairn_block::{IoError, IoResult, Op, Request, SECTOR_BYTES, Sector, SectorCount, SectorRange};

use super::{DriveOptions, OpId, Started};
use crate::faults::Planted;
use crate::image::Image;
use crate::stamp;

const SECTOR: usize = SECTOR_BYTES as usize;

/// What an operation writes into its sectors.
#[derive(Clone)]
pub(super) enum Fill {
    Bytes(Arc<[u8]>),
    Zero,
}

impl Fill {
    /// The sector at `index` of the operation's range.
    fn sector(&self, index: usize) -> [u8; SECTOR] {
        match self {
            Fill::Zero => [0; SECTOR],
            Fill::Bytes(bytes) => {
                let bytes = &bytes[index * SECTOR..(index + 1) * SECTOR];
                bytes.try_into().expect("one sector is one sector long")
            }
        }
    }
}

/// An operation in flight.
struct Running {
    op: Op,
    fua: bool,
    range: SectorRange,
    fill: Option<Fill>,
    result: IoResult,
    /// A flush or FUA write that fails and loses the volatile writes.
    loses: bool,
    /// For a flush: how many writes had completed when it was submitted.
    completed_before: u64,
    /// For a read that may be torn: what its range held when it was submitted.
    before: Vec<u8>,
}

impl Running {
    /// A read or write that succeeds and takes no time.
    fn at_once(op: Op, range: SectorRange) -> Running {
        Running {
            op,
            fua: false,
            range,
            fill: None,
            result: Ok(()),
            loses: false,
            completed_before: 0,
            before: Vec::new(),
        }
    }
}

/// A completed write of one sector that is not durable.
struct Version {
    op: OpId,
    /// Its position in the order of completion.
    completed: u64,
    bytes: [u8; SECTOR],
}

/// What a request writes.
pub(super) fn fill_of(request: &Request, rng: &mut fastrand::Rng) -> Option<Fill> {
    let bytes = request.range.to_bytes() as usize;
    match request.op {
        Op::Read | Op::Flush => None,
        Op::Write => Some(Fill::Bytes(request.segs.slice(0, bytes).to_vec().into())),
        Op::WriteZeroes => Some(Fill::Zero),
        Op::Discard => match rng.u8(..3) {
            0 => None,
            1 => Some(Fill::Zero),
            _ => Some(Fill::Bytes(stamp::garbage(rng, request.range).into())),
        },
    }
}

/// See the module's description.
pub(super) struct Versions {
    pub visible: Image,
    pub durable: Image,
    /// Per sector, in order of completion: the writes that `visible` has and `durable` has not.
    volatile: BTreeMap<u64, Vec<Version>>,
    running: BTreeMap<OpId, Running>,
    /// Sizes that are not durable, each with the number of operations that had completed before.
    sizes: Vec<(u64, SectorCount)>,
    next_op: OpId,
    completed: u64,
    /// Operations before this one ended when the server of the drive died.
    died: OpId,
    /// A fault lost completed writes ([`crate::Effect::Lose`]).
    pub lost: bool,
}

/// What a power cut does to one volatile write.
#[derive(Clone, Copy)]
enum Fate {
    Kept,
    Lost,
    /// Each logical block is kept with this chance of 256.
    Torn(u8),
}

/// How likely one power cut keeps or tears a volatile write; extremes matter as much as mixtures.
#[derive(Clone, Copy)]
struct Odds {
    kept_of_16: u8,
    torn_of_16: u8,
}

impl Odds {
    fn draw(rng: &mut fastrand::Rng) -> Odds {
        let kept_of_16 = match rng.u8(..8) {
            0 => 0,
            1 => 16,
            2 => 15,
            3 => 1,
            _ => rng.u8(2..15),
        };
        Odds { kept_of_16, torn_of_16: if rng.bool() { rng.u8(..8) } else { 0 } }
    }

    fn fate(self, rng: &mut fastrand::Rng) -> Fate {
        if rng.u8(..16) < self.torn_of_16 {
            Fate::Torn(rng.u8(..))
        } else if rng.u8(..16) < self.kept_of_16 {
            Fate::Kept
        } else {
            Fate::Lost
        }
    }
}

impl Versions {
    /// What a drive remembers that holds `image`, durably.
    pub fn new(image: Image) -> Versions {
        Versions {
            visible: image.clone(),
            durable: image,
            volatile: BTreeMap::new(),
            running: BTreeMap::new(),
            sizes: Vec::new(),
            next_op: 0,
            completed: 0,
            died: 0,
            lost: false,
        }
    }

    /// An operation begins. Answers its name.
    pub fn begin(
        &mut self,
        (op, is_fua, range): (Op, bool, SectorRange),
        fill: Option<Fill>,
        planted: &Planted,
        options: &DriveOptions,
    ) -> OpId {
        let before = match options.torn_reads && op == Op::Read {
            true => self.bytes_of(range),
            false => Vec::new(),
        };
        let name = self.next_op;
        self.next_op += 1;
        let running = Running {
            op,
            fua: is_fua,
            range,
            fill,
            result: planted.error.map_or(Ok(()), Err),
            loses: planted.loses,
            completed_before: self.completed,
            before,
        };
        self.running.insert(name, running);
        name
    }

    /// An operation ends. Answers how.
    pub fn end(
        &mut self,
        done: &Started,
        options: &DriveOptions,
        rng: &mut fastrand::Rng,
    ) -> IoResult {
        if done.id < self.died {
            return Err(IoError::IO);
        }
        let running = self.running.remove(&done.id).expect("an operation ends once");
        let is_ok = running.result.is_ok();
        match running.op {
            Op::Read if is_ok => done.segs.copy_in(0, &self.read(&running, rng)),
            Op::Read => {}
            Op::Flush if is_ok => self.settle_all(running.completed_before),
            Op::Flush if running.loses => self.lose(),
            Op::Flush => {}
            Op::Write | Op::WriteZeroes | Op::Discard => {
                if let (Op::Write, Some(Fill::Bytes(bytes))) = (running.op, &running.fill) {
                    let is_untouched = done.segs.to_vec()[..] == bytes[..];
                    let name = &options.name;
                    assert!(is_untouched, "{name}: the data of a write changed in flight");
                }
                self.write(done.id, &running, options, rng);
            }
        }
        running.result
    }

    /// Reads without an operation.
    ///
    /// # Errors
    /// The planted one.
    pub fn read_at_once(
        &mut self,
        range: SectorRange,
        options: &DriveOptions,
        rng: &mut fastrand::Rng,
    ) -> Vec<u8> {
        let before = match options.torn_reads {
            true => self.bytes_of(range),
            false => Vec::new(),
        };
        self.read(&Running { before, ..Running::at_once(Op::Read, range) }, rng)
    }

    /// A write begins that takes no time. Answers its name.
    pub fn begin_at_once(&mut self, range: SectorRange, bytes: &[u8], result: IoResult) -> OpId {
        let op = self.next_op;
        self.next_op += 1;
        let fill = Some(Fill::Bytes(bytes.into()));
        let running = Running { fill, result, ..Running::at_once(Op::Write, range) };
        self.running.insert(op, running);
        op
    }

    /// It ends.
    pub fn end_at_once(&mut self, op: OpId, options: &DriveOptions, rng: &mut fastrand::Rng) {
        let running = self.running.remove(&op).expect("an operation ends once");
        self.write(op, &running, options, rng);
    }

    fn bytes_of(&self, range: SectorRange) -> Vec<u8> {
        let mut bytes = vec![0; range.to_bytes() as usize];
        self.visible.read(range.start, &mut bytes);
        bytes
    }

    /// Makes a write visible; with FUA, or on a drive without a volatile cache, also durable.
    fn write(
        &mut self,
        op: OpId,
        running: &Running,
        options: &DriveOptions,
        rng: &mut fastrand::Rng,
    ) {
        let fate = if running.result.is_ok() { Fate::Kept } else { Fate::Torn(rng.u8(..)) };
        let survivors = Survivors::new(fate, options.logical_block);
        self.apply_all(op, running, survivors, rng);
        if running.loses && running.fua {
            self.lose();
        }
        if !options.volatile_cache || (running.fua && running.result.is_ok()) {
            // Earlier writes of these sectors lie beneath this one; they cannot reappear either.
            let completed = self.completed;
            for sector in running.range.start.0..running.range.end().0 {
                self.settle(sector, completed);
            }
        }
    }

    /// Makes the size another one; what lies beyond is gone.
    pub fn resize(&mut self, sectors: SectorCount) {
        self.visible.resize(sectors);
        self.durable.resize(sectors);
        self.sizes.clear();
        self.volatile.retain(|&sector, _| sector < sectors.0);
    }

    /// Makes it longer.
    pub fn grow(&mut self, sectors: SectorCount) {
        self.visible.resize(sectors);
        self.sizes.push((self.completed, sectors));
        self.completed += 1;
    }

    /// What the drive holds after a power cut now.
    pub fn power_cut(&self, rng: &mut fastrand::Rng, block: u32) -> Image {
        let odds = Odds::draw(rng);
        let mut fates: BTreeMap<OpId, Fate> = BTreeMap::new();
        for op in self.volatile.values().flatten().map(|version| version.op) {
            fates.entry(op).or_insert(Fate::Lost);
        }
        for fate in fates.values_mut() {
            *fate = odds.fate(rng);
        }
        let mut image = self.durable.clone();
        let keeps_size = self.sizes.is_empty() || rng.bool();
        image.resize(self.visible.sectors());
        let mut survivors: BTreeMap<OpId, Survivors> = BTreeMap::new();
        for (sector, versions) in &self.volatile {
            for version in versions {
                let fate = || Survivors::new(fates[&version.op], block);
                if survivors.entry(version.op).or_insert_with(fate).has(*sector, rng) {
                    image.write(Sector(*sector), &version.bytes);
                }
            }
        }
        for running in self.running.values() {
            let Some(fill) = &running.fill else { continue };
            let mut survivors = Survivors::new(odds.fate(rng), block);
            for index in 0..running.range.count.0 {
                let sector = running.range.start.0 + index;
                if survivors.has(sector, rng) {
                    image.write(Sector(sector), &fill.sector(index as usize));
                }
            }
        }
        if !keeps_size {
            image.resize(self.durable.sectors());
        }
        image
    }

    /// The server of the drive dies: what is left is as after a power cut. Nothing is in flight any
    /// more.
    pub fn die(&mut self, rng: &mut fastrand::Rng, block: u32) {
        self.durable = self.power_cut(rng, block);
        self.visible = self.durable.clone();
        self.sizes.clear();
        self.volatile.clear();
        self.running.clear();
        self.died = self.next_op;
    }

    /// Ends the operations in flight, because the process that used the drive was killed.
    pub fn end_in_flight(&mut self, block: u32) {
        let mut rng = fastrand::Rng::with_seed(self.next_op ^ self.completed.rotate_left(32));
        for (op, running) in std::mem::take(&mut self.running) {
            let done = running.result.is_ok() && rng.bool();
            let fate = if done { Fate::Kept } else { Fate::Torn(rng.u8(..)) };
            if running.fill.is_some() {
                self.apply_all(op, &running, Survivors::new(fate, block), &mut rng);
            }
            if done && running.op == Op::Flush {
                self.settle_all(running.completed_before);
            }
        }
    }

    /// Makes an operation visible in those sectors of its range that `survivors` has.
    fn apply_all(
        &mut self,
        op: OpId,
        running: &Running,
        mut survivors: Survivors,
        rng: &mut fastrand::Rng,
    ) {
        if let Some(fill) = &running.fill {
            for index in 0..running.range.count.0 {
                if survivors.has(running.range.start.0 + index, rng) {
                    self.apply(op, running.range, index, fill.sector(index as usize));
                }
            }
        }
        self.completed += 1;
    }

    /// The data of a read.
    fn read(&self, running: &Running, rng: &mut fastrand::Rng) -> Vec<u8> {
        let mut bytes = self.bytes_of(running.range);
        if running.before.is_empty() {
            return bytes;
        }
        for (now, before) in bytes.chunks_mut(SECTOR).zip(running.before.chunks(SECTOR)) {
            if now != before && rng.bool() {
                now.copy_from_slice(before);
            }
        }
        for other in self.running.values() {
            let Some(fill) = &other.fill else { continue };
            for sector in other.range.start.0..other.range.end().0 {
                let inside = sector >= running.range.start.0 && sector < running.range.end().0;
                if inside && rng.bool() {
                    let at = (sector - running.range.start.0) as usize * SECTOR;
                    let index = (sector - other.range.start.0) as usize;
                    bytes[at..at + SECTOR].copy_from_slice(&fill.sector(index));
                }
            }
        }
        bytes
    }

    /// Makes a write visible in one sector.
    fn apply(&mut self, op: OpId, range: SectorRange, index: u64, bytes: [u8; SECTOR]) {
        let sector = Sector(range.start.0 + index);
        self.visible.write(sector, &bytes);
        let completed = self.completed;
        self.volatile.entry(sector.0).or_default().push(Version { op, completed, bytes });
    }

    /// Loses the volatile writes: they never become durable.
    fn lose(&mut self) {
        self.lost |= !self.volatile.is_empty();
        self.volatile.clear();
    }

    /// Makes this sector's writes that completed before `completed_before` durable.
    fn settle(&mut self, sector: u64, completed_before: u64) {
        let Some(versions) = self.volatile.get_mut(&sector) else { return };
        let count = versions.partition_point(|version| version.completed < completed_before);
        if let Some(last) = versions.drain(..count).next_back() {
            if sector >= self.durable.sectors().0 {
                self.durable.resize(self.visible.sectors());
            }
            self.durable.write(Sector(sector), &last.bytes);
        }
        if versions.is_empty() {
            self.volatile.remove(&sector);
        }
    }

    /// Makes all writes durable that completed before `completed_before`.
    pub fn settle_all(&mut self, completed_before: u64) {
        let count = self.sizes.partition_point(|(completed, _)| *completed < completed_before);
        if let Some((_, sectors)) = self.sizes.drain(..count).next_back() {
            self.durable.resize(sectors.max(self.durable.sectors()));
        }
        let sectors: Vec<u64> = self.volatile.keys().copied().collect();
        for sector in sectors {
            self.settle(sector, completed_before);
        }
    }
}

/// Which sectors of one operation are done. Must be asked in rising order.
struct Survivors {
    fate: Fate,
    /// Sectors of a logical block; a block is done wholly or not at all.
    block: u64,
    last: Option<(u64, bool)>,
}

impl Survivors {
    fn new(fate: Fate, block_bytes: u32) -> Survivors {
        Survivors { fate, block: u64::from(block_bytes) / SECTOR_BYTES, last: None }
    }

    fn has(&mut self, sector: u64, rng: &mut fastrand::Rng) -> bool {
        let chance = match self.fate {
            Fate::Kept => return true,
            Fate::Lost => return false,
            Fate::Torn(chance) => chance,
        };
        let block = sector / self.block;
        match self.last {
            Some((last, has)) if last == block => has,
            _ => {
                let has = rng.u8(..) < chance;
                self.last = Some((block, has));
                has
            }
        }
    }
}
