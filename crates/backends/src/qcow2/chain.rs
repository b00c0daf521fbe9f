//! [`Chain`]: an image and those beneath it: where content is, reads, and block status.

use std::collections::VecDeque;
use std::sync::Arc;

use cairn_block::{
    Disk, Env, Extent, ExtentKind, Io, IoError, IoFuture, IoResult, SECTOR_BYTES, Sector,
    SectorCount, SectorRange, Segs, yield_once,
};
use cairn_format::qcow2::Place;

use super::image::{Image, read_bytes};

/// Limits of one answer about block status; a caller that needs the rest asks again.
const EXTENTS_MAX: usize = 1024;
const RUNS_MAX: usize = 16 << 10;
/// Tables that a task looks at before the other tasks of its reactor have their turn.
const LOOKS_MAX: usize = 512;

/// Reads of one request that are under way at once.
const READS_MAX: usize = 32;

/// One of a chain.
pub(super) enum Layer {
    Image(Box<Image>),
    /// The last of a chain: a disk that has all of its content.
    Raw(Arc<dyn Disk>),
}

/// An image, first, and what shows where it has nothing.
pub(super) struct Chain {
    pub layers: Vec<Layer>,
}

/// Where content is.
enum Found<'a> {
    Zeros,
    /// At a byte of a disk that keeps an image.
    Data(&'a Arc<dyn Disk>, u64),
    /// At a byte of the disk that ends the chain.
    Raw(&'a Arc<dyn Disk>, u64),
    Compressed {
        image: &'a Image,
        start: u64,
        bytes: u64,
        skip: u64,
    },
}

/// Content that lies in one piece on a disk.
struct Piece<'a> {
    disk: &'a Arc<dyn Disk>,
    at: u64,
    /// Where it belongs in the request.
    skip: usize,
    bytes: usize,
}

impl Layer {
    fn bytes(&self) -> u64 {
        match self {
            Layer::Image(image) => image.header.size,
            Layer::Raw(disk) => disk.sectors().to_bytes(),
        }
    }
}

impl Chain {
    /// Bytes of the content.
    pub fn bytes(&self) -> u64 {
        self.layers.first().map_or(0, Layer::bytes)
    }

    /// What is at the byte `at`, and up to where, at most `end`. Beyond the end of an image there
    /// are zeros.
    async fn find(&self, env: &Env, at: u64, end: u64) -> Result<(Found<'_>, u64), IoError> {
        let mut end = end;
        for layer in &self.layers {
            if at >= layer.bytes() {
                break;
            }
            end = end.min(layer.bytes());
            let image = match layer {
                Layer::Image(image) => image,
                Layer::Raw(disk) => return Ok((Found::Raw(disk, at), end)),
            };
            let run = image.run(env, at).await?;
            end = end.min(at.saturating_add(run.bytes));
            let found = match run.place {
                Place::Nowhere => continue,
                Place::Zeros => Found::Zeros,
                Place::Data(at) => Found::Data(&image.disk, at),
                Place::Compressed { start, bytes, skip } => {
                    Found::Compressed { image, start, bytes, skip }
                }
            };
            return Ok((found, end));
        }
        Ok((Found::Zeros, end))
    }

    /// Reads a range into `segs`, which are as long.
    pub async fn read(&self, env: &Env, range: SectorRange, segs: Segs) -> IoResult {
        let mut reads = VecDeque::new();
        let mut result = self.start_reads(env, range, &segs, &mut reads).await;
        // The memory of a request is its client's again when it has ended: no read may be left.
        for read in reads {
            result = result.and(read.await);
        }
        result
    }

    /// Lets the other tasks of the reactor run, once so many tables were looked at: what is in
    /// memory makes no task wait.
    async fn give_way(&self, looked: &mut usize) {
        *looked += self.layers.len();
        if *looked >= LOOKS_MAX {
            *looked = 0;
            yield_once().await;
        }
    }

    async fn start_reads(
        &self,
        env: &Env,
        range: SectorRange,
        segs: &Segs,
        reads: &mut VecDeque<IoFuture>,
    ) -> IoResult {
        let (begin, end) = (range.start.to_bytes(), range.end().to_bytes());
        let mut at = begin;
        let mut piece: Option<Piece<'_>> = None;
        let mut looked = 0;
        while at < end {
            self.give_way(&mut looked).await;
            let (found, upto) = self.find(env, at, end).await?;
            let (skip, bytes) = ((at - begin) as usize, (upto - at) as usize);
            at = upto;
            match (found, &mut piece) {
                (Found::Data(disk, at) | Found::Raw(disk, at), Some(piece))
                    if piece.reaches(disk, at, skip) =>
                {
                    piece.bytes += bytes;
                }
                (Found::Data(disk, at) | Found::Raw(disk, at), piece) => {
                    let next = Piece { disk, at, skip, bytes };
                    if let Some(last) = piece.replace(next) {
                        last.read(env, segs, reads).await?;
                    }
                }
                (Found::Zeros, _) => segs.zero(skip, bytes),
                (Found::Compressed { image, start, bytes: most, skip: inside }, _) => {
                    let cluster = image.cluster(env, start, most).await?;
                    let inside = inside as usize;
                    segs.copy_in(skip, &cluster[inside..inside + bytes]);
                }
            }
        }
        match piece {
            Some(last) => last.read(env, segs, reads).await,
            None => Ok(()),
        }
    }

    /// Block status, from the start of the range on.
    pub async fn extents(&self, env: &Env, range: SectorRange) -> Result<Vec<Extent>, IoError> {
        let mut extents = Vec::new();
        let (mut at, end) = (range.start.to_bytes(), range.end().to_bytes());
        let (mut runs, mut looked) = (0, 0);
        while at < end && runs < RUNS_MAX && extents.len() < EXTENTS_MAX {
            runs += 1;
            self.give_way(&mut looked).await;
            let (found, upto) = self.find(env, at, end).await?;
            // Only the end of a content is within a sector, and what follows it is zeros.
            let upto = upto.next_multiple_of(SECTOR_BYTES);
            let kind = match found {
                Found::Zeros => ExtentKind::Hole,
                Found::Data(..) | Found::Compressed { .. } => ExtentKind::Data,
                Found::Raw(disk, byte) => {
                    let range = SectorRange::between(
                        Sector(byte / SECTOR_BYTES),
                        Sector((byte + (upto - at)) / SECTOR_BYTES),
                    );
                    at += self.raw_extents(env, (disk, range), &mut extents).await?;
                    continue;
                }
            };
            push(&mut extents, SectorCount::of_bytes(upto - at), kind);
            at = upto;
        }
        Ok(extents)
    }

    /// Adds those of the disk that ends the chain; returns how many bytes they cover.
    async fn raw_extents(
        &self,
        env: &Env,
        (disk, range): (&Arc<dyn Disk>, SectorRange),
        extents: &mut Vec<Extent>,
    ) -> Result<u64, IoError> {
        let block = disk.limits().logical_sectors();
        let mut covered = SectorCount::ZERO;
        if range.is_aligned(block) {
            for extent in disk.extents(env, range).await? {
                let count = extent.count.min(range.count - covered);
                push(extents, count, extent.kind);
                covered += count;
            }
        }
        if covered == SectorCount::ZERO {
            push(extents, range.count, ExtentKind::Data);
            covered = range.count;
        }
        Ok(covered.to_bytes())
    }
}

fn push(extents: &mut Vec<Extent>, count: SectorCount, kind: ExtentKind) {
    match extents.last_mut().filter(|last| last.kind == kind) {
        Some(last) => last.count += count,
        None if count == SectorCount::ZERO => {}
        None => extents.push(Extent { count, kind }),
    }
}

impl Piece<'_> {
    /// True if what lies at `at`, for the bytes of the request from `skip` on, continues it.
    fn reaches(&self, disk: &Arc<dyn Disk>, at: u64, skip: usize) -> bool {
        let bytes = self.bytes as u64;
        Arc::ptr_eq(disk, self.disk) && at == self.at + bytes && skip == self.skip + self.bytes
    }

    /// Starts to read it. What the disk cannot read into the request's memory is copied.
    async fn read(&self, env: &Env, segs: &Segs, reads: &mut VecDeque<IoFuture>) -> IoResult {
        // The last cluster of an image may be cut short.
        let left = self.disk.sectors().to_bytes().saturating_sub(self.at);
        let bytes = self.bytes.min(usize::try_from(left).unwrap_or(usize::MAX));
        segs.zero(self.skip + bytes, self.bytes - bytes);
        if bytes == 0 {
            return Ok(());
        }
        let block = u64::from(self.disk.limits().logical_block);
        if !self.at.is_multiple_of(block) || !(bytes as u64).is_multiple_of(block) {
            return self.copy(env, segs, bytes).await;
        }
        if reads.len() >= READS_MAX
            && let Some(oldest) = reads.pop_front()
        {
            oldest.await?;
        }
        let start = Sector(self.at / SECTOR_BYTES);
        let range = SectorRange::new(start, SectorCount::of_bytes(bytes as u64));
        reads.push_back(env.io(self.disk, Io::read(range, segs.slice(self.skip, bytes))));
        Ok(())
    }

    async fn copy(&self, env: &Env, segs: &Segs, bytes: usize) -> IoResult {
        const STEP: usize = 1 << 20;
        let mut done = 0;
        while done < bytes {
            let step = STEP.min(bytes - done);
            let at = self.at + done as u64;
            let read = read_bytes(env, self.disk, at..at + step as u64).await?;
            segs.copy_in(self.skip + done, &read);
            done += step;
        }
        Ok(())
    }
}
