//! [`Operation`]: a request on its way through librbd, and back to its reactor.
//!
//! librbd reads and writes the memory of the request. O1: this memory lives until librbd has
//! answered, also if the request, the disk or the reactor ends before: the operation has a handle
//! of its own on it. Handles belong to a thread, so only the reactor that made one drops it; if
//! that reactor is gone, the memory is never freed.
//!
//! An answer comes on a thread of librbd, which appends the operation to a list of its reactor. The
//! first of a list posts one message, so answers that come together wake the reactor once.
//! librbd allocates a completion for each operation; the operation itself is one allocation more.

use std::ffi::{c_int, c_void};
use std::mem::ManuallyDrop;
use std::sync::Arc;

use cairn_block::sync::Mutex;
use cairn_block::{Env, IoError, Mail, Op, Post, ReactorId, RequestId, SectorRange, Segs, Time};

use super::library::{Library, Piece, Pointer};
use super::{Shared, clock};
use crate::answer::Answer;

/// Operations that a reactor keeps for later requests.
const SPARE_MAX: usize = 256;
/// The most pieces of one transfer (IOV_MAX).
pub(super) const PIECES_MAX: usize = 1024;
/// What zeros are written from.
static ZEROS: [u8; 512] = [0; 512];

/// The memory of a request (O1).
#[derive(Default)]
struct Keep(ManuallyDrop<Segs>);

// SAFETY: another thread only carries it. `release` is called on the thread that made it, and no
// other method or drop touches the handles inside.
unsafe impl Send for Keep {}

impl Keep {
    /// Lets the memory go. Called on the thread that made the handle.
    fn release(&mut self) {
        // The list is replaced by an empty one, which has nothing to drop.
        drop(ManuallyDrop::into_inner(std::mem::take(&mut self.0)));
    }
}

/// The receiver of an operation's result.
#[derive(Clone)]
pub(super) enum Owner {
    /// A queued request of this reactor.
    Request(RequestId),
    /// A task that waits.
    Task(Arc<Answer<()>>),
}

/// See the module's description.
struct Operation {
    shared: Arc<Shared>,
    reactor: ReactorId,
    owner: Owner,
    op: Op,
    range: SectorRange,
    /// On [`clock`].
    started: Time,
    /// On the reactor's clock.
    at: Time,
    keep: Keep,
    pieces: Vec<Piece>,
    result: isize,
}

/// The lists of one reactor.
#[derive(Default)]
struct Lists {
    answered: Mutex<Vec<Operation>>,
    /// Arrays of pieces.
    spare: Mutex<Vec<Vec<Piece>>>,
}

/// The lists of all reactors.
pub(super) struct Queues {
    post: Arc<dyn Post>,
    lists: Box<[Lists]>,
}

impl Queues {
    pub fn new(post: &Arc<dyn Post>) -> Queues {
        let lists = (0..post.reactors()).map(|_| Lists::default()).collect();
        Queues { post: post.clone(), lists }
    }

    fn of(&self, reactor: ReactorId) -> &Lists {
        &self.lists[usize::from(reactor.0)]
    }

    /// Called on any thread.
    fn add(&self, operation: Operation) {
        let (reactor, shared) = (operation.reactor, operation.shared.clone());
        let is_first = {
            let mut answered = self.of(reactor).answered.lock();
            answered.push(operation);
            answered.len() == 1
        };
        if is_first {
            let end = move |env: &Env| end_all(&shared, env);
            self.post.post(reactor, Mail::Call(Box::new(end)));
        }
    }
}

/// Starts an operation on the image; `owner` gets its result.
pub(super) fn start(
    shared: &Arc<Shared>,
    env: &Env,
    (op, range): (Op, SectorRange),
    segs: Segs,
    owner: Owner,
) {
    let queues = shared.queues(env);
    let reactor = env.reactor();
    let mut pieces = queues.of(reactor).spare.lock().pop().unwrap_or_default();
    pieces.extend(segs.iovecs().map(|(base, len)| Piece { base: base.cast(), len }));
    let keep = Keep(ManuallyDrop::new(segs));
    let (shared, started, at, result) = (shared.clone(), clock::now(), env.now(), 0);
    shared.flight.begin(started);
    let operation =
        Operation { shared, reactor, owner, op, range, started, at, keep, pieces, result };
    let (library, image) = (operation.shared.image().library(), operation.shared.image().handle());
    // The list does not move with the operation.
    let pieces = (operation.pieces.as_ptr(), operation.pieces.len() as c_int);
    let raw = Box::into_raw(Box::new(operation));
    let mut completion = std::ptr::null_mut();
    // SAFETY: the operation is live until `answered` has it, which takes it over.
    let made = unsafe { (library.completion)(raw.cast(), answered, &raw mut completion) };
    let result = match made {
        // SAFETY: the list of pieces and the memory that it names belong to the operation, which
        // lives until the callback (O1), and so does the image, which its `shared` holds.
        // The operation itself is used no more here: the callback may have it before this returns.
        0.. => unsafe { send(library, image, (op, range), pieces, completion) },
        _ => made,
    };
    if result >= 0 {
        return;
    }
    // Nothing was started, so there will be no callback.
    if made >= 0 {
        // SAFETY: the completion is unused.
        unsafe { (library.end_completion)(completion) };
    }
    // SAFETY: made by `into_raw` above, and taken over by nothing.
    let mut operation = *unsafe { Box::from_raw(raw) };
    operation.result = result as isize;
    queues.add(operation);
}

/// Hands an operation to librbd.
///
/// # Safety
/// The image is open, and the list and the memory that it names live until the completion's
/// callback.
unsafe fn send(
    library: &Library,
    image: Pointer,
    (op, range): (Op, SectorRange),
    (list, count): (*const Piece, c_int),
    completion: Pointer,
) -> c_int {
    let (at, len) = (range.start.to_bytes(), range.to_bytes());
    // SAFETY: promised by the caller; the zeros live as long as the process.
    unsafe {
        match op {
            Op::Read => (library.read)(image, list, count, at, completion),
            Op::Write => (library.write)(image, list, count, at, completion),
            Op::Flush => (library.flush)(image, completion),
            Op::Discard => (library.discard)(image, at, len, completion),
            Op::WriteZeroes => {
                let (zeros, size) = (ZEROS.as_ptr().cast(), ZEROS.len());
                (library.write_same)(image, at, len as usize, zeros, size, completion, 0)
            }
        }
    }
}

/// librbd has ended an operation. Runs on a thread of librbd.
unsafe extern "C" fn answered(completion: Pointer, argument: *mut c_void) {
    // SAFETY: `start` made the box and gave it away; librbd calls this once.
    let mut operation = *unsafe { Box::from_raw(argument.cast::<Operation>()) };
    let library = operation.shared.image().library();
    // SAFETY: the completion has ended; this is its only user.
    unsafe {
        operation.result = (library.result)(completion);
        (library.end_completion)(completion);
    }
    let shared = operation.shared.clone();
    if let Some(queues) = shared.queues_made() {
        queues.add(operation);
    }
}

/// Ends what has been answered for this reactor.
fn end_all(shared: &Arc<Shared>, env: &Env) {
    let queues = shared.queues(env);
    let lists = queues.of(env.reactor());
    let answered = std::mem::take(&mut *lists.answered.lock());
    shared.flight.end(answered.len());
    for mut operation in answered {
        operation.keep.release();
        let result = result_of(&operation);
        let Operation { op, range, started, at, .. } = operation;
        let result = shared.judge(env, (op, range.start), started, result);
        shared.count(env, (op, range.count), at, result);
        match &operation.owner {
            Owner::Request(id) => env.complete(*id, result),
            Owner::Task(answer) => answer.tell(result),
        }
        let mut pieces = std::mem::take(&mut operation.pieces);
        pieces.clear();
        let mut spare = lists.spare.lock();
        if spare.len() < SPARE_MAX {
            spare.push(pieces);
        }
    }
}

/// The errno of an operation, or 0 if all of it was done.
fn result_of(operation: &Operation) -> Result<(), i32> {
    let bytes = operation.range.to_bytes() as isize;
    match operation.result {
        result @ ..0 => Err(i32::try_from(-result).unwrap_or(libc::EIO)),
        result if operation.op == Op::Read && result != bytes => Err(libc::EIO),
        _ => Ok(()),
    }
}

/// The error of an errno of librbd.
pub(super) fn error_of(errno: i32) -> IoError {
    match IoError::from_errno(errno) {
        // The cluster may cancel an operation; this server is not going away.
        error if error == IoError::SHUTDOWN => IoError::IO,
        error => error,
    }
}
