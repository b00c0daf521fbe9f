//! What a request does: its operation and its modifiers.

/// What a request does.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum Op {
    /// Fills the segments from the disk.
    Read,
    /// Writes the segments to the disk.
    Write,
    /// Makes every write durable that completed before this request was submitted.
    #[default]
    Flush,
    /// Makes the contents undefined until the next write; space may be freed.
    Discard,
    /// Makes the range read as zero; space may be freed unless [`Flags::NO_UNMAP`].
    WriteZeroes,
}

impl Op {
    /// Its name in messages.
    pub fn name(self) -> &'static str {
        match self {
            Op::Read => "read",
            Op::Write => "write",
            Op::Flush => "flush",
            Op::Discard => "discard",
            Op::WriteZeroes => "write-zeroes",
        }
    }

    /// True for the operations that change what a later read returns.
    pub fn is_write(self) -> bool {
        matches!(self, Op::Write | Op::WriteZeroes | Op::Discard)
    }

    /// True for the operations that carry segments.
    pub fn has_data(self) -> bool {
        matches!(self, Op::Read | Op::Write)
    }
}

bitflags::bitflags! {
    /// Modifiers of a request.
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub struct Flags: u8 {
        /// This write itself is durable when it completes.
        const FUA = 1;
        /// The data is file system metadata (the kernel's REQ_META).
        const META = 2;
        /// Write-zeroes must allocate, not free.
        const NO_UNMAP = 4;
        /// Write-zeroes fails with [`crate::ErrorKind::Unsupported`] unless it is fast.
        const FAST_ZERO = 8;
        /// A hint: a copy or discard that a target makes for its own sake (writeback, merge, copy
        /// on write, trim). No client waits for just this data, so a cache need not keep it.
        const BACKGROUND = 16;
    }
}
