//! Open buckets: where the data of the next writes goes.
//!
//! Writes that follow each other on a volume, or come from one client, go to one bucket: such data
//! tends to be written back, and to become invalid, at the same time.

use cairn_block::StreamId;
use cairn_format::bcache::{Geometry, Pointer};

use super::Buckets;

/// How many buckets are open at most.
const OPEN_MAX: u64 = 64;

/// A bucket that data is written to.
struct WritePoint {
    /// Where the next write goes.
    next: Pointer,
    /// Sectors that are left.
    left: u64,
    /// Where the last write ended, and whose it was.
    end: (u32, u64),
    stream: StreamId,
    /// When it was used last, in writes.
    used: u64,
}

/// See the module's description.
pub(in super::super) struct OpenBuckets {
    points: Vec<WritePoint>,
    most: usize,
    bucket_sectors: u64,
    block_sectors: u64,
    /// How many writes there were.
    writes: u64,
}

impl OpenBuckets {
    /// None is open.
    pub fn new(geometry: &Geometry) -> OpenBuckets {
        OpenBuckets {
            points: Vec::new(),
            most: (geometry.buckets() / 64).clamp(1, OPEN_MAX) as usize,
            bucket_sectors: geometry.bucket_sectors(),
            block_sectors: u64::from(geometry.block_sectors()),
            writes: 0,
        }
    }

    /// A place for a write of `want` sectors, or for as many of them as a bucket has room for. The
    /// write counts as begun ([`Buckets::begin_write`]). None if no bucket is free.
    pub fn place(
        &mut self,
        buckets: &mut Buckets,
        start: (u32, u64),
        want: u64,
        stream: StreamId,
    ) -> Option<(Pointer, u64)> {
        let index = self.find(start, stream).or_else(|| self.open(buckets))?;
        let point = &mut self.points[index];
        let (pointer, count) = (point.next, want.min(point.left));
        self.writes += 1;
        (point.end, point.stream, point.used) = ((start.0, start.1 + count), stream, self.writes);
        point.left -= count;
        point.next = Pointer::new(pointer.sector() + count, pointer.generation());
        buckets.begin_write(pointer);
        if point.left < self.block_sectors {
            buckets.close(buckets.geometry.bucket_of(pointer.sector()));
            self.points.swap_remove(index);
        }
        Some((pointer, count))
    }

    /// The bucket whose last write ended where this one begins; or that of its client; or, if as
    /// many are open as may be, the one that was used least recently.
    fn find(&self, start: (u32, u64), stream: StreamId) -> Option<usize> {
        let place = |is_it: &dyn Fn(&WritePoint) -> bool| self.points.iter().position(is_it);
        let own = || place(&|point| point.stream == stream && point.end.0 == start.0);
        let oldest = || {
            let points = self.points.iter().enumerate();
            points.min_by_key(|(_, point)| point.used).map(|(index, _)| index)
        };
        let found = place(&|point| point.end == start).or_else(own);
        found.or_else(|| if self.points.len() < self.most { None } else { oldest() })
    }

    /// Opens a bucket; if none is free, takes the one that was used least recently.
    fn open(&mut self, buckets: &mut Buckets) -> Option<usize> {
        let Some(next) = buckets.take_for_data() else {
            let points = self.points.iter().enumerate();
            return points.min_by_key(|(_, point)| point.used).map(|(index, _)| index);
        };
        let (end, stream, used) = ((u32::MAX, 0), StreamId::default(), 0);
        self.points.push(WritePoint { next, left: self.bucket_sectors, end, stream, used });
        Some(self.points.len() - 1)
    }

    /// A write to this bucket failed: no more data goes there.
    pub fn abandon(&mut self, buckets: &mut Buckets, bucket: u64) {
        let is_other = |at: &WritePoint| buckets.geometry.bucket_of(at.next.sector()) != bucket;
        self.points.retain(is_other);
        buckets.close(bucket);
        buckets.mark_bad(bucket);
    }

    /// Closes all.
    pub fn close_all(&mut self, buckets: &mut Buckets) {
        for point in self.points.drain(..) {
            buckets.close(buckets.geometry.bucket_of(point.next.sector()));
        }
    }
}
