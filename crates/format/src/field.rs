//! One field of an on-disk struct: with it the documentation's test compares codecs and documents.

/// One field of an on-disk struct, as the codec lays it out.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Field {
    /// The field's name in the format's documentation.
    pub name: &'static str,
    /// Byte offset from the start of the struct.
    pub offset: usize,
    /// Size in bytes.
    pub size: usize,
}
