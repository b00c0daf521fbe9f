//! Bitmaps: a directory of entries of different lengths, each with a table that names clusters.

use std::collections::BTreeSet;

use super::{COMPRESSED, COPIED, Checker, Error, OFFSET, RESERVED_HIGH};
use crate::qcow2::header::bad;
use crate::qcow2::layout::number;

/// An entry without its extra data and name: where its table begins (8 bytes), the entries of that
/// (4), flags (4), type and granularity (1 each), the length of its name (2), that of its extra
/// data (4).
const ENTRY_BYTES: usize = 24;
/// The only type there is: a dirty bitmap.
const TYPE: u64 = 1;
/// In use, made at open, extra data that may be ignored.
const FLAGS: u64 = 0b111;
const NAME_BYTES_MAX: u64 = 1023;
/// Bits of an entry of a table that are none of the place, nor bit 0: what all bits are without.
const RESERVED: u64 = 0x1fe | RESERVED_HIGH | COMPRESSED | COPIED;
/// Words of a table that are read at a time.
const WORDS: u64 = 1 << 17;

impl<E> Checker<'_, E> {
    pub(super) fn read_bitmaps(&mut self) -> Result<(), E> {
        let Some(bitmaps) = self.layout.bitmaps else { return Ok(()) };
        let len = bitmaps.directory_bytes;
        self.own("directory of bitmaps", bitmaps.directory, len, 1);
        let directory = self.bytes_at(bitmaps.directory, len)?;
        let (mut at, mut tables) = (0, BTreeSet::new());
        for _ in 0..bitmaps.count {
            let entry = directory.get(at..).and_then(<[u8]>::first_chunk::<ENTRY_BYTES>);
            let Some(entry) = entry else {
                self.wrong(bad("bytes of the directory of bitmaps", len, "more: an entry is cut"));
                return Ok(());
            };
            let number = |range: core::ops::Range<usize>| number(&entry[range]);
            if let Err(error) = refuse_fields(&number)
                .and_then(|()| self.refuse_entries(number(8..12), number(17..18)))
            {
                self.odd(error);
            }
            let rest = number(18..20) + number(20..24);
            at = (at + ENTRY_BYTES + rest as usize).next_multiple_of(8);
            self.report.counts.bitmaps += 1;
            let table = (number(0..8), number(8..12));
            match tables.insert(table) {
                true => self.read_bitmap(table)?,
                false => self.wrong(bad("table of a bitmap", table.0, "one of its own")),
            }
        }
        if at as u64 != len {
            let expected = format!("{at}, those of its entries");
            self.wrong(bad("bytes of the directory of bitmaps", len, expected));
        }
        Ok(())
    }

    /// Refuses a table whose entries are not those of the content's bits, in words of 64.
    fn refuse_entries(&self, entries: u64, granularity: u64) -> Result<(), Error> {
        let bits = self.header.size.div_ceil(1 << granularity);
        let wanted = (bits.div_ceil(64) * 8).div_ceil(self.header.cluster_bytes());
        match entries == wanted {
            true => Ok(()),
            false => Err(bad("entries of a bitmap's table", entries, format!("{wanted}"))),
        }
    }

    fn read_bitmap(&mut self, (table, entries): (u64, u64)) -> Result<(), E> {
        let cluster_bytes = self.header.cluster_bytes();
        let inside = match table.is_multiple_of(cluster_bytes) {
            false => Err(bad("table of a bitmap", table, "a multiple of the cluster size")),
            true => self.header.refuse_outside("table of a bitmap", table, entries * 8),
        };
        let inside = inside.and_then(|()| self.refuse_many("tables of bitmaps", entries * 8));
        if let Err(error) = inside {
            self.wrong(error);
            return Ok(());
        }
        self.own("table of a bitmap", table, entries * 8, 1);
        let mut at = 0;
        while at < entries {
            let count = WORDS.min(entries - at);
            for entry in self.words_at(table + at * 8, count)? {
                let (place, ones) = (entry & OFFSET, entry & 1);
                let is_wrong = entry & RESERVED != 0
                    || (place != 0 && ones != 0)
                    || !place.is_multiple_of(cluster_bytes)
                    || !self.refer(place, u64::from(place != 0), 1);
                if is_wrong {
                    self.wrong(bad("entry of a bitmap's table", entry, "a cluster of the image"));
                }
            }
            at += count;
        }
        Ok(())
    }
}

/// Refuses an entry that qemu does not open an image with.
fn refuse_fields(number: &dyn Fn(core::ops::Range<usize>) -> u64) -> Result<(), Error> {
    let (flags, kind, granularity) = (number(12..16), number(16..17), number(17..18));
    let name = number(18..20);
    if flags & !FLAGS != 0 {
        return Err(bad("flags of a bitmap", flags, "0 to 7"));
    }
    if kind != TYPE {
        return Err(bad("type of a bitmap", kind, "1"));
    }
    if !(9..=31).contains(&granularity) {
        return Err(bad("granularity of a bitmap", granularity, "9 to 31 bits"));
    }
    if !(1..=NAME_BYTES_MAX).contains(&name) {
        let expected = format!("1 to {NAME_BYTES_MAX}");
        return Err(bad("length of a bitmap's name", name, expected));
    }
    Ok(())
}
