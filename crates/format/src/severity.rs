//! How bad a checker's finding is, on one scale for every format.

use core::fmt;

/// How bad a finding is. Ordered from harmless to worst.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Severity {
    /// Nothing is wrong.
    Sound,
    /// Sound after the recovery that every activation does.
    SoundAfterRecovery,
    /// Can be repaired without loss.
    Repairable,
    /// Data or metadata is lost or cannot be trusted.
    Damaged,
}

impl Severity {
    /// The exit code of a check whose worst finding this is: 0, 5, 3 or 2.
    #[must_use]
    pub fn exit_code(self) -> u8 {
        match self {
            Severity::Sound => 0,
            Severity::SoundAfterRecovery => 5,
            Severity::Repairable => 3,
            Severity::Damaged => 2,
        }
    }
}

impl fmt::Display for Severity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Severity::Sound => "sound",
            Severity::SoundAfterRecovery => "sound after recovery",
            Severity::Repairable => "repairable",
            Severity::Damaged => "damaged",
        })
    }
}
