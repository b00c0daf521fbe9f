//! `/metrics`: what monitoring reads.

use std::sync::Arc;

use cairn_control::exports::Exports;
use cairn_control::http::{Found, Page, Pages};
use cairn_control::metrics::{Format, gather, write};
use cairn_control::world::World;
use cairn_outcome::failure::Outcome;

/// The pages.
pub struct Metrics {
    pub world: Arc<World>,
    pub exports: Arc<Exports>,
}

impl Pages for Metrics {
    fn find(&self, path: &str, accept: &str) -> Outcome<Option<Found>> {
        if path != "/metrics" {
            return Ok(None);
        }
        let format = match accept.contains("application/openmetrics-text") {
            true => Format::OpenMetrics,
            false => Format::Prometheus,
        };
        let body = write(gather(&self.world, &self.exports), format).into();
        Ok(Some(Found::Page(Page { media_type: format.media_type(), body })))
    }
}
