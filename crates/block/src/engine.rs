//! The verdict loop: takes a request down through mapped devices to a disk that does it, and
//! its completion back up. Deciding is the targets'; acting is here, in one place, without
//! recursion.
//!
//! Life of a request at one mapped device: a frame is pushed, the line's target maps it (and
//! may accept only its head; the rest becomes a child that maps by itself), the verdict sends
//! it on or ends it. On the way up the target's `end_io` sees it if it asked to, the frame
//! waits for its children, and the first error wins.
//!
//! Invariants:
//! E1. A box is owned by this loop, or parked in its slot; never both, never neither.
//! E2. While children of a frame exist, their parent is parked or on its way: children start
//!     from the work queue only, which is drained when no request is out. A request at a closed
//!     gate is parked in its slot like any other.
//! E3. A request that a device admitted leaves it exactly once ([`LocalDevice::leave`]),
//!     after its own part and all children ended; children of admitted requests pass a closed
//!     gate, else a suspend would wait for ever.

use std::cell::OnceCell;
use std::rc::Rc;
use std::sync::Arc;

use crate::check;
use crate::device::{DeviceId, LiveTable, LocalDevice, SHUTDOWN};
use crate::disk::{Disk, Flow};
use crate::env::Env;
use crate::error::{IoError, IoResult};
use crate::request::{Completion, Frame, FrameFlags, MAX_DEPTH, Op, Request, RequestId};
use crate::table::Table;
use crate::target::{EndIo, Verdict};
use crate::units::{SectorCount, SectorRange};

/// What is left to do, in order.
pub(crate) enum Work {
    /// A client's request that was started while the loop ran.
    Start(Arc<dyn Disk>, Box<Request>),
    /// A part of an admitted request.
    Map { device: DeviceId, request: Box<Request> },
    /// A request that waited at a gate, let in by a resume.
    Enter { device: DeviceId, id: RequestId },
    /// One copy of a flush for one line.
    FlushCopy { device: DeviceId, line: u16, request: Box<Request> },
    /// A request that waited at the gate of a device that is being removed.
    Fail(RequestId, IoError),
    /// A parked request has ended.
    Finish(RequestId, IoResult),
    /// A child of a parked request has ended, or was handed back.
    ChildEnded { parent: RequestId, frame: u8, result: IoResult, handed_back: bool },
    /// A parked request is to be mapped again.
    Remap(RequestId),
    /// A parked request goes back to its device.
    HandBack(RequestId),
}

/// Runs `first`, then everything that it and its successors left to do.
pub(crate) fn run(env: &Env, first: impl FnOnce(&Env)) {
    let nested = env.set_running(true);
    debug_assert!(!nested, "the loop does not recurse");
    first(env);
    while let Some(work) = env.pop_work() {
        match work {
            Work::Start(disk, request) => process(env, disk.as_ref(), request),
            Work::Map { device, request } => {
                let held = Held::default();
                let next = enter(env, device, request, true, held.take(env, device, 0));
                descend(env, next, &held, 1);
            }
            Work::Enter { device, id } => {
                let (held, request) = (Held::default(), leave_gate(env, id));
                let next = enter(env, device, request, false, held.take(env, device, 0));
                descend(env, next, &held, 1);
            }
            Work::FlushCopy { device, line, request } => {
                let held = Held::default();
                let passage = held.take(env, device, 0);
                descend(env, enter_line(env, device, passage, line, request), &held, 1);
            }
            Work::Fail(id, error) => finish(env, leave_gate(env, id), Err(error)),
            Work::Finish(id, result) => match unpark(env, id) {
                Some(request) => finish(env, request, result),
                None => check::stale(env, id),
            },
            Work::ChildEnded { parent, frame, result, handed_back } => {
                child_ended(env, parent, usize::from(frame), result, handed_back);
            }
            Work::Remap(id) => remap(env, id),
            Work::HandBack(id) => hand_back(env, id),
        }
    }
    env.set_running(false);
}

/// Takes the request that somebody was to complete, remap or hand back; none if the id is
/// stale or the request waits at a gate, where nobody but its device may touch it.
fn unpark(env: &Env, id: RequestId) -> Option<Box<Request>> {
    let request = env.slots().unpark(id)?;
    if request.at_gate {
        env.slots().park(request);
        return None;
    }
    Some(request)
}

fn leave_gate(env: &Env, id: RequestId) -> Box<Request> {
    let mut request = env.slots().unpark(id).expect("a request at a gate waits in its slot");
    request.at_gate = false;
    request
}

/// A device's local view with the table that was live when the request passed. Kept for the
/// length of a descent, so that lower disks can be borrowed from it.
struct Passage {
    local: Rc<LocalDevice>,
    table: Option<Rc<LiveTable>>,
}

#[derive(Default)]
struct Held([OnceCell<Passage>; MAX_DEPTH + 1]);

impl Held {
    fn take(&self, env: &Env, device: DeviceId, hop: usize) -> &Passage {
        self.0[hop].get_or_init(|| {
            let local = env.local(device);
            let table = local.table();
            Passage { local, table }
        })
    }
}

enum Next<'t> {
    Lower(&'t dyn Disk, Box<Request>),
    Consumed,
}

/// Takes a fresh request down from `disk`.
pub(crate) fn process(env: &Env, disk: &dyn Disk, request: Box<Request>) {
    let held = Held::default();
    descend(env, Next::Lower(disk, request), &held, 0);
}

fn descend<'t>(env: &Env, mut next: Next<'t>, held: &'t Held, mut hop: usize) {
    while let Next::Lower(disk, mut request) = next {
        if let Err(error) = check::request(env, disk, &request) {
            return finish(env, request, Err(error));
        }
        let Some(device) = disk.mapped() else {
            return match disk.submit(env, &mut request) {
                Flow::Done => finish(env, request, Ok(())),
                Flow::Failed(error) => finish(env, request, Err(error)),
                Flow::Queued => env.slots().park(request),
            };
        };
        if usize::from(request.depth) == MAX_DEPTH || hop > MAX_DEPTH {
            env.count_violation();
            return finish(env, request, Err(IoError::INVALID));
        }
        let passage = held.take(env, device.id(), hop);
        hop += 1;
        next = enter(env, device.id(), request, false, passage);
    }
}

/// A request arrives at a device: admit it or park it at the gate, find its line, map.
fn enter<'t>(
    env: &Env,
    device: DeviceId,
    request: Box<Request>,
    admitted: bool,
    passage: &'t Passage,
) -> Next<'t> {
    if passage.local.is_removed() {
        finish(env, request, Err(SHUTDOWN));
        return Next::Consumed;
    }
    let Some(table) = &passage.table else {
        passage.local.park(env, request);
        return Next::Consumed;
    };
    if passage.local.is_closed() && !admitted {
        passage.local.park(env, request);
        return Next::Consumed;
    }
    if request.op == Op::Flush {
        return enter_flush(env, device, passage, table, request);
    }
    let Some(line) = table.line_at(request.range.start) else {
        finish(env, request, Err(IoError::IO));
        return Next::Consumed;
    };
    enter_line(env, device, passage, line, request)
}

fn push_frame(request: &mut Request, local: &LocalDevice, mut frame: Frame) {
    local.admit();
    frame.op = request.op;
    frame.io_flags = request.flags;
    request.frames[usize::from(request.depth)] = frame;
    request.depth += 1;
}

/// Maps a request by one line of a table.
fn enter_line<'t>(
    env: &Env,
    device: DeviceId,
    passage: &'t Passage,
    index: u16,
    mut request: Box<Request>,
) -> Next<'t> {
    let table = passage.table.as_ref().expect("a line was found in it");
    let line = table.line(index);
    let mut range = request.range;
    if request.op != Op::Flush {
        range.start.0 -= line.start.0;
    }
    let frame = Frame {
        device,
        line: index,
        pending: 1,
        device_range: request.range,
        range,
        ..Frame::default()
    };
    push_frame(&mut request, &passage.local, frame);
    map_top(env, table, request)
}

/// Asks the target of the top frame and acts on its verdict.
fn map_top<'t>(env: &Env, table: &'t Table, mut request: Box<Request>) -> Next<'t> {
    let top = usize::from(request.depth) - 1;
    let (index, range) = (request.frames[top].line, request.frames[top].range);
    let line = table.line(index);
    restore(&mut request, top);
    let inside = line.len - SectorCount(range.start.0.min(line.len.0));
    if request.op != Op::Flush && request.range.count > inside {
        request.range.count = inside;
    }
    let verdict = line.target.map(env, &mut request);
    if request.range.count < range.count {
        split_rest(env, &mut request, top, range);
    }
    match verdict {
        Verdict::Remapped { disk, sector } => {
            request.range.start = sector;
            return Next::Lower(disk, request);
        }
        Verdict::Completed => finish(env, request, Ok(())),
        Verdict::Failed(error) => finish(env, request, Err(error)),
        Verdict::Queued => env.slots().park(request),
    }
    Next::Consumed
}

/// The target accepted the head of `whole`: the rest becomes a child.
fn split_rest(env: &Env, request: &mut Request, top: usize, whole: SectorRange) {
    let accepted = request.range.count;
    debug_assert!(accepted > SectorCount::ZERO && request.range.start == whole.start);
    let frame = &mut request.frames[top];
    let line_start = frame.device_range.start.0 - frame.range.start.0;
    frame.range.count = accepted;
    frame.pending += 1;
    let device = frame.device;
    let (op, flags) = (frame.op, frame.io_flags);
    let mut child = child_of(env, request, top);
    (child.op, child.flags) = (op, flags);
    child.range = SectorRange::new(whole.start + accepted, whole.count - accepted);
    child.range.start.0 += line_start;
    if child.op.has_data() {
        let (skip, len) = (accepted.to_bytes() as usize, child.range.to_bytes() as usize);
        child.segs = request.segs.slice(skip, len);
    }
    env.push_work(Work::Map { device, request: child });
}

fn child_of(env: &Env, parent: &Request, top: usize) -> Box<Request> {
    let mut child = env.slots().alloc();
    child.op = parent.op;
    child.flags = parent.flags;
    child.range = parent.range;
    child.flush_copy = 0;
    let frame = u8::try_from(top).expect("depth is at most MAX_DEPTH");
    child.completion = Completion::Child { parent: parent.id, frame };
    child
}

/// A flush reaches every line, as often as its target wants.
fn enter_flush<'t>(
    env: &Env,
    device: DeviceId,
    passage: &'t Passage,
    table: &'t Table,
    mut request: Box<Request>,
) -> Next<'t> {
    if let Some(line) = table.single_flush() {
        request.flush_copy = 0;
        return enter_line(env, device, passage, line, request);
    }
    let frame = Frame {
        device,
        flags: FrameFlags::AGGREGATE,
        pending: 1,
        device_range: request.range,
        range: request.range,
        ..Frame::default()
    };
    push_frame(&mut request, &passage.local, frame);
    let top = usize::from(request.depth) - 1;
    for (line, copy) in table.flushes() {
        request.frames[top].pending += 1;
        let mut child = child_of(env, &request, top);
        child.flush_copy = copy;
        env.push_work(Work::FlushCopy { device, line, request: child });
    }
    finish(env, request, Ok(()));
    Next::Consumed
}

/// Takes a completion up through the frames, as far as it goes.
fn finish(env: &Env, mut request: Box<Request>, mut result: IoResult) {
    let mut handed_back = false;
    while request.depth > 0 {
        let top = usize::from(request.depth) - 1;
        if !request.frames[top].flags.contains(FrameFlags::ENDED) {
            restore(&mut request, top);
            match end_part(env, &mut request, top, result) {
                EndIo::Done(ended) => result = ended,
                EndIo::Held => return env.slots().park(request),
                EndIo::Requeue => {
                    env.push_work(Work::Remap(request.id));
                    return env.slots().park(request);
                }
            }
            let frame = &mut request.frames[top];
            frame.flags |= FrameFlags::ENDED;
            frame.error = frame.error.or(result.err());
            frame.pending -= 1;
        }
        let frame = request.frames[top];
        if frame.pending > 0 {
            return env.slots().park(request);
        }
        result = frame.error.map_or(Ok(()), Err);
        request.range = frame.device_range;
        request.depth -= 1;
        let local = env.local(frame.device);
        if frame.flags.contains(FrameFlags::HANDED_BACK) && result.is_ok() {
            let child = matches!(request.completion, Completion::Child { .. });
            if request.depth == 0 && child {
                handed_back = true;
            } else {
                local.park(env, request);
                return local.leave();
            }
        }
        local.leave();
    }
    end(env, request, result, handed_back);
}

/// Tells the owner of a request that has passed every frame.
fn end(env: &Env, mut request: Box<Request>, result: IoResult, handed_back: bool) {
    let completion = std::mem::replace(&mut request.completion, Completion::None);
    match completion {
        Completion::None => unreachable!("every request has an owner to tell"),
        Completion::Client(client, cookie) => {
            client.complete(env, cookie, &mut request, result);
            request.segs.clear();
            env.slots().free(request);
        }
        Completion::Child { parent, frame } => {
            request.segs.clear();
            env.slots().free(request);
            env.push_work(Work::ChildEnded { parent, frame, result, handed_back });
        }
    }
}

/// Makes the request what the target of a frame saw: a target may have sent a write down for
/// a write-zeroes, or dropped a flag.
fn restore(request: &mut Request, top: usize) {
    let frame = &request.frames[top];
    request.range = frame.range;
    request.op = frame.op;
    request.flags = frame.io_flags;
    if !request.op.has_data() {
        request.segs.clear();
    }
}

/// Lets the target see the end of its part, if it asked to.
fn end_part(env: &Env, request: &mut Request, top: usize, result: IoResult) -> EndIo {
    let frame = &mut request.frames[top];
    if !frame.flags.contains(FrameFlags::WATCHED) {
        return EndIo::Done(result);
    }
    frame.flags.remove(FrameFlags::WATCHED);
    let (device, line) = (frame.device, frame.line);
    let table = env.local(device).table().expect("a table outlives the requests it mapped");
    table.line(line).target.end_io(env, request, result)
}

/// A child of a frame ended: E2 says its parent is parked. A child that was handed back makes
/// its parent go back as a whole: both belong to the same device.
fn child_ended(env: &Env, parent: RequestId, frame: usize, result: IoResult, handed_back: bool) {
    let mut request = env.slots().unpark(parent).expect("E2: the parent of a child is parked");
    let frame = &mut request.frames[frame];
    if handed_back {
        frame.flags |= FrameFlags::HANDED_BACK;
    }
    frame.error = frame.error.or(result.err());
    frame.pending -= 1;
    if frame.pending == 0 {
        debug_assert!(frame.flags.contains(FrameFlags::ENDED));
        finish(env, request, Ok(()));
    } else {
        env.slots().park(request);
    }
}

/// Maps a parked request again, by the target that parked it.
fn remap(env: &Env, id: RequestId) {
    let Some(mut request) = unpark(env, id) else { return check::stale(env, id) };
    let top = usize::from(request.depth) - 1;
    request.frames[top].flags.remove(FrameFlags::WATCHED);
    let held = Held::default();
    let passage = held.take(env, request.frames[top].device, 0);
    let table = passage.table.as_ref().expect("a table outlives the requests it mapped");
    let next = map_top(env, table, request);
    descend(env, next, &held, 1);
}

/// Ends a parked request's part without a result: when the other parts have ended, the whole
/// request waits at the device's gate and is mapped anew by the next table.
fn hand_back(env: &Env, id: RequestId) {
    let Some(mut request) = unpark(env, id) else { return check::stale(env, id) };
    let top = usize::from(request.depth) - 1;
    request.frames[top].flags.remove(FrameFlags::WATCHED);
    request.frames[top].flags |= FrameFlags::HANDED_BACK;
    finish(env, request, Ok(()));
}
