//! The end of the server: what waits for what never comes fails, and devices stay as they are.

use cairn_block::{ErrorKind, SuspendMode};
use cairn_format::snapshot::Header;

use super::fixture::{SnapshotFixture, initial_byte, write_io};

/// As a server that ends: nothing is waited for any more, then each volume is suspended.
fn end(test: &SnapshotFixture, volumes: &[&str]) {
    for name in volumes {
        let volume = test.volume(name);
        test.sim.block_on(0, |env| async move { volume.give_up(&env).await });
    }
    for name in volumes {
        test.suspend(name, SuspendMode::NoFlush);
    }
}

fn assert_untouched(test: &SnapshotFixture) {
    let header = test.drive("cow0").visible().to_vec();
    assert!(Header::parse(&header).unwrap().is_valid());
    let origin = test.drive("origin").visible().to_vec();
    let initial = (0..512).map(initial_byte);
    assert!(origin.chunks(512).map(|sector| sector[0]).eq(initial), "the origin is as it was");
}

#[test]
fn a_copy_that_waits_for_a_suspended_device_fails_with_the_server_and_ends_nothing() {
    let test = SnapshotFixture::new(512, &[2048]);
    test.load("c", "0 2048 linear cow0 0");
    test.load("s", "0 512 snapshot origin @c P 8");
    test.load("o", "0 512 snapshot-origin origin");
    test.suspend("c", SuspendMode::Flush);
    for at in [0, 100, 300] {
        test.start("o", "origin", |env| write_io(env, at, 8, 200));
        test.start("s", "snapshot", |env| write_io(env, at + 17, 2, 201));
        test.start("s", "whole", |env| write_io(env, (at + 160).next_multiple_of(8), 8, 202));
    }
    test.settle();
    assert_eq!(test.labels(), [""; 0]);
    end(&test, &["o", "s", "c"]);
    test.settle();
    assert_eq!(test.labels().len(), 9);
    assert!(test.ends.all().iter().all(|(_, end)| end.is_err()));
    assert_untouched(&test);
    assert!(!test.status("s").contains("Invalid"));
}

#[test]
fn what_waits_for_room_fails_with_the_server() {
    let test = SnapshotFixture::new(512, &[4 * 8]);
    test.load("s", "0 512 snapshot origin cow0 PO 8 2 wait_for_room 3600");
    test.load("o", "0 512 snapshot-origin origin");
    test.write("s", 0, 16, 7).unwrap();
    test.start("o", "write", |env| write_io(env, 64, 8, 8));
    test.settle();
    assert_eq!(test.labels(), [""; 0]);
    end(&test, &["o", "s"]);
    test.settle();
    assert_eq!(test.ends.all()[0].1.unwrap_err().kind, ErrorKind::Shutdown);
    assert_eq!(test.status("s"), "32/32 16");
    assert_untouched(&test);
}
