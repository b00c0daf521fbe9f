//! Pieces of a device, addressed by offsets on the device. Every access can find no bytes.

/// The bytes of a device that were read.
pub(super) struct View<'a> {
    device_bytes: u64,
    pieces: &'a [(u64, &'a [u8])],
}

impl<'a> View<'a> {
    pub(super) fn new(device_bytes: u64, pieces: &'a [(u64, &'a [u8])]) -> View<'a> {
        View { device_bytes, pieces }
    }

    pub(super) fn device_bytes(&self) -> u64 {
        self.device_bytes
    }

    /// The bytes from `offset` on, if one piece holds them all.
    pub(super) fn bytes(&self, offset: u64, len: usize) -> Option<&'a [u8]> {
        self.pieces.iter().find_map(|(start, piece)| {
            let begin = usize::try_from(offset.checked_sub(*start)?).ok()?;
            piece.get(begin..begin.checked_add(len)?)
        })
    }

    pub(super) fn has(&self, offset: u64, mark: &[u8]) -> bool {
        self.bytes(offset, mark.len()) == Some(mark)
    }

    pub(super) fn array<const N: usize>(&self, offset: u64) -> Option<[u8; N]> {
        self.bytes(offset, N)?.try_into().ok()
    }

    pub(super) fn u8_at(&self, offset: u64) -> Option<u8> {
        self.array::<1>(offset).map(|[byte]| byte)
    }

    pub(super) fn u16_at(&self, offset: u64) -> Option<u16> {
        self.array(offset).map(u16::from_le_bytes)
    }

    pub(super) fn u32_at(&self, offset: u64) -> Option<u32> {
        self.array(offset).map(u32::from_le_bytes)
    }

    pub(super) fn u64_at(&self, offset: u64) -> Option<u64> {
        self.array(offset).map(u64::from_le_bytes)
    }

    /// Reads in the byte order given: that of the machine that wrote the structure.
    pub(super) fn u16_of(&self, offset: u64, big_endian: bool) -> Option<u16> {
        let bytes = self.array(offset)?;
        Some(if big_endian { u16::from_be_bytes(bytes) } else { u16::from_le_bytes(bytes) })
    }

    /// Reads in the byte order given: that of the machine that wrote the structure.
    pub(super) fn u32_of(&self, offset: u64, big_endian: bool) -> Option<u32> {
        let bytes = self.array(offset)?;
        Some(if big_endian { u32::from_be_bytes(bytes) } else { u32::from_le_bytes(bytes) })
    }

    pub(super) fn be_u32(&self, offset: u64) -> Option<u32> {
        self.u32_of(offset, true)
    }

    /// A label: up to the first NUL or line end; control characters and invalid bytes are replaced.
    pub(super) fn text(&self, offset: u64, len: usize) -> Option<String> {
        let bytes = self.bytes(offset, len)?;
        let end = bytes.iter().position(|byte| matches!(byte, 0 | b'\n'));
        let text = String::from_utf8_lossy(&bytes[..end.unwrap_or(len)]);
        let shown: String = text.trim().chars().map(printable).collect();
        (!shown.is_empty()).then_some(shown)
    }

    /// A UUID stored byte by byte as it is printed. All zeros mean none.
    pub(super) fn uuid(&self, offset: u64) -> Option<String> {
        self.array(offset).and_then(uuid_text)
    }
}

fn printable(shown: char) -> char {
    if shown.is_control() { '?' } else { shown }
}

/// The usual grouping of a UUID: 8-4-4-4-12 hex digits.
pub(super) fn uuid_text(bytes: [u8; 16]) -> Option<String> {
    if bytes == [0; 16] {
        return None;
    }
    let mut text = String::with_capacity(36);
    for (i, byte) in bytes.into_iter().enumerate() {
        if matches!(i, 4 | 6 | 8 | 10) {
            text.push('-');
        }
        text.push_str(&format!("{byte:02x}"));
    }
    Some(text)
}
