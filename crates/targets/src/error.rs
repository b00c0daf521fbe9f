//! `error`: every request fails.
//!
//! Promises: reads, writes, discards and write-zeroes end with an I/O error that is marked as
//! injected. A flush succeeds, as in the kernel: nothing was ever written that it could cover,
//! so the target asks for no copy of it.

use std::future::ready;
use std::sync::Arc;

use cairn_block::{
    ConfigError, Ctor, Disk, Env, ErrorKind, IoError, LocalFuture, Request, Target, TargetType,
    Verdict,
};

use crate::args::{Args, Spec};

/// The words of `error`.
pub const SPEC: Spec = Spec::NONE;

/// The kind of target.
pub struct ErrorType;

impl TargetType for ErrorType {
    fn name(&self) -> &'static str {
        "error"
    }

    fn version(&self) -> [u32; 3] {
        [1, 5, 0]
    }

    fn construct<'a>(
        &'a self,
        _env: &'a Env,
        ctor: Ctor<'a>,
    ) -> LocalFuture<'a, Result<Arc<dyn Target>, ConfigError>> {
        let parsed = Args::new("error", &ctor).finish();
        Box::pin(ready(parsed.map(|()| Arc::new(Error) as _)))
    }
}

struct Error;

impl Target for Error {
    fn map<'a>(&'a self, _env: &Env, _request: &mut Request) -> Verdict<'a> {
        Verdict::Failed(IoError::injected(ErrorKind::Io))
    }

    fn flush_copies(&self) -> u16 {
        0
    }

    fn lowers(&self) -> Vec<Arc<dyn Disk>> {
        Vec::new()
    }

    fn table(&self) -> String {
        String::new()
    }
}
