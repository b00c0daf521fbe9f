//! What a fuzzer does with the bytes of bcache, and the property tests of `cairn-format` too.
//!
//! All structures but the array of volumes have a checksum, which no fuzzer finds; so each input is
//! also tried with the checksums that its bytes should have.

use std::collections::BTreeMap;
use std::convert::Infallible;
use std::ops::{ControlFlow, Range};

use cairn_format::bcache::check::{Certainty, FINDINGS_MAX, Finding, check, check_losses};
use cairn_format::bcache::intent::{REGIONS_MAX, SLOT_BYTES, decode_slot};
use cairn_format::bcache::journal::{ENTRY_HEADER_BYTES, scan};
use cairn_format::bcache::load::{self, Fault, NodePlace, Source, Visitor};
use cairn_format::bcache::node::{Bset, Node, SET_HEADER_BYTES};
use cairn_format::bcache::places::Places;
use cairn_format::bcache::priorities::PrioritySet;
use cairn_format::bcache::zones::Newest;
use cairn_format::bcache::{
    Key, OFFSET_MAX, Pointer, SECTOR_BYTES, SUPERBLOCK_BYTES, SUPERBLOCK_SECTOR, SetMagic,
    Superblock, Uuid, ZoneMap, crc64, crc64_seeded, uuids,
};

const BLOCK: usize = 512;
/// Bytes of a piece of an image.
const PAGE: usize = 4096;
/// Bytes of a whole device.
const DEVICE_BYTES: u64 = 64 << 20;

fn one_line(text: &impl ToString) -> bool {
    !text.to_string().contains('\n')
}

fn number<const N: usize>(bytes: &[u8], at: usize) -> Option<[u8; N]> {
    bytes.get(at..at + N)?.try_into().ok()
}

fn word(bytes: &[u8], at: usize) -> u64 {
    number(bytes, at).map_or(0, u64::from_le_bytes)
}

/// Puts the checksum of the `words` behind a header where it belongs.
fn seal(bytes: &mut [u8], header: usize, words: usize, seed: Option<u64>) {
    let Some(covered) = bytes.get(8..header + words * 8) else { return };
    let sum = seed.map_or_else(|| crc64(covered), |seed| crc64_seeded(seed, covered));
    bytes[..8].copy_from_slice(&sum.to_le_bytes());
}

/// The words that a bset or an entry of the journal counts.
fn count(bytes: &[u8]) -> usize {
    number(bytes, 28).map_or(0, u32::from_le_bytes) as usize
}

fn seal_superblock(bytes: &mut [u8]) {
    let keys = number(bytes, 206).map_or(0, u16::from_le_bytes);
    seal(bytes, 208, usize::from(keys), None);
}

/// The entries of the journal at blocks of these bytes.
fn seal_entries(bytes: &mut [u8], magic: SetMagic) {
    for at in (0..bytes.len()).step_by(BLOCK) {
        let entry = &mut bytes[at..];
        if word(entry, 8) == magic.journal() {
            let words = count(entry);
            seal(entry, ENTRY_HEADER_BYTES, words, None);
        }
    }
}

/// The bsets of a node.
fn seal_node(bytes: &mut [u8], pointer: u64, magic: SetMagic) {
    for at in (0..bytes.len()).step_by(BLOCK) {
        let set = &mut bytes[at..];
        if word(set, 8) == magic.keys() {
            let words = count(set);
            seal(set, SET_HEADER_BYTES, words, Some(pointer));
        }
    }
}

/// A superblock of either kind: what decodes encodes to the same bytes, and its sizes are legal.
pub fn bcache_superblock(bytes: &[u8]) {
    let mut sealed = bytes.to_vec();
    seal_superblock(&mut sealed);
    for bytes in [bytes, &sealed] {
        let encoded = match Superblock::decode(bytes) {
            Ok(Superblock::Cache(cache)) => {
                let geometry = cache.geometry();
                let last = geometry.sector_of(geometry.buckets() - 1);
                assert!(last + geometry.bucket_sectors() <= geometry.sectors());
                assert!(cache.journal_buckets().all(|bucket| bucket < geometry.buckets()));
                assert!(geometry.priority_sets() > 0 && geometry.uuids() > 0);
                cache.encode()
            }
            Ok(Superblock::Backing(backing)) => {
                assert!(backing.data_offset() >= 16 && one_line(&backing.label()));
                if let Some(map) = backing.intent() {
                    let mut next = backing.clone();
                    assert!(next.set_intent(&map) && next.intent() == Some(map));
                }
                backing.encode()
            }
            Err(error) => {
                assert!(one_line(&error));
                continue;
            }
        };
        assert!(encoded == bytes[..SUPERBLOCK_BYTES]);
    }
}

/// A slot of the write-intent map: what decodes encodes to the same bytes.
pub fn bcache_intent(bytes: &[u8]) {
    let Some(slot) = bytes.get(..SLOT_BYTES) else { return };
    let mut sealed = slot.to_vec();
    let sum = crc64(&sealed[8..]);
    sealed[..8].copy_from_slice(&sum.to_le_bytes());
    for bytes in [slot, &sealed] {
        let Some((sequence, map)) = decode_slot(bytes) else { continue };
        assert!(map.encode_slot(sequence) == bytes);
        assert!(map.region_of(u64::MAX) < REGIONS_MAX && map.count() <= REGIONS_MAX as u32);
    }
}

/// A slot of a map of dirty zones, and a file of two: what decodes encodes to the same bytes, and
/// its marked zones are ranges in order.
pub fn bcache_zones(bytes: &[u8]) {
    let mut sealed = bytes.to_vec();
    if let Some((csum, rest)) = sealed.split_first_chunk_mut::<8>() {
        *csum = crc64(rest).to_le_bytes();
    }
    for bytes in [bytes, &sealed] {
        let _ = Newest::of(bytes);
        let Some((sequence, map)) = ZoneMap::decode_slot(bytes) else { continue };
        assert!(map.encode_slot(sequence) == bytes);
        let newest = Newest::of(&[bytes, bytes].concat()).expect("both slots are sound");
        assert_eq!((newest.sequence, &newest.map), (sequence, &map));
        assert!(u64::from(map.count()) <= map.zones() && map.is_marked(map.zones()));
        let ranges = map.marked_in(0..u64::MAX);
        assert!(
            ranges.len() <= map.count() as usize + 1,
            "what lies behind the device is one more"
        );
        assert!(ranges.last().is_some_and(|range| range.end == u64::MAX));
        assert!(ranges.windows(2).all(|two| two[0].end < two[1].start));
        for range in ranges.iter().take(8) {
            assert_eq!(map.marked_in(range.clone()), std::slice::from_ref(range));
        }
    }
}

/// The UUID of a set, then what one of its structures is read from.
fn of_set(bytes: &[u8]) -> Option<(SetMagic, &[u8])> {
    let (uuid, rest) = bytes.split_first_chunk::<16>()?;
    Some((Uuid(*uuid).set_magic(), rest))
}

/// A bucket of the journal: entries follow each other, and each reads the same alone.
pub fn bcache_journal(bytes: &[u8]) {
    let Some((magic, bucket)) = of_set(bytes) else { return };
    let mut sealed = bucket.to_vec();
    seal_entries(&mut sealed, magic);
    for bucket in [bucket, &sealed] {
        let (entries, end) = scan(bucket, magic, BLOCK);
        let mut at = 0;
        for entry in &entries {
            assert_eq!(entry.at, at);
            at += entry.bytes().next_multiple_of(BLOCK);
            assert!(entry.at + entry.bytes() <= bucket.len());
            assert!(entry.keys().count() * 2 * 8 <= entry.bytes());
            let (alone, _) = scan(&bucket[entry.at..], magic, BLOCK);
            assert_eq!(alone[0].header, entry.header);
        }
        assert_eq!(end.at, at);
        assert!(end.fault.is_none_or(|fault| one_line(&fault)));
    }
}

/// A node, behind the pointer that leads to it: its extents are in order and do not overlap.
pub fn bcache_node(bytes: &[u8]) {
    let Some((magic, rest)) = of_set(bytes) else { return };
    let Some((pointer, node)) = rest.split_first_chunk::<8>() else { return };
    let pointer = u64::from_le_bytes(*pointer);
    let mut sealed = node.to_vec();
    seal_node(&mut sealed, pointer, magic);
    for bytes in [node, &sealed] {
        let node = Node::read(bytes, Pointer(pointer), magic, BLOCK);
        assert!(node.end() <= bytes.len() && node.fault().is_none_or(one_line));
        match node.extents() {
            Ok(extents) => {
                assert!(extents.iter().all(|key| key.sectors() > 0));
                assert!(extents.windows(2).all(|two| two[0].position() <= two[1].begin()));
            }
            Err(fault) => assert!(one_line(&fault)),
        }
        if let Ok(children) = node.children() {
            assert!(children.iter().map(Key::word_count).sum::<usize>() * 8 <= bytes.len());
        }
    }
}

/// A set of priorities.
pub fn bcache_priorities(bytes: &[u8]) {
    let Some((magic, set)) = of_set(bytes) else { return };
    let mut sealed = set.to_vec();
    let words = sealed.len().saturating_sub(40) / 8;
    sealed.truncate(40 + words * 8);
    seal(&mut sealed, 40, words, None);
    for set in [set, &sealed] {
        match PrioritySet::read(set, magic) {
            Ok(priorities) => assert!(priorities.records().count() * 3 <= set.len() - 40),
            Err(fault) => assert!(one_line(&fault)),
        }
    }
}

/// The array of volumes, in both layouts: its content is the same after it was written again.
pub fn bcache_uuids(bytes: &[u8]) {
    for is_long in [true, false] {
        let volumes = uuids::read(bytes, is_long);
        assert!(volumes.iter().all(|volume| one_line(&volume.label_text())));
        let again = uuids::encode(&volumes, volumes.len() * uuids::ENTRY_BYTES);
        assert_eq!(uuids::read(&again, true), volumes);
    }
}

/// A device with zeros wherever nothing was given.
#[derive(Default)]
struct Pages(BTreeMap<u64, Vec<u8>>);

impl Source for Pages {
    type Error = Infallible;

    async fn read(
        &mut self,
        ranges: &[Range<u64>],
    ) -> Result<Vec<Result<Vec<u8>, String>>, Infallible> {
        Ok(ranges.iter().map(|range| self.bytes(range)).collect())
    }
}

impl Pages {
    /// Pieces of an image: the number of a page in two bytes, and the page.
    fn of(bytes: &[u8]) -> Pages {
        let mut pages = Pages::default();
        for piece in bytes.chunks(2 + PAGE) {
            let Some((number, given)) = piece.split_first_chunk::<2>() else { break };
            let mut page = given.to_vec();
            page.resize(PAGE, 0);
            pages.0.insert(u64::from(u16::from_le_bytes(*number)), page);
        }
        pages
    }

    fn bytes(&self, range: &Range<u64>) -> Result<Vec<u8>, String> {
        let sector = SECTOR_BYTES as u64;
        if range.end > DEVICE_BYTES / sector {
            return Err("beyond the end".to_owned());
        }
        let mut bytes = vec![0; (range.end - range.start) as usize * SECTOR_BYTES];
        let (begin, end) = (range.start * sector, range.end * sector);
        let page_bytes = PAGE as u64;
        for (number, page) in self.0.range(begin / page_bytes..end.div_ceil(page_bytes)) {
            let at = number * page_bytes;
            let (from, to) = (at.max(begin), (at + page_bytes).min(end));
            bytes[(from - begin) as usize..(to - begin) as usize]
                .copy_from_slice(&page[(from - at) as usize..(to - at) as usize]);
        }
        Ok(bytes)
    }

    /// Gives all structures that lie within a page the checksums that they should have. The
    /// generations of nodes are taken for 0.
    fn seal(&mut self) {
        let Some(superblock) = self.0.get_mut(&1) else { return };
        seal_superblock(superblock);
        let magic = number(superblock, 56).map_or(Uuid::ZERO, Uuid).set_magic();
        for (at, page) in self.0.iter_mut().filter(|(at, _)| **at != 1) {
            seal_entries(page, magic);
            seal_node(page, (at * 8) << 8, magic);
        }
    }
}

/// A server that accepts no fault, and remembers all keys that it saw.
#[derive(Default)]
struct Server {
    extents: Vec<Key>,
    /// Which sectors each pair of volume and distance to the cache has, by generation and
    /// dirtiness.
    seen: BTreeMap<(u32, u64, u8, bool), Vec<Range<u64>>>,
}

impl Visitor for Server {
    fn fault(&mut self, fault: &Fault) -> ControlFlow<()> {
        assert!(one_line(fault));
        ControlFlow::Break(())
    }

    fn node(&mut self, at: &NodePlace, node: &Node<'_>) {
        if at.level == 0 {
            node.sets().iter().flat_map(Bset::keys).flatten().for_each(|key| self.see(&key));
        }
    }

    fn extent(&mut self, key: Key) {
        self.extents.push(key);
    }
}

impl Server {
    fn tag(key: &Key) -> Option<(u32, u64, u8, bool)> {
        let place = key.cached_at()?;
        let distance = place.sector().wrapping_sub(key.start());
        Some((key.inode(), distance, place.generation().0, key.is_dirty()))
    }

    fn see(&mut self, key: &Key) {
        if let Some(tag) = Server::tag(key) {
            self.seen.entry(tag).or_default().push(key.start()..key.end());
        }
    }

    fn vouches_for(&self, key: &Key) -> bool {
        let seen = Server::tag(key).and_then(|tag| self.seen.get(&tag));
        let mut at = key.start();
        while at < key.end() {
            let has = |range: &&Range<u64>| range.contains(&at);
            match seen.and_then(|ranges| ranges.iter().find(has)) {
                Some(range) => at = range.end,
                None => return false,
            }
        }
        true
    }
}

/// Reads a cache as a server does: it shows no sector that no key of a leaf or the journal has, and
/// none beyond the device.
fn serve(pages: &mut Pages, sectors: u64) {
    let range = SUPERBLOCK_SECTOR..SUPERBLOCK_SECTOR + (SUPERBLOCK_BYTES / SECTOR_BYTES) as u64;
    let Ok(Superblock::Cache(superblock)) =
        Superblock::decode(&pages.bytes(&range).unwrap_or_default())
    else {
        return;
    };
    let geometry = superblock.geometry();
    if geometry.fits(sectors).is_err() {
        return;
    }
    let mut server = Server::default();
    let Ok(loaded) = load::now(load::load(pages, &superblock, &mut server)) else { return };
    loaded.journal.iter().for_each(|key| server.see(key));
    let extents = loaded.extents(geometry, std::mem::take(&mut server.extents));
    assert!(extents.windows(2).all(|two| two[0].position() <= two[1].begin()));
    for key in &extents {
        let place = key.cached_at().expect("an extent leads somewhere");
        assert!(key.is_in_range() && key.sectors() > 0 && !loaded.is_stale(geometry, key));
        assert!(geometry.holds(place.sector(), key.sectors()));
        assert!(pages.bytes(&(place.sector()..place.sector() + key.sectors())).is_ok());
        assert!(server.vouches_for(key), "{key:?}");
    }
    let mut places = Places::new(geometry);
    extents.iter().for_each(|key| places.take(key));
    let _ = places.shared();
}

/// A whole cache, in pieces, through the checker and as a server reads it: a verdict that fits its
/// findings, and losses only where something is wrong.
pub fn bcache_set(bytes: &[u8]) {
    let mut pages = Pages::of(bytes);
    for is_sealed in [false, true] {
        if is_sealed {
            pages.seal();
        }
        let sectors = DEVICE_BYTES / SECTOR_BYTES as u64;
        serve(&mut pages, sectors);
        let Ok(report) = load::now(check(&mut pages, sectors, &[]));
        assert_eq!(report.findings.is_empty(), report.severity.exit_code() == 0);
        assert!(report.findings.iter().all(one_line));
        let volumes = report.volumes.iter();
        assert!(volumes.clone().all(|volume| volume.dirty_sectors <= volume.sectors));
        assert_eq!(volumes.map(|volume| volume.extents).sum::<u64>(), report.totals.extents);
        let Ok((mut again, losses)) = load::now(check_losses(&mut pages, sectors, &[]));
        again.findings.retain(|finding| !matches!(finding, Finding::DataUnreadable { .. }));
        assert!(again.findings == report.findings || report.findings.len() >= FINDINGS_MAX);
        for volume in &report.volumes {
            let lost = losses.of(volume.inode, &(0..OFFSET_MAX));
            assert!(lost.windows(2).all(|two| two[0].1.end <= two[1].1.start));
            let sound = report.severity.exit_code() == 0 || report.severity.exit_code() == 5;
            let is_suspect = |(certainty, _): &(Certainty, _)| *certainty == Certainty::Suspect;
            assert!(!sound || !lost.iter().any(is_suspect), "nothing is wrong, and yet suspect");
        }
    }
}
