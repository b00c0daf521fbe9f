//! The time of a world, and which start it is.

use std::time::Duration;

use cairn_block::Time;

use super::World;

impl World {
    /// The wall clock in seconds since 1970, for records.
    pub fn unix_time_s(&self) -> u64 {
        self.unix_time().as_secs()
    }

    /// A number that tells this start from others, also of the same process.
    pub fn start_number(&self) -> u64 {
        self.start_number
    }

    /// The clock of the reactors, which only rises.
    pub fn now(&self) -> Time {
        self.on_home("", |env| async move { env.now() })
    }

    /// The wall clock since 1970.
    pub fn unix_time(&self) -> Duration {
        self.reactors.post().unix_time()
    }
}
