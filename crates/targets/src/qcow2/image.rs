//! [`Image`]: the device that keeps the image, and where its tables are.

use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;

use cairn_block::{
    Disk, Env, Flags, Io, IoError, IoResult, SECTOR_BYTES, Sector, SectorCount, SectorRange,
    mutants,
};
use cairn_format::qcow2::{Header, Layout};

/// Longest request for metadata.
const REQUEST_BYTES_MAX: u64 = 1 << 20;
/// Most requests for metadata at a time.
const REQUESTS_MAX: usize = 32;

/// Bytes of metadata to write, by where they begin. Each begins and ends where a unit does.
pub(super) type Writes = BTreeMap<u64, Vec<u8>>;

/// Where the tables of an image are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Geometry {
    pub cluster_bytes: u64,
    /// Bytes of the content.
    pub size: u64,
    /// The byte where the L1 table begins, and its entries.
    pub l1: (u64, u64),
}

impl Geometry {
    pub fn of(header: &Header, layout: &Layout) -> Geometry {
        Geometry {
            cluster_bytes: header.cluster_bytes(),
            size: header.size,
            l1: (layout.l1_table, layout.l1_entries),
        }
    }

    /// Sectors of a cluster.
    pub fn cluster_sectors(&self) -> u64 {
        self.cluster_bytes / SECTOR_BYTES
    }

    /// Sectors of the content.
    pub fn sectors(&self) -> u64 {
        self.size / SECTOR_BYTES
    }

    /// The sectors of the image that some of its clusters have.
    pub fn sectors_of(&self, clusters: &Range<u64>) -> SectorRange {
        let sector = |cluster: u64| Sector(cluster * self.cluster_sectors());
        SectorRange::between(sector(clusters.start), sector(clusters.end))
    }
}

/// See the module's description.
pub(super) struct Image {
    pub disk: Arc<dyn Disk>,
    /// Metadata is written in units of this many bytes, which a power cut does not tear.
    pub unit: u64,
}

impl Image {
    pub fn new(disk: Arc<dyn Disk>) -> Image {
        let unit = u64::from(disk.limits().logical_block).max(SECTOR_BYTES);
        Image { disk, unit }
    }

    pub fn bytes(&self) -> u64 {
        self.disk.sectors().to_bytes()
    }

    /// The unit that has this byte.
    pub fn unit_of(&self, byte: u64) -> Range<u64> {
        let start = byte - byte % self.unit;
        start..start + self.unit
    }

    /// Reads bytes that are within the image.
    pub async fn read(&self, env: &Env, range: Range<u64>) -> Result<Vec<u8>, IoError> {
        let mut bytes = Vec::with_capacity((range.end - range.start) as usize);
        let mut at = range.start;
        while at < range.end {
            let start = at - at % self.unit;
            let end = (start + REQUEST_BYTES_MAX).min(range.end.next_multiple_of(self.unit));
            let sectors =
                SectorRange::between(Sector(start / SECTOR_BYTES), Sector(end / SECTOR_BYTES));
            if !sectors.fits_in(self.disk.sectors()) {
                return Err(IoError::IO);
            }
            let segs = env.segs(sectors.count);
            env.io(&self.disk, Io::read(sectors, segs.clone()).with(Flags::META)).await?;
            let mut read = segs.to_vec();
            read.truncate((range.end.min(end) - start) as usize);
            bytes.extend_from_slice(&read[(at - start) as usize..]);
            at = end;
        }
        Ok(bytes)
    }

    /// Writes all of it, and makes it durable, with everything that completed before.
    ///
    /// # Errors
    /// Any of it failed, or a failure may have lost what was written.
    pub async fn write_durably(&self, env: &Env, name: &str, writes: &Writes) -> IoResult {
        let before = self.disk.failures();
        self.write(env, writes).await?;
        mutants::step(name, (), async { env.make_durable(&self.disk).await }).await?;
        match mutants::same("qcow2: failure count of a step", before, self.disk.failures()) {
            true => Ok(()),
            false => Err(IoError::IO),
        }
    }

    async fn write(&self, env: &Env, writes: &Writes) -> IoResult {
        let mut rest = joined(writes);
        loop {
            let start = |(at, bytes): (u64, Vec<u8>)| {
                let start = Sector(at / SECTOR_BYTES);
                let range = SectorRange::new(start, SectorCount::of_bytes(bytes.len() as u64));
                let segs = env.segs(range.count);
                segs.copy_in(0, &bytes);
                env.io(&self.disk, Io::write(range, segs).with(Flags::META))
            };
            let window: Vec<_> = rest.by_ref().take(REQUESTS_MAX).map(start).collect();
            if window.is_empty() {
                return Ok(());
            }
            let mut result = Ok(());
            for write in window {
                result = result.and(write.await);
            }
            result?;
        }
    }
}

/// Neighbours joined, and what is too long for one request divided.
fn joined(writes: &Writes) -> impl Iterator<Item = (u64, Vec<u8>)> + '_ {
    let pieces = writes.iter().flat_map(|(at, bytes)| {
        (*at..).step_by(REQUEST_BYTES_MAX as usize).zip(bytes.chunks(REQUEST_BYTES_MAX as usize))
    });
    let mut pieces = pieces.peekable();
    std::iter::from_fn(move || {
        let (start, first) = pieces.next()?;
        let mut run = first.to_vec();
        let follows = |run: &Vec<u8>, (at, bytes): &(u64, &[u8])| {
            let is_short = (run.len() + bytes.len()) as u64 <= REQUEST_BYTES_MAX;
            start + run.len() as u64 == *at && is_short
        };
        while let Some((_, bytes)) = pieces.next_if(|next| follows(&run, next)) {
            run.extend_from_slice(bytes);
        }
        Some((start, run))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn neighbours_are_written_as_one() {
        let long = 5 << 19;
        let writes = [(0, vec![1; 512]), (512, vec![2; 512]), (2048, vec![3; long])];
        let writes = Writes::from(writes);
        let joined: Vec<_> = joined(&writes).collect();
        let places: Vec<_> = joined.iter().map(|(at, bytes)| (*at, bytes.len())).collect();
        let most = 1 << 20;
        let second = 2048 + most as u64;
        let pieces = [(2048, most), (second, most), (second + most as u64, most / 2)];
        assert_eq!(places, [&[(0, 1024)][..], &pieces[..]].concat());
        assert_eq!(joined[0].1, [vec![1; 512], vec![2; 512]].concat());
    }
}
