//! The page of a server for people: three files that the program has in itself, and a stream of
//! what they show. It only reads.

use std::sync::Arc;
use std::time::Duration;

use cairn_control::exports::Exports;
use cairn_control::http::{EventStream, Found, Page, Pages};
use cairn_control::watch::events::{EventsSince, VolumeEvent, marks};
use cairn_control::watch::figures::{Figures, figures};
use cairn_control::watch::rates::{Rates, rates};
use cairn_control::world::World;
use cairn_outcome::failure::{Outcome, system};
use serde::Serialize;

use super::metrics::Metrics;

/// How often the page gets new figures.
const INTERVAL: Duration = Duration::from_secs(1);

/// The pages.
pub struct Dashboard {
    pub metrics: Metrics,
}

/// What the page gets each time.
#[derive(Serialize)]
struct Update<'a> {
    figures: &'a Figures,
    rates: Vec<Rates>,
    events: Vec<VolumeEvent>,
}

impl Pages for Dashboard {
    fn find(&self, path: &str, accept: &str) -> Outcome<Option<Found>> {
        let page = |media_type, body: &'static str| {
            Ok(Some(Found::Page(Page { media_type, body: body.into() })))
        };
        match path {
            "/" => page("text/html; charset=utf-8", include_str!("dashboard/index.html")),
            "/dashboard.css" => {
                page("text/css; charset=utf-8", include_str!("dashboard/dashboard.css"))
            }
            "/dashboard.js" => {
                page("text/javascript; charset=utf-8", include_str!("dashboard/dashboard.js"))
            }
            "/stream" => {
                let Metrics { world, exports } = &self.metrics;
                Ok(Some(Found::Events(stream(world.clone(), exports.clone()))))
            }
            _ => self.metrics.find(path, accept),
        }
    }
}

/// What a page shows, from now on.
fn stream(world: Arc<World>, exports: Arc<Exports>) -> EventStream {
    let (mut before, mut seen) = (Figures::default(), marks(&world));
    let next = move || {
        let now = figures(&world, &exports);
        let EventsSince { events, marks, .. } = EventsSince::look(&world, &seen);
        let update = Update { rates: rates(&before, &now), figures: &now, events };
        let data = serde_json::to_string(&update);
        (before, seen) = (now, marks);
        data.map_err(|error| system("dashboard", "stream", error.into()))
    };
    EventStream { next: Box::new(next), interval: INTERVAL }
}
