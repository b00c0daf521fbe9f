//! [`Record`]: a text that one write replaces as a whole, in two slots of an export
//! (`docs/formats/nbd-meta.md`).
//!
//! A slot has a number and a checksum. The text is that of the valid slot with the higher number.
//! The next one is written to the other slot, so a write that a crash has torn leaves the former
//! text. A text of no bytes says that there is none. No text has control characters: it is shown in
//! messages.

/// Bytes of one slot.
pub const SLOT_BYTES: usize = 4096;
/// Bytes of both.
pub const RECORD_BYTES: usize = 2 * SLOT_BYTES;
/// The longest text, in bytes.
pub const TEXT_BYTES_MAX: usize = SLOT_BYTES - HEAD_BYTES;

const MAGIC: &[u8; 8] = b"cairnrec";
/// Magic, checksum, length, number.
const HEAD_BYTES: usize = 24;
/// The checksum covers what follows it.
const SUMMED: usize = 12;

/// What both slots say.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// The text, if there is one.
    pub text: Option<String>,
    /// Its number; zero before the first one.
    number: u64,
}

impl Record {
    /// What is in these bytes; none if they have another's data.
    pub fn decode(bytes: &[u8; RECORD_BYTES]) -> Option<Record> {
        let (first, second) = bytes.split_at(SLOT_BYTES);
        let mut found = Record::default();
        for slot in [first, second] {
            match decode_slot(slot) {
                Some(record) if record.number > found.number => found = record,
                Some(_) => {}
                None if slot.iter().all(|byte| *byte == 0) || slot.starts_with(MAGIC) => {}
                None => return None,
            }
        }
        Some(found)
    }

    /// The slot that the next text goes to: its offset, and its bytes. None if the text is too
    /// long, or has control characters.
    pub fn next(&self, text: Option<&str>) -> Option<(usize, Vec<u8>)> {
        let text = text.unwrap_or_default();
        if text.len() > TEXT_BYTES_MAX || text.contains(char::is_control) {
            return None;
        }
        let text = text.as_bytes();
        let number = self.number + 1;
        let mut slot = vec![0; SLOT_BYTES];
        slot[..8].copy_from_slice(MAGIC);
        slot[12..16].copy_from_slice(&(text.len() as u32).to_le_bytes());
        slot[16..HEAD_BYTES].copy_from_slice(&number.to_le_bytes());
        slot[HEAD_BYTES..HEAD_BYTES + text.len()].copy_from_slice(text);
        let sum = crc32c::crc32c(&slot[SUMMED..]);
        slot[8..SUMMED].copy_from_slice(&sum.to_le_bytes());
        Some(((number % 2) as usize * SLOT_BYTES, slot))
    }
}

fn decode_slot(slot: &[u8]) -> Option<Record> {
    let field = |at: usize| slot[at..at + 4].try_into().map(u32::from_le_bytes).ok();
    if !slot.starts_with(MAGIC) || crc32c::crc32c(&slot[SUMMED..]) != field(8)? {
        return None;
    }
    let len = usize::try_from(field(12)?).ok()?;
    // The last number has none after it.
    let number = u64::from_le_bytes(slot[16..HEAD_BYTES].try_into().ok()?);
    let number = Some(number).filter(|number| *number < u64::MAX)?;
    let text = std::str::from_utf8(slot[HEAD_BYTES..].get(..len)?).ok()?;
    if text.contains(char::is_control) {
        return None;
    }
    Some(Record { text: (len > 0).then(|| text.to_owned()), number })
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    struct Export([u8; RECORD_BYTES]);

    impl Export {
        fn read(&self) -> Option<Record> {
            Record::decode(&self.0)
        }

        fn write(&mut self, text: Option<&str>) {
            let (at, slot) = self.read().unwrap().next(text).unwrap();
            self.0[at..at + SLOT_BYTES].copy_from_slice(&slot);
        }
    }

    #[test]
    fn the_last_text_counts_and_none_is_a_text_of_no_bytes() {
        let mut export = Export([0; RECORD_BYTES]);
        assert_eq!(export.read(), Some(Record::default()));
        let longest = "x".repeat(TEXT_BYTES_MAX);
        for text in [Some("one"), Some("two"), None, Some("three"), Some(longest.as_str())] {
            export.write(text);
            assert_eq!(export.read().unwrap().text.as_deref(), text);
        }
    }

    #[test]
    fn a_torn_write_leaves_the_former_text() {
        let mut export = Export([0; RECORD_BYTES]);
        for former in [None, Some("one"), Some("two")] {
            if former.is_some() {
                export.write(former);
            }
            let (at, slot) = export.read().unwrap().next(Some("a newer text")).unwrap();
            // Whatever the slot had stays behind the part that was written.
            for torn in [8, 12, 20, 26] {
                let mut torn_export = Export(export.0);
                torn_export.0[at..at + torn].copy_from_slice(&slot[..torn]);
                assert_eq!(torn_export.read().unwrap().text.as_deref(), former, "{torn}");
            }
        }
    }

    proptest! {
        /// Whatever a server says: another text is never found, and the next one is.
        #[test]
        fn damaged_slots_are_never_read_as_other_texts(
            damage in prop::collection::vec((0..RECORD_BYTES, any::<u8>()), 1..40),
        ) {
            let mut export = Export([0; RECORD_BYTES]);
            export.write(Some("one"));
            export.write(Some("two"));
            for (at, byte) in damage {
                export.0[at] = byte;
            }
            if let Some(found) = export.read() {
                prop_assert!(matches!(found.text.as_deref(), None | Some("one" | "two")));
                export.write(Some("three"));
                let found = export.read().unwrap();
                prop_assert_eq!(found.text.as_deref(), Some("three"));
            }
        }
    }

    #[test]
    fn a_text_that_would_spoil_a_message_is_none() {
        let mut export = Export([0; RECORD_BYTES]);
        export.write(Some("one"));
        assert_eq!(export.read().unwrap().next(Some("one\u{1b}[2J")), None);
        let (at, mut slot) = export.read().unwrap().next(Some("another")).unwrap();
        slot[HEAD_BYTES] = 0x1b;
        let sum = crc32c::crc32c(&slot[SUMMED..]);
        slot[8..SUMMED].copy_from_slice(&sum.to_le_bytes());
        export.0[at..at + SLOT_BYTES].copy_from_slice(&slot);
        assert_eq!(export.read().unwrap().text.as_deref(), Some("one"));
    }

    #[test]
    fn other_data_and_a_text_that_is_too_long_are_refused() {
        let mut bytes = [0; RECORD_BYTES];
        bytes[SLOT_BYTES + 510..SLOT_BYTES + 512].copy_from_slice(&[0x55, 0xaa]);
        assert_eq!(Record::decode(&bytes), None);
        let endless = Record { number: u64::MAX - 1, text: None }.next(Some("x")).unwrap().1;
        bytes = [0; RECORD_BYTES];
        bytes[SLOT_BYTES..].copy_from_slice(&endless);
        assert_eq!(Record::decode(&bytes), Some(Record::default()));
        assert_eq!(Record::default().next(Some(&"x".repeat(TEXT_BYTES_MAX + 1))), None);
    }
}
