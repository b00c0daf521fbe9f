//! Reads and overwrites of slots in flight (I10, I11): one record per request.
//!
//! Begin and end take constant time. The question whether slots are busy looks at every record, one
//! per request in flight.

use std::ops::Range;

#[derive(Clone, Copy)]
struct Flight {
    slot: u32,
    /// Zero: this record is unused.
    len: u32,
    write: bool,
}

/// The requests in flight to slots that are in the index.
#[derive(Default)]
pub(in super::super) struct Flights {
    flights: Vec<Flight>,
    vacant: Vec<u32>,
}

impl Flights {
    /// Records a request's begin; returns its number.
    pub fn begin(&mut self, slot: u32, len: u32, write: bool) -> u32 {
        debug_assert!(len > 0);
        let flight = Flight { slot, len, write };
        if let Some(name) = self.vacant.pop() {
            self.flights[name as usize] = flight;
            return name;
        }
        self.flights.push(flight);
        (self.flights.len() - 1) as u32
    }

    /// Records a request's end; returns its slots.
    pub fn end(&mut self, name: u32) -> Range<u32> {
        let flight = &mut self.flights[name as usize];
        assert!(flight.len > 0, "a request ends once");
        let slots = flight.slot..flight.slot + flight.len;
        flight.len = 0;
        if self.vacant.len() + 1 == self.flights.len() {
            self.flights.clear();
            self.vacant.clear();
        } else {
            self.vacant.push(name);
        }
        slots
    }

    fn over(&self, slots: &Range<u32>) -> impl Iterator<Item = &Flight> {
        let (from, to) = (slots.start, slots.end);
        self.flights.iter().filter(move |flight| {
            flight.len > 0 && flight.slot < to && from < flight.slot + flight.len
        })
    }

    /// True if a write to any of the slots is in flight.
    pub fn is_written(&self, slots: &Range<u32>) -> bool {
        self.over(slots).any(|flight| flight.write)
    }

    /// True if any write is in flight.
    pub fn are_writes(&self) -> bool {
        self.flights.iter().any(|flight| flight.len > 0 && flight.write)
    }

    /// How many of the slots, from the first on, no write is in flight to.
    pub fn clear_of_writes(&self, slots: &Range<u32>) -> u32 {
        let writes = self.over(slots).filter(|flight| flight.write);
        let first = writes.map(|flight| flight.slot.max(slots.start)).min();
        first.unwrap_or(slots.end) - slots.start
    }

    /// The first part of the slots that is all idle or all busy: where it ends, and whether it
    /// is busy.
    pub fn first_part(&self, slots: &Range<u32>) -> (u32, bool) {
        let (mut end, mut idle_to) = (slots.start, slots.end);
        for flight in self.over(slots) {
            if flight.slot <= slots.start {
                end = end.max(flight.slot + flight.len);
            } else {
                idle_to = idle_to.min(flight.slot);
            }
        }
        if end > slots.start { (end.min(slots.end), true) } else { (idle_to, false) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::{any, proptest};

    proptest! {
        #[test]
        fn slots_are_busy_while_a_request_to_them_is_in_flight(
            steps in proptest::collection::vec((0u32..60, 1u32..9, any::<bool>(), 0u8..3), 1..60),
            from in 0u32..60,
            len in 1u32..20,
        ) {
            let mut flights = Flights::default();
            let mut naive: Vec<(u32, u32, u32, bool)> = Vec::new();
            for (slot, count, write, kind) in steps {
                if kind == 0 && !naive.is_empty() {
                    let (name, slot, count, _) = naive.swap_remove(slot as usize % naive.len());
                    assert_eq!(flights.end(name), slot..slot + count);
                } else {
                    naive.push((flights.begin(slot, count, write), slot, count, write));
                }
            }
            let over = |at: u32, writes: bool| naive.iter().any(|&(_, slot, count, write)| {
                (write || !writes) && (slot..slot + count).contains(&at)
            });
            let slots = from..from + len;
            assert_eq!(flights.is_written(&slots), slots.clone().any(|at| over(at, true)));
            let clear = slots.clone().take_while(|&at| !over(at, true)).count() as u32;
            assert_eq!(flights.clear_of_writes(&slots), clear);
            let (end, busy) = flights.first_part(&slots);
            assert!(end > slots.start && end <= slots.end);
            assert!((slots.start..end).all(|at| over(at, false) == busy));
        }
    }
}
