//! [`Stamps`]: which write made the data of each sector, in runs.
//!
//! It is for stamped data only ([`crate::stamp`]), whose bytes follow from its stamp.

use std::collections::BTreeMap;

use cairn_block::{SECTOR_BYTES, SectorRange, Segs};

use crate::stamp::{Stamp, stamp_of, stamped_sector};

const SECTOR: usize = SECTOR_BYTES as usize;

/// Sectors whose data one write made, for adjacent sectors.
#[derive(Clone, Copy)]
struct Run {
    end: u64,
    /// That of the first sector.
    stamp: Stamp,
}

impl Run {
    fn stamp_at(&self, start: u64, sector: u64) -> Stamp {
        Stamp { sector: self.stamp.sector + (sector - start), ..self.stamp }
    }
}

/// See the module's description. Sectors without a stamp are zero.
#[derive(Default)]
pub(super) struct Stamps(BTreeMap<u64, Run>);

impl Stamps {
    /// # Panics
    /// The data is neither stamped nor zeros.
    pub fn write(&mut self, range: SectorRange, segs: &Segs) {
        self.clear(range);
        let bytes = segs.to_vec();
        let sectors = (range.start.0..range.end().0).zip(bytes.chunks(SECTOR));
        let mut last: Option<(u64, Run)> = None;
        for (sector, bytes) in sectors {
            let stamp = stamp_of(bytes);
            let is_zero = || bytes.iter().all(|&byte| byte == 0);
            assert!(stamp.is_some() || is_zero(), "sector {sector}: data without a stamp");
            match (&mut last, stamp) {
                (Some((start, run)), Some(stamp)) if run.stamp_at(*start, sector) == stamp => {
                    run.end = sector + 1;
                }
                (_, stamp) => {
                    self.0.extend(last.take());
                    last = stamp.map(|stamp| (sector, Run { end: sector + 1, stamp }));
                }
            }
        }
        self.0.extend(last);
    }

    pub fn clear(&mut self, range: SectorRange) {
        let (from, to) = (range.start.0, range.end().0);
        while let Some((&start, &run)) = self.0.range(..to).next_back() {
            if run.end <= from {
                return;
            }
            self.0.remove(&start);
            if run.end > to {
                self.0.insert(to, Run { stamp: run.stamp_at(start, to), ..run });
            }
            if start < from {
                self.0.insert(start, Run { end: from, ..run });
            }
        }
    }

    pub fn read(&self, range: SectorRange, segs: &Segs) {
        segs.zero(0, range.to_bytes() as usize);
        let first = self.0.range(..range.start.0).next_back();
        for (&start, run) in first.into_iter().chain(self.0.range(range.start.0..range.end().0)) {
            for sector in start.max(range.start.0)..run.end.min(range.end().0) {
                let at = (sector - range.start.0) as usize * SECTOR;
                segs.copy_in(at, &stamped_sector(run.stamp_at(start, sector)));
            }
        }
    }

    /// How many runs there are.
    #[cfg(test)]
    pub fn runs(&self) -> usize {
        self.0.len()
    }
}

#[cfg(test)]
mod tests {
    use cairn_block::{Env, Sector, SectorCount};

    use super::*;
    use crate::stamp::stamped;
    use crate::{Image, SimWorld};

    fn range(start: u64, count: u64) -> SectorRange {
        SectorRange::new(Sector(start), SectorCount(count))
    }

    fn segs_of(env: &Env, bytes: &[u8]) -> Segs {
        let segs = env.segs(SectorCount::of_bytes(bytes.len() as u64));
        segs.copy_in(0, bytes);
        segs
    }

    #[test]
    fn what_is_read_is_what_an_image_has_after_the_same_writes() {
        let world = SimWorld::new(1, 1);
        let (env, mut rng) = (world.env(0), fastrand::Rng::with_seed(5));
        let (mut stamps, mut image) = (Stamps::default(), Image::new(SectorCount(64)));
        for id in 0..500 {
            let start = rng.u64(..64);
            let at = range(start, rng.u64(1..=64 - start));
            if rng.u8(..4) == 0 {
                stamps.clear(at);
                image.zero(at);
            } else {
                // Data that was stamped for another place, as on a cache device.
                let source = range(start + rng.u64(..3) * 1000, at.count.0);
                let mut bytes = stamped(source, id, 7);
                if rng.bool() {
                    bytes[..SECTOR].fill(0);
                }
                stamps.write(at, &segs_of(env, &bytes));
                image.write(at.start, &bytes);
            }
            let from = rng.u64(..64);
            let seen = range(from, rng.u64(1..=64 - from));
            let segs = env.segs(seen.count);
            stamps.read(seen, &segs);
            let mut expected = vec![0; seen.to_bytes() as usize];
            image.read(seen.start, &mut expected);
            assert!(segs.to_vec() == expected, "round {id}, {seen}");
        }
    }

    #[test]
    fn write_of_any_length_is_one_run() {
        let world = SimWorld::new(1, 1);
        let mut stamps = Stamps::default();
        stamps.write(range(8, 100), &segs_of(world.env(0), &stamped(range(8, 100), 1, 7)));
        assert_eq!(stamps.runs(), 1);
        stamps.clear(range(20, 1));
        assert_eq!(stamps.runs(), 2);
    }

    #[test]
    #[should_panic(expected = "sector 8: data without a stamp")]
    fn data_without_a_stamp_is_refused() {
        let world = SimWorld::new(1, 1);
        Stamps::default().write(range(8, 1), &segs_of(world.env(0), &[3; SECTOR]));
    }
}
