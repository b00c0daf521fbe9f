//! Decides whether a range of a device is blank, so that it may be formatted. Every command that
//! formats decides by this module.
//!
//! A range reaches from a start sector to the end of its device. It is blank if and only if
//! - its first 4 KiB are zero, and
//! - it holds no signature, neither one of the whole device nor one that is found when the range is
//!   probed as a device of its own. A signature before the range counts too, because its owner
//!   covers the range; a partition table only if one of its partitions reaches into the range.
//!
//! The caller reads [`Area::windows`] and passes them to [`Area::judge`].

use core::fmt;
use core::ops::Range;

use super::view::View;
use super::{Kind, MissingWindow, SECTOR_BYTES, Signature, identify, merged, partitions, require};

/// Bytes at the start of a range that must be zero.
pub const HEAD_BYTES: u64 = 4 << 10;
/// Limit on the signatures that a message names.
const NAMED_MAX: usize = 3;

/// The range of a device that will be formatted.
#[derive(Debug, Clone, Copy)]
pub struct Area {
    device_bytes: u64,
    start: u64,
    is_own_remainder: fn(&[u8]) -> bool,
}

/// What a range holds.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Verdict {
    /// Nothing: it may be formatted.
    Blank,
    /// These, at least one, with offsets from the start of the device.
    Signatures(Vec<Signature>),
    /// No signature, but a byte that is not zero at this offset from the start of the device.
    Data(u64),
}

impl Area {
    /// From byte `start`, a multiple of 512, to the end of a device of this size.
    #[must_use]
    pub fn new(device_bytes: u64, start: u64) -> Area {
        Area { device_bytes, start: start.min(device_bytes), is_own_remainder: |_| false }
    }

    /// Also counts a range as blank whose first 4 KiB are the remainder of an interrupted format.
    /// `is_own_remainder` is called if they are not all zero.
    #[must_use]
    pub fn or_own_remainder(self, is_own_remainder: fn(&[u8]) -> bool) -> Area {
        Area { is_own_remainder, ..self }
    }

    /// The byte ranges of the device to read, as for [`windows`](super::windows).
    #[must_use]
    pub fn windows(&self) -> Vec<Range<u64>> {
        let mut windows = super::windows(self.device_bytes);
        if self.start > 0 {
            let own = super::windows(self.device_bytes - self.start).into_iter();
            windows.extend(own.map(|window| self.start + window.start..self.start + window.end));
        }
        merged(windows)
    }

    /// The byte ranges that must be zeroed for the range to become blank.
    #[must_use]
    pub fn windows_within(&self) -> Vec<Range<u64>> {
        let windows = self.windows().into_iter();
        let clipped = windows.map(|window| window.start.max(self.start)..window.end);
        clipped.filter(|window| !window.is_empty()).collect()
    }

    /// Decides, given pieces of the device as (byte offset, bytes).
    ///
    /// # Errors
    /// [`MissingWindow`] if one of the windows lies in no single piece.
    pub fn judge(&self, pieces: &[(u64, &[u8])]) -> Result<Verdict, MissingWindow> {
        let device = View::new(self.device_bytes, pieces);
        require(&device, self.windows())?;
        let mut found = identify(self.device_bytes, pieces)?;
        found.retain(|signature| {
            signature.offset >= self.start || self.is_covered(&device, signature)
        });
        if self.start > 0 {
            self.add_own(pieces, &mut found)?;
        }
        if !found.is_empty() {
            return Ok(Verdict::Signatures(found));
        }
        let end = self.device_bytes / SECTOR_BYTES * SECTOR_BYTES;
        let len = HEAD_BYTES.min(end.saturating_sub(self.start)) as usize;
        let head = device.bytes(self.start, len).unwrap_or_default();
        let data = head.iter().position(|byte| *byte != 0);
        Ok(match data.filter(|_| !(self.is_own_remainder)(head)) {
            Some(position) => Verdict::Data(self.start + position as u64),
            None => Verdict::Blank,
        })
    }

    /// Whether the owner of a signature before the range covers the range.
    fn is_covered(&self, device: &View<'_>, signature: &Signature) -> bool {
        signature.kind != Kind::Mbr || partitions::mbr_reaches_beyond(device, self.start)
    }

    /// Adds the signatures that are found when the range is probed as a device of its own.
    fn add_own(
        &self,
        pieces: &[(u64, &[u8])],
        found: &mut Vec<Signature>,
    ) -> Result<(), MissingWindow> {
        let own: Vec<(u64, &[u8])> = pieces
            .iter()
            .filter_map(|(offset, bytes)| match offset.checked_sub(self.start) {
                Some(offset) => Some((offset, *bytes)),
                None => {
                    let skipped = usize::try_from(self.start - offset).ok()?;
                    Some((0, bytes.get(skipped..)?))
                }
            })
            .collect();
        for mut signature in identify(self.device_bytes - self.start, &own)? {
            signature.offset += self.start;
            let is_known = |known: &Signature| {
                (known.kind, known.offset) == (signature.kind, signature.offset)
            };
            if !found.iter().any(is_known) {
                found.push(signature);
            }
        }
        Ok(())
    }
}

impl Verdict {
    /// True if the range may be formatted.
    #[must_use]
    pub fn is_blank(&self) -> bool {
        *self == Verdict::Blank
    }
}

/// Names what was found: kinds and offsets.
impl fmt::Display for Verdict {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let signatures = match self {
            Verdict::Blank => return f.write_str("blank"),
            Verdict::Data(offset) => {
                return write!(f, "data (a byte that is not zero) at byte {offset}");
            }
            Verdict::Signatures(signatures) => signatures,
        };
        let named: Vec<String> = signatures
            .iter()
            .take(NAMED_MAX)
            .map(|signature| format!("{} at byte {}", signature.kind.name(), signature.offset))
            .collect();
        f.write_str(&named.join(", "))?;
        match signatures.len().saturating_sub(NAMED_MAX) {
            0 => Ok(()),
            more => write!(f, " and {more} more"),
        }
    }
}

/// The end of a message that refuses to format: the command that formats in spite of it.
///
/// `words` is the kind for `cairn format`; `options` follow the device.
#[must_use]
pub fn way_on(words: &str, argument: &str, options: &str) -> String {
    match argument.strip_prefix('@') {
        Some(volume) => format!("to lose that, first write zeros over it in volume {volume}"),
        None => format!("to lose that: cairn format {words} {argument}{options} --yes"),
    }
}

#[cfg(test)]
mod tests;
