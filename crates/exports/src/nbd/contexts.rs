//! Metadata contexts that an export has beside `base:allocation`.
//!
//! Whoever serves a volume knows more about it than its disk says: which parts of it differ from
//! a snapshot, for example. The answers come from memory; nothing here reads a device or waits.

use cairn_block::{IoError, SectorCount, SectorRange};

/// A run of sectors in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextRun {
    /// How long.
    pub count: SectorCount,
    /// The state, in the context's own bits.
    pub state: u32,
}

/// The further contexts of one export; they may come and go.
pub trait Contexts: Send + Sync {
    /// Their names now, each `namespace:leaf`.
    fn names(&self) -> Vec<String>;

    /// What the context `name` says about a range, in order, covering it from its start.
    ///
    /// # Errors
    /// There is no such context any more, or what it tells about is lost.
    fn describe(&self, name: &str, range: SectorRange) -> Result<Vec<ContextRun>, IoError>;
}

/// No further context.
pub(super) struct NoContexts;

impl Contexts for NoContexts {
    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    fn describe(&self, _name: &str, _range: SectorRange) -> Result<Vec<ContextRun>, IoError> {
        Err(IoError::INVALID)
    }
}
