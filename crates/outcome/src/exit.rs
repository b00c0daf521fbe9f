//! Exit codes: the result of the program for a script.
//!
//! Owns the one table of codes; `--help` and `docs/cli.md` repeat it and a test holds them to it.
//! Every refusal is a [`ConfigError`], and its kind alone decides the code. A check or probe of
//! several devices ends with the worst of their codes ([`worst`]).

use cairn_block::{ConfigError, ConfigKind};

/// All went well, or the answer is yes.
pub const OK: u8 = 0;
/// It could not be done.
pub const FAILURE: u8 = 1;
/// Damaged, or the answer is no.
pub const DAMAGED: u8 = 2;
/// Can be repaired; nothing is lost.
pub const REPAIRABLE: u8 = 3;
/// Another process or volume holds the device, file or socket.
pub const BUSY: u8 = 4;
/// Sound after the recovery that every activation does; dirty.
pub const RECOVERS: u8 = 5;
/// cairn, or the system below, cannot do this.
pub const UNSUPPORTED: u8 = 63;
/// The time given by `--timeout` passed with work left.
pub const TIMEOUT: u8 = 124;

/// Every code with its meaning, for `--help` and the manual.
pub const TABLE: [(u8, &str); 8] = [
    (OK, "ok"),
    (FAILURE, "failure: a wrong argument, or the system refused"),
    (DAMAGED, "damaged, or the answer is no"),
    (REPAIRABLE, "repairable, nothing is lost"),
    (BUSY, "busy: another process or volume holds the device, file or socket"),
    (RECOVERS, "sound after the recovery that every activation does (check); dirty (probe)"),
    (UNSUPPORTED, "unsupported"),
    (TIMEOUT, "the time given by --timeout passed with work left"),
];

/// The table as text for `--help`.
pub fn help() -> String {
    let lines = TABLE.iter().map(|(code, meaning)| format!("  {code:>3}  {meaning}\n"));
    format!("Exit codes:\n{}", lines.collect::<String>())
}

/// The code of a refusal.
pub fn of_error(error: &ConfigError) -> u8 {
    match error.kind {
        ConfigKind::Argument | ConfigKind::System | ConfigKind::Lost => FAILURE,
        ConfigKind::Damaged => DAMAGED,
        ConfigKind::Busy => BUSY,
        ConfigKind::Unsupported => UNSUPPORTED,
    }
}

/// The worse of two codes: a refusal first (busy, unsupported, failure), then 2, 3, 5, 0.
pub fn worst(a: u8, b: u8) -> u8 {
    let rank = |code: u8| match code {
        OK => 0,
        RECOVERS => 1,
        REPAIRABLE => 2,
        DAMAGED => 3,
        UNSUPPORTED => 4,
        BUSY => 5,
        _ => 6,
    };
    if rank(a) >= rank(b) { a } else { b }
}

#[cfg(test)]
mod tests {
    use super::{DAMAGED, OK, RECOVERS, REPAIRABLE, TABLE, worst};

    #[test]
    fn the_manual_lists_exactly_these_codes() {
        let manual = include_str!("../../../docs/cli.md");
        for (code, meaning) in TABLE {
            let row = format!("| {code} | {meaning} |");
            assert!(manual.contains(&row), "docs/cli.md lacks the row: {row}");
        }
        let begin = manual.find("## Exit codes").expect("the section exists");
        let rows = manual[begin..].lines().skip(1).take_while(|line| !line.starts_with("## "));
        let rows = rows.filter(|line| line.starts_with("| ") && !line.starts_with("| code"));
        assert_eq!(rows.count(), TABLE.len());
    }

    #[test]
    fn of_several_the_highest_of_2_3_5_0_counts() {
        assert_eq!(worst(OK, RECOVERS), RECOVERS);
        assert_eq!(worst(REPAIRABLE, RECOVERS), REPAIRABLE);
        assert_eq!(worst(REPAIRABLE, DAMAGED), DAMAGED);
    }
}
