//! Reads a dm-snapshot exception store in pieces, for the tools.

pub mod check;
pub mod dump;
pub mod format;
pub mod repair;

use std::sync::mpsc::Receiver;

use cairn_block::{ConfigError, ConfigKind, SECTOR_BYTES};
use cairn_format::snapshot::check::Limits;
use cairn_format::snapshot::{HEADER_BYTES, Header, VERSION};
use cairn_outcome::failure::Outcome;
use cairn_outcome::signals::Event;
use serde_json::{Value, json};

use super::source::Source;

/// Bytes of one read or write.
const PIECE_BYTES: u64 = 1 << 20;

/// A store on a device.
#[derive(Clone, Copy)]
pub struct Store<'a> {
    source: &'a Source,
    /// Byte where the header is.
    start: u64,
    /// Size of the origin, for the check.
    limits: Limits,
    /// Set when the reader must stop.
    stop: Option<&'a Receiver<Event>>,
}

impl<'a> Store<'a> {
    /// The store that begins at `start_sector`.
    ///
    /// # Errors
    /// The sector lies beyond the end.
    pub fn at(
        source: &'a Source,
        start_sector: u64,
        origin_sectors: Option<u64>,
    ) -> Outcome<Store<'a>> {
        let device_sectors = source.area_bytes(start_sector)? / SECTOR_BYTES;
        let limits = Limits { device_sectors, origin_sectors };
        Ok(Store { source, start: start_sector * SECTOR_BYTES, limits, stop: None })
    }

    /// Makes all later reads fail once `interrupted` is set.
    fn stopped_by(self, stop: &'a Receiver<Event>) -> Store<'a> {
        Store { stop: Some(stop), ..self }
    }

    /// The bytes of the header, cut at the end of the device.
    fn head(&self) -> Outcome<Vec<u8>> {
        let all = self.limits.device_sectors.saturating_mul(SECTOR_BYTES);
        let len = HEADER_BYTES.min(usize::try_from(all).unwrap_or(HEADER_BYTES));
        self.source.bytes_at(self.start, len)
    }

    /// Reads a range of the store that is no longer than a piece.
    fn bytes(&self, range: std::ops::Range<u64>) -> Outcome<Vec<u8>> {
        if self.stop.is_some_and(|stop| stop.try_recv().is_ok()) {
            return Err(ConfigError::new(ConfigKind::System, &self.source.name, "interrupted"));
        }
        let len = usize::try_from(range.end - range.start).expect("a piece is small");
        self.source.bytes_at(self.start + range.start, len)
    }

    /// An error about the content of the device.
    fn damaged(&self, error: impl ToString) -> ConfigError {
        ConfigError::new(ConfigKind::Damaged, &self.source.name, error.to_string())
    }
}

/// A header with stable field names.
fn header_json(header: &Header) -> Value {
    json!({
        "valid": header.is_valid(),
        "version": VERSION,
        "chunk_size": header.chunk_size().sectors(),
    })
}
