//! [`Cells`]: numbers by cell, where a cell may have several.
//!
//! A hash table with open addressing: an entry lies at the place of its hash, or at the next free
//! one after that (linear probing). What the caller looks up is cold as a rule, so a lookup should
//! touch one line of the processor's cache; a map of lists touches several.
//!
//! - C1. Between the place of an entry's hash and the entry no place is free.
//! - C2. At most three quarters of the places are taken.
//! - C3. A lookup finds all numbers of a cell, and may find numbers of other cells.

/// An entry; a free place has no number.
#[derive(Clone, Copy)]
struct Entry {
    hash: u32,
    number: u32,
}

const FREE: Entry = Entry { hash: 0, number: u32::MAX };

impl Entry {
    fn is_free(self) -> bool {
        self.number == u32::MAX
    }
}

/// Numbers by cell.
pub(super) struct Cells {
    /// A power of two of places.
    places: Vec<Entry>,
    taken: usize,
    /// From a hash to its place.
    shift: u32,
}

impl Default for Cells {
    fn default() -> Cells {
        Cells { places: vec![FREE; 16], taken: 0, shift: 32 - 4 }
    }
}

fn hash(cell: u64) -> u32 {
    // The golden ratio: neighbouring cells lie far apart.
    (cell.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 32) as u32
}

impl Cells {
    fn after(&self, place: usize) -> usize {
        (place + 1) & (self.places.len() - 1)
    }

    fn home(&self, hash: u32) -> usize {
        (hash >> self.shift) as usize
    }

    /// The numbers of a cell, in no order (C3).
    pub fn of(&self, cell: u64) -> impl Iterator<Item = usize> {
        let hash = hash(cell);
        let mut place = self.home(hash);
        let entries = std::iter::from_fn(move || {
            let entry = self.places[place];
            place = self.after(place);
            (!entry.is_free()).then_some(entry)
        });
        entries.filter(move |entry| entry.hash == hash).map(|entry| entry.number as usize)
    }

    pub fn insert(&mut self, cell: u64, number: usize) {
        if (self.taken + 1) * 4 > self.places.len() * 3 {
            self.grow();
        }
        self.put(Entry { hash: hash(cell), number: number as u32 });
        self.taken += 1;
    }

    fn put(&mut self, entry: Entry) {
        let mut place = self.home(entry.hash);
        while !self.places[place].is_free() {
            place = self.after(place);
        }
        self.places[place] = entry;
    }

    fn grow(&mut self) {
        assert!(self.shift > 1, "numbers have 31 bits");
        self.shift -= 1;
        let larger = vec![FREE; self.places.len() * 2];
        let old = std::mem::replace(&mut self.places, larger);
        old.into_iter().filter(|entry| !entry.is_free()).for_each(|entry| self.put(entry));
    }

    /// Removes a number from a cell that has it.
    pub fn remove(&mut self, cell: u64, number: usize) {
        let hash = hash(cell);
        let mut free = self.home(hash);
        loop {
            let entry = self.places[free];
            assert!(!entry.is_free(), "the cell has the number");
            if entry.hash == hash && entry.number == number as u32 {
                break;
            }
            free = self.after(free);
        }
        // C1: what lies behind moves up, unless it would come before the place of its hash.
        let mask = self.places.len() - 1;
        let behind = |place: usize, first: usize| place.wrapping_sub(first) & mask;
        let mut place = self.after(free);
        while !self.places[place].is_free() {
            let entry = self.places[place];
            if behind(place, self.home(entry.hash)) >= behind(place, free) {
                self.places[free] = entry;
                free = place;
            }
            place = self.after(place);
        }
        self.places[free] = FREE;
        self.taken -= 1;
    }
}

#[cfg(test)]
mod tests {
    use super::Cells;

    /// Few cells with many numbers, and cells whose entries wrap around the end of the table.
    #[test]
    fn each_cell_has_the_numbers_that_a_list_of_pairs_has() {
        let mut rng = fastrand::Rng::with_seed(4);
        for round in 0..60 {
            let (mut cells, mut pairs) = (Cells::default(), Vec::new());
            let (most, distinct) = (rng.usize(1..200), rng.u64(1..120));
            for number in 0..600 {
                if pairs.len() < most && rng.u8(..3) > 0 {
                    let cell = rng.u64(..distinct) * [1, 1 << 40][round % 2];
                    cells.insert(cell, number);
                    pairs.push((cell, number));
                } else if !pairs.is_empty() {
                    let (cell, number) = pairs.swap_remove(rng.usize(..pairs.len()));
                    cells.remove(cell, number);
                }
                let &(cell, _) = pairs.first().unwrap_or(&(rng.u64(..distinct), 0));
                let mut found: Vec<usize> = cells.of(cell).collect();
                let own = |pair: &&(u64, usize)| pair.0 == cell;
                let mut expected: Vec<usize> =
                    pairs.iter().filter(own).map(|pair| pair.1).collect();
                found.sort_unstable();
                expected.sort_unstable();
                assert_eq!(found, expected);
                assert_eq!(cells.taken, pairs.len());
            }
        }
    }
}
