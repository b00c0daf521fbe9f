//! [`Light`]: a memory for experiments with more data than fits into memory.
//!
//! It keeps the bytes of what was written as metadata ([`Flags::META`]). Of data it keeps nothing,
//! or which write made it ([`Stamps`]). A read gets the bytes of the chunks of 4 KiB that have
//! metadata, also a read without the flag. Elsewhere a read of metadata gets zeros, and one of data
//! leaves its buffer as it is, unless there are stamps. A chunk that data is written over has no
//! metadata any more; where that is a part of it, the part has zeros.
//!
//! It knows no versions: no power cut, no tears, and a write that fails has done nothing.

use cairn_block::{Flags, Op, SectorCount, SectorRange, Segs};

use super::Started;
use super::stamps::Stamps;
use crate::image::Image;

/// Sectors of a region.
const REGION: u64 = 2048;

/// See the module's description.
pub(super) struct Light {
    kept: Image,
    /// A bit for each region that may have something in `kept`. Most data meets none.
    regions: Vec<u64>,
    stamps: Option<Stamps>,
}

impl Light {
    /// What a drive remembers that holds `image`; all of it is metadata.
    pub fn new(image: Image, has_stamps: bool) -> Light {
        let words = image.sectors().0.div_ceil(REGION * 64) as usize;
        let mut light = Light {
            kept: image,
            regions: vec![0; words],
            stamps: has_stamps.then(Stamps::default),
        };
        let ranges: Vec<SectorRange> = light.kept.written().collect();
        ranges.into_iter().for_each(|range| light.mark(range));
        light
    }

    /// Holds another image.
    pub fn load(&mut self, image: Image) {
        *self = Light::new(image, self.stamps.is_some());
    }

    pub fn sectors(&self) -> SectorCount {
        self.kept.sectors()
    }

    /// The metadata, with zeros elsewhere.
    pub fn metadata(&self) -> &Image {
        &self.kept
    }

    /// True if the data of a request is looked at.
    pub fn wants_data(&self, op: Op, flags: Flags, range: SectorRange) -> bool {
        let is_kept = || flags.contains(Flags::META) || self.may_keep(range);
        op.has_data() && (self.stamps.is_some() || is_kept())
    }

    /// An operation that succeeds ends.
    pub fn end(&mut self, done: &Started) {
        match done.op {
            Op::Read => self.read(done.range, done.flags, &done.segs),
            Op::Write if done.flags.contains(Flags::META) => self.keep(done.range, &done.segs),
            Op::Write => {
                self.forget(done.range);
                if let Some(stamps) = &mut self.stamps {
                    stamps.write(done.range, &done.segs);
                }
            }
            Op::WriteZeroes | Op::Discard => {
                self.forget(done.range);
                if let Some(stamps) = &mut self.stamps {
                    stamps.clear(done.range);
                }
            }
            Op::Flush => {}
        }
    }

    fn read(&mut self, range: SectorRange, flags: Flags, segs: &Segs) {
        if segs.bytes() == 0 {
            return;
        }
        if let Some(stamps) = &self.stamps {
            stamps.read(range, segs);
        } else if flags.contains(Flags::META) {
            segs.zero(0, range.to_bytes() as usize);
        }
        if !self.may_keep(range) {
            return;
        }
        for kept in self.kept.written_in(range) {
            let mut bytes = vec![0; kept.to_bytes() as usize];
            self.kept.read(kept.start, &mut bytes);
            segs.copy_in((kept.start - range.start).to_bytes() as usize, &bytes);
        }
    }

    fn keep(&mut self, range: SectorRange, segs: &Segs) {
        self.mark(range);
        let mut at = range.start;
        segs.for_each(0, range.to_bytes() as usize, |bytes| {
            self.kept.write_all(at, bytes);
            at += SectorCount::of_bytes(bytes.len() as u64);
        });
        if let Some(stamps) = &mut self.stamps {
            stamps.clear(range);
        }
    }

    /// No metadata is here any more.
    fn forget(&mut self, range: SectorRange) {
        if self.may_keep(range) {
            self.kept.forget(range);
        }
    }

    fn mark(&mut self, range: SectorRange) {
        for region in range.start.0 / REGION..=(range.end().0 - 1) / REGION {
            self.regions[(region / 64) as usize] |= 1 << (region % 64);
        }
    }

    fn may_keep(&self, range: SectorRange) -> bool {
        let mut regions = range.start.0 / REGION..=(range.end().0.max(1) - 1) / REGION;
        regions.any(|region| self.regions[(region / 64) as usize] & 1 << (region % 64) != 0)
    }
}
