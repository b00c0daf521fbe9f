//! [`Raid5`]: the timing of an md array of level 5 over member models.
//!
//! ```text
//!  members     0    1    2    3        A stripe is one chunk of each member; parity moves with
//!  stripe 0   D0   D1   D2    P        each stripe (left-symmetric, md's default). A row is the
//!  stripe 1   D4   D5    P   D3        same 4 KiB of each chunk of a stripe.
//! ```
//!
//! - A read goes to the members that have the data.
//! - Writes that wait together gather by stripe. Rows written on the same members are one job: it
//!   reads what parity needs, then writes the data and the parity.
//! - Reads of a job: none if the rows are written whole. Otherwise the cheaper of the old data and
//!   parity (read-modify-write) and of the data that is not written (reconstruct-write), by the
//!   number of members read; of equals the latter (assumed).
//! - A row is part of one job at a time; a write of rows under way waits, and gathers. A row that
//!   is written in part counts as written whole.
//! - The stripe cache bounds the rows under way. Jobs start in order of arrival.
//! - A flush goes to all members. A FUA write makes its job's writes FUA. Discards do nothing.
//!
//! It loses no write: data and parity are the members' writes, a flush is a flush of all members,
//! so D2 follows from theirs.

use std::collections::{BTreeMap, VecDeque};

use cairn_block::{Limits, Nature, Op, Sector, SectorCount, SectorRange, Shape, Time};

use super::slab::Slab;
use super::used::{Meter, NEVER, Used};
use super::{Arrival, OpId, Timing};

/// The figures of an array.
#[derive(Clone, Copy, Debug)]
pub struct Raid5Figures {
    /// Length of a chunk.
    pub chunk: SectorCount,
    /// Rows under way at a time.
    pub rows: u64,
}

impl Raid5Figures {
    /// What md takes if it is not told.
    pub const MD: Raid5Figures = Raid5Figures {
        // md's default: 512 KiB.
        chunk: SectorCount(1024),
        // md's default stripe cache.
        rows: 256,
    };
}

/// Height of a row.
const ROW: SectorCount = SectorCount(8);

/// Index of an arrival in flight.
type RequestIndex = usize;

/// An arrival in flight.
struct Request {
    id: OpId,
    /// Parts that have not ended.
    parts: usize,
}

/// Rows, from the first to before the end, in rows of a chunk.
type Rows = (u64, u64);

/// The part of a write in one chunk.
#[derive(Clone, Copy)]
struct Piece {
    request: RequestIndex,
    /// The data chunk of the stripe.
    chunk: usize,
    rows: Rows,
    is_fua: bool,
}

/// Rows that are written on the same members.
#[derive(Debug, PartialEq, Eq)]
struct Job {
    stripe: u64,
    rows: Rows,
    /// The data chunks that are written, a bit each.
    written: u64,
    is_fua: bool,
    /// One entry per piece.
    requests: Vec<RequestIndex>,
    /// Operations of members that have not ended in this phase.
    left: usize,
    has_read: bool,
}

/// What a job reads first.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Before {
    /// Nothing: the rows are written whole.
    Nothing,
    /// The old data and parity.
    Old,
    /// The data that is not written.
    Rest,
}

fn before(written: u64, data_members: usize) -> Before {
    let written = written.count_ones() as usize;
    let (old, rest) = (written + 1, data_members - written);
    match rest {
        0 => Before::Nothing,
        _ if old < rest => Before::Old,
        _ => Before::Rest,
    }
}

/// What an operation of a member is for.
#[derive(Clone, Copy)]
enum Part {
    Request(RequestIndex),
    Job(usize),
}

struct Member {
    timing: Box<dyn Timing>,
    /// What [`Timing::next`] says, or [`NEVER`]; kept, since all members are asked at each step.
    next: Time,
}

/// An array of level 5.
pub struct Raid5 {
    figures: Raid5Figures,
    members: Vec<Member>,
    meter: Meter,
    requests: Slab<Request>,
    parts: Slab<Part>,
    jobs: Slab<Job>,
    /// Writes that wait, by stripe, and the stripes in order of their oldest.
    waiting: BTreeMap<u64, Vec<Piece>>,
    fifo: VecDeque<u64>,
    /// Something joined `waiting`, or a job ended.
    may_start: bool,
    /// Rows under way, by stripe, an entry per job, and how many.
    under_way: BTreeMap<u64, Vec<Rows>>,
    rows: u64,
    /// Discards to end.
    discards: Vec<OpId>,
}

impl Raid5 {
    /// An array over at least three members, and at most 64.
    pub fn new(figures: Raid5Figures, members: Vec<Box<dyn Timing>>) -> Raid5 {
        assert!((3..=64).contains(&members.len()), "a RAID 5 has 3 to 64 members");
        assert!(figures.chunk.0.is_multiple_of(ROW.0), "a chunk is whole rows");
        let member =
            |timing: Box<dyn Timing>| Member { next: timing.next().unwrap_or(NEVER), timing };
        let members = members.into_iter().map(member).collect();
        Raid5 {
            figures,
            members,
            meter: Meter::default(),
            requests: Slab::default(),
            parts: Slab::default(),
            jobs: Slab::default(),
            waiting: BTreeMap::new(),
            fifo: VecDeque::new(),
            may_start: false,
            under_way: BTreeMap::new(),
            rows: 0,
            discards: Vec::new(),
        }
    }

    fn data_members(&self) -> usize {
        self.members.len() - 1
    }

    /// The member with the parity of a stripe.
    fn parity(&self, stripe: u64) -> usize {
        let members = self.members.len();
        members - 1 - (stripe % members as u64) as usize
    }

    /// The member with a data chunk of a stripe.
    fn member(&self, stripe: u64, chunk: usize) -> usize {
        (self.parity(stripe) + 1 + chunk) % self.members.len()
    }

    /// The parts of a range in chunks: stripe, data chunk, first and end sector in the chunk.
    fn split(&self, range: SectorRange) -> impl Iterator<Item = (u64, usize, u64, u64)> + use<> {
        let (chunk, data) = (self.figures.chunk.0, self.data_members() as u64);
        let (mut at, end) = (range.start.0, range.end().0);
        std::iter::from_fn(move || {
            let (index, start) = (at / chunk, at % chunk);
            let count = (chunk - start).min(end - at);
            at += count;
            let part = (index / data, (index % data) as usize, start, start + count);
            (count > 0).then_some(part)
        })
    }

    /// The range of a member that has sectors `start..end` of its chunk of a stripe.
    fn place(&self, stripe: u64, start: u64, end: u64) -> SectorRange {
        let first = Sector(stripe * self.figures.chunk.0);
        SectorRange::between(first + SectorCount(start), first + SectorCount(end))
    }

    fn send(&mut self, member: usize, op: Op, range: SectorRange, is_fua: bool, part: Part) {
        let id = self.parts.insert(part) as OpId;
        let arrival = Arrival { id, op, range, is_fua };
        let (member, now) = (&mut self.members[member], self.meter.now());
        member.timing.arrive(now, arrival);
        member.next = member.next.min(now);
    }

    fn read(&mut self, request: RequestIndex, range: SectorRange) {
        for (stripe, chunk, start, end) in self.split(range) {
            self.requests.get_mut(request).parts += 1;
            let (member, place) = (self.member(stripe, chunk), self.place(stripe, start, end));
            self.send(member, Op::Read, place, false, Part::Request(request));
        }
    }

    fn flush(&mut self, request: RequestIndex) {
        self.requests.get_mut(request).parts = self.members.len();
        for member in 0..self.members.len() {
            self.send(member, Op::Flush, SectorRange::default(), false, Part::Request(request));
        }
    }

    fn gather(&mut self, request: RequestIndex, range: SectorRange, is_fua: bool) {
        for (stripe, chunk, start, end) in self.split(range) {
            self.requests.get_mut(request).parts += 1;
            let rows = (start / ROW.0, end.div_ceil(ROW.0));
            let pieces = self.waiting.entry(stripe).or_insert_with(|| {
                self.fifo.push_back(stripe);
                Vec::new()
            });
            pieces.push(Piece { request, chunk, rows, is_fua });
        }
        self.may_start = true;
    }

    fn step(&mut self, now: Time, ended: &mut Vec<OpId>) {
        self.meter.advance(now);
        self.meter.ended(self.discards.len());
        ended.append(&mut self.discards);
        let mut done = Vec::new();
        loop {
            if std::mem::take(&mut self.may_start) {
                self.start_jobs();
            }
            let mut is_idle = true;
            for member in self.members.iter_mut().filter(|member| member.next <= now) {
                member.timing.go_on(now, &mut done);
                member.next = member.timing.next().unwrap_or(NEVER);
                is_idle = false;
            }
            if is_idle {
                break;
            }
            for part in done.drain(..) {
                match self.parts.remove(part as usize) {
                    Part::Request(request) => self.end_part(request, ended),
                    Part::Job(job) => self.continue_job(job, ended),
                }
            }
        }
        let next = self.members.iter().map(|member| member.next).min();
        self.meter.plan(next.expect("an array has members"));
    }

    fn end_part(&mut self, index: RequestIndex, ended: &mut Vec<OpId>) {
        let request = self.requests.get_mut(index);
        request.parts -= 1;
        if request.parts == 0 {
            ended.push(self.requests.remove(index).id);
            self.meter.ended(1);
        }
    }

    /// Starts what waits, in order, while the stripe cache has room.
    fn start_jobs(&mut self) {
        for stripe in std::mem::take(&mut self.fifo) {
            if self.rows >= self.figures.rows {
                self.fifo.push_back(stripe);
                continue;
            }
            let pieces = self.waiting.remove(&stripe).expect("a stripe in the FIFO has pieces");
            let under_way = self.under_way.get(&stripe).map_or(&[][..], Vec::as_slice);
            let is_free = |piece: &Piece| under_way.iter().all(|&rows| !overlap(rows, piece.rows));
            let (free, rest): (Vec<_>, Vec<_>) = pieces.into_iter().partition(is_free);
            if !rest.is_empty() {
                self.waiting.insert(stripe, rest);
                self.fifo.push_back(stripe);
            }
            for job in jobs_of(stripe, &free) {
                self.start_job(job);
            }
            for piece in free {
                // Its jobs are the parts of its request from now on.
                self.requests.get_mut(piece.request).parts -= 1;
            }
        }
    }

    fn start_job(&mut self, mut job: Job) {
        for &request in &job.requests {
            self.requests.get_mut(request).parts += 1;
        }
        let rows = job.rows.1 - job.rows.0;
        self.rows += rows;
        self.under_way.entry(job.stripe).or_default().push(job.rows);
        let data = self.data_members();
        let (stripe, written) = (job.stripe, job.written);
        let chunks = |written: bool| {
            (0..data).filter(move |chunk| (job.written >> chunk & 1 == 1) == written)
        };
        let members: Vec<usize> = match before(written, data) {
            Before::Nothing => Vec::new(),
            Before::Rest => chunks(false).map(|chunk| self.member(stripe, chunk)).collect(),
            Before::Old => {
                let old = chunks(true).map(|chunk| self.member(stripe, chunk));
                old.chain([self.parity(stripe)]).collect()
            }
        };
        job.left = members.len();
        job.has_read = members.is_empty();
        match job.has_read {
            true => self.meter.used.whole_rows += rows,
            false => self.meter.used.part_rows += rows,
        }
        let range = self.place(stripe, job.rows.0 * ROW.0, job.rows.1 * ROW.0);
        let index = self.jobs.insert(job);
        for &member in &members {
            self.send(member, Op::Read, range, false, Part::Job(index));
        }
        if members.is_empty() {
            self.write_job(index);
        }
    }

    /// Writes the data and the parity of a job.
    fn write_job(&mut self, index: usize) {
        let data = self.data_members();
        let job = self.jobs.get_mut(index);
        job.has_read = true;
        let (stripe, rows, written, is_fua) = (job.stripe, job.rows, job.written, job.is_fua);
        job.left = written.count_ones() as usize + 1;
        let range = self.place(stripe, rows.0 * ROW.0, rows.1 * ROW.0);
        for chunk in (0..data).filter(|chunk| written >> chunk & 1 == 1) {
            let member = self.member(stripe, chunk);
            self.send(member, Op::Write, range, is_fua, Part::Job(index));
        }
        self.send(self.parity(stripe), Op::Write, range, is_fua, Part::Job(index));
    }

    /// An operation of a job ended.
    fn continue_job(&mut self, index: usize, ended: &mut Vec<OpId>) {
        let job = self.jobs.get_mut(index);
        job.left -= 1;
        match (job.left, job.has_read) {
            (0, false) => self.write_job(index),
            (0, true) => self.end_job(index, ended),
            _ => {}
        }
    }

    fn end_job(&mut self, index: usize, ended: &mut Vec<OpId>) {
        let job = self.jobs.remove(index);
        self.rows -= job.rows.1 - job.rows.0;
        let under_way = self.under_way.get_mut(&job.stripe).expect("the job was under way");
        let place = under_way.iter().position(|rows| *rows == job.rows);
        under_way.swap_remove(place.expect("the job was under way"));
        if under_way.is_empty() {
            self.under_way.remove(&job.stripe);
        }
        for request in job.requests {
            self.end_part(request, ended);
        }
        self.may_start = true;
    }
}

fn overlap(one: Rows, other: Rows) -> bool {
    one.0 < other.1 && other.0 < one.1
}

/// The jobs of pieces of a stripe: rows that are written on the same members, as long as possible.
fn jobs_of(stripe: u64, pieces: &[Piece]) -> Vec<Job> {
    let mut borders: Vec<u64> =
        pieces.iter().flat_map(|piece| [piece.rows.0, piece.rows.1]).collect();
    borders.sort_unstable();
    borders.dedup();
    let mut jobs: Vec<Job> = Vec::new();
    for pair in borders.windows(2) {
        let rows = (pair[0], pair[1]);
        let inside = || pieces.iter().filter(|piece| overlap(piece.rows, rows));
        let written = inside().fold(0, |mask, piece| mask | 1_u64 << piece.chunk);
        if written == 0 {
            continue;
        }
        let is_fua = inside().any(|piece| piece.is_fua);
        let requests = inside().map(|piece| piece.request);
        match jobs.last_mut() {
            Some(last) if last.rows.1 == rows.0 && last.written == written => {
                last.rows.1 = rows.1;
                last.is_fua |= is_fua;
                last.requests.extend(requests);
                last.requests.sort_unstable();
                last.requests.dedup();
            }
            _ => {
                let requests = requests.collect();
                let (left, has_read) = (0, false);
                jobs.push(Job { stripe, rows, written, is_fua, requests, left, has_read });
            }
        }
    }
    jobs
}

impl Timing for Raid5 {
    fn arrive(&mut self, now: Time, arrival: Arrival) {
        self.meter.arrived(now, &arrival);
        if arrival.op == Op::Discard {
            self.discards.push(arrival.id);
            return;
        }
        let request = self.requests.insert(Request { id: arrival.id, parts: 0 });
        match arrival.op {
            Op::Read => self.read(request, arrival.range),
            Op::Flush => self.flush(request),
            _ => self.gather(request, arrival.range, arrival.is_fua),
        }
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

    /// What the members did, summed; requests, their sectors and lengths, the depth and the rows
    /// are the array's own.
    fn used(&self) -> Used {
        let all =
            self.members.iter().fold(Used::default(), |sum, member| sum + member.timing.used());
        let own = self.meter.used;
        Used {
            requests: own.requests,
            writes: own.writes,
            read_sectors: own.read_sectors,
            written_sectors: own.written_sectors,
            depth_ns: own.depth_ns,
            whole_rows: own.whole_rows,
            part_rows: own.part_rows,
            lengths: own.lengths,
            ..all
        }
    }

    fn nature(&self) -> Nature {
        let data_members = self.data_members() as u32;
        let shape = Shape::Parity { chunk: self.figures.chunk, data_members };
        Nature::of_parts(self.members.iter().map(|member| member.timing.nature()), shape)
    }

    fn limits(&self) -> Limits {
        let chunk = self.figures.chunk.to_bytes() as u32;
        let io_opt = chunk * self.data_members() as u32;
        Limits { io_min: chunk, io_opt, discard: false, fast_zero: false, ..Limits::default() }
    }
}

#[cfg(test)]
mod tests;
