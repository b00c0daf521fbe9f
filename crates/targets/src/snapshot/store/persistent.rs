//! The persistent store on its device: formatting, reading, appending records, clearing merged
//! ones, invalidating.
//!
//! # The order of a commit, and what a crash between its steps leaves
//! 0. The data of the chunks is written (no flush).
//! 1. Each area after one that the records fill is written as zeros. *Crash*: no record leads there
//!    yet, so its content does not matter. If the file system beneath has no room for it, nothing
//!    of the commit is on the device: the owners that can do without the commit get that error.
//! 2. Flush: data and zeros are durable, if the failure count of the device is what it was before
//!    the first of these writes. Otherwise they may be lost although the flush succeeded: no record
//!    is written, and all is repeated from 0 (S3 of the store). *Crash*: the chunks are unused;
//!    opening may or may not hand them out again.
//! 3. The changed blocks of each area are written with FUA, in the order of the list. *Crash*: each
//!    sector is old or new. A new sector after an old one is cut off by the old one's zero record;
//!    none of these writes was acknowledged, and the origin's chunks are unchanged. Opening clears
//!    the sectors after the end of the list, so that they do not join the list when it grows. If
//!    the failure count rose during the writes, the same bytes are sent again, even after a
//!    success: where FUA is a write and a flush, another user's flush may have failed in between.
//!    Data of other batches that may be lost by it is noticed at their own step 2.
//! 4. Now the exceptions count: writes to the snapshot complete, the origin may be overwritten.
//!
//! # Opening
//! The records read at opening are relied on, so they must be durable: the device is flushed first.
//! If the device ever failed (perhaps in an earlier attempt to open it), the system may show data
//! that is lost. Then the records are written again as they were read. The data of a record was
//! durable before the record was first written.
//!
//! # Formatting
//! The first area is zeroed, then a flush, then the header with FUA: a crash leaves a blank device
//! or an empty store. If the failure count rose before the header is written, formatting fails.
//!
//! # Invalidating
//! The header is written with valid = 0 and FUA before the origin may be overwritten without an
//! exception, so that no program trusts the records after a crash.

use cairn_block::{
    Env, ErrorKind, Flags, Io, IoError, Op, Sector, SectorCount, SectorRange, mutants,
};
use cairn_format::snapshot::{CowChunk, Header, Layout, OriginChunk, RECORD_BYTES, Record};

use rustc_hash::FxHashSet;

use super::{Setback, Store};
use crate::snapshot::canary::{self, Bug};
use crate::snapshot::table::Exceptions;

/// Header and first area precede it.
pub(super) const FIRST_FREE: u64 = 2;
/// How often a durable write is sent while flushes fail.
const WRITE_ATTEMPTS: u32 = 3;
/// Areas are read and cleared in pieces of this many bytes.
const PIECE_BYTES: u64 = 256 << 10;

/// What the leader of commits keeps: the block of the area that the next record goes to, up to
/// the end of the list.
#[derive(Default)]
pub(in crate::snapshot) struct Metadata {
    tail: Vec<u8>,
}

/// The result of opening.
pub(in crate::snapshot) struct Loaded {
    pub next_free: u64,
    pub records: u64,
    pub metadata: Metadata,
}

/// Why a store can't be opened.
pub(in crate::snapshot) enum LoadError {
    Io(IoError),
    Damaged(String),
}

impl From<IoError> for LoadError {
    fn from(error: IoError) -> LoadError {
        LoadError::Io(error)
    }
}

/// The end of the list, as a merge reads it.
#[derive(Clone)]
pub(in crate::snapshot) struct TailPiece {
    /// Place in the list of its first record.
    pub first: u64,
    /// To the end of the list; not across areas.
    pub records: Vec<Record>,
}

/// How many chunks from `next_free` on may be handed out together: they lie next to each other on
/// the device, and their records, next to each other in the list, may be committed (S2).
pub(super) fn room(layout: &Layout, next_free: u64, records: u64) -> u64 {
    let ((area, slot), per_area) = (layout.place(records), layout.records_per_area());
    if !layout.has_area(area) || !layout.has_room(CowChunk(next_free)) {
        return 0;
    }
    let slots = per_area - slot - u64::from(!layout.may_fill(area));
    // A data chunk at such a distance from the area before it, or from the header.
    let to_next_area = per_area + 1 - (next_free - 1) % (per_area + 1);
    slots.min(to_next_area).min(layout.chunks() - next_free)
}

fn sectors_of(bytes: u64) -> SectorCount {
    SectorCount::of_bytes(bytes)
}

impl Store {
    fn block_bytes(&self) -> u64 {
        u64::from(self.cow.disk.limits().logical_block)
    }

    /// Makes earlier writes to the device durable.
    pub async fn flush(&self, env: &Env) -> Result<(), IoError> {
        env.make_durable(&self.cow.disk).await
    }

    async fn read(&self, env: &Env, offset: u64, bytes: u64) -> Result<Vec<u8>, IoError> {
        let range = SectorRange::new(Sector::of_byte(offset), sectors_of(bytes));
        let segs = env.segs(range.count);
        env.io(&self.cow.disk, Io::read(range, segs.clone()).with(Flags::META)).await?;
        Ok(segs.to_vec())
    }

    async fn write(
        &self,
        env: &Env,
        offset: u64,
        bytes: &[u8],
        flags: Flags,
    ) -> Result<(), IoError> {
        let range = SectorRange::new(Sector::of_byte(offset), sectors_of(bytes.len() as u64));
        let segs = env.segs(range.count);
        segs.copy_in(0, bytes);
        env.io(&self.cow.disk, Io::write(range, segs).with(flags | Flags::META)).await
    }

    /// Makes the writes durable that were sent while the failure count was `failures`, or later.
    async fn flush_since(&self, env: &Env, failures: u64) -> Result<(), IoError> {
        self.flush(env).await?;
        let kept =
            mutants::same("snapshot: failure count of data", failures, self.cow.disk.failures());
        if kept { Ok(()) } else { Err(IoError::IO) }
    }

    /// Writes durably (step 3).
    async fn write_durably(&self, env: &Env, offset: u64, bytes: &[u8]) -> Result<(), IoError> {
        let mut attempts = 1;
        loop {
            let failures = self.cow.disk.failures();
            let flags = mutants::fua("snapshot: FUA of records");
            let result = self.write(env, offset, bytes, flags).await;
            let name = "snapshot: failure count of records";
            if mutants::same(name, failures, self.cow.disk.failures()) {
                return result;
            }
            if attempts == WRITE_ATTEMPTS {
                return result.and(Err(IoError::IO));
            }
            attempts += 1;
        }
    }

    async fn zero(&self, env: &Env, offset: u64, bytes: u64) -> Result<(), IoError> {
        let range = SectorRange::new(Sector::of_byte(offset), sectors_of(bytes));
        let zeroes = Io::on(Op::WriteZeroes, range).with(Flags::NO_UNMAP | Flags::META);
        env.io(&self.cow.disk, zeroes).await
    }

    /// Formats the device.
    pub async fn format(&self, env: &Env, layout: &Layout) -> Result<(), IoError> {
        let (area, failures) = (layout.area_bytes(0), self.cow.disk.failures());
        self.zero(env, 0, area.end).await?;
        let flush = self.flush_since(env, failures);
        mutants::step("snapshot: flush of a fresh area", (), flush).await?;
        self.write_header(env, Header::fresh(self.chunk)).await
    }

    /// Rewrites the header permanently as invalid.
    pub async fn write_invalid(&self, env: &Env) -> Result<(), IoError> {
        self.write_header(env, Header::fresh(self.chunk).invalidated()).await
    }

    async fn write_header(&self, env: &Env, header: Header) -> Result<(), IoError> {
        let mut block = vec![0; self.block_bytes() as usize];
        let header = header.encode();
        block[..header.len()].copy_from_slice(&header);
        self.write_durably(env, 0, &block).await
    }

    /// Reads every record into `exceptions`, and clears what lies behind the end of the list
    /// unless the device is `read_only`.
    pub async fn load(
        &self,
        env: &Env,
        exceptions: &Exceptions,
        origin_sectors: SectorCount,
        read_only: bool,
    ) -> Result<Loaded, LoadError> {
        let Some(layout) = self.layout() else {
            let detail = "size: found less than a header and one area".to_owned();
            return Err(LoadError::Damaged(detail));
        };
        let doubtful = self.cow.disk.failures() > 0;
        if !read_only {
            // Writes of a killed process may be in the drive's cache only, and are about to be
            // relied on.
            mutants::step("snapshot: flush at opening", (), self.flush(env)).await?;
        }
        let mut reading = Reading {
            exceptions,
            origin_chunks: layout.chunk_size().chunks_of(origin_sectors.0),
            taken: FxHashSet::default(),
            records: 0,
            highest: None,
            write_again: doubtful
                && !read_only
                && !mutants::skips("snapshot: another write of records at opening"),
        };
        loop {
            let (area, _) = layout.place(reading.records);
            if !layout.has_area(area) {
                let detail = format!(
                    "area {}: found full, expected a next area before the end of the device",
                    area - 1
                );
                return Err(LoadError::Damaged(detail));
            }
            if self.read_area(env, &layout, area, &mut reading).await? {
                break;
            }
        }
        let next_free = layout.next_free(reading.highest).0;
        let metadata = self.end_of_list(env, &layout, reading.records, read_only).await?;
        Ok(Loaded { next_free, records: reading.records, metadata })
    }

    /// Reads an area; true if the list ends in it.
    async fn read_area(
        &self,
        env: &Env,
        layout: &Layout,
        area: u64,
        reading: &mut Reading<'_>,
    ) -> Result<bool, LoadError> {
        let range = layout.area_bytes(area);
        let mut at = range.start;
        while at < range.end {
            let bytes = self.read(env, at, PIECE_BYTES.min(range.end - at)).await?;
            if reading.write_again {
                self.write_durably(env, at, &bytes).await?;
            }
            for record in Record::slots(&bytes) {
                if record.is_end() {
                    return Ok(true);
                }
                reading.take(layout, record).map_err(LoadError::Damaged)?;
            }
            at += bytes.len() as u64;
        }
        Ok(false)
    }

    /// Reads the block that the next record goes to, and clears what lies behind the end of the
    /// list in its area.
    async fn end_of_list(
        &self,
        env: &Env,
        layout: &Layout,
        records: u64,
        read_only: bool,
    ) -> Result<Metadata, LoadError> {
        let block = self.block_bytes();
        let (area, _) = layout.place(records);
        let (end, at) = (layout.area_bytes(area).end, layout.record_offset(records));
        let first = at - at % block;
        let mut tail = self.read(env, first, block).await?;
        let keep = (at - first) as usize;
        let mut stale = tail[keep..].iter().any(|&byte| byte != 0);
        let mut look = first + block;
        while !stale && look < end {
            let bytes = self.read(env, look, PIECE_BYTES.min(end - look)).await?;
            stale = bytes.iter().any(|&byte| byte != 0);
            look += bytes.len() as u64;
        }
        tail[keep..].fill(0);
        if stale && !read_only {
            let failures = self.cow.disk.failures();
            if first + block < end {
                self.zero(env, first + block, end - first - block).await?;
            }
            self.write(env, first, &tail, Flags::empty()).await?;
            let flush = self.flush_since(env, failures);
            mutants::step("snapshot: flush of cleared stale records", (), flush).await?;
        }
        tail.truncate(keep);
        Ok(Metadata { tail })
    }

    /// The last records of the list, as many as one piece holds; none if the list is empty.
    pub async fn tail(&self, env: &Env, layout: &Layout) -> Result<Option<TailPiece>, IoError> {
        let committed = self.committed();
        if committed == 0 {
            return Ok(None);
        }
        let (area, slot) = layout.place(committed - 1);
        let (start, record) = (layout.area_bytes(area).start, RECORD_BYTES as u64);
        let end = start + (slot + 1) * record;
        let from = (end - 1) / PIECE_BYTES * PIECE_BYTES;
        let from = from.max(start);
        let to = end.next_multiple_of(self.block_bytes());
        let bytes = self.read(env, from, to - from).await?;
        let first = committed - 1 - slot + (from - start) / record;
        let records = Record::slots(&bytes).take((committed - first) as usize).collect();
        Ok(Some(TailPiece { first, records }))
    }

    /// Clears the last `count` records of the list durably; `piece` holds them. Failing, it may
    /// have been done in part.
    pub async fn clear_tail(
        &self,
        env: &Env,
        layout: &Layout,
        piece: &TailPiece,
        count: u64,
    ) -> Result<(), IoError> {
        let stay = piece.records.len() - count as usize;
        self.write_tail(env, layout, piece, count, stay).await
    }

    /// Writes records back durably whose clearing failed.
    pub async fn restore_tail(
        &self,
        env: &Env,
        layout: &Layout,
        piece: &TailPiece,
        count: u64,
    ) -> Result<(), IoError> {
        self.write_tail(env, layout, piece, count, piece.records.len()).await
    }

    /// Writes the blocks with the last `count` records of a piece, of which the first `stay`
    /// records are there afterwards.
    async fn write_tail(
        &self,
        env: &Env,
        layout: &Layout,
        piece: &TailPiece,
        count: u64,
        stay: usize,
    ) -> Result<(), IoError> {
        let (block, record) = (self.block_bytes(), RECORD_BYTES as u64);
        let end = piece.first + piece.records.len() as u64;
        let offset = layout.record_offset(piece.first);
        let cleared = layout.record_offset(end - count);
        let from = (cleared - cleared % block).max(offset);
        let to = (layout.record_offset(end - 1) + record).next_multiple_of(block);
        let mut bytes = vec![0; (to - from) as usize];
        let skip = ((from - offset) / record) as usize;
        for (slot, record) in piece.records[skip..stay].iter().enumerate() {
            record.write_at(&mut bytes, slot);
        }
        self.write_durably(env, from, &bytes).await
    }
}

/// Appends records to the list, durably; their data was written while the failure count of the
/// device was `failures`.
pub(super) async fn append(
    store: &Store,
    env: &Env,
    metadata: &mut Metadata,
    records: &[Record],
    failures: u64,
) -> Result<(), Setback> {
    let layout = store.layout().ok_or(Setback::Failed(IoError::IO))?;
    let committed = store.committed();
    let areas = areas(&layout, committed, records.len() as u64);
    for Area { area, fills, .. } in &areas {
        if !layout.has_area(*area) || (*fills && !layout.may_fill(*area)) {
            // Allocation saw a larger device.
            return Err(Setback::Failed(IoError::new(ErrorKind::NoSpace)));
        }
        if *fills && !canary::planted(Bug::FullBeforeZeroed) {
            let next = layout.area_bytes(area + 1);
            let zeroed = store.zero(env, next.start, next.end - next.start).await;
            zeroed.map_err(|error| match error.kind {
                ErrorKind::NoSpace => Setback::NoRoom,
                _ => Setback::Failed(error),
            })?;
        }
    }
    if !canary::planted(Bug::RecordBeforeData) {
        let flush = store.flush_since(env, failures);
        let flushed = mutants::step("snapshot: flush before records", (), flush).await;
        flushed.map_err(|_| Setback::Lost)?;
    }
    let mut rest = records;
    for Area { first, count, .. } in areas {
        let (now, later) = rest.split_at(count as usize);
        let written = append_in_area(store, env, metadata, layout.record_offset(first), now).await;
        written.map_err(Setback::Failed)?;
        rest = later;
    }
    Ok(())
}

/// Records of a commit that go to one area.
struct Area {
    area: u64,
    /// The place in the list of the first.
    first: u64,
    count: u64,
    /// The area is full with them.
    fills: bool,
}

/// Where `count` records from `first` go.
fn areas(layout: &Layout, first: u64, count: u64) -> Vec<Area> {
    let (mut areas, mut first, end) = (Vec::new(), first, first + count);
    while first < end {
        let (area, slot) = layout.place(first);
        let room = layout.records_per_area() - slot;
        let count = room.min(end - first);
        areas.push(Area { area, first, count, fills: count == room });
        first += count;
    }
    areas
}

/// Step 3 for records that go to one area, the first of them to `offset`.
async fn append_in_area(
    store: &Store,
    env: &Env,
    metadata: &mut Metadata,
    offset: u64,
    records: &[Record],
) -> Result<(), IoError> {
    let block = store.block_bytes() as usize;
    let from = offset - metadata.tail.len() as u64;
    let mut bytes = std::mem::take(&mut metadata.tail);
    bytes.extend(records.iter().flat_map(Record::encode));
    let used = bytes.len();
    bytes.resize(used.next_multiple_of(block), 0);
    store.write_durably(env, from, &bytes).await?;
    bytes.truncate(used);
    metadata.tail = bytes.split_off(used / block * block);
    Ok(())
}

/// Records as they are read.
struct Reading<'a> {
    exceptions: &'a Exceptions,
    origin_chunks: u64,
    /// Chunks of the COW device that a record names.
    taken: FxHashSet<CowChunk>,
    records: u64,
    highest: Option<CowChunk>,
    /// What is read may be lost.
    write_again: bool,
}

impl Reading<'_> {
    fn take(&mut self, layout: &Layout, record: Record) -> Result<(), String> {
        let Record { old: OriginChunk(old), new } = record;
        let place = self.records;
        if old >= self.origin_chunks {
            let expected = self.origin_chunks;
            return Err(format!(
                "record {place} old_chunk: found {old}, expected below {expected}"
            ));
        }
        if !layout.is_data_chunk(new) {
            let chunks = layout.chunks();
            return Err(format!(
                "record {place} new_chunk: found {new}, expected a data chunk below {chunks}"
            ));
        }
        if !self.taken.insert(new) {
            return Err(format!("record {place} new_chunk: found {new} for the second time"));
        }
        if !self.exceptions.load(record) {
            return Err(format!("record {place} old_chunk: found {old} for the second time"));
        }
        self.records += 1;
        self.highest = self.highest.max(Some(new));
        Ok(())
    }
}
