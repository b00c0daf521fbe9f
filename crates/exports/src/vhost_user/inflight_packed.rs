//! [`PackedInflight`]: which chains of a packed ring were taken and not used, in memory that the
//! driver's side keeps when this process dies.
//!
//! In a packed ring what is used overwrites what was available, in the order of using. So the ring
//! does not say where this side was, and no longer has the descriptors of a chain that was taken:
//! both are kept here. The next server takes these chains again, before any other and in the order
//! in which they were taken. It goes on in the ring behind them, and not at the base that the
//! driver's side gives: an emulator cannot know where a server that died was, and repeats the base
//! of its start.
//!
//! The layout is that of the vhost-user protocol, "inflight I/O tracking", for packed rings. A
//! region of a queue has a head of 32 bytes: features (8), version (2), entries (2), the first free
//! entry now (2) and as of the last use (2), the place of the next use now and as of the last use
//! (two indexes of 2, then two wrap counters of 1), padding. An entry of 32 bytes for each
//! descriptor follows: a mark (1, here written with the byte behind it), the next entry of its list
//! (2, at byte 2); in the first entry of a chain its last entry (2), how many there are (2), and
//! the place in the order of taking (8); then the descriptor: its name (2), flags (2), length (4)
//! and address (8). The free entries are a list, which ends with the number of all.
//!
//! The order of stores, each visible before the next:
//! 1. A chain is taken: its descriptors and facts are written to the first entries that are free,
//!    then the mark; the first free entry is behind them now; so it is as of the last use. Its
//!    request starts afterwards.
//! 2. A chain is used: its entries go in front of the free list; the first free entry is that of
//!    the chain now; the place of the next use is behind it now; the ring is written, by its flags
//!    last. The mark is cleared; both become what they are as of the last use.
//!
//! The two places are written by one store of eight bytes. In recovery, two places that differ say
//! that a use had begun. The descriptor at the older one tells whether the driver may have seen it:
//! if it is available still, as this side found every descriptor that it took, the flags were not
//! written.
//!
//! I1. A death before the flags of a use are visible leaves the values as of the last use, and the
//!     entries of the chain linked among each other. The use is undone, and the chain taken again.
//! I2. A death afterwards leaves both values, until the last store. The use is completed; its mark
//!     is that of a free entry, and cleared.
//! I3. A chain whose taking was not completed is in the free list: its mark is cleared, and the
//!     ring has it still.
//! I4. The ring's next descriptor is as far behind the place of the next use as the chains that
//!     are taken have descriptors. So that place alone is kept.
//!
//! Every recovery may itself die: it stores the first free entries, the marks, then the places, and
//! one that begins again decides the same. Each use is on its own, and not in batches: the used
//! descriptors of a batch that was not published would lie in the ring ahead of the next server.
//!
//! The memory is the peer's as well: what is read from it is judged like a ring. Lists are read
//! once, at the start.

use super::chain::Descriptor;
use super::inflight::REGION_ALIGN;
use super::memory::Window;
use super::place::Place;
use super::wire::Breach;

const VERSION: u16 = 1;

/// Bytes of a region's head, and of an entry.
const HEAD_BYTES: usize = 32;
const ENTRY_BYTES: usize = 32;

const VERSION_AT: usize = 8;
const ENTRIES_AT: usize = 10;
const FREE_AT: usize = 12;
const OLD_FREE_AT: usize = 14;
const PLACES_AT: usize = 16;

/// Within an entry.
const NEXT_AT: usize = 2;
const LAST_AT: usize = 4;
const DESCRIPTOR_AT: usize = 16;

/// A chain that was taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Taken {
    /// What the driver calls it.
    pub(super) id: u16,
    /// How many descriptors it has in the ring; 0 for none that was taken.
    pub(super) slots: u16,
    /// Its first and its last entry.
    first: u16,
    last: u16,
}

impl Taken {
    /// One that no memory is kept of.
    pub(super) fn new(id: u16, slots: u16) -> Taken {
        Taken { id, slots, first: 0, last: 0 }
    }
}

/// Where the next use is written: now, and as of the last use that has ended.
#[derive(Clone, Copy, PartialEq, Eq)]
struct Places {
    now: Place,
    old: Place,
}

impl Places {
    fn both(place: Place) -> Places {
        Places { now: place, old: place }
    }

    fn decode(word: [u8; 8]) -> Places {
        let [now_low, now_high, old_low, old_high, now_wrap, old_wrap, _, _] = word;
        let place =
            |low, high, wrap: u8| Place { index: u16::from_le_bytes([low, high]), wrap: wrap != 0 };
        Places { now: place(now_low, now_high, now_wrap), old: place(old_low, old_high, old_wrap) }
    }

    fn encode(self) -> u64 {
        let [now_low, now_high] = self.now.index.to_le_bytes();
        let [old_low, old_high] = self.old.index.to_le_bytes();
        let (now_wrap, old_wrap) = (self.now.wrap.into(), self.old.wrap.into());
        u64::from_le_bytes([now_low, now_high, old_low, old_high, now_wrap, old_wrap, 0, 0])
    }
}

/// See the module's description.
pub(super) struct PackedInflight {
    region: Window,
    entries: u16,
    /// The place in the order of the next chain that is taken.
    order: u64,
    /// The first free entry.
    free: u16,
    /// The next entry of each one in its list. The region has the same.
    links: Vec<u16>,
    /// The place of the next use.
    used: Place,
}

/// What an earlier server left.
pub(super) struct Left {
    /// The place of the next use.
    pub(super) used: Place,
    /// The chains to take again, in order.
    pub(super) chains: Vec<Taken>,
}

impl PackedInflight {
    /// Bytes of the region of a queue with so many entries.
    pub(super) fn region_bytes(entries: u16) -> usize {
        (HEAD_BYTES + usize::from(entries) * ENTRY_BYTES).next_multiple_of(REGION_ALIGN)
    }

    /// Goes on with the region of a ring, or begins one at the place `used`, where nothing is left.
    /// `is_available` says whether the descriptor at a place of the ring is one that the driver
    /// made available there.
    pub(super) fn open(
        region: Window,
        entries: u16,
        used: Place,
        is_available: impl Fn(Place) -> Result<bool, Breach>,
    ) -> Result<(PackedInflight, Option<Left>), Breach> {
        let links = (1..=entries).collect();
        let mut inflight = PackedInflight { region, entries, order: 0, free: 0, links, used };
        let version = inflight.region.load_u16(VERSION_AT);
        if version == 0 {
            inflight.begin();
            return Ok((inflight, None));
        }
        if version != VERSION {
            return Err(Breach::field("inflight: version", version, "1"));
        }
        let found = inflight.region.load_u16(ENTRIES_AT);
        if found != entries {
            return Err(Breach::field("inflight: entries", found, "as many as the ring has"));
        }
        let places = Places::decode(inflight.region.load(PLACES_AT));
        let is_published = places.now != places.old && !is_available(places.old)?;
        (inflight.free, inflight.used) = match is_published {
            true => (inflight.region.load_u16(FREE_AT), places.now), // I2
            false => (inflight.region.load_u16(OLD_FREE_AT), places.old), // I1
        };
        let chains = inflight.read_lists()?;
        inflight.recover(&chains);
        let used = inflight.used;
        Ok((inflight, Some(Left { used, chains })))
    }

    /// Begins the region of a ring that has taken nothing.
    fn begin(&self) {
        for (entry, next) in (0..self.entries).zip(&self.links) {
            self.region.store_u16(self.at(entry) + NEXT_AT, *next);
        }
        self.region.store_u16(ENTRIES_AT, self.entries);
        self.region.store_u16(FREE_AT, self.free);
        self.region.store_u16(OLD_FREE_AT, self.free);
        self.region.store_u64(PLACES_AT, Places::both(self.used).encode());
        self.region.store_u16(VERSION_AT, VERSION);
    }

    /// Reads the free list and the chains with a mark that are not in it, in the order in which
    /// they were taken. Each entry must be in one list.
    fn read_lists(&mut self) -> Result<Vec<Taken>, Breach> {
        let wrong = |found: String| Breach::field("inflight: list", found, "each entry in one");
        let mut is_listed = vec![false; usize::from(self.entries)];
        let mut list = |entry: u16| match is_listed.get_mut(usize::from(entry)) {
            Some(listed) if !*listed => {
                *listed = true;
                Ok(())
            }
            Some(_) => Err(wrong(format!("{entry} in two"))),
            None => Err(wrong(format!("{entry}"))),
        };
        let next = |entry| self.region.load_u16(self.at(entry) + NEXT_AT);
        let mut links = vec![0; usize::from(self.entries)];
        let mut entry = self.free;
        while entry != self.entries {
            list(entry)?;
            links[usize::from(entry)] = next(entry);
            entry = links[usize::from(entry)];
        }
        let mut chains = Vec::new();
        for first in 0..self.entries {
            // What is free may have a mark (I2, I3); what is no chain's first entry has none.
            let is_marked = self.region.load_u16(self.at(first)) & 0xff != 0;
            if !is_marked || list(first).is_err() {
                continue;
            }
            let facts: [u8; 4] = self.region.load(self.at(first) + LAST_AT);
            let [last, slots]: [u16; 2] = zerocopy::transmute!(facts);
            let (last, slots) = (u16::from_le(last), u16::from_le(slots));
            let mut entry = first;
            for _ in 1..slots {
                links[usize::from(entry)] = next(entry);
                entry = links[usize::from(entry)];
                list(entry)?;
            }
            if slots == 0 || entry != last {
                return Err(wrong(format!("{slots} from {first} to {last}")));
            }
            let order = u64::from_le_bytes(self.region.load(self.at(first) + LAST_AT + 4));
            let id = self.descriptor(last).link;
            chains.push((order, Taken { id, slots, first, last }));
        }
        if let Some(lost) = is_listed.iter().position(|listed| !listed) {
            return Err(wrong(format!("{lost} in none")));
        }
        chains.sort_unstable_by_key(|(order, taken)| (*order, taken.first));
        self.order = chains.last().map_or(0, |(order, _)| order.wrapping_add(1));
        self.links = links;
        Ok(chains.into_iter().map(|(_, taken)| taken).collect())
    }

    /// Stores what was decided.
    fn recover(&self, chains: &[Taken]) {
        self.region.store_u16(FREE_AT, self.free);
        self.region.store_u16(OLD_FREE_AT, self.free);
        let mut is_taken = vec![false; usize::from(self.entries)];
        chains.iter().for_each(|taken| is_taken[usize::from(taken.first)] = true);
        for (entry, is_taken) in (0..self.entries).zip(is_taken) {
            let at = self.at(entry);
            if !is_taken && self.region.load_u16(at) != 0 {
                self.region.store_u16(at, 0);
            }
        }
        self.region.store_u64(PLACES_AT, Places::both(self.used).encode());
    }

    fn at(&self, entry: u16) -> usize {
        HEAD_BYTES + usize::from(entry) * ENTRY_BYTES
    }

    /// The descriptor that is kept in an entry.
    fn descriptor(&self, entry: u16) -> Descriptor {
        let [facts, guest]: [u64; 2] =
            zerocopy::transmute!(self.region.load::<16>(self.at(entry) + DESCRIPTOR_AT));
        let (facts, guest) = (u64::from_le(facts), u64::from_le(guest));
        let (link, flags, bytes) = (facts as u16, (facts >> 16) as u16, (facts >> 32) as u32);
        Descriptor { guest, bytes, flags, link }
    }

    /// Appends the descriptors of a chain that is to be taken again.
    pub(super) fn read_chain(&self, taken: Taken, list: &mut Vec<Descriptor>) {
        let mut entry = taken.first;
        for _ in 0..taken.slots {
            list.push(self.descriptor(entry));
            entry = self.links[usize::from(entry)];
        }
    }

    /// A chain is taken: these descriptors, of which there are no more than free entries.
    pub(super) fn note_taken(&mut self, list: &[Descriptor]) -> Taken {
        let (first, mut last, mut next) = (self.free, self.free, self.free);
        for descriptor in list {
            last = next;
            let Descriptor { guest, bytes, flags, link } = *descriptor;
            let facts = u64::from(link) | u64::from(flags) << 16 | u64::from(bytes) << 32;
            let kept = [facts.to_le_bytes(), guest.to_le_bytes()];
            self.region.store(self.at(last) + DESCRIPTOR_AT, kept.as_flattened());
            next = self.links[usize::from(last)];
        }
        let slots = list.len() as u16;
        let facts = u64::from(last) | u64::from(slots) << 16;
        self.region.store(self.at(first) + LAST_AT, &facts.to_le_bytes()[..4]);
        self.region.store(self.at(first) + LAST_AT + 4, &self.order.to_le_bytes());
        self.region.store_u16(self.at(first), 1);
        self.region.store_u16(FREE_AT, next);
        self.region.store_u16(OLD_FREE_AT, next);
        self.free = next;
        self.order = self.order.wrapping_add(1);
        let id = list.last().map_or(0, |descriptor| descriptor.link);
        Taken { id, slots, first, last }
    }

    /// A chain is about to be written to the ring as used; `next` is the place behind it.
    pub(super) fn note_used(&mut self, taken: Taken, next: Place) {
        self.links[usize::from(taken.last)] = self.free;
        self.region.store_u16(self.at(taken.last) + NEXT_AT, self.free);
        self.free = taken.first;
        self.region.store_u16(FREE_AT, self.free);
        self.region.store_u64(PLACES_AT, Places { now: next, old: self.used }.encode());
        self.used = next;
    }

    /// The chain is in the ring as used.
    pub(super) fn note_published(&mut self, taken: Taken) {
        self.region.store_u16(self.at(taken.first), 0);
        self.region.store_u16(OLD_FREE_AT, self.free);
        self.region.store_u64(PLACES_AT, Places::both(self.used).encode());
    }
}
