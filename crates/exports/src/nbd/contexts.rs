//! Metadata contexts that an export has in addition to `base:allocation`.
//!
//! The server of a volume knows more about it than its disk reports: which parts of it differ from
//! a snapshot, for example. An answer may have to read metadata, and may cover less than was asked.

use cairn_block::{Env, IoError, LocalFuture, SectorCount, SectorRange};

/// A run of sectors in one state.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContextRun {
    /// Its length.
    pub count: SectorCount,
    /// The state, in the context's own bits.
    pub state: u32,
}

/// The further contexts of one export; they may come and go.
pub trait Contexts: Send + Sync {
    /// Their names now, each `namespace:leaf`.
    fn names(&self) -> Vec<String>;

    /// The states of `range` in the context `name`, in order from its start. The answer covers at
    /// least a part of the range; a caller that needs the rest asks again.
    ///
    /// # Errors
    /// There is no such context any more, or the data that it describes is lost.
    fn describe<'a>(
        &'a self,
        env: &'a Env,
        name: &'a str,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<ContextRun>, IoError>>;
}

/// No further contexts.
pub struct NoContexts;

impl Contexts for NoContexts {
    fn names(&self) -> Vec<String> {
        Vec::new()
    }

    fn describe<'a>(
        &'a self,
        _env: &'a Env,
        _name: &'a str,
        _range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<ContextRun>, IoError>> {
        Box::pin(std::future::ready(Err(IoError::INVALID)))
    }
}
