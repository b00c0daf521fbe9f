//! The limits of a server: the number of connections, and the memory for their payloads.

use std::ops::RangeInclusive;

use cairn_backends::parse_size;
use cairn_exports::nbd::NbdOptions;

use super::args::ServeArgs;
use super::config::Config;

/// The range of the limit of connections.
pub const CONNECTIONS: RangeInclusive<i64> = 1..=65_535;

/// The least memory for payloads: a volume may hold half of it, and one request takes up to 32 MiB.
pub const MEMORY_BYTES_MIN: u64 = 64 << 20;

/// The range of the memory for payloads, as text.
pub const MEMORY_EXPECTED: &str = "a size of 64M or more, like 1G";

/// The memory for payloads that a text names.
///
/// # Errors
/// It is no size, or a smaller one.
pub fn parse_memory(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).ok().filter(|bytes| *bytes >= MEMORY_BYTES_MIN);
    bytes.ok_or_else(|| format!("expected {MEMORY_EXPECTED}"))
}

/// The memory of a crash log, unless another size is asked for.
pub const CRASH_LOG_BYTES: u64 = 16 << 20;

/// The least memory of a crash log: room for a thousand records in each half.
pub const CRASH_LOG_BYTES_MIN: u64 = 64 << 10;

/// The range of the memory of a crash log, as text.
pub const CRASH_LOG_EXPECTED: &str = "a size of 64K or more, like 16M";

/// The memory of a crash log that a text names.
///
/// # Errors
/// It is no size, or a smaller one.
pub fn parse_crash_log(text: &str) -> Result<u64, String> {
    let bytes = parse_size(text).ok().filter(|bytes| *bytes >= CRASH_LOG_BYTES_MIN);
    bytes.ok_or_else(|| format!("expected {CRASH_LOG_EXPECTED}"))
}

/// The limits of the NBD server: those of the command line, else those of the file.
pub fn nbd_options(args: &ServeArgs, config: &Config) -> NbdOptions {
    let default = NbdOptions::default();
    let connections = args.connections.or(config.connections).map(usize::from);
    let memory = args.memory.or(config.memory_bytes).map(|bytes| bytes as usize);
    NbdOptions {
        connections_max: connections.unwrap_or(default.connections_max),
        memory_bytes: memory.unwrap_or(default.memory_bytes),
        ..default
    }
}
