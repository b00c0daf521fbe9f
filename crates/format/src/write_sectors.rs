//! [`WriteSectors`]: where the builders of caches write. The caller does the I/O.

use std::convert::Infallible;

/// Bytes of a sector.
const SECTOR_BYTES: usize = 512;

/// Where a new cache is written.
pub trait WriteSectors {
    /// Why something cannot be written.
    type Error;

    /// Writes whole sectors.
    ///
    /// # Errors
    /// The system refused.
    fn write(&mut self, sector: u64, bytes: &[u8]) -> Result<(), Self::Error>;
}

impl WriteSectors for Vec<u8> {
    type Error = Infallible;

    /// A device in memory; it grows.
    fn write(&mut self, sector: u64, bytes: &[u8]) -> Result<(), Infallible> {
        let begin = sector as usize * SECTOR_BYTES;
        self.resize(self.len().max(begin + bytes.len()), 0);
        self[begin..begin + bytes.len()].copy_from_slice(bytes);
        Ok(())
    }
}

impl<W: WriteSectors> WriteSectors for &mut W {
    type Error = W::Error;

    fn write(&mut self, sector: u64, bytes: &[u8]) -> Result<(), W::Error> {
        (**self).write(sector, bytes)
    }
}
