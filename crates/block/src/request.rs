//! The request: one operation on a range, its buffers, and the frames of the layers it has
//! passed.
//!
//! A request is pooled per reactor and never leaves it. It is a `Box` with exactly one owner: the
//! engine while it maps or completes the request, its slot while a target or client must finish it.
//! All others keep its [`RequestId`], which a generation makes safe against reuse.
//!
//! Frames: each mapped device that a request enters pushes one [`Frame`]; completion pops them
//! in reverse order. A frame waits for its own part and for the children that a split made.

use std::rc::Rc;

use crate::buf::Segs;
use crate::env::Env;
use crate::error::{IoError, IoResult};
use crate::ids::{DeviceId, RequestId, StreamId};
use crate::op::{Flags, Op};
use crate::units::{SectorCount, SectorRange, Time};

/// How many mapped devices may be stacked.
pub const MAX_DEPTH: usize = 8;

/// Receives the end of a request it started.
pub trait Client {
    /// Called exactly once per request. `cookie` is what the client gave at submission; the
    /// segments may be taken out of the request. Must not block.
    fn complete(&self, env: &Env, cookie: u64, request: &mut Request, result: IoResult);
}

pub(crate) enum Completion {
    None,
    Client(Rc<dyn Client>, u64),
    Child { parent: RequestId, frame: u8 },
}

/// The record of a mapped device about a request that passed through it. The fields that are the
/// same for most requests are adjacent, so that they are written at once.
#[derive(Clone, Copy, Debug, Default)]
#[repr(C)]
pub(crate) struct Frame {
    /// Parts that have not ended: the frame's own and one per child.
    pub pending: u32,
    pub flags: FrameFlags,
    pub error: Option<IoError>,
    pub device: DeviceId,
    /// Line of the table; meaningless in an aggregate frame.
    pub line: u16,
    /// The operation and flags as the target got them: it may send something else down.
    pub op: Op,
    pub io_flags: Flags,
    /// The whole request on the device, before any split.
    pub device_range: SectorRange,
    /// The range the target saw: relative to its line, shortened by a split.
    pub range: SectorRange,
    /// The target's word, set by [`Request::watch`].
    pub word: u64,
}

impl Frame {
    /// The frame of a device that was given the range `whole`, of which its target sees `seen`.
    #[inline(always)]
    pub fn new(
        device: DeviceId,
        line: u16,
        (whole, seen): (SectorRange, SectorRange),
        (op, io_flags): (Op, Flags),
    ) -> Frame {
        let (flags, error) = (FrameFlags::empty(), None);
        let (device_range, range) = (whole, seen);
        Frame { pending: 1, flags, error, device, line, op, io_flags, device_range, range, word: 0 }
    }

    /// True if only the device's count needs its end: no target asked to see it, and it has one
    /// part, which is the request itself.
    pub fn is_plain(&self) -> bool {
        self.flags.is_empty()
    }
}

bitflags::bitflags! {
    #[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
    pub(crate) struct FrameFlags: u8 {
        /// The target wants `end_io`.
        const WATCHED = 1;
        /// Only counts children (the fan-out of a flush); no target saw it.
        const AGGREGATE = 2;
        /// The frame's own part has ended.
        const ENDED = 4;
        /// A part went back unfinished: the whole waits for the next table.
        const HANDED_BACK = 8;
        /// Has or had children, whose errors it keeps.
        const SPLIT = 16;
        /// The frame's own part went back unfinished.
        const RETURNED = 32;
    }
}

/// One operation on a range of a disk.
pub struct Request {
    /// What to do.
    pub op: Op,
    /// Modifiers.
    pub flags: Flags,
    /// Where, relative to the disk (or, inside `map` and `end_io`, to the target).
    pub range: SectorRange,
    /// The data of a read or write, from the start of the range. May be longer than the
    /// range: what lies beyond belongs to the children of a split.
    pub segs: Segs,
    pub(crate) id: RequestId,
    pub(crate) stream: StreamId,
    pub(crate) started: Time,
    pub(crate) depth: u8,
    /// Waits at the closed gate of a device.
    pub(crate) at_gate: bool,
    pub(crate) flush_copy: u16,
    pub(crate) frames: [Frame; MAX_DEPTH],
    pub(crate) completion: Completion,
}

impl Request {
    pub(crate) fn new(id: RequestId) -> Request {
        Request {
            op: Op::Flush,
            flags: Flags::empty(),
            range: SectorRange::default(),
            segs: Segs::default(),
            id,
            stream: StreamId::default(),
            started: Time::default(),
            depth: 0,
            at_gate: false,
            flush_copy: 0,
            frames: [Frame::default(); MAX_DEPTH],
            completion: Completion::None,
        }
    }

    /// The request's id, for the task that completes it later.
    pub fn id(&self) -> RequestId {
        self.id
    }

    /// The stream that it belongs to.
    pub fn stream(&self) -> StreamId {
        self.stream
    }

    /// When it was started, as of the turn of the reactor's loop: parts of it have the same time.
    pub fn started(&self) -> Time {
        self.started
    }

    /// Which copy of a flush this is, below [`crate::Target::flush_copies`].
    pub fn flush_copy(&self) -> u16 {
        self.flush_copy
    }

    /// True if the write must be durable when it completes.
    pub fn is_fua(&self) -> bool {
        self.flags.contains(Flags::FUA)
    }

    /// Address and length of each piece of the data, as much as the range needs.
    pub fn iovecs(&self) -> impl Iterator<Item = (*mut u8, usize)> {
        let mut left = self.range.to_bytes() as usize;
        self.segs.iovecs().map_while(move |(ptr, len)| {
            let take = len.min(left);
            left -= take;
            (take > 0).then_some((ptr, take))
        })
    }

    /// Operation and flags.
    pub(crate) fn kind(&self) -> (Op, Flags) {
        (self.op, self.flags)
    }

    /// Enters a device. The caller made sure that there is room.
    pub(crate) fn push_frame(&mut self, frame: Frame) {
        self.frames[usize::from(self.depth)] = frame;
        self.depth += 1;
    }

    fn frame(&mut self) -> &mut Frame {
        let depth = usize::from(self.depth);
        assert!(depth > 0, "only a target may ask this, and it always has a frame");
        &mut self.frames[depth - 1]
    }

    /// In `map`: keeps the first `count` sectors; the loop maps the rest again as a child.
    pub fn accept(&mut self, count: SectorCount) {
        assert!(count > SectorCount::ZERO && count <= self.range.count);
        self.range.count = count;
    }

    /// In `map`: asks for `end_io` with `word`.
    pub fn watch(&mut self, word: u64) {
        let frame = self.frame();
        frame.word = word;
        frame.flags |= FrameFlags::WATCHED;
    }

    /// The word of the latest [`Request::watch`] of this target.
    pub fn word(&self) -> u64 {
        self.frames[usize::from(self.depth.max(1) - 1)].word
    }
}

impl std::fmt::Debug for Request {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "{:?} {} {:?} {:?} depth {}",
            self.op, self.range, self.flags, self.id, self.depth
        )
    }
}
