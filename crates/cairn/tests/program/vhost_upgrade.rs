//! Another program goes on with the disks of virtual machines.

use std::os::fd::AsRawFd;
use std::thread;
use std::time::Duration;

use cairn_testkit::vhost::{EVENT_IDX, FLUSH, PACKED, RINGS, message};
use rustix::fs::{MemfdFlags, memfd_create};
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};
use rustix::process::{Pid, Signal, kill_process, test_kill_process};
use virtio_driver::{
    VhostUser, VirtioBlkFeatureFlags, VirtioBlkQueue, VirtioBlkTransport, VirtioFeatureFlags,
};

use super::place::{Place, until};
use super::upgrade::{HELLO, Serving, script};
use super::vhost::{Writer, connect};

const TABLE: &str = "vm=0 8192 writecache s slow fast 4096 4 autocommit_blocks 1000000 \
                     autocommit_time 3600000";

fn place() -> Place {
    let place = Place::new();
    place.sparse("slow", 4 << 20);
    place.sparse("fast", 2 << 20);
    place
}

fn serve(place: &Place) -> Serving<'_> {
    let export = format!("vhost-user-blk:v,num-queues={RINGS}");
    Serving::start(place, &["--table", TABLE, "--export", &export])
}

/// Ends a server, and checks what a writer wrote.
fn check(place: &Place, serving: Serving<'_>, mut writer: Writer) {
    writer.finish();
    drop(serving);
    place.cairn(&["flush", "--table", "0 8192 writecache s slow fast 4096 0"]).ok();
    assert!(writer.check(&place.read("slow")) > 500);
}

/// Runs `upgrade` while a writer writes; answers how many writes ended in that time.
fn write_beside<T: Send>(writer: &mut Writer, upgrade: impl FnOnce() -> T + Send) -> (T, usize) {
    thread::scope(|scope| {
        let upgrade = scope.spawn(upgrade);
        let mut ended = 0;
        while !upgrade.is_finished() {
            ended += writer.turn();
        }
        (upgrade.join().unwrap(), ended)
    })
}

#[test]
fn a_machine_goes_on_within_a_load() {
    for (features, is_tracked) in
        [(0, false), (EVENT_IDX, true), (PACKED, true), (PACKED | EVENT_IDX, false)]
    {
        let place = place();
        let serving = serve(&place);
        let mut writer = Writer::start(&place.path("v"), features, is_tracked);
        let mut pids = vec![serving.pid()];
        for round in 0..6 {
            writer.write(50 + 13 * round);
            let (said, _) = write_beside(&mut writer, || serving.upgrade(&[]));
            said.ok();
            pids.push(serving.pid());
        }
        writer.write(300);
        pids.dedup();
        assert_eq!(pids.len(), 7, "each is another process");
        check(&place, serving, writer);
    }
}

#[test]
fn a_machine_goes_on_after_a_kill_between_upgrades() {
    for features in [EVENT_IDX, PACKED | EVENT_IDX] {
        let place = place();
        let socket = place.path("v");
        let mut serving = serve(&place);
        let mut writer = Writer::start(&socket, features, true);
        for round in 0..6 {
            writer.write(50 + 13 * round);
            let (said, _) = write_beside(&mut writer, || serving.upgrade(&[]));
            said.ok();
            writer.write(29 * round);
            let killed = serving.pid().and_then(Pid::from_raw).unwrap();
            kill_process(killed, Signal::KILL).unwrap();
            until(|| test_kill_process(killed).is_err().then_some(()));
            drop(serving);
            serving = serve(&place);
            writer.driver.connect_again(&socket, FLUSH | features, RINGS.into());
        }
        check(&place, serving, writer);
    }
}

#[test]
fn a_machine_goes_on_with_the_server_if_the_other_program_fails() {
    let place = place();
    let serving = serve(&place);
    let mut writer = Writer::start(&place.path("v"), PACKED | EVENT_IDX, true);
    let pid = serving.pid();
    let program = env!("CARGO_BIN_EXE_cairn");
    let mut fails = |lines: Option<&str>, why: &str| {
        drop(std::fs::remove_file(place.path("other")));
        lines.into_iter().for_each(|lines| script(&place, lines));
        writer.write(100);
        let upgrade = || serving.upgrade(&["--program", "./other"]);
        let (said, ended) = write_beside(&mut writer, upgrade);
        assert!(said.code != 0 && said.err.contains(why), "{said:?}");
        writer.write(100);
        until(|| serving.pid().filter(|now| Some(*now) == pid));
        ended
    };
    fails(None, "start: there is no such file");
    fails(Some("exit 1"), "it ended before it could say whether it can start");
    let protocol = "printf '{\"hello\":{\"protocol\":2,\"version\":\"9.9\"}}' >&0; exec sleep 1000";
    fails(Some(protocol), "9.9");
    let refuses = format!("exec {program} \"$@\" --table 'vm=0 8192 lineal slow 0'");
    fails(Some(&refuses), "refused: ");
    // From here on it has everything.
    let again = "the program of before starts again";
    for end in ["exit 1", "kill -9 $$", "sleep 0.2; exit 1"] {
        fails(Some(&format!("{HELLO}; {end}")), again);
    }
    // Its volumes are up, and it has the sockets.
    fails(Some(&format!("exec {program} \"$@\" --export none")), again);
    // More than its patience.
    assert!(fails(Some(&format!("{HELLO}; exec sleep 1000")), again) > 0);
    serving.upgrade(&[]).ok();
    writer.write(300);
    assert_ne!(serving.pid(), pid);
    check(&place, serving, writer);
}

#[test]
fn a_machine_goes_on_when_the_other_program_is_killed_at_any_moment() {
    let place = place();
    let socket = place.path("v");
    let mut serving = serve(&place);
    let mut writer = Writer::start(&socket, EVENT_IDX, true);
    let program = env!("CARGO_BIN_EXE_cairn");
    script(&place, &format!("echo $$ > pid.new; mv pid.new pid; exec {program} \"$@\""));
    let [mut before, mut after] = [0; 2];
    // Later and later, until it serves by then.
    for delay in (0..).step_by(12) {
        if after == 3 {
            break;
        }
        writer.write(20);
        drop(std::fs::remove_file(place.path("pid")));
        let pid = serving.pid();
        let killed = || {
            until(|| place.exists("pid").then_some(()));
            thread::sleep(Duration::from_millis(delay));
            let pid = String::from_utf8(place.read("pid")).unwrap().trim().parse().unwrap();
            let _ = kill_process(Pid::from_raw(pid).unwrap(), Signal::KILL);
        };
        let upgrade = || {
            thread::scope(|scope| {
                scope.spawn(killed);
                serving.upgrade(&["--program", "./other"])
            })
        };
        let (said, _) = write_beside(&mut writer, upgrade);
        if said.code == 0 {
            // It was the server already. The machine connects to the next one.
            after += 1;
            drop(serving);
            serving = serve(&place);
            writer.driver.connect_again(&socket, FLUSH | EVENT_IDX, RINGS.into());
        } else {
            before += 1;
            until(|| serving.pid().filter(|now| Some(*now) == pid));
        }
        writer.write(20);
    }
    assert!(before > 2, "{before}");
    check(&place, serving, writer);
}

#[test]
fn an_upgrade_is_called_off_by_requests_that_do_not_end() {
    let place = place();
    let serving = serve(&place);
    let mut writer = Writer::start(&place.path("v"), 0, true);
    let pid = serving.pid();
    writer.write(100);
    serving.ask(&["suspend", "vm"]).ok();
    let (said, _) = write_beside(&mut writer, || serving.upgrade(&[]));
    assert!(said.refused(4).contains("requests that do not end"));
    assert_eq!(serving.pid(), pid);
    serving.ask(&["resume", "vm"]).ok();
    writer.write(500);
    serving.upgrade(&[]).ok();
    writer.write(100);
    check(&place, serving, writer);
}

#[test]
fn sockets_without_a_machine_and_with_a_silent_one_go_on() {
    let place = place();
    let serving = serve(&place);
    let path = place.path("v");
    let inode = || std::os::unix::fs::MetadataExt::ino(&path.metadata().unwrap());
    let before = inode();
    serving.upgrade(&[]).ok();
    let mut driver = connect(&path);
    serving.upgrade(&[]).ok();
    driver.negotiate(FLUSH);
    serving.upgrade(&[]).ok();
    assert_eq!(driver.ask(message::GET_QUEUE_NUM), u64::from(RINGS));
    drop(driver);
    serving.upgrade(&[]).ok();
    assert_eq!(connect(&path).ask(message::GET_QUEUE_NUM), u64::from(RINGS));
    assert_eq!(inode(), before, "it is the same socket");
    drop(serving);
    assert!(!path.exists());
}

#[test]
fn a_machine_without_its_export_is_closed_and_a_socket_may_move() {
    let place = place();
    let toml = |path: &str, more: &str| {
        let volumes = ["a", "b"].map(|name| {
            format!("[[volume]]\nname = \"{name}\"\ntable = \"0 2048 linear slow {}\"\n", {
                if name == "a" { 0 } else { 4096 }
            })
        });
        let exports = format!(
            "[[export]]\nname = \"a\"\nvolume = \"a\"\nlisten = \"vhost-user:{path}\"\n{more}"
        );
        place.write("a.toml", format!("{}{exports}", volumes.concat()));
    };
    toml("v", "[[export]]\nname = \"b\"\nvolume = \"b\"\nlisten = \"vhost-user:w\"\n");
    let serving = Serving::start(&place, &["a.toml"]);
    let [mut stays, mut goes] = ["v", "w"].map(|path| connect(&place.path(path)));
    for driver in [&mut stays, &mut goes] {
        driver.negotiate(FLUSH);
        driver.share_all();
        driver.start_ring(0, 0);
        assert_eq!(driver.write(0, 0, &[1; 512]), 0);
    }
    toml("moved", "");
    serving.upgrade(&[]).ok();
    assert_eq!(stays.write(0, 0, &[2; 512]), 0);
    assert!(goes.is_hung_up());
    until(|| {
        serving.log().contains("export 'b': session of an earlier process closed").then_some(())
    });
    assert!(place.exists("moved") && !place.exists("v") && !place.exists("w"));
    drop(stays);
    assert_eq!(connect(&place.path("moved")).ask(message::GET_QUEUE_NUM), 16);
}

/// Has requests of another project's driver in flight, up to 16 at a time, until `upgrades` are
/// done. What is read is what was written.
fn load_by_others(serving: &Serving<'_>, path: &str, further: VirtioFeatureFlags, upgrades: usize) {
    const BYTES: usize = 1 << 20;
    const BLOCK: usize = 16 << 10;
    let features = (further | VirtioFeatureFlags::VERSION_1).bits();
    let features = features | VirtioBlkFeatureFlags::all().bits();
    let mut transport: Box<VirtioBlkTransport> = Box::new(VhostUser::new(path, features).unwrap());
    let mut queues = VirtioBlkQueue::<usize>::setup_queues(&mut *transport, 1, 128).unwrap();
    let file = memfd_create("guest", MemfdFlags::CLOEXEC).unwrap();
    rustix::fs::ftruncate(&file, BYTES as u64).unwrap();
    let flags = ProtFlags::READ | ProtFlags::WRITE;
    // SAFETY: a fresh mapping at an address of the system's choice.
    let base =
        unsafe { mmap(std::ptr::null_mut(), BYTES, flags, MapFlags::SHARED, &file, 0).unwrap() };
    transport.map_mem_region(base.addr(), BYTES, file.as_raw_fd(), 0).unwrap();
    // SAFETY: the mapping is as long; the server touches a slot only while its request runs.
    let memory = unsafe { std::slice::from_raw_parts_mut(base.cast::<u8>(), BYTES) };
    let queue = &mut queues[0];
    queue.set_used_notif_enabled(true);
    // Each slot has memory and a place on the disk of its own; it writes, reads, and so on.
    let mut rounds = [0_u64; 16];
    let submit = |queue: &mut VirtioBlkQueue<'_, usize>, memory: &mut [u8], slot: usize, round| {
        let slice = &mut memory[slot * BLOCK..][..BLOCK];
        let offset = (slot * BLOCK) as u64;
        if round % 2 == 0 {
            slice.fill((round / 2) as u8 ^ slot as u8);
            queue.write(offset, slice, slot).unwrap();
        } else {
            slice.fill(0xee);
            queue.read(offset, slice, slot).unwrap();
        }
    };
    for slot in 0..rounds.len() {
        submit(queue, memory, slot, 0);
    }
    transport.get_submission_notifier(0).notify().unwrap();
    thread::scope(|scope| {
        let done = scope.spawn(|| (0..upgrades).for_each(|_| drop(serving.upgrade(&[]).ok())));
        let mut in_flight = rounds.len();
        while in_flight > 0 {
            transport.get_completion_fd(0).read().unwrap();
            let ended: Vec<_> = queue.completions().map(|it| (it.context, it.ret)).collect();
            for (slot, result) in ended {
                assert_eq!(result, 0);
                let round = &mut rounds[slot];
                let expected = (*round / 2) as u8 ^ slot as u8;
                assert!(memory[slot * BLOCK..][..BLOCK].iter().all(|byte| *byte == expected));
                *round += 1;
                match done.is_finished() && *round % 2 == 0 {
                    true => in_flight -= 1,
                    false => submit(queue, memory, slot, *round),
                }
            }
            transport.get_submission_notifier(0).notify().unwrap();
        }
        done.join().unwrap();
    });
    assert!(rounds.iter().all(|round| *round > 10), "{rounds:?}");
    drop(queues);
    drop(transport);
    // SAFETY: mapped above, and no longer used.
    unsafe { munmap(base, BYTES).unwrap() };
}

#[test]
fn a_driver_of_others_goes_on_within_its_load() {
    let events = VirtioFeatureFlags::RING_INDIRECT_DESC | VirtioFeatureFlags::RING_EVENT_IDX;
    let packed = VirtioFeatureFlags::RING_PACKED;
    let place = place();
    let serving = serve(&place);
    let path = place.path("v");
    for further in [VirtioFeatureFlags::empty(), events, packed, packed | events] {
        load_by_others(&serving, path.to_str().unwrap(), further, 4);
    }
}
