//! [`Lane`]: one of the connections over which a [`Link`] sends at the same time.
//!
//! What is sent when is the session's matter, and does not depend on the connection: overlapping
//! writes wait for each other's answers, a flush covers what was answered when it was submitted,
//! and a server that offers several connections (`CAN_MULTI_CONN`) flushes for all of them.
//!
//! - A lane sends while it has fewer requests without an answer than its share of all. So a server
//!   that works on each connection in turn is busy on all of them, and a few requests leave in one
//!   send.
//! - The cookie on the wire names the lane, too: an answer over another connection than its
//!   request's is one that nothing has. It would end the request while its own connection may still
//!   fill its memory.

use std::cell::Cell;

use cairn_block::{Env, Extent, IoResult};
use cairn_nbd::answers::{Asked, Requests};

use super::channel::Channel;
use super::connect::Connected;
use super::link::Link;

/// See the module's description.
pub(super) struct Lane<'a> {
    pub link: &'a Link,
    pub channel: Channel,
    place: Place,
    /// Requests without an answer.
    waiting: Cell<usize>,
}

/// The place of a lane among those of its link, and how many there are.
#[derive(Clone, Copy)]
struct Place {
    at: u64,
    of: u64,
}

impl Place {
    /// The cookie on the wire of a request that leaves over this lane.
    fn cookie_on_wire(self, cookie: u64) -> u64 {
        cookie * self.of + self.at
    }

    /// The session's cookie; none of a request that left over another lane.
    fn cookie_of(self, on_wire: u64) -> Option<u64> {
        (on_wire % self.of == self.at).then_some(on_wire / self.of)
    }
}

impl<'a> Lane<'a> {
    /// The lanes over these connections.
    pub fn over(link: &'a Link, env: &Env, connections: Vec<Connected>) -> Vec<Lane<'a>> {
        let of = connections.len() as u64;
        let lane = |(at, connected)| {
            let channel = Channel::new(env, connected);
            Lane { link, channel, place: Place { at, of }, waiting: Cell::new(0) }
        };
        (0..).zip(connections).map(lane).collect()
    }

    /// True if the next request is for this lane.
    pub fn is_next(&self) -> bool {
        let session = self.link.session.borrow();
        let all = session.unanswered() + session.next_count();
        session.has_next() && self.waiting.get() < all.div_ceil(self.place.of as usize)
    }

    /// A request leaves over this lane; answers its cookie on the wire.
    pub fn note_sent(&self, cookie: u64) -> u64 {
        self.waiting.set(self.waiting.get() + 1);
        self.place.cookie_on_wire(cookie)
    }
}

impl Requests for Lane<'_> {
    fn asked(&self, cookie: u64) -> Option<Asked> {
        let session = self.link.session.borrow();
        let wire = session.sent(self.place.cookie_of(cookie)?)?;
        Some(Asked { what: wire.what, range: wire.range, data: wire.data.cloned() })
    }

    fn answered(&self, cookie: u64, result: IoResult, extents: Vec<Extent>) {
        let Some(cookie) = self.place.cookie_of(cookie) else { return };
        self.waiting.set(self.waiting.get() - 1);
        self.link.answered(cookie, result, extents);
    }
}

#[cfg(test)]
mod tests {
    use super::Place;

    #[test]
    fn a_cookie_on_the_wire_is_of_one_lane_alone() {
        for of in 1..=16 {
            let lanes = || (0..of).map(|at| Place { at, of });
            for cookie in [1, 2, 16, 17, 1 << 40] {
                for lane in lanes() {
                    let on_wire = lane.cookie_on_wire(cookie);
                    let others = lanes().filter(|other| other.at != lane.at);
                    assert_eq!(lane.cookie_of(on_wire), Some(cookie));
                    assert!(others.into_iter().all(|other| other.cookie_of(on_wire).is_none()));
                }
            }
        }
    }
}
