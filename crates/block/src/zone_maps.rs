//! Maps of dirty zones: a durable record outside a target, of where a device lacks data that only
//! its cache has.
//!
//! When the cache is gone, its backing device does not say where it lacks data. So a cache has its
//! server record that before the first data of a zone becomes dirty. A target knows no place for
//! that; the server of the volume may. What a map says is the target's own.

use crate::loss_log::{Receipt, until_kept};

/// Keeps maps by name.
pub trait ZoneMaps: Send + Sync {
    /// The maps that are kept durably, of this server's volumes and of earlier ones, with their
    /// names.
    fn all(&self) -> Vec<(String, Vec<u8>)>;

    /// Sectors of a zone: a power of two.
    fn zone_sectors(&self) -> u64;

    /// Replaces the map of this name, or none. Called on a reactor: must not wait. The receipt is
    /// given from any thread, when the map is durable. Dropped, it says that either map may be
    /// found later. A caller waits for the last receipt of the name first.
    fn keep(&self, name: &str, map: Vec<u8>, receipt: Receipt);

    /// Drops the map of this name. Must not wait, and may fail.
    fn forget(&self, name: &str);
}

/// Replaces the map of this name, and waits. True if it is durable.
pub async fn keep_zones(maps: &dyn ZoneMaps, name: &str, map: Vec<u8>) -> bool {
    until_kept(|receipt| maps.keep(name, map, receipt)).await
}
