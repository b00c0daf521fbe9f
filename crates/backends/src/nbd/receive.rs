//! What a [`Link`] receives: the [`Answers`] of a server to the requests of its session.

use cairn_block::{Extent, IoResult, Segs};
use cairn_nbd::answers::{Answers, Asked, Lost, Requests, STAGE_BYTES, Source};

use super::channel::Channel;
use super::link::Link;

impl Link {
    /// Receives answers until the connection ends; says why it did.
    pub(super) async fn receive(&self, channel: &Channel) -> Lost {
        let (buf, agreed) = (self.env.buf(STAGE_BYTES), self.agreed.get());
        let mut answers = Answers::new(self, channel, agreed, buf);
        let why = loop {
            if let Err(why) = answers.next().await {
                break why;
            }
        };
        self.hang_up(channel);
        why
    }
}

impl Source for Channel {
    async fn receive(&self, room: Segs) -> Result<usize, Lost> {
        self.receive(room).await
    }
}

impl Requests for Link {
    fn asked(&self, cookie: u64) -> Option<Asked> {
        let session = self.session.borrow();
        let wire = session.sent(cookie)?;
        Some(Asked { what: wire.what, range: wire.range, data: wire.data.cloned() })
    }

    fn answered(&self, cookie: u64, result: IoResult, extents: Vec<Extent>) {
        self.extents.replace(extents);
        self.change(|session, tell| session.answered(cookie, result, tell));
        // A request may have waited for this answer, or the end of the link.
        if self.session.borrow().has_next() || self.remote.is_closing() {
            self.remote.changed.notify(usize::MAX);
        }
    }
}
