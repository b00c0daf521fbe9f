//! Disks at NBD servers over several connections.

use std::sync::Arc;
use std::time::Duration;

use cairn_block::{Disk, Env, Flags, Io, Op, ReactorId};
use cairn_nbd::wire::{MessageForm, TransmissionFlags};
use cairn_reactor::Reactors;
use futures_util::future::join_all;

use super::far::{Far, Manners};
use super::{Shape, act, range, read, worlds, write};
use crate::NbdDisk;
use crate::remote::RemoteDisk;

fn several(form: MessageForm) -> Manners {
    let good = Manners::good(form);
    Manners { flags: good.flags | TransmissionFlags::CAN_MULTI_CONN, ..good }
}

fn open(far: &Far, more: &str) -> (Arc<NbdDisk>, Arc<dyn Disk>) {
    let remote = Arc::new(NbdDisk::open(&far.uri(more), false, Arc::default()).unwrap());
    (remote.clone(), remote)
}

/// Writes `count` blocks at once, each with its number, and reads them at once.
fn write_and_read(on: &Reactors, disk: &Arc<dyn Disk>, count: u64, flags: Flags) {
    let disk = disk.clone();
    on.block_on(ReactorId(0), async move |env: Env| {
        let data = |number: u64| vec![number as u8 + 1; 4096];
        let writes = (0..count).map(|number| {
            let segs = env.segs(range(0, 8).count);
            segs.copy_in(0, &data(number));
            env.io(&disk, Io::write(range(number * 8, 8), segs).with(flags))
        });
        for written in join_all(writes).await {
            written.unwrap();
        }
        let reads = (0..count).map(|number| {
            let segs = env.segs(range(0, 8).count);
            let read = env.io(&disk, Io::read(range(number * 8, 8), segs.clone()));
            async move { read.await.map(|()| segs.to_vec()) }
        });
        for (number, found) in (0..).zip(join_all(reads).await) {
            assert!(found.unwrap() == data(number), "block {number}");
        }
    });
}

#[test]
fn requests_are_spread_over_the_connections_that_the_server_offers() {
    for form in [MessageForm::Simple, MessageForm::Structured, MessageForm::Extended] {
        for (more, flags) in [("", Flags::empty()), ("&exclusive", Flags::FUA)] {
            for on in worlds() {
                let far = Far::serve(several(form));
                let (remote, disk) = open(&far, &format!("&connections=4{more}"));
                assert_eq!(remote.figures().connections, Some(4));
                write_and_read(&on, &disk, 64, flags);
                // The flush of the beginning, and a quarter of the rest each.
                let requests = far.requests.lock().clone();
                assert_eq!(requests.len(), 4);
                assert!(requests.iter().all(|count| (24..=48).contains(count)), "{requests:?}");
                assert_eq!(disk.failures(), 0);
            }
        }
    }
}

#[test]
fn a_connection_that_is_lost_ends_all_and_nothing_is_lost_with_it() {
    let far = Far::serve(Manners {
        // More than an answer.
        answer: |bytes| [bytes, vec![0; 16]].concat(),
        is_always: true,
        ..several(MessageForm::Structured)
    });
    let [on, _] = worlds();
    let (remote, disk) = open(&far, "&connections=3&exclusive");
    let kept = (range(800, 8), Flags::empty());
    write(&on, &disk, kept, vec![0x55; 4096], Shape::default()).unwrap();
    // The server has forgotten it, as one that was killed.
    far.contents.lock().clear();
    for _ in 0..4 {
        write_and_read(&on, &disk, 3, Flags::FUA);
    }
    let found = read(&on, &disk, range(800, 8), Shape::default()).unwrap();
    assert!(found == vec![0x55; 4096], "what was kept is lost");
    assert!(remote.figures().reconnects > Some(2));
    assert_eq!((far.connections.lock().is_multiple_of(3), disk.failures()), (true, 0));
}

/// A read over each of two connections, of which the server answers one with another cookie.
fn read_with(answer: fn(Vec<u8>) -> Vec<u8>) {
    let far = Far::serve(Manners { answer, ..several(MessageForm::Simple) });
    let [on, _] = worlds();
    let (_, disk) = open(&far, "&connections=2");
    far.contents.lock().insert("x".to_owned(), [vec![1; 4096], vec![2; 1020 << 10]].concat());
    let found = on.block_on(ReactorId(0), async move |env: Env| {
        let both = [0, 8].map(|start| {
            let (segs, disk) = (env.segs(range(0, 8).count), disk.clone());
            let io = env.io(&disk, Io::read(range(start, 8), segs.clone()));
            async move { io.await.map(|()| segs.to_vec()[0]) }
        });
        join_all(both).await
    });
    assert_eq!(found, [Ok(1), Ok(2)]);
    assert_eq!(*far.connections.lock(), 4);
}

#[test]
fn an_answer_over_another_connection_than_its_requests_ends_them() {
    // The flush of the beginning has cookie 1.
    read_with(|mut bytes| {
        bytes[15] = 5 - bytes[15];
        bytes
    });
    read_with(|mut bytes| {
        bytes[15] = 4;
        bytes
    });
}

#[test]
fn a_flush_over_one_connection_covers_what_was_written_over_all() {
    let far = Far::serve(several(MessageForm::Structured));
    let [on, _] = worlds();
    let (remote, disk) = open(&far, "&connections=4&exclusive");
    write_and_read(&on, &disk, 32, Flags::empty());
    let held = || remote.figures().replay.unwrap().held_bytes;
    assert!(held() >= 32 * 4096);
    act(&on, &disk, Op::Flush, range(0, 0), Flags::empty()).unwrap();
    assert_eq!((held(), *far.connections.lock()), (0, 4));
}

#[test]
fn a_server_that_ends_what_is_more_than_it_takes_is_asked_for_less() {
    let far = Far::serve(Manners { most: 1, ends_late: true, ..several(MessageForm::Simple) });
    let [on, _] = worlds();
    let (remote, disk) = open(&far, "&connections=4");
    // The read may be answered over the first connection before the others are ended.
    for _ in 0..100 {
        let found = read(&on, &disk, range(0, 8), Shape::default());
        assert!(found == Ok(vec![0; 4096]));
        if remote.figures().connections == Some(1) {
            break;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    assert_eq!((remote.figures().connections, disk.failures()), (Some(1), 0));
}

#[test]
fn connections_that_a_server_ends_soon_after_answers_are_fewer_next_time() {
    let far = Far::serve(several(MessageForm::Simple));
    let [on, _] = worlds();
    let (remote, disk) = open(&far, "&connections=4");
    for expected in [4, 4, 2, 1, 1] {
        write_and_read(&on, &disk, 8, Flags::FUA);
        assert_eq!(remote.figures().connections, Some(expected));
        far.cut();
    }
}

#[test]
fn a_disk_that_is_dropped_says_goodbye_over_each_connection() {
    let far = Far::serve(Manners { most: 4, ..several(MessageForm::Extended) });
    let [on, _] = worlds();
    for round in 1..4 {
        let (remote, disk) = open(&far, "&connections=4");
        write_and_read(&on, &disk, 16, Flags::empty());
        drop((remote, disk));
        let open = || far.requests.lock().len() as u32;
        assert_eq!(open(), 4 * round);
        while *far.open.lock() > 0 {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
    on.block_on(ReactorId(0), async |env: Env| assert_eq!(env.requests_in_use(), 0));
}

#[test]
fn there_are_as_many_connections_as_the_server_takes() {
    let [on, _] = worlds();
    for (manners, expected) in [
        (Manners::good(MessageForm::Extended), 1),
        (Manners { most: 2, ..several(MessageForm::Extended) }, 2),
    ] {
        let far = Far::serve(manners);
        let (remote, disk) = open(&far, "&connections=4");
        write_and_read(&on, &disk, 32, Flags::empty());
        assert_eq!(remote.figures().connections, Some(expected));
        assert_eq!(u64::from(*far.connections.lock()), expected);
    }
}
