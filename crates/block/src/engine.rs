//! The verdict loop: takes a request down through mapped devices to a disk, and its completion back
//! up. Targets decide; this loop acts on their verdicts, without recursion.
//!
//! The steps of a request at one mapped device. A frame is pushed and the line's target maps the
//! request. The target may accept only the head; the rest becomes a child, which is mapped
//! separately. The verdict sends the request on or ends it. On the way up the target's `end_io`
//! sees it if it asked to, the frame waits for its children, and the first error wins.
//!
//! Invariants:
//! E1. A request's box is either owned by this loop or parked in its slot.
//! E2. While children of a frame exist, their parent is parked or on its way down: children start
//!     from the work queue only, which is drained when the loop holds no request. A request at a
//!     closed gate is parked in its slot like any other.
//! E3. A request that a device admitted leaves it exactly once ([`LocalDevice::leave`]), after its
//!     own part and all children have ended. Children of admitted requests pass a closed gate;
//!     otherwise a suspend would never end.

use std::sync::Arc;

use crate::check::{self, Bounds};
use crate::device::MappedDevice;
use crate::disk::{Disk, Flow};
use crate::env::Env;
use crate::error::{IoError, IoResult};
use crate::ids::{DeviceId, RequestId};
use crate::local::{LocalDevice, Tables};
use crate::op::Op;
use crate::request::{Completion, Frame, FrameFlags, MAX_DEPTH, Request};
use crate::table::{Line, Straight, Table};
use crate::target::{EndIo, Verdict};
use crate::traffic::Took;
use crate::units::{Sector, SectorCount, SectorRange};

/// Pending work, in order.
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

/// Takes `first` down, if there is one, then does all pending work.
pub(crate) fn run(env: &Env, first: Option<(&dyn Disk, Box<Request>)>) {
    let nested = env.set_running(true);
    debug_assert!(!nested, "the loop does not recurse");
    let tables = &*env.tables();
    if let Some((disk, request)) = first {
        descend(env, tables, disk, request);
    }
    while let Some(work) = env.pop_work() {
        act(env, tables, work);
    }
    env.set_running(false);
}

fn act(env: &Env, tables: &Tables, work: Work) {
    match work {
        Work::Start(disk, request) => descend(env, tables, disk.as_ref(), request),
        Work::Map { device, request } => {
            enter(env, tables, device, true, request);
        }
        Work::Enter { device, id } => {
            let (request, local) = (leave_gate(env, id), env.local(device));
            // It was legal when it was sent, but the table may be another now: smaller, with
            // larger blocks, read-only.
            let legal = request.op == Op::Flush || local.is_closed();
            if legal || local.bounds().take(request.range, request.op) {
                enter(env, tables, device, false, request);
            } else {
                finish(env, tables, request, Err(IoError::IO));
            }
        }
        Work::FlushCopy { device, line, request } => {
            let at = (device, env.local(device));
            let numbered = (line, live(tables, device).line(line));
            let next = enter_line(env, tables, at, numbered, request);
            go_on(env, tables, next);
        }
        Work::Fail(id, error) => finish(env, tables, leave_gate(env, id), Err(error)),
        Work::Finish(id, result) => match unpark(env, id) {
            Some(request) => finish(env, tables, request, result),
            None => check::stale(env, id),
        },
        Work::ChildEnded { parent, frame, result, handed_back } => {
            child_ended(env, tables, parent, usize::from(frame), result, handed_back);
        }
        Work::Remap(id) => remap(env, tables, id),
        Work::HandBack(id) => hand_back(env, tables, id),
    }
}

/// Takes a parked request to complete, remap or hand it back. `None` if the id is stale or the
/// request waits at a gate, where only its device may touch it.
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

/// The table of a device that has admitted a request.
fn live(tables: &Tables, device: DeviceId) -> &Table {
    tables.get(device).expect("a table outlives the requests it mapped")
}

enum Next<'t> {
    Lower(&'t dyn Disk, Box<Request>),
    Consumed,
}

fn go_on<'t>(env: &Env, tables: &'t Tables, next: Next<'t>) {
    if let Next::Lower(disk, request) = next {
        descend(env, tables, disk, request);
    }
}

/// Lets a request into a device that it was sent to before.
fn enter(env: &Env, tables: &Tables, device: DeviceId, admitted: bool, request: Box<Request>) {
    let next = pass(env, tables, (device, env.local(device)), admitted, request);
    go_on(env, tables, next);
}

/// Takes a request down from `disk`, as far as it goes.
fn descend<'t>(env: &Env, tables: &'t Tables, mut disk: &'t dyn Disk, mut request: Box<Request>) {
    let mut device = disk.mapped().map(MappedDevice::id);
    while let Some(id) = device {
        let local = env.local(id);
        let bounds = if local.is_closed() { Bounds::of(disk) } else { local.bounds() };
        if let Err(error) = check::request(env, disk, bounds, &request) {
            return finish(env, tables, request, Err(error));
        }
        if let Some(straight) = slide(env, tables, id, &mut request) {
            (disk, device) = (straight.disk.as_ref(), straight.device);
            continue;
        }
        if usize::from(request.depth) == MAX_DEPTH {
            env.count_violation();
            return finish(env, tables, request, Err(IoError::INVALID));
        }
        match pass(env, tables, (id, local), false, request) {
            Next::Lower(lower, lowered) => (disk, request) = (lower, lowered),
            Next::Consumed => return,
        }
        device = disk.mapped().map(MappedDevice::id);
    }
    submit(env, tables, disk, request);
}

/// Has the first target that decides about a request prefetch for it. The targets beneath are not
/// known before that decision.
pub(crate) fn prefetch(env: &Env, disk: &dyn Disk, mut at: Sector) {
    let tables = &*env.tables();
    let mut device = disk.mapped().map(MappedDevice::id);
    while let Some((_, line)) = device.and_then(|id| tables.get(id)?.line_at(at)) {
        let inside = at - line.start;
        let Some(straight) = &line.straight else {
            return line.target.prefetch(env, Sector(inside.0));
        };
        (at, device) = (straight.start + inside, straight.device);
    }
}

/// Where a range of `disk` lies, beneath all mapped devices, for an operation that ends at once;
/// `None` if a device on the way would have to decide about it or is closed, or if it is not legal.
/// A gate closes on this reactor, so none does before the operation has ended.
pub(crate) fn lowest<'t>(
    env: &Env,
    tables: &'t Tables,
    mut disk: &'t dyn Disk,
    (mut range, op): (SectorRange, Op),
) -> Option<(&'t dyn Disk, SectorRange)> {
    while let Some(device) = disk.mapped().map(MappedDevice::id) {
        let way = env.local(device).way(range, op)?;
        range.start += way.start - Sector(0);
        disk = live(tables, device).straight()?.disk.as_ref();
    }
    Bounds::of(disk).take(range, op).then_some((disk, range))
}

/// The ready path: takes a request past every open device whose only line has nothing to decide
/// about it. Returns where it went from the last one; `None` if there is no such device. All other
/// cases, breaches of the contract included, are left to the caller.
#[inline(always)]
fn slide<'t>(
    env: &Env,
    tables: &'t Tables,
    mut device: DeviceId,
    request: &mut Request,
) -> Option<&'t Straight> {
    let (op, io_flags, mut range) = (request.op, request.flags, request.range);
    if op == Op::Flush {
        return None;
    }
    let mut reached = None;
    let mut depth = request.depth;
    for frame in &mut request.frames[usize::from(depth)..] {
        let local = env.local(device);
        let Some(way) = local.way(range, op) else { break };
        local.admit();
        *frame = Frame::new(device, 0, (range, range), (op, io_flags));
        depth += 1;
        range.start += way.start - Sector(0);
        reached = Some(device);
        match way.next {
            Some(next) => device = next,
            None => break,
        }
    }
    (request.depth, request.range) = (depth, range);
    reached.map(|device| live(tables, device).straight().expect("a way is a straight line"))
}

/// Submits a request to a disk that is no mapped device.
fn submit(env: &Env, tables: &Tables, disk: &dyn Disk, mut request: Box<Request>) {
    if let Err(error) = check::request(env, disk, Bounds::of(disk), &request) {
        return finish(env, tables, request, Err(error));
    }
    match disk.submit(env, &mut request) {
        Flow::Done => finish(env, tables, request, Ok(())),
        Flow::Failed(error) => finish(env, tables, request, Err(error)),
        Flow::Queued => env.slots().park(request),
    }
}

/// Lets a request into a device, or parks it at the gate. Part of an admitted request passes a
/// closed gate (E3).
#[inline(always)]
fn pass<'t>(
    env: &Env,
    tables: &'t Tables,
    (device, local): (DeviceId, &LocalDevice),
    admitted: bool,
    request: Box<Request>,
) -> Next<'t> {
    if local.is_closed() {
        if local.is_removed() || (!admitted && local.is_given_up()) {
            finish(env, tables, request, Err(IoError::SHUTDOWN));
            return Next::Consumed;
        }
        if !admitted {
            local.park(env, request);
            return Next::Consumed;
        }
    }
    let Some(table) = tables.get(device) else {
        local.park(env, request);
        return Next::Consumed;
    };
    if request.op == Op::Flush {
        return enter_flush(env, tables, (device, local), table, request);
    }
    let Some(line) = table.line_at(request.range.start) else {
        finish(env, tables, request, Err(IoError::IO));
        return Next::Consumed;
    };
    // Where all lines are, the bounds of the device say it.
    if line.1.read_only && request.op.is_write() {
        finish(env, tables, request, Err(IoError::READ_ONLY));
        return Next::Consumed;
    }
    enter_line(env, tables, (device, local), line, request)
}

/// Maps a request by one line of a table.
#[inline(always)]
fn enter_line<'t>(
    env: &Env,
    tables: &'t Tables,
    (device, local): (DeviceId, &LocalDevice),
    (index, line): (u16, &'t Line),
    mut request: Box<Request>,
) -> Next<'t> {
    local.admit();
    let whole = request.range;
    if request.op != Op::Flush {
        request.range.start.0 -= line.start.0;
    }
    request.push_frame(Frame::new(device, index, (whole, request.range), request.kind()));
    map_top(env, tables, line, request)
}

/// Asks the target of the top frame, whose part the request looks like, and acts on its verdict.
#[inline(always)]
fn map_top<'t>(
    env: &Env,
    tables: &'t Tables,
    line: &'t Line,
    mut request: Box<Request>,
) -> Next<'t> {
    let range = request.range;
    let inside = line.len - SectorCount(range.start.0.min(line.len.0));
    if request.op != Op::Flush && range.count > inside {
        request.range.count = inside;
    }
    let verdict = line.target.map(env, &mut request);
    if request.range.count < range.count {
        split_rest(env, &mut request, range);
    }
    match verdict {
        Verdict::Remapped { disk, sector } => {
            request.range.start = sector;
            return Next::Lower(disk, request);
        }
        Verdict::Completed => finish(env, tables, request, Ok(())),
        Verdict::Failed(error) => finish(env, tables, request, Err(error)),
        Verdict::Queued => env.slots().park(request),
    }
    Next::Consumed
}

/// The target accepted the head of `whole`: the rest becomes a child.
#[cold]
fn split_rest(env: &Env, request: &mut Request, whole: SectorRange) {
    let top = usize::from(request.depth) - 1;
    let accepted = request.range.count;
    debug_assert!(accepted > SectorCount::ZERO && request.range.start == whole.start);
    let frame = &mut request.frames[top];
    let line_start = frame.device_range.start.0 - frame.range.start.0;
    frame.range.count = accepted;
    frame.pending += 1;
    frame.flags |= FrameFlags::SPLIT;
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
    (child.stream, child.started) = (parent.stream, parent.started);
    child.flush_copy = 0;
    let frame = u8::try_from(top).expect("depth is at most MAX_DEPTH");
    child.completion = Completion::Child { parent: parent.id, frame };
    child
}

/// A flush reaches every line, as often as its target wants.
#[inline(never)]
fn enter_flush<'t>(
    env: &Env,
    tables: &'t Tables,
    (device, local): (DeviceId, &LocalDevice),
    table: &'t Table,
    mut request: Box<Request>,
) -> Next<'t> {
    if let Some(line) = table.single_flush() {
        request.flush_copy = 0;
        let numbered = (line, table.line(line));
        return enter_line(env, tables, (device, local), numbered, request);
    }
    local.admit();
    let mut frame = Frame::new(device, 0, (request.range, request.range), request.kind());
    frame.flags = FrameFlags::AGGREGATE;
    request.push_frame(frame);
    let top = usize::from(request.depth) - 1;
    for (line, copy) in table.flushes() {
        request.frames[top].pending += 1;
        let mut child = child_of(env, &request, top);
        child.flush_copy = copy;
        env.push_work(Work::FlushCopy { device, line, request: child });
    }
    finish(env, tables, request, Ok(()));
    Next::Consumed
}

/// Takes a completion up through the frames, as far as it goes.
fn finish(env: &Env, tables: &Tables, mut request: Box<Request>, mut result: IoResult) {
    let mut handed_back = false;
    while request.depth > 0 {
        pass_by(env, &mut request, result.is_err());
        if request.depth == 0 {
            break;
        }
        let top = usize::from(request.depth) - 1;
        match leave_frame(env, tables, request, top, result) {
            Left::Waits => return,
            Left::Passed(passed, ended) => (request, result) = (passed, ended),
            Left::HandedBack(passed) => {
                (request, result, handed_back) = (passed, Ok(()), true);
            }
        }
    }
    end(env, request, result, handed_back);
}

/// Leaves the frames that no target watches and that have no other part.
#[inline(always)]
fn pass_by(env: &Env, request: &mut Request, failed: bool) {
    let before = usize::from(request.depth);
    let count = Count::of(env, request);
    let mut depth = before;
    for frame in request.frames[..before].iter().rev() {
        if !frame.is_plain() {
            break;
        }
        let local = env.local(frame.device);
        depth -= 1;
        count.at(local, depth, frame, failed);
        if local.lines().are_several() {
            count_part(env, request, depth, failed);
        }
        local.leave();
    }
    if depth < before {
        request.depth = depth as u8;
        restore_whole(request, depth);
    }
}

/// The state of a request after one frame on its way up.
enum Left {
    /// It is parked.
    Waits,
    /// It goes on with this result.
    Passed(Box<Request>, IoResult),
    /// It goes on to the parent of which it is a child, unfinished.
    HandedBack(Box<Request>),
}

/// Ends the part of a frame that a target watches, or that has children.
fn leave_frame(
    env: &Env,
    tables: &Tables,
    mut request: Box<Request>,
    top: usize,
    mut result: IoResult,
) -> Left {
    if !request.frames[top].flags.contains(FrameFlags::ENDED) {
        restore(&mut request, top);
        match end_part(env, tables, &mut request, top, result) {
            EndIo::Done(ended) => result = ended,
            EndIo::Held => return wait(env, request),
            EndIo::Requeue => {
                env.push_work(Work::Remap(request.id));
                return wait(env, request);
            }
        }
        // This is the result of its own part, without its children's.
        if request.frames[top].flags.contains(FrameFlags::SPLIT) {
            count_part(env, &request, top, result.is_err());
        }
        let frame = &mut request.frames[top];
        frame.flags |= FrameFlags::ENDED;
        frame.error = frame.error.or(result.err());
        frame.pending -= 1;
    }
    let frame = &request.frames[top];
    if frame.pending > 0 {
        return wait(env, request);
    }
    let (device, flags) = (frame.device, frame.flags);
    result = frame.error.map_or(Ok(()), Err);
    restore_whole(&mut request, top);
    request.depth -= 1;
    let (local, count) = (env.local(device), Count::of(env, &request));
    if flags.contains(FrameFlags::HANDED_BACK) && result.is_ok() {
        if local.is_given_up() {
            count.at(local, top, &request.frames[top], true);
            local.leave();
            return Left::Passed(request, Err(IoError::SHUTDOWN));
        }
        let child = matches!(request.completion, Completion::Child { .. });
        if request.depth > 0 || !child {
            local.park_again(env, device, request);
            local.leave();
            return Left::Waits;
        }
        local.leave();
        return Left::HandedBack(request);
    }
    count.at(local, top, &request.frames[top], result.is_err());
    if local.lines().are_several() && !flags.contains(FrameFlags::SPLIT) {
        count_part(env, &request, top, result.is_err());
    }
    local.leave();
    Left::Passed(request, result)
}

/// How the devices count a request that goes up.
#[derive(Clone, Copy)]
struct Count {
    took: Took,
    /// The first frame at whose end a device counts: the lowest of a child belongs to a device that
    /// counts the parent.
    from: usize,
}

impl Count {
    #[inline(always)]
    fn of(env: &Env, request: &Request) -> Count {
        let from = usize::from(matches!(request.completion, Completion::Child { .. }));
        Count { took: Took::between(request.started, env.now()), from }
    }

    /// Counts at the end of a frame, whose number this is.
    #[inline(always)]
    fn at(self, local: &LocalDevice, number: usize, frame: &Frame, failed: bool) {
        if number >= self.from {
            local.traffic().count(frame.op, frame.device_range.count, self.took, failed);
        }
    }
}

/// Counts the own part of a frame at its line. A child's first frame is at a line, too.
#[inline(never)]
fn count_part(env: &Env, request: &Request, top: usize, failed: bool) {
    let frame = &request.frames[top];
    if frame.flags.intersects(FrameFlags::AGGREGATE | FrameFlags::RETURNED) {
        return;
    }
    let took = Count::of(env, request).took;
    let (op, sectors) = (frame.op, frame.range.count);
    let lines = env.local(frame.device).lines();
    lines.count(frame.line, |line| line.count(op, sectors, took, failed));
}

fn wait(env: &Env, request: Box<Request>) -> Left {
    env.slots().park(request);
    Left::Waits
}

/// Completes a request that has passed every frame: calls its owner.
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

/// Makes the request what the device of a frame was given.
fn restore_whole(request: &mut Request, top: usize) {
    restore(request, top);
    request.range = request.frames[top].device_range;
}

/// Lets the target see the end of its part, if it asked to.
fn end_part(
    env: &Env,
    tables: &Tables,
    request: &mut Request,
    top: usize,
    result: IoResult,
) -> EndIo {
    let frame = &mut request.frames[top];
    if !frame.flags.contains(FrameFlags::WATCHED) {
        return EndIo::Done(result);
    }
    frame.flags.remove(FrameFlags::WATCHED);
    let (device, line) = (frame.device, frame.line);
    live(tables, device).line(line).target.end_io(env, request, result)
}

/// A child of a frame ended: E2 says its parent is parked. A child that was handed back makes
/// its parent go back as a whole: both belong to the same device.
fn child_ended(
    env: &Env,
    tables: &Tables,
    parent: RequestId,
    frame: usize,
    result: IoResult,
    handed_back: bool,
) {
    let mut request = env.slots().unpark(parent).expect("E2: the parent of a child is parked");
    let frame = &mut request.frames[frame];
    if handed_back {
        frame.flags |= FrameFlags::HANDED_BACK;
    }
    frame.error = frame.error.or(result.err());
    frame.pending -= 1;
    if frame.pending == 0 {
        debug_assert!(frame.flags.contains(FrameFlags::ENDED));
        finish(env, tables, request, Ok(()));
    } else {
        env.slots().park(request);
    }
}

/// Maps a parked request again, by the target that parked it.
fn remap(env: &Env, tables: &Tables, id: RequestId) {
    let Some(mut request) = unpark(env, id) else { return check::stale(env, id) };
    let top = usize::from(request.depth) - 1;
    restore(&mut request, top);
    let frame = &mut request.frames[top];
    frame.flags.remove(FrameFlags::WATCHED);
    let line = live(tables, frame.device).line(frame.line);
    let next = map_top(env, tables, line, request);
    go_on(env, tables, next);
}

/// Ends a parked request's part without a result. When the other parts have ended, the whole
/// request waits at the device's gate and is mapped again by the next table.
fn hand_back(env: &Env, tables: &Tables, id: RequestId) {
    let Some(mut request) = unpark(env, id) else { return check::stale(env, id) };
    let top = usize::from(request.depth) - 1;
    request.frames[top].flags.remove(FrameFlags::WATCHED);
    request.frames[top].flags |= FrameFlags::HANDED_BACK | FrameFlags::RETURNED;
    finish(env, tables, request, Ok(()));
}
