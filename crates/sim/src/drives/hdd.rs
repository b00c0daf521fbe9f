//! [`Hdd`]: a drive with one arm, command queueing and a volatile write cache.
//!
//! ```text
//!  arrivals -> host queue -> 32 commands -> link -> dirty runs -> arm
//!              (merges)           |       (writes)   (merges)      ^
//!                                 '-------- reads, FUA writes -----'
//! ```
//!
//! - A write ends when the cache has it. If the cache has no room the write waits for room, and
//!   keeps its command.
//! - The arm takes the command that it can begin first: seek and rotation together. A command that
//!   has waited for longer than the limit of age is next. Dirty runs are written while no command
//!   needs the arm, by the same rule among the oldest runs; and if a write has waited for room for
//!   longer than the limit of age.
//! - A read that one dirty run covers comes from the cache. After a read the drive reads on while
//!   it has nothing else to do; a read of what has passed under the arm by then costs no turn.
//! - A FUA write goes to the platter. Afterwards the arm is busy with its report.
//! - A flush is a command alone: it begins when the drive has no other, and none begins before it
//!   has ended. It writes all dirty runs, then takes its own time. So D2 holds.
//! - Discards do nothing. Write-zeroes is a write.

use std::collections::VecDeque;
use std::time::Duration;

use cairn_block::{Nature, Op, SectorCount, SectorRange, Shape, Time};

use super::geometry::{Approach, Arm, Geometry, nanos};
use super::places::{Candidate, Places};
use super::queue::{HostQueue, Operation};
use super::runs::DirtyRuns;
use super::slab::Slab;
use super::used::{Meter, NEVER, Used};
use super::{Arrival, OpId, Timing};

/// The figures of a drive with one arm.
#[derive(Clone, Copy, Debug)]
pub struct HddFigures {
    /// One turn of the platter.
    pub revolution: Duration,
    /// Sectors of the outermost track.
    pub outer_track: u64,
    /// Length of the innermost track, of the outermost.
    pub inner_percent: u64,
    /// Steps between the two.
    pub zones: u64,
    /// Tracks of a cylinder.
    pub heads: u64,
    /// How much later each track begins than the one before.
    pub skew: Duration,
    /// A change to another track of the cylinder.
    pub head_switch: Duration,
    /// A seek to the next cylinder.
    pub seek_track: Duration,
    /// The seek where its curve turns from a root to a line.
    pub seek_knee: Duration,
    /// That distance, of all cylinders.
    pub knee_percent: u64,
    /// A seek over all cylinders.
    pub seek_full: Duration,
    /// Between two operations on one track that do not follow on each other.
    pub setup: Duration,
    /// From the arrival of a command until the arm may take it, or the link its data.
    pub command: Duration,
    /// The arm is busy for this long after a FUA write.
    pub fua_report: Duration,
    /// Speed of the link, in nanoseconds per KiB.
    pub link_ns_per_kib: u64,
    /// Commands that the drive holds at a time.
    pub queue: usize,
    /// The longest operation, of the host's queue and of the arm.
    pub longest: SectorCount,
    /// Limit of age.
    pub patience: Duration,
    /// Size of the volatile cache; without one writes go to the platter.
    pub cache: SectorCount,
    /// How many of the oldest dirty runs the arm chooses among.
    pub window: usize,
    /// How much a drive reads on after a read.
    pub read_ahead: SectorCount,
    /// A flush, beyond writing the dirty runs.
    pub flush: Duration,
}

impl HddFigures {
    /// A nearline drive of 7200 turns per minute.
    pub const NEARLINE: HddFigures = HddFigures {
        // Published: 7200 turns per minute.
        revolution: Duration::from_nanos(8_333_333),
        // Published: 180 to 200 MB/s at the outer edge. 1.72 MB each 9.43 ms (with the skew).
        outer_track: 3360,
        // Published.
        inner_percent: 47,
        // Assumed; only a turn is lost at the border of a zone.
        zones: 24,
        // Assumed: four platters.
        heads: 8,
        // Assumed: covers a change of heads or cylinders.
        skew: Duration::from_micros(1_100),
        // Assumed: a little less than the seek to the next track.
        head_switch: Duration::from_micros(900),
        // Published.
        seek_track: Duration::from_millis(1),
        // Assumed: the average over random pairs is then 8.2 ms, published as 8.2 to 8.5.
        seek_knee: Duration::from_micros(10_500),
        knee_percent: 50,
        // Published: 15 to 16 ms.
        seek_full: Duration::from_micros(15_500),
        // Assumed, from the row of the sorted writeback.
        setup: Duration::from_micros(200),
        // Assumed: 13.5 ms for a random read are 8.3 + 4.2 and this.
        command: Duration::from_micros(300),
        // Assumed, from the row that FUA halves the sorted writeback.
        fua_report: Duration::from_micros(700),
        // Published for SATA: 560 MB/s.
        link_ns_per_kib: 1_828,
        // Published: NCQ.
        queue: 32,
        // The kernel's usual longest request to such drives is about 1 MiB.
        longest: SectorCount(2048),
        // Assumed: below the deadline of half a second that hosts give to reads.
        patience: Duration::from_millis(500),
        // Published.
        cache: SectorCount::of_bytes(256 << 20),
        // Assumed, from the rows of cached writes: 64 give 230 per second, 128 give 274.
        window: 96,
        // Assumed.
        read_ahead: SectorCount(2048),
        // Not published. One turn; results that depend on it are shown over 0.1 to 30 ms.
        flush: Duration::from_micros(8_333),
    };
}

/// A command in the drive.
struct Command {
    operation: Operation,
    since: Time,
    /// Older ones have smaller numbers.
    order: u64,
}

/// Number of a command in [`Hdd::commands`].
type Key = usize;

/// What the arm does, and until when.
enum Work {
    Command(Key),
    Run(SectorRange),
    Flush,
}

/// What the arm does next.
enum Choice {
    /// Index of a place.
    Command(usize),
    /// Index of a dirty run in the window.
    Run(usize),
    /// The end of a flush.
    Flush,
    Nothing,
}

/// A drive with one arm.
pub struct Hdd {
    figures: HddFigures,
    geometry: Geometry,
    meter: Meter,
    queue: HostQueue,
    /// Commands in the drive. The lists below have their numbers.
    commands: Slab<Command>,
    held: usize,
    /// Commands that the drive decodes, with the end of that.
    decoding: VecDeque<(Time, Key)>,
    /// Writes on the link, with the ends of their transfers, and reads from the cache.
    link: VecDeque<(Time, Key)>,
    link_free: Time,
    /// Writes that wait for room.
    blocked: VecDeque<Key>,
    /// Where the commands are that need the arm.
    places: Places,
    /// The same by age, with the order of each. One whose command has another order is stale.
    ages: VecDeque<(u64, Key)>,
    next_order: u64,
    runs: DirtyRuns,
    /// Room in the cache that is promised, dirty, or under the arm.
    occupied: u64,
    arm: Arm,
    /// The arm's last operation was a read: it reads on.
    reads_on: bool,
    busy: Option<(Time, Work)>,
    /// The flushes that the drive does.
    flushing: Vec<OpId>,
}

impl Hdd {
    /// A drive of `sectors`. To scale an experiment by N, divide the capacity: the tracks stay, and
    /// the arm's curve goes over fewer cylinders.
    pub fn new(figures: HddFigures, sectors: SectorCount) -> Hdd {
        Hdd {
            figures,
            geometry: Geometry::new(&figures, sectors.0),
            meter: Meter::default(),
            queue: HostQueue::new(figures.longest),
            commands: Slab::default(),
            held: 0,
            decoding: VecDeque::new(),
            link: VecDeque::new(),
            link_free: Time(0),
            blocked: VecDeque::new(),
            places: Places::default(),
            ages: VecDeque::new(),
            next_order: 0,
            runs: DirtyRuns::new(figures.longest, figures.window),
            occupied: 0,
            arm: Arm::default(),
            reads_on: false,
            busy: None,
            flushing: Vec::new(),
        }
    }

    /// How much its cache holds that is not on the platter.
    pub fn dirty(&self) -> SectorCount {
        let under_arm = match &self.busy {
            Some((_, Work::Run(range))) => range.count.0,
            _ => 0,
        };
        SectorCount(self.runs.sectors() + under_arm)
    }

    fn step(&mut self, now: Time, ended: &mut Vec<OpId>) {
        self.meter.advance(now);
        self.finish_work(now, ended);
        self.finish_transfers(now, ended);
        while let Some((_, key)) = self.decoding.pop_front_if(|(at, _)| *at <= now) {
            self.decoded(key, now, ended);
        }
        self.unblock(now);
        self.admit(now);
        if self.busy.is_none() {
            self.start_work(now);
        }
        self.plan();
    }

    fn plan(&mut self) {
        let front = |queue: &VecDeque<(Time, Key)>| queue.front().map_or(NEVER, |(at, _)| *at);
        let busy = self.busy.as_ref().map_or(NEVER, |(at, _)| *at);
        self.meter.plan(busy.min(front(&self.decoding)).min(front(&self.link)));
    }

    fn finish_work(&mut self, now: Time, ended: &mut Vec<OpId>) {
        let Some((_, work)) = self.busy.take_if(|(at, _)| *at <= now) else { return };
        match work {
            Work::Command(key) => self.end(key, ended),
            Work::Run(range) => self.occupied -= range.count.0,
            Work::Flush => {
                self.meter.ended(self.flushing.len());
                ended.append(&mut self.flushing);
            }
        }
    }

    fn end(&mut self, key: Key, ended: &mut Vec<OpId>) {
        let Command { operation, .. } = self.commands.remove(key);
        self.held -= 1;
        self.meter.ended(operation.count());
        operation.end(ended);
    }

    fn finish_transfers(&mut self, now: Time, ended: &mut Vec<OpId>) {
        while let Some((_, key)) = self.link.pop_front_if(|(at, _)| *at <= now) {
            let Operation { op, range, .. } = self.commands.get(key).operation;
            if op != Op::Read {
                let before = self.runs.sectors();
                self.runs.insert(range, &self.geometry);
                // What was dirty already needs no more room.
                let added = self.runs.sectors() - before;
                self.occupied -= range.count.0 - added;
            }
            self.end(key, ended);
        }
    }

    /// The drive knows what a command wants.
    fn decoded(&mut self, key: Key, now: Time, ended: &mut Vec<OpId>) {
        let Operation { op, range, is_fua, .. } = self.commands.get(key).operation;
        match op {
            Op::Discard | Op::Flush => self.end(key, ended),
            Op::Read if self.runs.covers(range) => self.transfer(key, now),
            Op::Read => self.want_arm(key),
            Op::Write | Op::WriteZeroes if !is_fua && range.count.0 <= self.figures.cache.0 => {
                self.blocked.push_back(key);
            }
            Op::Write | Op::WriteZeroes => self.want_arm(key),
        }
    }

    fn want_arm(&mut self, key: Key) {
        let &Command { ref operation, order, .. } = self.commands.get(key);
        let start = operation.range.start;
        self.ages.push_back((order, key));
        self.places.insert(Candidate { position: self.geometry.locate(start), start, order, key });
    }

    /// Starts the transfers of the writes that have room now.
    fn unblock(&mut self, now: Time) {
        while let Some(&key) = self.blocked.front() {
            let count = self.commands.get(key).operation.range.count.0;
            if self.occupied + count > self.figures.cache.0 {
                return;
            }
            self.occupied += count;
            self.blocked.pop_front();
            self.transfer(key, now);
        }
    }

    fn transfer(&mut self, key: Key, now: Time) {
        let bytes = self.commands.get(key).operation.range.to_bytes();
        let took = bytes * self.figures.link_ns_per_kib / 1024;
        self.link_free = Time(self.link_free.0.max(now.0) + took);
        self.link.push_back((self.link_free, key));
    }

    /// Takes commands from the host's queue. A flush waits until the drive has no other command,
    /// and keeps others out.
    fn admit(&mut self, now: Time) {
        if self.queue.has_flush() && self.flushing.is_empty() && self.held == 0 {
            self.flushing = self.queue.take_flushes();
            self.meter.used.flushes += 1;
        }
        let is_open = self.flushing.is_empty() && !self.queue.has_flush();
        while is_open && self.held < self.figures.queue {
            let Some(operation) = self.queue.pop() else { break };
            self.held += 1;
            let order = self.next_order;
            self.next_order += 1;
            let key = self.commands.insert(Command { operation, since: now, order });
            self.decoding.push_back((now + self.figures.command, key));
        }
    }

    fn choose(&mut self, now: Time) -> Choice {
        let run = || self.runs.window().nearest(&self.geometry, &self.arm, now);
        if !self.flushing.is_empty() {
            return run().map_or(Choice::Flush, Choice::Run);
        }
        let room_first = self.blocked.front().is_some_and(|key| self.is_late(*key, now))
            && !self.runs.is_empty();
        if self.places.is_empty() || room_first {
            return run().map_or(Choice::Nothing, Choice::Run);
        }
        self.choose_command(now).map_or(Choice::Nothing, Choice::Command)
    }

    fn is_late(&self, key: Key, now: Time) -> bool {
        now.since(self.commands.get(key).since) > self.figures.patience
    }

    fn choose_command(&mut self, now: Time) -> Option<usize> {
        let commands = &self.commands;
        let is_stale = |&mut (order, key): &mut (u64, Key)| {
            commands.find(key).is_none_or(|command| command.order != order)
        };
        while self.ages.pop_front_if(is_stale).is_some() {}
        let &(_, oldest) = self.ages.front()?;
        if self.is_late(oldest, now) {
            return self.places.from(0).find(|(_, to)| to.key == oldest).map(|(index, _)| index);
        }
        let at_hand = if self.reads_on { self.at_hand(now) } else { None };
        at_hand.or_else(|| self.places.nearest(&self.geometry, &self.arm, now))
    }

    /// A read that begins in what the drive has read on.
    fn at_hand(&self, now: Time) -> Option<usize> {
        // What starts later lies on another cylinder than what is read on, as does all behind it.
        let end = (self.arm.at + self.figures.read_ahead).0 + self.geometry.longest_cylinder();
        let places = self.places.from(self.arm.cylinder);
        let mut places = places.take_while(|(_, to)| to.start.0 <= end);
        places.find(|(_, to)| self.passed(to.key, now).is_some()).map(|(index, _)| index)
    }

    /// How much of a read has passed under the arm since its last read; none if the read starts
    /// elsewhere, or goes beyond what the drive reads on.
    fn passed(&self, key: Key, now: Time) -> Option<SectorCount> {
        let Operation { op, range, .. } = self.commands.get(key).operation;
        let ahead = self.figures.read_ahead;
        if !self.reads_on || op != Op::Read || range.start < self.arm.at {
            return None;
        }
        let before = range.start - self.arm.at;
        if before > ahead {
            return None;
        }
        let passed = self.geometry.passed(self.arm.at, now.0 - self.arm.since.0);
        let has_stopped = passed > ahead.0;
        let passed = passed.min(ahead.0);
        if passed < before.0 || (has_stopped && before.0 + range.count.0 > ahead.0) {
            return None;
        }
        Some(SectorCount((passed - before.0).min(range.count.0)))
    }

    fn start_work(&mut self, now: Time) {
        match self.choose(now) {
            Choice::Command(index) => {
                let place = self.places.take(index);
                let passed = self.passed(place.key, now);
                let Operation { op, range, .. } = self.commands.get(place.key).operation;
                let took = match passed {
                    Some(passed) => self.read_on(range, passed, now),
                    None => self.move_arm(&place, range, now),
                };
                self.reads_on = op == Op::Read;
                let report = match op {
                    Op::Read => 0,
                    _ => nanos(self.figures.fua_report),
                };
                self.meter.used.other_ns += report;
                self.busy = Some((Time(now.0 + took + report), Work::Command(place.key)));
            }
            Choice::Run(index) => {
                let (place, range) = self.runs.take(index, &self.geometry);
                let took = self.move_arm(&place, range, now);
                self.reads_on = false;
                self.busy = Some((Time(now.0 + took), Work::Run(range)));
            }
            Choice::Flush => {
                self.meter.used.other_ns += nanos(self.figures.flush);
                self.reads_on = false;
                self.busy = Some((now + self.figures.flush, Work::Flush));
            }
            Choice::Nothing => {}
        }
    }

    /// Moves the arm over a range; returns how long that takes.
    fn move_arm(&mut self, place: &Candidate, range: SectorRange, now: Time) -> u64 {
        let Approach { seek, rotation } =
            self.geometry.approach(&self.arm, now, place.start, place.position);
        let transfer = self.geometry.transfer(place.position, range);
        let used = &mut self.meter.used;
        used.operations += 1;
        used.seek_ns += u64::from(seek);
        used.rotation_ns += u64::from(rotation);
        used.transfer_ns += transfer;
        let distance = self.arm.cylinder.abs_diff(place.position.cylinder);
        used.seek_cylinders += u64::from(distance);
        let took = u64::from(seek) + u64::from(rotation) + transfer;
        self.arm = self.geometry.arm_after(place.position, range, Time(now.0 + took));
        took
    }

    /// The end of a read whose first part is in memory; returns how long it takes.
    fn read_on(&mut self, range: SectorRange, passed: SectorCount, now: Time) -> u64 {
        self.meter.used.operations += 1;
        let rest = SectorRange::between(range.start + passed, range.end());
        let is_passed = rest.is_empty();
        // If all has passed, the arm went on over it from its last place.
        let over = if is_passed { SectorRange::between(self.arm.at, range.end()) } else { rest };
        let from = self.geometry.locate(over.start);
        let took = self.geometry.transfer(from, over);
        if is_passed {
            let since = Time(now.0.min(self.arm.since.0 + took));
            self.arm = self.geometry.arm_after(from, over, since);
            return 0;
        }
        self.meter.used.transfer_ns += took;
        self.arm = self.geometry.arm_after(from, over, Time(now.0 + took));
        took
    }
}

impl Timing for Hdd {
    fn arrive(&mut self, now: Time, arrival: Arrival) {
        self.meter.arrived(now, &arrival);
        self.queue.push(&arrival);
    }

    fn next(&self) -> Option<Time> {
        self.meter.next()
    }

    fn go_on(&mut self, now: Time, ended: &mut Vec<OpId>) {
        while let Some(at) = self.meter.due(now) {
            self.step(at, ended);
        }
        self.meter.advance(now);
    }

    fn used(&self) -> Used {
        let mut used = Used { merges: self.queue.merges(), arms: 1, ..self.meter.used };
        let now = self.meter.now();
        // The work under way is counted whole when it starts.
        let ahead = self.busy.as_ref().map_or(0, |(end, _)| end.0.saturating_sub(now.0));
        used.idle_ns = (now.0 + ahead).saturating_sub(used.busy_ns());
        used
    }

    fn nature(&self) -> Nature {
        let volatile = self.figures.cache > SectorCount::ZERO;
        Nature { rotational: Some(true), volatile, shape: Shape::Single }
    }
}

#[cfg(test)]
mod tests;
