//! [`Lane`]: one of the connections over which a [`Link`] sends at the same time.
//!
//! The session alone decides the order of requests, and nothing in its argument depends on the
//! connection: overlapping writes wait for each other's answers, and a flush over one connection
//! covers what was answered over all (N11 of the session).
//!
//! - A lane sends while it has fewer unanswered requests than its share of all. So a server with a
//!   thread for each connection works on all of them, and a few requests leave in one send. One
//!   lane always may send if a request is ready: not all of them can have their share.
//! - A lane takes an answer to its own requests alone. One to a request of another lane ends the
//!   connections: it would end the request while the other connection still fills its memory.

use std::cell::RefCell;
use std::collections::BTreeSet;
use std::rc::Rc;

use cairn_block::{Env, Extent, IoResult};
use cairn_nbd::answers::{Asked, Requests};
use cairn_nbd::negotiation::Agreed;

use super::channel::Channel;
use super::connect::Connected;
use super::link::Link;

/// See the module's description.
pub(super) struct Lane<'a> {
    pub link: &'a Link,
    pub channel: Rc<Channel>,
    /// What this connection agreed on.
    pub agreed: Agreed,
    /// How many lanes the link has.
    of: usize,
    /// The cookies of its unanswered requests.
    sent: RefCell<BTreeSet<u64>>,
}

impl<'a> Lane<'a> {
    /// The lanes over these connections.
    pub fn over(link: &'a Link, env: &Env, connections: Vec<Connected>) -> Vec<Lane<'a>> {
        let of = connections.len();
        let lane = |connected: Connected| {
            let (agreed, channel) = (connected.agreed, Rc::new(Channel::new(env, connected)));
            Lane { link, channel, agreed, of, sent: RefCell::default() }
        };
        connections.into_iter().map(lane).collect()
    }

    /// True if the next request is for this lane.
    pub fn is_next(&self) -> bool {
        let session = self.link.session.borrow();
        let all = session.unanswered() + session.next_count();
        session.has_next() && self.sent.borrow().len() < all.div_ceil(self.of)
    }

    /// A request leaves over this lane.
    pub fn note_sent(&self, cookie: u64) {
        self.sent.borrow_mut().insert(cookie);
    }
}

impl Requests for Lane<'_> {
    fn asked(&self, cookie: u64) -> Option<Asked> {
        if !self.sent.borrow().contains(&cookie) {
            return None;
        }
        let session = self.link.session.borrow();
        let wire = session.sent(cookie)?;
        Some(Asked { what: wire.what, range: wire.range, data: wire.data.cloned() })
    }

    fn answered(&self, cookie: u64, result: IoResult, extents: Vec<Extent>) {
        self.sent.borrow_mut().remove(&cookie);
        self.link.answered(cookie, result, extents);
    }
}
