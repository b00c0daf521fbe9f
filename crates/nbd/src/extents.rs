//! Extents of a server, in bytes, as extents of sectors. A sector of which only a part is known to
//! read as zero is data.

use cairn_block::{Extent, ExtentKind, Sector, SectorRange};

use crate::wire::AllocationState;

/// The extents of a range from its start, as far as `told` reaches.
pub(crate) fn extents_of(range: SectorRange, told: &[(u64, AllocationState)]) -> Vec<Extent> {
    let (mut extents, mut at) = (Vec::<Extent>::new(), range.start);
    let mut byte = range.start.to_bytes();
    let mut push = |upto: Sector, kind| {
        let upto = upto.min(range.end());
        if upto <= at {
            return;
        }
        match extents.last_mut().filter(|last| last.kind == kind) {
            Some(last) => last.count += upto - at,
            None => extents.push(Extent { count: upto - at, kind }),
        }
        at = upto;
    };
    for (length, state) in told {
        let kind = match state.contains(AllocationState::ZERO) {
            true if state.contains(AllocationState::HOLE) => ExtentKind::Hole,
            true => ExtentKind::Zero,
            false => ExtentKind::Data,
        };
        let (start, end) = (byte, byte.saturating_add(*length));
        // Up to the first whole sector, and from the last one on, a neighbour has a share.
        push(Sector(start.div_ceil(512)), ExtentKind::Data);
        push(Sector(end / 512), kind);
        byte = end;
        if byte >= range.end().to_bytes() {
            break;
        }
    }
    push(Sector(byte.div_ceil(512)), ExtentKind::Data);
    extents
}

#[cfg(test)]
mod tests {
    use super::*;
    use cairn_block::SectorCount;

    const DATA: AllocationState = AllocationState::empty();
    const HOLE: AllocationState = AllocationState::all();

    fn shown(told: &[(u64, AllocationState)]) -> Vec<(u64, ExtentKind)> {
        let range = SectorRange::new(Sector(8), SectorCount(8));
        extents_of(range, told).into_iter().map(|it| (it.count.0, it.kind)).collect()
    }

    #[test]
    fn extents_cover_the_range_as_far_as_they_are_told() {
        use ExtentKind::{Data, Hole, Zero};
        assert_eq!(shown(&[(1024, DATA), (512, HOLE)]), [(2, Data), (1, Hole)]);
        assert_eq!(
            shown(&[(1024, AllocationState::ZERO), (1 << 40, HOLE)]),
            [(2, Zero), (6, Hole)]
        );
        assert_eq!(
            shown(&[(u64::MAX, AllocationState::HOLE)]),
            [(8, Data)],
            "it may hold anything"
        );
        assert_eq!(shown(&[]), []);
    }

    #[test]
    fn a_sector_that_reads_as_zero_in_part_is_data() {
        use ExtentKind::{Data, Hole};
        assert_eq!(shown(&[(700, DATA), (1400, HOLE)]), [(2, Data), (2, Hole), (1, Data)]);
        assert_eq!(shown(&[(100, HOLE), (100, HOLE)]), [(1, Data)]);
    }
}
