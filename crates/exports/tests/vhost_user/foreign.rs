//! The driver of another project, with its own queues and memory.

use std::fs::File;
use std::os::fd::AsRawFd;

use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use virtio_driver::{
    VhostUser, VirtioBlkFeatureFlags, VirtioBlkQueue, VirtioBlkTransport, VirtioFeatureFlags,
};

use crate::disk::TestDisk;
use crate::handover::hand_over;
use crate::world::{World, on_both_rings};

const BYTES: usize = 64 << 10;

/// Runs one request and waits for its end: 0 or `-errno`.
fn run(
    transport: &VirtioBlkTransport,
    number: usize,
    queue: &mut VirtioBlkQueue<'_, u32>,
    ask: impl FnOnce(&mut VirtioBlkQueue<'_, u32>),
) -> i32 {
    ask(queue);
    transport.get_submission_notifier(number).notify().unwrap();
    await_end(transport, number, queue)
}

/// Waits for the end of a request.
fn await_end(
    transport: &VirtioBlkTransport,
    number: usize,
    queue: &mut VirtioBlkQueue<'_, u32>,
) -> i32 {
    loop {
        if let Some(completion) = queue.completions().next() {
            assert_eq!(completion.context, 7);
            return completion.ret;
        }
        transport.get_completion_fd(number).read().unwrap();
    }
}

fn with_driver(asked: VirtioFeatureFlags) {
    on_both_rings(|ring| {
        let mut world = World::new(ring);
        let disk = TestDisk::new(1 << 20);
        let path = world.export("vm", &disk);
        let blk = VirtioBlkFeatureFlags::all();
        let features = (asked | VirtioFeatureFlags::VERSION_1).bits() | blk.bits();
        let mut transport: Box<VirtioBlkTransport> =
            Box::new(VhostUser::new(path.to_str().unwrap(), features).unwrap());
        assert_eq!(asked.bits() & !transport.get_features(), 0);
        let mut queues = VirtioBlkQueue::setup_queues(&mut *transport, 2, 128).unwrap();
        let file: File = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap().into();
        file.set_len(BYTES as u64).unwrap();
        let flags = ProtFlags::READ | ProtFlags::WRITE;
        // SAFETY: a fresh mapping at an address of the system's choice.
        let base = unsafe {
            mmap(std::ptr::null_mut(), BYTES, flags, MapFlags::SHARED, &file, 0).unwrap()
        };
        transport.map_mem_region(base.addr(), BYTES, file.as_raw_fd(), 0).unwrap();
        // SAFETY: the mapping is as long, and the server touches it only while a request runs.
        let memory = unsafe { std::slice::from_raw_parts_mut(base.cast::<u8>(), BYTES) };
        let (out, back) = memory.split_at_mut(BYTES / 2);
        for (at, byte) in out.iter_mut().enumerate() {
            *byte = (at / 5) as u8;
        }
        queues.iter_mut().for_each(|queue| queue.set_used_notif_enabled(true));
        let [first, second] = &mut queues[..] else { panic!("two queues") };
        for round in 0..300_u64 {
            let offset = round % 7 * 4096;
            let write = run(&*transport, 0, first, |queue| {
                queue.write(offset, &out[..4096 * 3], 7).unwrap();
            });
            let read = run(&*transport, 1, second, |queue| {
                queue.read(offset, &mut back[..4096 * 3], 7).unwrap();
            });
            assert_eq!((write, read, &back[..4096 * 3]), (0, 0, &out[..4096 * 3]));
            if round % 50 == 20 {
                // Another server goes on while requests are in flight.
                let sent = (round % 7) + 1;
                (0..sent).for_each(|at| first.write(at * 4096, &out[..4096], 7).unwrap());
                transport.get_submission_notifier(0).notify().unwrap();
                assert_eq!(hand_over(&mut world, &disk), 1);
                (0..sent).for_each(|_| assert_eq!(await_end(&*transport, 0, first), 0));
            }
        }
        assert!(first.completions().next().is_none());
        assert_eq!(run(&*transport, 0, first, |queue| queue.flush(7).unwrap()), 0);
        let zero = |queue: &mut VirtioBlkQueue<'_, u32>| {
            queue.write_zeroes(0, 8192, true, 7).unwrap();
        };
        assert_eq!(run(&*transport, 0, first, zero), 0);
        assert_eq!(run(&*transport, 1, second, |queue| queue.discard(0, 4096, 7).unwrap()), 0);
        assert_eq!(disk.bytes(0, 8192), [0; 8192]);
        drop(queues);
        drop(transport);
        // SAFETY: mapped above, and no longer used.
        unsafe { munmap(base, BYTES).unwrap() };
    });
}

#[test]
fn a_driver_without_further_features_is_served() {
    with_driver(VirtioFeatureFlags::empty());
}

#[test]
fn a_driver_with_indirect_descriptors_and_named_indexes_is_served() {
    with_driver(VirtioFeatureFlags::RING_INDIRECT_DESC | VirtioFeatureFlags::RING_EVENT_IDX);
}

#[test]
fn a_driver_with_packed_rings_is_served() {
    with_driver(VirtioFeatureFlags::RING_PACKED);
}

#[test]
fn a_driver_with_packed_rings_and_named_places_is_served() {
    let further = VirtioFeatureFlags::RING_INDIRECT_DESC | VirtioFeatureFlags::RING_EVENT_IDX;
    with_driver(VirtioFeatureFlags::RING_PACKED | further);
}
