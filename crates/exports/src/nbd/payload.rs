//! Memory of a connection: the data of one request, and the replies of one send.
//!
//! Promises: data is received into and sent from the same buffers that the disk reads and writes.
//! Only reply headers are copied. They are copied one after another, so that a run of short replies
//! is one piece of memory.

use cairn_block::{Buf, BufPool, Env, Segs};
use smallvec::SmallVec;

/// A payload is cut into pieces of this size, one buffer each; most clients send no more than one.
const PIECE_BYTES: usize = 1 << 20;

/// A payload of more than two such pieces has longer pieces: a list of at most two is not
/// allocated.
const LONG_PIECE_BYTES: usize = 4 << 20;

/// Size of the buffers for reply headers.
const HEAD_BYTES: usize = 4096;

/// The data of one request.
#[derive(Default)]
pub(super) struct Payload {
    /// Buffers, each with the length used.
    pieces: SmallVec<[(Buf, usize); 2]>,
}

impl Payload {
    /// Memory for `bytes` bytes.
    pub(super) fn new(env: &Env, bytes: usize) -> Payload {
        Payload { pieces: piece_lengths(bytes).map(|len| (env.buf(len), len)).collect() }
    }

    /// The memory that a payload of `bytes` bytes takes.
    pub(super) fn footprint(bytes: usize) -> usize {
        piece_lengths(bytes).map(BufPool::footprint).sum()
    }

    /// All of its memory, for a request.
    pub(super) fn segs(&self) -> Segs {
        let mut segs = Segs::default();
        self.pieces.iter().for_each(|(buf, len)| segs.push(buf.clone(), 0, *len));
        segs
    }

    /// Appends `len` bytes from `offset` to `segs`.
    pub(super) fn append_to(&self, segs: &mut Segs, offset: usize, len: usize) {
        let (mut skip, mut left) = (offset, len);
        for (buf, piece) in &self.pieces {
            let skipped = skip.min(*piece);
            let take = (piece - skipped).min(left);
            if take > 0 {
                segs.push(buf.clone(), skipped, take);
            }
            skip -= skipped;
            left -= take;
        }
        assert_eq!(left, 0, "a slice lies inside the payload");
    }
}

/// The lengths of the pieces of a payload of `bytes` bytes.
fn piece_lengths(bytes: usize) -> impl Iterator<Item = usize> {
    let mut left = bytes;
    std::iter::from_fn(move || {
        let long = left > 2 * PIECE_BYTES;
        let len = left.min(if long { LONG_PIECE_BYTES } else { PIECE_BYTES });
        left -= len;
        (len > 0).then_some(len)
    })
}

/// Replies to be sent together.
#[derive(Default)]
pub(super) struct Batch {
    segs: Segs,
    head: Option<Buf>,
    /// `head[..listed]` is in `segs`.
    listed: usize,
    /// `head[..used]` holds headers.
    used: usize,
    /// How many requests these replies answer.
    pub(super) requests: usize,
    /// How much memory those requests hold, in bytes.
    pub(super) held: usize,
    /// One of these replies reports lost writes.
    pub(super) reports_loss: bool,
}

impl Batch {
    /// True if there is nothing to send and nothing to release.
    pub(super) fn is_empty(&self) -> bool {
        self.requests == 0
    }

    /// Appends a reply, or the part of it that precedes its data.
    pub(super) fn push_head(&mut self, env: &Env, bytes: &[u8]) {
        let free = self.head.as_ref().map_or(0, |head| head.capacity() - self.used);
        if free < bytes.len() {
            self.list_heads();
            self.head = Some(env.buf(bytes.len().max(HEAD_BYTES)));
            (self.listed, self.used) = (0, 0);
        }
        let head = self.head.as_ref().expect("made above if there was none");
        head.write(self.used, bytes.len(), |out| out.copy_from_slice(bytes));
        self.used += bytes.len();
    }

    /// Appends `len` bytes of `data` from `offset`, without copying.
    pub(super) fn push_data(&mut self, data: &Payload, offset: usize, len: usize) {
        self.list_heads();
        data.append_to(&mut self.segs, offset, len);
    }

    /// Everything to send.
    pub(super) fn segs(&mut self) -> &mut Segs {
        self.list_heads();
        &mut self.segs
    }

    /// Forgets the replies, which were sent or dropped; keeps the header buffer for the next ones.
    pub(super) fn clear(&mut self) {
        self.segs.clear();
        (self.listed, self.used, self.requests, self.held) = (0, 0, 0, 0);
        self.reports_loss = false;
    }

    fn list_heads(&mut self) {
        if let Some(head) = self.head.as_ref().filter(|_| self.used > self.listed) {
            self.segs.push(head.clone(), self.listed, self.used - self.listed);
            self.listed = self.used;
        }
    }
}
