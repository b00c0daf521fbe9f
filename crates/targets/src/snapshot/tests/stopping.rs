//! The end of the server: what waits for what never comes fails, and devices stay as they are.

use cairn_block::{ErrorKind, SuspendMode};
use cairn_format::snapshot::Header;

use super::bed::{Bed, initial_byte, write_io};

/// As a server that ends: nothing is waited for any more, then each volume is suspended.
fn end(bed: &Bed, volumes: &[&str]) {
    for name in volumes {
        let volume = bed.volume(name);
        bed.sim.block_on(0, |env| async move { volume.give_up(&env).await });
    }
    for name in volumes {
        bed.suspend(name, SuspendMode::NoFlush);
    }
}

fn assert_untouched(bed: &Bed) {
    let header = bed.drive("cow0").visible().to_vec();
    assert!(Header::parse(&header).unwrap().is_valid());
    let origin = bed.drive("origin").visible().to_vec();
    let initial = (0..512).map(initial_byte);
    assert!(origin.chunks(512).map(|sector| sector[0]).eq(initial), "the origin is as it was");
}

#[test]
fn a_copy_that_waits_for_a_suspended_device_fails_with_the_server_and_ends_nothing() {
    let bed = Bed::new(512, &[2048]);
    bed.load("c", "0 2048 linear cow0 0");
    bed.load("s", "0 512 snapshot origin @c P 8");
    bed.load("o", "0 512 snapshot-origin origin");
    bed.suspend("c", SuspendMode::Flush);
    for at in [0, 100, 300] {
        bed.start("o", "origin", |env| write_io(env, at, 8, 200));
        bed.start("s", "snapshot", |env| write_io(env, at + 17, 2, 201));
        bed.start("s", "whole", |env| write_io(env, (at + 160).next_multiple_of(8), 8, 202));
    }
    bed.settle();
    assert_eq!(bed.labels(), [""; 0]);
    end(&bed, &["o", "s", "c"]);
    bed.settle();
    assert_eq!(bed.labels().len(), 9);
    assert!(bed.ends.borrow().iter().all(|(_, end)| end.is_err()));
    assert_untouched(&bed);
    assert!(!bed.status("s").contains("Invalid"));
}

#[test]
fn what_waits_for_room_fails_with_the_server() {
    let bed = Bed::new(512, &[4 * 8]);
    bed.load("s", "0 512 snapshot origin cow0 PO 8 2 wait_for_room 3600");
    bed.load("o", "0 512 snapshot-origin origin");
    bed.write("s", 0, 16, 7).unwrap();
    bed.start("o", "write", |env| write_io(env, 64, 8, 8));
    bed.settle();
    assert_eq!(bed.labels(), [""; 0]);
    end(&bed, &["o", "s"]);
    bed.settle();
    assert_eq!(bed.ends.borrow()[0].1.unwrap_err().kind, ErrorKind::Shutdown);
    assert_eq!(bed.status("s"), "32/32 16");
    assert_untouched(&bed);
}
