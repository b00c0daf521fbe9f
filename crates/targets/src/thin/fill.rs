//! Fills a data block of which a write covers a part. The rest is zeros, or the data of the block
//! it was shared as, or of the external origin.
//!
//! The block is in a cell (M3), so no other request maps it. Readers still find the former content.
//! The block is mapped only when all of it is on the data device: no read returns stale data or a
//! partial copy.

use std::sync::Arc;

use cairn_block::{
    CopyError, CopyJob, CopyPiece, Disk, Env, Flags, Io, IoResult, Op, Request, RequestId, Sector,
    SectorCount, SectorRange, Segs,
};
use cairn_format::thin::DataBlock;
use futures_util::future::{join, join_all};

use super::attachment::{Origin, VolumeAttachment};
use super::canary::{self, Bug};
use super::map::Thin;
use super::span::BlockSpan;
use crate::epochs::Epoch;
use crate::group_commit::Waiter;

/// Blocks up to this size are put together in memory and written at once.
const WHOLE_BYTES_MAX: u64 = 1 << 20;

/// One block that is being filled.
struct Fill {
    attachment: Arc<VolumeAttachment>,
    id: RequestId,
    fua: bool,
    epoch: Epoch,
    /// The virtual block.
    block: u64,
    /// What the client writes, on the data device; none of its data if it is zeros.
    range: SectorRange,
    data: Option<Segs>,
    /// The data block.
    whole: SectorRange,
    /// Where the rest comes from.
    rest: Rest,
}

/// The content of the rest of a block.
#[derive(Clone)]
enum Rest {
    Zeros,
    /// Any content will do.
    Anything,
    /// A run of a disk from here on, of so many sectors; zeros after it.
    Of {
        disk: Arc<dyn Disk>,
        start: Sector,
        sectors: u64,
        then_zeros: bool,
    },
}

impl Thin {
    /// Has a task fill the data block `new` with a request that covers a part of its block, and
    /// with the rest of `old`.
    pub(super) fn fill_part(
        &self,
        env: &Env,
        request: &Request,
        span: &BlockSpan,
        (old, new): (Option<DataBlock>, DataBlock),
        epoch: Epoch,
    ) {
        let attachment = self.attachment().clone();
        let whole = attachment.pool.data_range(new, 1);
        let range = SectorRange::new(whole.start + SectorCount(span.offset), request.range.count);
        let fill = Fill {
            id: request.id(),
            fua: request.is_fua(),
            epoch,
            block: span.block,
            range,
            data: (request.op == Op::Write)
                .then(|| request.segs.slice(0, request.range.to_bytes() as usize)),
            whole,
            rest: rest_of(&attachment, self.origin(), span.block, old),
            attachment,
        };
        let tasks = fill.attachment.pool.tasks.clone();
        tasks.spawn(env, async move |env| fill.run(env).await);
    }
}

/// Where the rest of a block comes from.
fn rest_of(
    attachment: &VolumeAttachment,
    origin: Option<&Origin>,
    block: u64,
    old: Option<DataBlock>,
) -> Rest {
    let pool = &attachment.pool;
    let size = pool.block.0;
    if let Some(old) = old {
        let (disk, start) = (pool.data_disk().clone(), pool.data_range(old, 1).start);
        return Rest::Of { disk, start, sectors: size, then_zeros: false };
    }
    let start = block * size;
    match origin {
        Some(origin) if start < origin.sectors => Rest::Of {
            disk: origin.disk.clone(),
            start: Sector(start),
            sectors: (origin.sectors - start).min(size),
            then_zeros: !pool.skips_zeroing(),
        },
        _ if pool.skips_zeroing() => Rest::Anything,
        _ => Rest::Zeros,
    }
}

impl Fill {
    async fn run(self, env: &Env) {
        if canary::planted(Bug::MapBeforeFill) {
            // The wrong order (a planted bug): the mapping could be committed, and the block read,
            // before its data is there.
            let _ = self.attachment.finish_fill(env, self.block, Ok(()));
            env.sleep(std::time::Duration::from_micros(500)).await;
            let filled = self.write_whole(env).await;
            self.attachment.pool.epochs.leave(env.reactor(), self.epoch);
            return env.complete(self.id, filled);
        }
        let filled = if self.whole.to_bytes() > WHOLE_BYTES_MAX {
            self.write_pieces(env).await
        } else if let Some(copied) = self.copy_rest(env) {
            let written = self.write_data(env).await;
            copied.and(written)
        } else {
            self.write_whole(env).await
        };
        let result = self.attachment.finish_fill(env, self.block, filled);
        let pool = &self.attachment.pool;
        pool.epochs.leave(env.reactor(), self.epoch);
        match result {
            Ok(()) if self.fua => pool.join_commit(env, Waiter::Request(self.id)),
            _ => env.complete(self.id, result),
        }
    }

    fn data_disk(&self) -> &Arc<dyn Disk> {
        self.attachment.pool.data_disk()
    }

    /// What lies before and after the client's data.
    fn around(&self) -> [SectorRange; 2] {
        [
            SectorRange::between(self.whole.start, self.range.start),
            SectorRange::between(self.range.end(), self.whole.end()),
        ]
    }

    /// Has the disks copy the rest without a buffer; `None` if it is to be read and written.
    fn copy_rest(&self, env: &Env) -> Option<IoResult> {
        for range in self.around().into_iter().filter(|range| !range.is_empty()) {
            let (disk, from, zeros) = self.source(range)?;
            if zeros > SectorCount::ZERO {
                return None;
            }
            let copied = env.copy((disk, from), (self.data_disk(), range.start))?;
            if let Err(CopyError::Read(error) | CopyError::Write(error)) = copied {
                return Some(Err(error));
            }
        }
        Some(Ok(()))
    }

    /// Reads the rest, then writes the block in one request.
    async fn write_whole(&self, env: &Env) -> IoResult {
        let data = || self.data.clone().unwrap_or_else(|| env.zeros(self.range.count));
        if self.range == self.whole {
            return env.io(self.data_disk(), Io::write(self.range, data())).await;
        }
        let around = self.around();
        let piece =
            |(disk, range, _): (&Arc<dyn Disk>, _, _)| CopyPiece { disk: disk.clone(), range };
        let pieces = around.iter().filter_map(|range| self.source(*range).map(piece));
        let pieces: Vec<CopyPiece> = pieces.collect();
        // The data counts against the grant until the block is written.
        let read = if pieces.is_empty() {
            None
        } else {
            let copier = &self.attachment.pool.copier;
            Some(copier.grant(self.whole.to_bytes()).await.read(env, &pieces).await?)
        };
        let mut read_segs = read.as_ref().map(|read| read.segs().clone()).unwrap_or_default();
        let [head, tail] = around.map(|range| self.rest_of_range(env, range, &mut read_segs));
        let data = data();
        let start = if head.bytes() > 0 { self.whole.start } else { self.range.start };
        let mut segs = head;
        for part in [&data, &tail] {
            segs.extend(part, 0, part.bytes());
        }
        let count = SectorCount::of_bytes(segs.bytes() as u64);
        let written = env.io(self.data_disk(), Io::write(SectorRange::new(start, count), segs));
        let written = written.await;
        drop(read);
        written
    }

    /// The rest of the block in a range of it; nothing if it does not matter. What was read of it
    /// is taken from the start of `read`.
    fn rest_of_range(&self, env: &Env, range: SectorRange, read: &mut Segs) -> Segs {
        if range.is_empty() {
            return Segs::default();
        }
        let Some((_, from, zeros)) = self.source(range) else {
            return match self.rest {
                Rest::Anything => Segs::default(),
                _ => env.zeros(range.count),
            };
        };
        let bytes = from.to_bytes() as usize;
        let mut segs = read.slice(0, bytes);
        read.advance(bytes);
        if zeros > SectorCount::ZERO {
            let zeros = env.zeros(zeros);
            segs.extend(&zeros, 0, zeros.bytes());
        }
        segs
    }

    /// Where a range of the block is to be read, and how much after that is zeros; none if there is
    /// nothing to read.
    fn source(&self, range: SectorRange) -> Option<(&Arc<dyn Disk>, SectorRange, SectorCount)> {
        let Rest::Of { disk, start, sectors, .. } = &self.rest else { return None };
        let offset = range.start - self.whole.start;
        let there = sectors.saturating_sub(offset.0).min(range.count.0);
        let from = SectorRange::new(*start + offset, SectorCount(there));
        (there > 0).then_some((disk, from, range.count - SectorCount(there)))
    }

    /// Copies or zeroes what lies around the data, and writes the data.
    async fn write_pieces(&self, env: &Env) -> IoResult {
        let around = self.around();
        let around = around.into_iter().filter(|range| !range.is_empty());
        let parts = join_all(around.map(|range| self.write_rest(env, range)));
        let (data, parts) = join(self.write_data(env), parts).await;
        parts.into_iter().fold(data, IoResult::and)
    }

    async fn write_data(&self, env: &Env) -> IoResult {
        let data = match &self.data {
            Some(segs) => Io::write(self.range, segs.clone()),
            None => Io::on(Op::WriteZeroes, self.range),
        };
        env.io(self.data_disk(), data).await
    }

    async fn write_rest(&self, env: &Env, range: SectorRange) -> IoResult {
        let Some((disk, from, zeros)) = self.source(range) else {
            return match self.rest {
                Rest::Zeros => self.zero(env, range).await,
                Rest::Of { then_zeros: true, .. } => self.zero(env, range).await,
                Rest::Anything | Rest::Of { .. } => Ok(()),
            };
        };
        let job = CopyJob {
            from: vec![CopyPiece { disk: disk.clone(), range: from }],
            to: self.data_disk().clone(),
            start: range.start,
            flags: Flags::empty(),
        };
        let copied = self.attachment.pool.copier.copy(env, &job).await;
        copied.map_err(|(CopyError::Read(error) | CopyError::Write(error))| error)?;
        match self.rest {
            Rest::Of { then_zeros: true, .. } if zeros > SectorCount::ZERO => {
                let rest = SectorRange::new(range.start + from.count, zeros);
                self.zero(env, rest).await
            }
            _ => Ok(()),
        }
    }

    async fn zero(&self, env: &Env, range: SectorRange) -> IoResult {
        env.io(self.data_disk(), Io::on(Op::WriteZeroes, range)).await
    }
}
