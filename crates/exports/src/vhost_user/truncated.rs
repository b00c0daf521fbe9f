//! [`Guarded`]: a mapping of a file that its owner may shorten. An access behind the new end would
//! kill this process with SIGBUS; instead it meets anonymous memory, and the mapping says so.
//!
//! Owns the process's handler of SIGBUS, which it installs with the first mapping. A fault anywhere
//! else goes to the handler before it.
//!
//! T1. The handler reads atomic numbers and calls `mmap` alone: both are possible at any place of
//!     any thread.
//! T2. A mapping is in the list before its first access, and leaves it before it is unmapped. So
//!     the handler never maps anything over memory of others.

use std::mem::MaybeUninit;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

use libc::{c_int, c_void, siginfo_t};

/// How many mappings there may be.
const SLOTS: usize = 4096;

struct Slot {
    is_taken: AtomicBool,
    /// The mapping is `start..end`; there is none while the end is 0.
    start: AtomicUsize,
    end: AtomicUsize,
    /// The unit of the mapping, in bytes.
    page: AtomicUsize,
    is_truncated: AtomicBool,
}

static LIST: [Slot; SLOTS] = [const {
    Slot {
        is_taken: AtomicBool::new(false),
        start: AtomicUsize::new(0),
        end: AtomicUsize::new(0),
        page: AtomicUsize::new(0),
        is_truncated: AtomicBool::new(false),
    }
}; SLOTS];

/// What handled SIGBUS before.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();

/// A mapping in the list, until it is dropped. See the module's description.
pub(super) struct Guarded(&'static Slot);

impl Guarded {
    /// Guards the mapping of `bytes` bytes at `start`, which consists of pages of `page` bytes.
    /// None if there are too many, or if the system refuses.
    pub(super) fn new(start: usize, bytes: usize, page: usize) -> Option<Guarded> {
        install()?;
        let free = |slot: &&Slot| !slot.is_taken.swap(true, Ordering::SeqCst);
        let slot = LIST.iter().find(free)?;
        slot.is_truncated.store(false, Ordering::SeqCst);
        slot.start.store(start, Ordering::SeqCst);
        slot.page.store(page, Ordering::SeqCst);
        slot.end.store(start + bytes, Ordering::SeqCst);
        Some(Guarded(slot))
    }

    /// True once an access has met the end of the file.
    pub(super) fn is_truncated(&self) -> bool {
        self.0.is_truncated.load(Ordering::SeqCst)
    }
}

impl Drop for Guarded {
    fn drop(&mut self) {
        self.0.end.store(0, Ordering::SeqCst);
        self.0.is_taken.store(false, Ordering::SeqCst);
    }
}

/// Installs the handler, once.
fn install() -> Option<()> {
    static INSTALLED: OnceLock<bool> = OnceLock::new();
    let install = || {
        let mut before = MaybeUninit::zeroed();
        // SAFETY: all zeros are an action without flags and with an empty mask.
        let mut action: libc::sigaction = unsafe { std::mem::zeroed() };
        action.sa_sigaction = handle as extern "C" fn(_, _, _) as usize;
        action.sa_flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
        // SAFETY: reads the action in force.
        let found = unsafe { libc::sigaction(libc::SIGBUS, std::ptr::null(), before.as_mut_ptr()) };
        if found != 0 {
            return false;
        }
        // SAFETY: the call before has filled it.
        let _ = BEFORE.set(unsafe { before.assume_init() });
        // SAFETY: the handler keeps to T1.
        unsafe { libc::sigaction(libc::SIGBUS, &action, std::ptr::null_mut()) == 0 }
    };
    INSTALLED.get_or_init(install).then_some(())
}

extern "C" fn handle(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    // SAFETY: the system passes what it says of the fault.
    let address = unsafe { (*info).si_addr() }.addr();
    if !replace(address) {
        pass_on(signal, info, context);
    }
}

/// Puts anonymous memory in the place of the rest of the mapping that has this address, from the
/// page of that address. False if there is no such mapping.
fn replace(address: usize) -> bool {
    for slot in &LIST {
        let (start, end) = (slot.start.load(Ordering::SeqCst), slot.end.load(Ordering::SeqCst));
        if address < start || address >= end {
            continue;
        }
        slot.is_truncated.store(true, Ordering::SeqCst);
        let page = slot.page.load(Ordering::SeqCst);
        let from = address - (address - start) % page;
        let protection = libc::PROT_READ | libc::PROT_WRITE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
        let place = std::ptr::without_provenance_mut(from);
        // SAFETY: within the mapping, which a running access keeps mapped (T2).
        let mapped = unsafe { libc::mmap(place, end - from, protection, flags, -1, 0) };
        return mapped != libc::MAP_FAILED;
    }
    false
}

/// Has the fault handled as it would be without this module.
fn pass_on(signal: c_int, info: *mut siginfo_t, context: *mut c_void) {
    let Some(before) = BEFORE.get() else { return };
    match before.sa_sigaction {
        libc::SIG_DFL | libc::SIG_IGN => {
            // The access is tried again, and ends the process.
            // SAFETY: the action was in force before.
            unsafe { libc::sigaction(signal, before, std::ptr::null_mut()) };
        }
        handler if before.sa_flags & libc::SA_SIGINFO != 0 => {
            type Handler = extern "C" fn(c_int, *mut siginfo_t, *mut c_void);
            // SAFETY: with this flag the action is such a function.
            let handler = unsafe { std::mem::transmute::<usize, Handler>(handler) };
            handler(signal, info, context);
        }
        handler => {
            // SAFETY: without the flag the action is such a function.
            let handler = unsafe { std::mem::transmute::<usize, extern "C" fn(c_int)>(handler) };
            handler(signal);
        }
    }
}
