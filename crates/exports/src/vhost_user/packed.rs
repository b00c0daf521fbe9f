//! [`PackedRing`]: the packed virtqueue, from the device's side.
//!
//! Both sides go round one ring of descriptors. The driver writes what is available; the device
//! takes a chain, which lies in consecutive slots, and later writes one descriptor for it, in the
//! next slot of its own place, in the order of using. Then it skips as many slots as the chain has.
//! Two flags of a descriptor say in which lap it was made available, and used. Each side has a
//! structure of four bytes, by which it asks not to be notified, or (with `EVENT_IDX`) to be
//! notified only at a place.
//!
//! Source: the virtio specification 1.2, section 2.8.
//!
//! - P1. Every field that the driver wrote is read once, so that what was judged is what is used.
//! - P2. A chain has no more descriptors than slots that are not taken, and at most [`CHAIN_MAX`];
//!   so has a table of indirect ones. So loops end.
//! - P3. All descriptors of a chain that is taken were available. So a slot that this side has
//!   taken is available in its lap until this side writes it: what is
//!   [in flight](super::inflight_packed) relies on that.
//! - P4. No two chains that are taken have the same name, and names are below the number of
//!   entries.
//! - P5. A used descriptor is complete before its flags are visible.
//! - P6. Before this side sleeps it asks to be notified, and looks again. Before it omits a
//!   notification it has published, and then reads whether the driver wants one. Between both steps
//!   is a full fence, on both sides: one of the two sees the other.

use std::collections::VecDeque;
use std::sync::atomic::{Ordering, fence};

use super::chain::{CHAIN_MAX, Chain, DESCRIPTOR_BYTES, Descriptor, INDIRECT, NEXT, WRITE};
use super::inflight_packed::{PackedInflight, Taken};
use super::memory::{Buffers, GuestMemory, Window};
use super::place::Place;
use super::wire::{Breach, RingAddresses};

/// Where the flags are in a descriptor, and its length and name.
const FLAGS_AT: usize = 14;
const LENGTH_AT: usize = 8;

/// Flags of a descriptor: they have the wrap counter of the side that wrote it last; a descriptor
/// that is available has the opposite in the second one.
const AVAILABLE: u16 = 1 << 7;
const USED: u16 = 1 << 15;

/// A structure of notifications: a place, then flags.
const EVENTS_BYTES: usize = 4;
const EVENT_FLAGS_AT: usize = 2;
const EVENTS_ON: u16 = 0;
const EVENTS_OFF: u16 = 1;
const EVENTS_AT_PLACE: u16 = 2;
const EVENTS_MASK: u16 = 3;

/// The base of a ring that was never used: both sides are at its begin, in their first lap.
const BEGIN: u32 = 1 << 31 | 1 << 15;

/// See the module's description.
pub(super) struct PackedRing {
    entries: u16,
    descriptors: Window,
    /// What the driver wants to be told of.
    driver_events: Window,
    /// What this side wants to be told of.
    device_events: Window,
    /// The sides may name the place at which they want to be notified.
    event_idx: bool,
    available: Place,
    used: Place,
    /// `used` when the driver was last considered for a notification.
    considered: Place,
    /// How many slots are taken and not used.
    taken_slots: u16,
    /// The chains that are taken and not used, by their names.
    taken: Vec<Taken>,
    /// The descriptors of a chain.
    list: Vec<Descriptor>,
    /// A table of indirect descriptors.
    table: Vec<u8>,
    /// What the next server must know.
    inflight: Option<PackedInflight>,
    /// Chains that an earlier server took and did not use; they come first.
    again: VecDeque<Taken>,
}

impl PackedRing {
    /// The ring of so many entries at these addresses, which goes on at `base`: the place of the
    /// next chain in its lower half, that of the next use in its upper one.
    pub(super) fn new(
        memory: &GuestMemory,
        entries: u16,
        addresses: RingAddresses,
        base: u32,
        event_idx: bool,
    ) -> Result<PackedRing, Breach> {
        let count = usize::from(entries);
        let window = |user, bytes, align| {
            let outside = || Breach::field("address of a ring", user, "an aligned one in memory");
            memory.window(user, bytes, align).ok_or_else(outside)
        };
        let descriptors = window(addresses.descriptors, count * DESCRIPTOR_BYTES, 16)?;
        let base = begin_of(base, descriptors.load_u16(FLAGS_AT));
        let available = Place::from_bits(base as u16);
        let used = Place::from_bits((base >> 16) as u16);
        let taken_slots = available.since(used, entries);
        if available.index >= entries || used.index >= entries || taken_slots > entries.into() {
            let found = format!("{base:#x}");
            return Err(Breach::field("base of a ring", found, "places at most a lap apart"));
        }
        Ok(PackedRing {
            entries,
            descriptors,
            driver_events: window(addresses.available, EVENTS_BYTES, 4)?,
            device_events: window(addresses.used, EVENTS_BYTES, 4)?,
            event_idx,
            available,
            used,
            considered: used,
            taken_slots: taken_slots as u16,
            taken: vec![Taken::default(); count],
            list: Vec::new(),
            table: Vec::new(),
            inflight: None,
            again: VecDeque::new(),
        })
    }

    /// Where the ring goes on.
    pub(super) fn base(&self) -> u32 {
        u32::from(self.available.bits()) | u32::from(self.used.bits()) << 16
    }

    /// The flags of the descriptor at a place, if the driver made it available there. The rest of
    /// the descriptor was written before.
    fn available_at(&self, place: Place) -> Option<u16> {
        let at = usize::from(place.index) * DESCRIPTOR_BYTES + FLAGS_AT;
        let flags = self.descriptors.load_u16(at);
        let lap = if place.wrap { AVAILABLE } else { USED };
        (flags & (AVAILABLE | USED) == lap).then_some(flags)
    }

    /// True if a chain is available.
    pub(super) fn has_next(&self) -> bool {
        !self.again.is_empty() || self.available_at(self.available).is_some()
    }

    /// Takes the next chain into `chain`, which is empty. False if none is available. One that is
    /// refused is not taken: once the driver's side has given other memory, it is read again.
    pub(super) fn take(&mut self, memory: &Buffers, chain: &mut Chain) -> Result<bool, Breach> {
        self.list.clear();
        let next = match (self.again.front(), &self.inflight) {
            (Some(taken), Some(inflight)) => {
                inflight.read_chain(*taken, &mut self.list);
                chain.head = taken.id;
                None
            }
            _ if self.available_at(self.available).is_none() => return Ok(false),
            _ => {
                let (id, behind) = self.read_next()?;
                chain.head = id;
                Some(behind)
            }
        };
        self.read_chain(memory, chain)?;
        match next {
            Some(behind) => self.note_taken(chain.head, behind),
            None => drop(self.again.pop_front()),
        }
        Ok(true)
    }

    /// Reads the next chain, which has begun, into the list: its name, and the place behind it.
    /// (P2, P3, P4)
    fn read_next(&mut self) -> Result<(u16, Place), Breach> {
        let mut place = self.available;
        let id = loop {
            let slots = self.list.len() + usize::from(self.taken_slots);
            if slots >= usize::from(self.entries) || self.list.len() == CHAIN_MAX {
                let expected = "at most 1024, in slots that are not taken";
                return Err(Breach::field("chain of descriptors", "a longer one", expected));
            }
            let Some(flags) = self.available_at(place) else {
                return Err(Breach::field("next descriptor", "none", "one that is available"));
            };
            let mut bytes = [0; DESCRIPTOR_BYTES];
            let at = usize::from(place.index) * DESCRIPTOR_BYTES;
            bytes[..FLAGS_AT].copy_from_slice(&self.descriptors.load::<FLAGS_AT>(at)); // P1
            let descriptor = Descriptor { flags, ..Descriptor::decode_packed(bytes) };
            self.list.push(descriptor);
            place = place.ahead(1, self.entries);
            if flags & NEXT == 0 {
                break descriptor.link;
            }
        };
        match self.taken.get(usize::from(id)) {
            Some(taken) if taken.slots == 0 => {}
            _ => return Err(Breach::field("name of a chain", id, "a free one below the entries")),
        }
        Ok((id, place))
    }

    /// The chain in the list is taken.
    fn note_taken(&mut self, id: u16, behind: Place) {
        let slots = self.list.len() as u16;
        self.taken[usize::from(id)] = match &mut self.inflight {
            Some(inflight) => inflight.note_taken(&self.list),
            None => Taken::new(id, slots),
        };
        self.taken_slots += slots;
        self.available = behind;
    }

    /// Puts the memory of the descriptors in the list into `chain`.
    fn read_chain(&mut self, memory: &Buffers, chain: &mut Chain) -> Result<(), Breach> {
        for descriptor in &self.list {
            if descriptor.flags & INDIRECT == 0 {
                chain.push(descriptor, memory)?;
                continue;
            }
            if self.list.len() > 1 || descriptor.flags & NEXT != 0 {
                return Err(Breach::field("descriptor", "indirect in a chain", "one of both"));
            }
            descriptor.read_table(memory, &mut self.table)?;
            // One flag alone means something in a table: each entry of it is direct, and the next
            // one follows.
            for bytes in self.table.as_chunks().0 {
                chain.push(&Descriptor::decode_packed(*bytes), memory)?;
            }
        }
        Ok(())
    }

    /// Goes on with the chains that an earlier server took and did not use, and where it was.
    /// `region` has room for `entries` descriptors, perhaps more than the ring.
    pub(super) fn track(&mut self, region: Window, entries: u16) -> Result<(), Breach> {
        let is_available = |place: Place| match place.index < self.entries {
            true => Ok(self.available_at(place).is_some()),
            false => Err(Breach::field("inflight: place", place.index, "one in the ring")),
        };
        let (inflight, left) = PackedInflight::open(region, entries, self.used, is_available)?;
        let Some(left) = left else {
            self.inflight = Some(inflight);
            return Ok(());
        };
        is_available(left.used)?;
        let mut slots = 0;
        for taken in &left.chains {
            slots += usize::from(taken.slots);
            match self.taken.get_mut(usize::from(taken.id)) {
                Some(known) if known.slots == 0 => *known = *taken,
                _ => return Err(Breach::field("inflight: chain", taken.id, "one of the ring")),
            }
        }
        if slots > usize::from(self.entries) {
            return Err(Breach::field("inflight: chains", slots, "at most a ring"));
        }
        self.taken_slots = slots as u16;
        (self.used, self.considered) = (left.used, left.used);
        self.available = left.used.ahead(self.taken_slots, self.entries);
        (self.inflight, self.again) = (Some(inflight), left.chains.into());
        Ok(())
    }

    /// Uses chains, each with how many bytes were written to it, and shows them to the driver (P5).
    /// True if it wants to be notified (P6).
    pub(super) fn use_all(&mut self, chains: &[(u16, u32)]) -> bool {
        for (id, written) in chains {
            self.use_one(*id, *written);
        }
        fence(Ordering::SeqCst);
        self.is_call_wanted()
    }

    fn use_one(&mut self, id: u16, written: u32) {
        let taken = std::mem::take(&mut self.taken[usize::from(id)]);
        let next = self.used.ahead(taken.slots, self.entries);
        if let Some(inflight) = &mut self.inflight {
            inflight.note_used(taken, next);
        }
        let at = usize::from(self.used.index) * DESCRIPTOR_BYTES;
        let words = u64::from(written) | u64::from(id) << 32;
        self.descriptors.store(at + LENGTH_AT, &words.to_le_bytes()[..FLAGS_AT - LENGTH_AT]);
        let lap = if self.used.wrap { AVAILABLE | USED } else { 0 };
        let written = if written > 0 { WRITE } else { 0 };
        self.descriptors.store_u16(at + FLAGS_AT, lap | written);
        if let Some(inflight) = &mut self.inflight {
            inflight.note_published(taken);
        }
        self.used = next;
        self.taken_slots -= taken.slots;
    }

    /// True if the driver wants to be notified of what was used since the last time.
    fn is_call_wanted(&mut self) -> bool {
        let before = std::mem::replace(&mut self.considered, self.used);
        match self.driver_events.load_u16(EVENT_FLAGS_AT) & EVENTS_MASK {
            EVENTS_OFF => false,
            EVENTS_AT_PLACE if self.event_idx => {
                let wanted = Place::from_bits(self.driver_events.load_u16(0));
                wanted.since(before, self.entries) < self.used.since(before, self.entries)
            }
            _ => true,
        }
    }

    /// Asks to be notified of the next chain. True if one is available already (P6).
    pub(super) fn ask_for_kick(&mut self) -> bool {
        let mut flags = EVENTS_ON;
        if self.event_idx {
            self.device_events.store_u16(0, self.available.bits());
            flags = EVENTS_AT_PLACE;
        }
        self.device_events.store_u16(EVENT_FLAGS_AT, flags);
        fence(Ordering::SeqCst);
        self.has_next()
    }

    /// Asks not to be notified. With `EVENT_IDX` the driver has passed the place already, and
    /// passes it again two laps later: that notification costs less than one that is lost.
    /// libblkio's driver counts what it adds while notifications are off with 16 bits, and omits
    /// one after a multiple of 65536 descriptors.
    pub(super) fn refuse_kicks(&mut self) {
        if !self.event_idx {
            self.device_events.store_u16(EVENT_FLAGS_AT, EVENTS_OFF);
        }
    }
}

/// The base of a ring for which `base` was given and whose first descriptor has these flags.
///
/// Some drivers give 0 for a ring that they never used. In a ring that is at 0 in a second lap, the
/// first descriptor has at least one of the flags.
fn begin_of(base: u32, flags: u16) -> u32 {
    if base == 0 && flags & (AVAILABLE | USED) == 0 { BEGIN } else { base }
}

#[cfg(test)]
mod tests {
    use std::collections::VecDeque;
    use std::fs::File;
    use std::os::fd::OwnedFd;
    use std::os::unix::fs::FileExt;

    use rustix::fs::{MemfdFlags, memfd_create};

    use super::{AVAILABLE, BEGIN, NEXT, PackedRing, Place, USED, WRITE};
    use crate::vhost_user::chain::Chain;
    use crate::vhost_user::inflight_packed::PackedInflight;
    use crate::vhost_user::memory::{Buffers, GuestMemory, Window, stores};
    use crate::vhost_user::wire::{RegionFacts, RingAddresses};

    /// No power of two.
    const ENTRIES: u16 = 7;
    const BYTES: u64 = 4096;
    const DRIVER_EVENTS: u64 = 1024;
    const DEVICE_EVENTS: u64 = 2048;

    fn file(bytes: u64) -> File {
        let file: File = memfd_create("ring", MemfdFlags::CLOEXEC).unwrap().into();
        file.set_len(bytes).unwrap();
        file
    }

    /// A ring as its driver sees it. What the driver does is no store of the device.
    struct Driver {
        file: File,
        memory: GuestMemory,
        region: Window,
        available: Place,
        used: Place,
        free: u16,
        /// The descriptors of each chain, by its name; 0 for none.
        slots: [u16; ENTRIES as usize],
        /// Chains that were offered and not seen as used: a number of their own, and the name.
        offered: VecDeque<(usize, u16)>,
        next: usize,
    }

    impl Driver {
        fn new() -> Driver {
            let file = file(BYTES);
            let mut memory = GuestMemory::default();
            let facts = RegionFacts { guest: 0, user: 0, bytes: BYTES, offset: 0 };
            let owned: OwnedFd = file.try_clone().unwrap().into();
            memory.add(facts, owned.into()).unwrap();
            let bytes = PackedInflight::region_bytes(ENTRIES) as u64;
            let region = self::file(bytes).into();
            let region = Window::of_file(&region, 0, bytes).unwrap();
            let begin = Place::from_bits(BEGIN as u16);
            let (free, slots, offered, next) = (ENTRIES, [0; 7], VecDeque::new(), 0);
            let (available, used) = (begin, begin);
            Driver { file, memory, region, available, used, free, slots, offered, next }
        }

        /// The device's side of a life. The base is the one of the first life.
        fn device(&self) -> PackedRing {
            let available = DRIVER_EVENTS;
            let addresses = RingAddresses { descriptors: 0, available, used: DEVICE_EVENTS };
            let mut ring = PackedRing::new(&self.memory, ENTRIES, addresses, BEGIN, true).unwrap();
            ring.track(self.region.part(), ENTRIES).unwrap();
            ring
        }

        /// Offers a chain of so many descriptors, each of which says the chain's number. False if
        /// there is no room.
        fn offer(&mut self, slots: u16) -> bool {
            let free = self.slots.iter().position(|slots| *slots == 0);
            let (Some(id), true) = (free, slots <= self.free) else { return false };
            let mut place = self.available;
            for slot in 0..slots {
                let last = slot + 1 == slots;
                let lap = if place.wrap { AVAILABLE } else { USED };
                let flags = lap | if last { WRITE } else { NEXT };
                let rest = [id as u16, flags].map(u16::to_le_bytes).concat();
                let bytes = [&(self.next as u64).to_le_bytes()[..], &[1, 0, 0, 0], &rest].concat();
                self.file.write_all_at(&bytes, u64::from(place.index) * 16).unwrap();
                place = place.ahead(1, ENTRIES);
            }
            self.available = place;
            self.free -= slots;
            self.slots[id] = slots;
            self.offered.push_back((self.next, id as u16));
            self.next += 1;
            true
        }

        /// Sees what was used: the numbers of these chains.
        fn see(&mut self) -> Vec<usize> {
            let mut seen = Vec::new();
            loop {
                let mut bytes = [0; 16];
                self.file.read_exact_at(&mut bytes, u64::from(self.used.index) * 16).unwrap();
                let flags = u16::from_le_bytes([bytes[14], bytes[15]]);
                let lap = if self.used.wrap { AVAILABLE | USED } else { 0 };
                if flags & (AVAILABLE | USED) != lap {
                    return seen;
                }
                let id = u16::from_le_bytes([bytes[12], bytes[13]]);
                let at = self.offered.iter().position(|(_, other)| *other == id).expect("once");
                let slots = std::mem::take(&mut self.slots[usize::from(id)]);
                assert_eq!(bytes[8..12], [1, 0, 0, 0]);
                self.used = self.used.ahead(slots, ENTRIES);
                self.free += slots;
                seen.push(self.offered.remove(at).unwrap().0);
            }
        }
    }

    /// Takes up to `most` chains: their numbers, as their memory says, and their names.
    fn take(ring: &mut PackedRing, buffers: &Buffers, most: usize) -> Vec<(usize, u16)> {
        let mut taken = Vec::new();
        while taken.len() < most {
            let mut chain = Chain::default();
            if !ring.take(buffers, &mut chain).unwrap() {
                break;
            }
            let at = ring.list[0].guest as usize;
            assert!(ring.list.iter().all(|descriptor| descriptor.guest as usize == at));
            assert_eq!(chain.readable_bytes + chain.writable_bytes, ring.list.len() as u64);
            taken.push((at, chain.head));
        }
        taken
    }

    /// Offers, takes, and uses chains out of order over more than two laps, until the stores that
    /// the life has are spent.
    fn live(driver: &mut Driver, seen: &mut Vec<usize>) {
        let buffers = driver.memory.buffers();
        let mut ring = driver.device();
        let mut taken = Vec::new();
        let script: [(&[u16], usize); 6] =
            [(&[1, 3, 2], 1), (&[2], 1), (&[1, 1], 3), (&[3, 1], 4), (&[7], 1), (&[1, 2, 3], 2)];
        for (offers, uses) in script {
            for slots in offers {
                if stores::are_left() {
                    driver.offer(*slots);
                }
            }
            taken.extend(take(&mut ring, &buffers, usize::MAX));
            for turn in 0..uses {
                if taken.is_empty() {
                    break;
                }
                let (_, id) = taken.remove((turn + 1) % taken.len());
                ring.use_all(&[(id, 1)]);
                if stores::are_left() {
                    seen.extend(driver.see());
                }
            }
        }
    }

    fn use_all(ring: &mut PackedRing, taken: &[(usize, u16)]) {
        let used: Vec<_> = taken.iter().map(|(_, id)| (*id, 1)).collect();
        ring.use_all(&used);
    }

    /// Goes on after a death: every chain that was not seen as used is taken once, in order. Those
    /// that are taken again are used with the others, or before these are taken.
    fn go_on(driver: &mut Driver, seen: &mut Vec<usize>, is_late: bool) {
        seen.extend(driver.see());
        // The driver goes on while there is no server.
        while driver.offer(2) {}
        while driver.offer(1) {}
        let buffers = driver.memory.buffers();
        let expected = Vec::from(driver.offered.clone());
        drop(driver.device());
        let mut ring = driver.device();
        let again = ring.again.len();
        let mut taken = take(&mut ring, &buffers, again);
        if is_late {
            taken.extend(take(&mut ring, &buffers, usize::MAX));
            let is_even = |(number, _): &(usize, u16)| number % 2 == 0;
            let (even, odd): (Vec<_>, Vec<_>) = taken.iter().copied().partition(is_even);
            use_all(&mut ring, &even);
            use_all(&mut ring, &odd);
        } else {
            use_all(&mut ring, &taken);
            let rest = take(&mut ring, &buffers, usize::MAX);
            use_all(&mut ring, &rest);
            taken.extend(rest);
        }
        if stores::are_left() {
            assert_eq!(taken, expected);
        }
    }

    #[test]
    fn after_deaths_between_any_two_stores_what_was_not_seen_runs_again_in_order() {
        let mut lives = 0;
        for left in 0.. {
            let mut driver = Driver::new();
            driver.device();
            let mut seen = Vec::new();
            let spent = stores::with(left, || live(&mut driver, &mut seen));
            // The life after it ends, too.
            let (file, region) = (read(&driver.memory, BYTES), driver.region.load::<256>(0));
            let state = (driver.available, driver.used, driver.free, driver.slots, driver.next);
            let offered = driver.offered.clone();
            for second in 0.. {
                driver.file.write_all_at(&file, 0).unwrap();
                driver.region.store(0, &region);
                (driver.available, driver.used, driver.free, driver.slots, driver.next) = state;
                driver.offered = offered.clone();
                let (mut seen, is_late) = (seen.clone(), second % 2 == 0);
                let more = stores::with(second / 2, || go_on(&mut driver, &mut seen, is_late));
                go_on(&mut driver, &mut seen, is_late);
                seen.extend(driver.see());
                seen.sort_unstable();
                assert_eq!(seen, (0..driver.next).collect::<Vec<_>>(), "{left} {second}");
                lives += 1;
                if !more && !is_late {
                    break;
                }
            }
            if !spent {
                break;
            }
        }
        assert!(lives > 5000, "{lives}");
    }

    #[test]
    fn bases_outside_of_the_ring_or_more_than_a_lap_apart_are_refused() {
        let driver = Driver::new();
        let addresses = RingAddresses { descriptors: 0, available: 1024, used: 2048 };
        let new = |base| PackedRing::new(&driver.memory, ENTRIES, addresses, base, false);
        for base in [0x8000_8007, 0x8007_8000, 0x8007_8007, 0x8002_8001, 0x8001_0002] {
            assert!(new(base).is_err(), "{base:#x}");
        }
        for base in [0x8000_8006, 0x8001_0001, 0x8005_0003, 0x8006_8006] {
            assert_eq!(new(base).unwrap().base(), base);
        }
        // Never used, and in the second lap.
        assert_eq!(new(0).unwrap().base(), BEGIN);
        for flags in [AVAILABLE, USED, AVAILABLE | USED] {
            driver.file.write_all_at(&flags.to_le_bytes(), 14).unwrap();
            assert_eq!(new(0).unwrap().base(), 0);
        }
    }

    fn read(memory: &GuestMemory, bytes: u64) -> Vec<u8> {
        let all = memory.window(0, bytes as usize, 1).unwrap();
        (0..bytes as usize).map(|at| all.load::<1>(at)[0]).collect()
    }
    #[test]
    fn a_ring_with_an_event_place_never_turns_notifications_off() {
        let driver = Driver::new();
        let flags = || {
            let mut half = [0; 2];
            driver.file.read_exact_at(&mut half, DEVICE_EVENTS + 2).unwrap();
            u16::from_le_bytes(half)
        };
        let addresses = RingAddresses { descriptors: 0, available: 1024, used: DEVICE_EVENTS };
        for (event_idx, waiting, working) in [(true, 2, 2), (false, 0, 1)] {
            let ring = PackedRing::new(&driver.memory, ENTRIES, addresses, BEGIN, event_idx);
            let mut ring = ring.unwrap();
            assert!(!ring.ask_for_kick());
            assert_eq!(flags(), waiting);
            ring.refuse_kicks();
            assert_eq!(flags(), working);
        }
    }
}
