//! Fills: data that a read missed, or that a write sent through the cache, enters it as clean data.
//!
//! # Order
//! 1. The request is mapped to the backing device, and the fill is listed.
//! 2. The request ends, and its client gets the answer. A copy of its data goes to a place in an
//!    open bucket.
//! 3. What a write sent through is durable on the backing device: by FUA, or by a flush. (What a
//!    read missed was durable at 1.)
//! 4. The key enters the tree, clean. No entry of the journal has it; the next checkpoint puts it
//!    into a leaf, behind a flush of the cache device (R3).
//!
//! # Invariants
//! L1. A fill is dropped if a write from above touched its sectors after 1 (R7), or if the tree has
//!     something there by 4, or its leaf is absent by then.
//! L2. A key of a fill has the data that the backing device has, durably (R13). So no power cut
//!     leaves a clean extent that differs from the backing device.
//! L3. The cache device may lose the data of a fill until a checkpoint has ended that began after
//!     4. A read looks at the failure count of the device first; once it has risen the set is
//!     broken, and such fills have left the tree.
//!
//! A fill is dropped, too, if no bucket is free at once. The copies in flight are bounded.

use std::time::Duration;

use cairn_block::sync::atomic::Ordering;
use cairn_block::{Env, Flags, Io, IoResult, Op, Request, Sector, SectorCount, SectorRange, Segs};
use cairn_format::bcache::{Key, Pointer};

use super::btree::Span;
use super::canary::{Bug, planted};
use super::coverage::{self, Path};
use super::set::Set;
use super::status::Count;
use super::volume::Bcache;
use super::writes::Ready;

/// The longest fill, in sectors: the kernel's limit.
const FILL_SECTORS: u64 = 2048;
/// How many sectors are on their way into the cache at once.
const IN_FLIGHT: u64 = (16 << 20) / 512;
/// The highest number of a fill: it has room in the word of a request.
const NUMBER_MAX: u64 = (1 << 24) - 1;
/// After this time a fill flushes the backing device itself.
const FLUSH_DELAY: Duration = Duration::from_secs(5);

struct Fill {
    number: u64,
    span: Span,
    is_valid: bool,
}

/// The fills under way, under the lock of the set.
#[derive(Default)]
pub(super) struct Fills {
    fills: Vec<Fill>,
    last: u64,
    sectors: u64,
}

impl Fills {
    /// A fill of these sectors begins, if there is room for it. Answers its number; none is 0.
    pub fn begin(&mut self, span: Span) -> u64 {
        let sectors = span.end - span.start;
        if sectors > FILL_SECTORS || self.sectors + sectors > IN_FLIGHT {
            return 0;
        }
        self.sectors += sectors;
        self.last = self.last % NUMBER_MAX + 1;
        self.fills.push(Fill { number: self.last, span, is_valid: true });
        self.last
    }

    /// A write from above touches these sectors (L1).
    pub fn touch(&mut self, span: &Span) {
        let fills = self.fills.iter_mut().filter(|fill| fill.span.overlaps(span));
        fills.for_each(|fill| fill.is_valid = false);
    }

    /// True if no write from above has touched the sectors of a fill.
    pub fn is_valid(&self, number: u64) -> bool {
        let is_valid = |fill: &Fill| fill.is_valid || planted(Bug::FillOverWrite);
        self.fills.iter().any(|fill| fill.number == number && is_valid(fill))
    }

    /// A fill has ended, in some way. True if it may enter the tree.
    pub fn end(&mut self, number: u64) -> bool {
        let index = self.fills.iter().position(|fill| fill.number == number);
        let fill = self.fills.swap_remove(index.expect("a fill ends once"));
        self.sectors -= fill.span.end - fill.span.start;
        fill.is_valid || planted(Bug::FillOverWrite)
    }
}

impl Bcache {
    /// True if clean data may enter the cache. A volume that no session serves yet begins one.
    fn takes_fills(&self, env: &Env) -> bool {
        if self.read_only {
            return false;
        }
        let is_ready = self.is_ready(Ready::Change);
        let is_broken = self.is_broken();
        if !is_ready && !is_broken && !self.beginning.swap(true, Ordering::Relaxed) {
            self.wanted.fetch_max(Ready::Change as u8, Ordering::Relaxed);
            self.spawn(env, async |volume, env| volume.begin_writing(env).await);
        }
        is_ready && !is_broken
    }

    /// Step 1 of a read that missed these sectors. The number of the fill; 0 if there is none.
    pub(super) fn begin_fill(&self, env: &Env, set: &mut Set, span: Span) -> u64 {
        // Before a session begins no bucket is free.
        if !self.takes_fills(env) || set.is_short() || !self.traffic.is_settled(&span) {
            return 0;
        }
        set.changes.fills.begin(span)
    }

    /// Step 1 of a write that goes through the cache. Of two writes of a sector that are in flight
    /// together, neither is known to be the one that the backing device keeps. Write-zeroes have no
    /// data to copy.
    pub(super) fn begin_through(&self, set: &mut Set, op: Op, span: Span) -> u64 {
        let is_alone = op == Op::Write && !self.traffic.overlaps(&span);
        if !is_alone || set.is_short() { 0 } else { set.changes.fills.begin(span) }
    }

    /// Step 2, if the request has ended well.
    pub(super) fn go_on_filling(
        &self,
        env: &Env,
        request: &Request,
        number: u64,
        result: IoResult,
        is_durable: bool,
    ) {
        if number == 0 {
            return;
        }
        let core = self.core.as_ref().expect("it has a cache");
        let span = self.span_of(request);
        let is_miss = request.op == Op::Read;
        let (placed, is_valid) = core.with(|set| {
            let is_valid = set.changes.fills.is_valid(number);
            let placed = match result.is_ok() && is_valid {
                true => set.place(span, request.stream()),
                false => None,
            };
            if placed.is_none() {
                set.changes.fills.end(number);
            }
            (placed, is_valid)
        });
        if is_miss && result.is_ok() && !is_valid {
            self.counters.add(env, Count::MissCollisions as usize, 1);
        }
        let Some((pointer, count)) = placed else { return };
        let segs = env.segs(SectorCount(count));
        let mut at = 0;
        request.segs.for_each(0, SectorCount(count).to_bytes() as usize, |bytes| {
            segs.copy_in(at, bytes);
            at += bytes.len();
        });
        let span = Span { end: span.start + count, ..span };
        self.spawn(env, async move |volume, env| {
            let collides = volume.fill(env, span, number, pointer, segs, is_durable).await;
            if !collides {
                coverage::take(if is_miss { Path::FillOfRead } else { Path::FillOfWrite });
            }
            if is_miss && collides {
                volume.counters.add(env, Count::MissCollisions as usize, 1);
            }
        });
    }

    /// Steps 2 to 4. True if a write from above came between (L1).
    async fn fill(
        &self,
        env: &Env,
        span: Span,
        number: u64,
        pointer: Pointer,
        segs: Segs,
        is_durable: bool,
    ) -> bool {
        let core = self.core.as_ref().expect("it has a cache");
        let count = span.end - span.start;
        self.counters.add(env, Count::CachedSectors as usize, count);
        let range = SectorRange::new(Sector(pointer.sector()), SectorCount(count));
        let write = Io::write(range, segs).with(Flags::BACKGROUND);
        let written = env.io(core.cache.disk(), write).await;
        let mut result = written;
        if !is_durable && result.is_ok() && !planted(Bug::FillBeforeFlush) {
            result = self.wait_for_flush(env, &span, number).await;
        }
        let collides = core.with(|set| {
            let pointer = set.buckets.end_write(pointer.sector());
            if written.is_err() {
                set.write_failed(pointer.sector());
            }
            let is_valid = set.changes.fills.end(number);
            if !is_valid {
                coverage::take(Path::FillDropped);
            }
            if result.is_ok() && is_valid && !core.is_broken() {
                set.fill(&Key::new(span.inode, span.end, count).at(pointer));
            }
            !is_valid
        });
        self.count_cache(env, written);
        core.changed.notify(usize::MAX);
        collides
    }

    /// Step 3.
    async fn wait_for_flush(&self, env: &Env, span: &Span, number: u64) -> IoResult {
        let core = self.core.as_ref().expect("it has a cache");
        let end = env.now() + FLUSH_DELAY;
        let is_valid = || core.with(|set| set.changes.fills.is_valid(number));
        let is_over = || {
            let is_over = self.is_resting() || !is_valid();
            is_over || self.traffic.is_settled(span)
        };
        env.until_or_time(self.traffic.flushed(), Some(end), is_over).await;
        if !is_over() {
            self.flush_traffic(env).await?;
        }
        match self.traffic.is_settled(span) {
            true => Ok(()),
            false => Err(cairn_block::IoError::IO),
        }
    }
}

impl Set {
    /// Step 4, unless the tree has something there.
    fn fill(&mut self, key: &Key) {
        let span = Span::of(key);
        let is_present = self.tree.absent_in(&span).is_empty();
        if !is_present || self.tree.extents_in(&span).next().is_some() {
            return;
        }
        self.tree.lay(key, &mut self.buckets);
        self.changes.add_filled(key);
    }
}
