//! What a [`Lane`] receives: the [`Answers`] of a server to the requests that it has sent.

use cairn_block::Segs;
use cairn_nbd::answers::{Answers, Lost, STAGE_BYTES, Source};

use super::channel::Channel;
use super::lane::Lane;
use super::link::End;

impl Lane<'_> {
    /// Receives answers until the connection ends.
    pub(super) async fn receive(&self) {
        let buf = self.link.env.buf(STAGE_BYTES);
        let mut answers = Answers::new(self, &*self.channel, self.agreed, buf);
        let why = loop {
            if let Err(why) = answers.next().await {
                break why;
            }
        };
        self.link.hang_up(End { why, by_server: self.channel.is_closed() });
    }
}

impl Source for Channel {
    async fn receive(&self, room: Segs) -> Result<usize, Lost> {
        self.receive(room).await
    }
}
