//! [`Place`]: where one side of a packed ring is.
//!
//! A side goes round the ring; its wrap counter changes with each lap, and is 1 in the first. A lap
//! with 1 and one with 0 together are the way after which a place comes again.

/// See the module's description.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Place {
    pub(super) index: u16,
    /// The wrap counter.
    pub(super) wrap: bool,
}

/// Where the wrap counter is in 16 bits that name a place.
const WRAP: u16 = 1 << 15;

impl Place {
    /// The place that 16 bits name, in a base of a ring and in an event.
    pub(super) fn from_bits(bits: u16) -> Place {
        Place { index: bits & !WRAP, wrap: bits & WRAP != 0 }
    }

    pub(super) fn bits(self) -> u16 {
        if self.wrap { self.index | WRAP } else { self.index }
    }

    /// The place so many slots ahead, at most a lap, in a ring of so many.
    pub(super) fn ahead(self, slots: u16, entries: u16) -> Place {
        let index = u32::from(self.index) + u32::from(slots);
        let entries = u32::from(entries);
        match index >= entries {
            true => Place { index: (index - entries) as u16, wrap: !self.wrap },
            false => Place { index: index as u16, wrap: self.wrap },
        }
    }

    /// How many slots behind `before` it is, modulo two laps.
    pub(super) fn since(self, before: Place, entries: u16) -> u32 {
        let entries = u32::from(entries);
        let way = |place: Place| {
            let lap = if place.wrap { 0 } else { entries };
            (u32::from(place.index) + lap) % (2 * entries)
        };
        (way(self) + 2 * entries - way(before)) % (2 * entries)
    }
}

#[cfg(test)]
mod tests {
    use super::Place;

    #[test]
    fn a_place_comes_again_after_two_laps_of_a_ring_of_any_size() {
        for entries in [1, 2, 3, 7, 16, 1 << 15] {
            let begin = Place::from_bits(1 << 15);
            let mut place = begin;
            for slots in 0..2 * u32::from(entries) {
                assert_eq!(place.since(begin, entries), slots);
                assert_eq!(Place::from_bits(place.bits()), place);
                assert_eq!(place.wrap, slots < u32::from(entries));
                place = place.ahead(1, entries);
            }
            assert_eq!(place, begin);
            assert_eq!(begin.ahead(entries, entries).ahead(entries, entries), begin);
        }
    }

    #[test]
    fn a_place_outside_of_the_ring_is_some_place() {
        let outside = Place::from_bits(u16::MAX);
        assert!(outside.since(Place::from_bits(0), 3) < 6);
    }
}
