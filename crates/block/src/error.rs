//! Errors: on the ready path a small copyable [`IoError`], everywhere else an error with its
//! context.
//!
//! An [`IoError`] has the class that a client gets (the kernel's errno of the same meaning), and
//! whether the simulated world injected it, so that an injected error never passes for a real one.
//! [`ConfigError`] is one line for a person: device, field, found, expected.

use std::fmt;

/// The class of a failed request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ErrorKind {
    /// The medium or a lower layer failed (EIO).
    Io,
    /// No space is left (ENOSPC).
    NoSpace,
    /// The request broke the contract: range, alignment, flags (EINVAL).
    Invalid,
    /// The operation is not supported here, or not fast (EOPNOTSUPP).
    Unsupported,
    /// The disk is read-only (EPERM, EROFS).
    ReadOnly,
    /// The device is busy or suspended (EBUSY).
    Busy,
    /// Memory or a slot could not be had (ENOMEM).
    NoMemory,
    /// The operation was cancelled or the server is going away (ESHUTDOWN).
    Shutdown,
    /// Another server has taken the device over, and this one must not use it any more (EIO).
    Fenced,
}

/// The result of a failed request; fits in a register.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, thiserror::Error)]
pub struct IoError {
    /// The class of the failure.
    pub kind: ErrorKind,
    /// True if the simulated world or a test target planted this error.
    pub injected: bool,
}

impl IoError {
    /// An error that happened by itself.
    pub const fn new(kind: ErrorKind) -> IoError {
        IoError { kind, injected: false }
    }

    /// An error that a fault injector planted.
    pub const fn injected(kind: ErrorKind) -> IoError {
        IoError { kind, injected: true }
    }

    /// The medium failed.
    pub const IO: IoError = IoError::new(ErrorKind::Io);
    /// The request broke the contract.
    pub const INVALID: IoError = IoError::new(ErrorKind::Invalid);
    /// Not supported here.
    pub const UNSUPPORTED: IoError = IoError::new(ErrorKind::Unsupported);
    /// The disk is read-only.
    pub const READ_ONLY: IoError = IoError::new(ErrorKind::ReadOnly);
    /// The device was removed.
    pub const SHUTDOWN: IoError = IoError::new(ErrorKind::Shutdown);
    /// Another server has taken the device over. Never retried.
    pub const FENCED: IoError = IoError::new(ErrorKind::Fenced);

    /// The error of a negative `-errno` or positive `errno` of Linux.
    pub fn from_errno(errno: i32) -> IoError {
        const EPERM: i32 = 1;
        const EBADF: i32 = 9;
        const ENOMEM: i32 = 12;
        const EBUSY: i32 = 16;
        const EINVAL: i32 = 22;
        const ENOSPC: i32 = 28;
        const EROFS: i32 = 30;
        const EOPNOTSUPP: i32 = 95;
        const ESHUTDOWN: i32 = 108;
        const EDQUOT: i32 = 122;
        const ECANCELED: i32 = 125;
        IoError::new(match errno.abs() {
            EPERM | EROFS | EBADF => ErrorKind::ReadOnly,
            ENOMEM => ErrorKind::NoMemory,
            EBUSY => ErrorKind::Busy,
            EINVAL => ErrorKind::Invalid,
            ENOSPC | EDQUOT => ErrorKind::NoSpace,
            EOPNOTSUPP => ErrorKind::Unsupported,
            ESHUTDOWN | ECANCELED => ErrorKind::Shutdown,
            _ => ErrorKind::Io,
        })
    }
}

impl fmt::Display for IoError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let text = match self.kind {
            ErrorKind::Io => "input/output error",
            ErrorKind::NoSpace => "no space left on device",
            ErrorKind::Invalid => "invalid request",
            ErrorKind::Unsupported => "operation not supported",
            ErrorKind::ReadOnly => "device is read-only",
            ErrorKind::Busy => "device is busy",
            ErrorKind::NoMemory => "out of memory",
            ErrorKind::Shutdown => "device is going away",
            ErrorKind::Fenced => "device was taken over by another server",
        };
        f.write_str(text)?;
        if self.injected { f.write_str(" (injected)") } else { Ok(()) }
    }
}

/// The result of a request.
pub type IoResult = Result<(), IoError>;

/// The class of a refused configuration; it decides the exit code.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ConfigKind {
    /// An argument is wrong.
    Argument,
    /// What is on the disk is damaged or belongs to something else.
    Damaged,
    /// Another user holds the device, socket or file.
    Busy,
    /// cairn or the system below cannot do this.
    Unsupported,
    /// The system refused (open, read, allocate).
    System,
    /// It was done, but acknowledged writes may be lost.
    Lost,
}

/// A refused table, message or device: one line that names the device, the field, what was
/// found and what was expected.
#[derive(Debug, thiserror::Error)]
pub struct ConfigError {
    /// The class; it decides the exit code.
    pub kind: ConfigKind,
    /// The device or target, as the user named it; empty if none.
    pub device: String,
    /// The field or argument, with what was found and expected.
    pub detail: String,
    /// What the system said, if it was asked.
    #[source]
    pub source: Option<Box<dyn std::error::Error + Send + Sync>>,
}

impl ConfigError {
    /// An error of `kind` about `device`.
    pub fn new(
        kind: ConfigKind,
        device: impl Into<String>,
        detail: impl Into<String>,
    ) -> ConfigError {
        ConfigError { kind, device: device.into(), detail: detail.into(), source: None }
    }

    /// A wrong argument: `field` was `found`, `expected` would be right.
    pub fn argument(
        target: &str,
        field: &str,
        found: impl fmt::Display,
        expected: &str,
    ) -> ConfigError {
        let detail = format!("{field}: found {found}, expected {expected}");
        ConfigError::new(ConfigKind::Argument, target, detail)
    }

    /// Adds what the system or a lower layer said.
    #[must_use]
    pub fn with_source(
        mut self,
        source: impl Into<Box<dyn std::error::Error + Send + Sync>>,
    ) -> ConfigError {
        self.source = Some(source.into());
        self
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if !self.device.is_empty() {
            write!(f, "{}: ", self.device)?;
        }
        f.write_str(&self.detail)?;
        match &self.source {
            Some(source) => write!(f, ": {source}"),
            None => Ok(()),
        }
    }
}
