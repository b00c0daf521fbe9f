//! What a fuzzer does with what a server hands over to its successor: decode it, judge its
//! connections and sessions, and hold the judges to their promises.
//!
//! Shared with the ordinary property test of `crates/cairn`, which runs the same body on random
//! bytes and mutated seeds in every `cargo test`. A body panics when a promise is broken, and must
//! never depend on anything but its input.

use std::os::fd::OwnedFd;

use cairn_control::handover::{Estate, decode};
use cairn_exports::vhost_user::trial;
use rustix::event::{EventfdFlags, eventfd};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// The most descriptors.
const DESCRIPTORS_MAX: usize = 64;

/// Bytes of a descriptor of memory.
const MEMORY_BYTES: u64 = 16 << 20;

/// Rings that an export offers.
const QUEUES: u16 = 4;

/// A line with a letter for each descriptor (`m`: memory of 16 MiB, `e`: an eventfd, others: a
/// pipe), then the manifest, a line, and the bytes behind it. True if the successor would go on
/// with all of it.
pub fn handover(bytes: &[u8]) -> bool {
    let Some(end) = bytes.iter().position(|byte| *byte == b'\n') else { return false };
    let (kinds, rest) = (&bytes[..end.min(DESCRIPTORS_MAX)], &bytes[end + 1..]);
    let estate = match decode(rest, kinds.iter().map(descriptor).collect()) {
        Ok(estate) => estate,
        Err(error) => {
            let line = error.to_string();
            assert!(!line.is_empty() && !line.contains('\n'), "one line: {line:?}");
            return false;
        }
    };
    check_descriptors(&estate, kinds.len());
    let mut is_whole = true;
    let mut received = 0;
    for (parted, _) in &estate.nbd.connections {
        received += parted.bytes.len();
        is_whole &= parted.judge().is_ok();
    }
    assert!(received <= rest.len());
    for parted in estate.vhost {
        let Some(session) = parted.session else { continue };
        match trial::judge_session(session, QUEUES) {
            Ok(running) => assert!(running <= usize::from(QUEUES)),
            Err(breach) => {
                assert!(!breach.to_string().is_empty());
                is_whole = false;
            }
        }
    }
    is_whole
}

fn descriptor(kind: &u8) -> OwnedFd {
    match kind {
        b'm' => {
            let memory = memfd_create("memory", MemfdFlags::CLOEXEC).expect("memory");
            ftruncate(&memory, MEMORY_BYTES).expect("memory");
            memory
        }
        b'e' => eventfd(0, EventfdFlags::CLOEXEC).expect("an eventfd"),
        _ => std::io::pipe().expect("a pipe").0.into(),
    }
}

/// No descriptor is made up, or given twice.
fn check_descriptors(estate: &Estate, given: usize) {
    let sessions = estate.vhost.iter().filter_map(|parted| parted.session.as_ref());
    let taken = usize::from(estate.state_lock.is_some())
        + usize::from(estate.control.is_some())
        + estate.devices.len()
        + estate.nbd.listeners.len()
        + estate.nbd.connections.len()
        + estate.vhost.len()
        + sessions.map(|session| session.descriptors.len()).sum::<usize>();
    assert!(taken <= given, "{taken} of {given}");
}
