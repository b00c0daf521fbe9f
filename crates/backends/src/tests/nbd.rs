//! Disks at NBD servers, good and hostile.

use std::cell::RefCell;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{
    ConfigError, Disk, Env, Flags, IoError, MarkerPlace, Op, Opener, ReactorId, SectorCount,
};
use cairn_nbd::records::RECORD_BYTES;
use cairn_nbd::wire::{MessageForm, TransmissionFlags, option};
use cairn_reactor::Reactors;
use proptest::test_runner::{Config, TestRunner};

use super::far::{Far, Manners};
use super::{Model, Shape, act, extents, range, read, run, steps, worlds, write};
use crate::remote::{RemoteDisk, RemoteState, ReplayFigures};
use crate::{DeviceOpener, Handles, NbdDisk, unmark};

const FORMS: [MessageForm; 3] =
    [MessageForm::Simple, MessageForm::Structured, MessageForm::Extended];

fn open(uri: &str) -> Result<Arc<dyn Disk>, ConfigError> {
    NbdDisk::open(uri, false, Arc::default()).map(|disk| Arc::new(disk) as Arc<dyn Disk>)
}

#[test]
fn a_disk_elsewhere_holds_what_a_model_holds() {
    let bare = TransmissionFlags::HAS_FLAGS;
    for on in worlds() {
        for form in FORMS {
            let blocks = Some([4096, 4096, 8192]);
            for (manners, more) in [
                (Manners::good(form), ""),
                (Manners::good(form), "&exclusive&replay=1M"),
                (Manners { flags: bare, ..Manners::good(form) }, ""),
                (Manners { blocks, ..Manners::good(form) }, ""),
            ] {
                let far = Far::serve(manners);
                let disk = open(&far.uri(more)).unwrap();
                let mut runner = TestRunner::new(Config { cases: 4, ..Config::default() });
                let model = RefCell::new(Model::zeros(disk.sectors()));
                let done = runner.run(&steps(), |steps| {
                    run(&on, &disk, &mut model.borrow_mut(), steps);
                    Ok(())
                });
                done.unwrap();
            }
        }
    }
}

#[test]
fn requests_of_all_reactors_reach_the_server() {
    let far = Far::serve(Manners::good(MessageForm::Structured));
    let [on, _] = worlds();
    let disk = open(&far.uri("")).unwrap();
    let data = vec![7; 4096];
    write(&on, &disk, (range(8, 8), Flags::empty()), data.clone(), Shape::default()).unwrap();
    assert_eq!(read(&on, &disk, range(8, 8), Shape::default()).unwrap(), data);
    assert_eq!(extents(&on, &disk, range(0, 16))[0].count, SectorCount(16));
}

#[test]
fn an_answer_that_breaks_the_protocol_ends_the_connection_and_the_request_runs_again() {
    fn at(mut bytes: Vec<u8>, place: usize, value: u8) -> Vec<u8> {
        bytes[place] = value;
        bytes
    }
    let spoiled: [fn(Vec<u8>) -> Vec<u8>; 6] = [
        |bytes| at(bytes, 0, 0),                    // no magic
        |bytes| at(bytes, 15, 99),                  // another cookie
        |bytes| at(bytes, 7, 9),                    // an unknown kind
        |bytes| at(bytes, 16, 0x7f),                // an endless payload
        |bytes| at(bytes, 24, 0x7f),                // an offset beyond
        |bytes| bytes[..bytes.len() / 2].repeat(2), // the first chunk twice
    ];
    let [on, _] = worlds();
    for answer in spoiled {
        let far = Far::serve(Manners { answer, ..Manners::good(MessageForm::Structured) });
        let disk = open(&far.uri("&exclusive")).unwrap();
        let found = read(&on, &disk, range(0, 8), Shape::default()).unwrap();
        assert_eq!(found, vec![0; 4096]);
        assert_eq!((*far.connections.lock(), disk.failures()), (2, 0));
    }
}

#[test]
fn a_read_that_ends_without_its_data_shows_no_old_memory() {
    let answer = |bytes: Vec<u8>| {
        let mut none = bytes[..20].to_vec();
        (none[5], none[7]) = (1, 0);
        none[16..].fill(0);
        none
    };
    let far = Far::serve(Manners { answer, ..Manners::good(MessageForm::Structured) });
    let [on, _] = worlds();
    let disk = open(&far.uri("")).unwrap();
    assert_eq!(read(&on, &disk, range(0, 8), Shape::default()).unwrap(), vec![0; 4096]);
    assert_eq!(*far.connections.lock(), 2);
}

#[test]
fn a_request_that_ends_each_connection_fails_in_time() {
    let manners = Manners { answer: |_| vec![0; 4], ..Manners::good(MessageForm::Simple) };
    let far = Far::serve(Manners { is_always: true, ..manners });
    let [on, _] = worlds();
    let disk = open(&far.uri("&exclusive&reconnect=1")).unwrap();
    let one = (range(0, 8), Flags::empty());
    write(&on, &disk, one, vec![1; 4096], Shape::default()).unwrap();
    // The write is answered again over each connection, the read is not.
    assert_eq!(read(&on, &disk, range(0, 8), Shape::default()), Err(IoError::IO));
    assert!(*far.connections.lock() > 1);
    assert_eq!(disk.failures(), 0, "the write is kept");
}

#[test]
fn a_lost_connection_with_unflushed_writes_is_a_failure_of_the_disk() {
    let far = Far::serve(Manners {
        answer: |bytes| [bytes, vec![0; 16]].concat(),
        ..Manners::good(MessageForm::Simple)
    });
    let [on, _] = worlds();
    let disk = open(&far.uri("")).unwrap();
    let one = (range(0, 8), Flags::empty());
    write(&on, &disk, one, vec![1; 4096], Shape::default()).unwrap();
    act(&on, &disk, Op::Flush, range(0, 0), Flags::empty()).unwrap();
    assert_eq!(disk.failures(), 1, "F1: before the flush was answered");
}

#[test]
fn figures_show_what_a_lost_connection_had_to_write_again() {
    for form in FORMS {
        let far = Far::serve(Manners {
            answer: |bytes| [bytes, vec![0; 16]].concat(),
            ..Manners::good(form)
        });
        let [on, _] = worlds();
        let disk = NbdDisk::open(&far.uri("&exclusive&replay=2M"), false, Arc::default()).unwrap();
        let remote = Arc::new(disk);
        let disk: Arc<dyn Disk> = remote.clone();
        let fresh = remote.figures();
        assert_eq!((fresh.state, fresh.connections), (RemoteState::Connected, Some(1)));
        let one = (range(8, 8), Flags::empty());
        write(&on, &disk, one, vec![1; 4096], Shape::default()).unwrap();
        // Sent over the next connection, behind what is written again.
        read(&on, &disk, range(0, 16), Shape::default()).unwrap();
        let told = remote.figures();
        let held_bytes = 256 + 4096;
        let replay = ReplayFigures { held_bytes, limit_bytes: 2 << 20, replayed_bytes: 4096 };
        assert_eq!((told.replay, told.reconnects), (Some(replay), Some(1)));
        assert_eq!((told.state, told.connections), (RemoteState::Connected, Some(1)));
        act(&on, &disk, Op::Flush, range(0, 0), Flags::empty()).unwrap();
        let told = remote.figures();
        let replay = ReplayFigures { held_bytes: 0, ..replay };
        assert_eq!((told.replay, told.losses), (Some(replay), 0));
        let passed = |op| (told.traffic.of(op).count(), told.traffic.of(op).sectors.0);
        let expected = [(Op::Write, (1, 8)), (Op::Read, (1, 16)), (Op::Flush, (1, 0))];
        assert_eq!(expected.map(|(op, _)| (op, passed(op))), expected, "{form:?}");
    }
}

#[test]
fn figures_show_a_server_that_is_gone_until_it_is_back() {
    let manners = Manners { answer: |_| vec![0; 4], ..Manners::good(MessageForm::Simple) };
    let far = Far::serve(manners);
    let [on, _] = worlds();
    let handles = Arc::<Handles>::default();
    let opener = DeviceOpener::with_handles(handles.clone());
    let uri = far.uri("&reconnect=1");
    let disk = opener.open(&uri, false, Arc::default()).unwrap();
    far.hide(true);
    assert_eq!(read(&on, &disk, range(0, 8), Shape::default()), Err(IoError::IO));
    let one = || {
        let all = handles.remote_figures();
        let [one] = &all[..] else { panic!("{all:?}") };
        one.clone()
    };
    let gone = one();
    assert_eq!((gone.uri.as_str(), gone.shown.as_str()), (uri.as_str(), uri.as_str()));
    assert_eq!((gone.state, gone.connections), (RemoteState::Unreachable, Some(0)));
    let reads = gone.traffic.of(Op::Read);
    assert_eq!(
        (gone.retries, gone.reconnects, reads.count(), reads.failed),
        (Some(1), Some(0), 1, 1)
    );
    assert!(reads.nanos >= 900_000_000, "the time of its wait: {}", reads.nanos);
    far.hide(false);
    while one().state != RemoteState::Connected {
        std::thread::sleep(Duration::from_millis(10));
    }
    read(&on, &disk, range(0, 8), Shape::default()).unwrap();
    let back = one();
    let reads = back.traffic.of(Op::Read);
    assert_eq!((back.reconnects, reads.count(), reads.failed), (Some(1), 2, 1));
    drop(disk);
    assert!(handles.remote_figures().is_empty());
}

#[test]
fn requests_after_losses_of_an_idle_connection_wait_as_long_as_ever() {
    let far = Far::serve(Manners::good(MessageForm::Simple));
    let [on, _] = worlds();
    let remote = Arc::new(NbdDisk::open(&far.uri("&reconnect=1"), false, Arc::default()).unwrap());
    let disk: Arc<dyn Disk> = remote.clone();
    read(&on, &disk, range(0, 8), Shape::default()).unwrap();
    for losses in 1..=2 {
        far.cut();
        while remote.figures().reconnects < Some(losses) {
            std::thread::sleep(Duration::from_millis(10));
        }
        std::thread::sleep(Duration::from_millis(1100));
    }
    far.cut();
    assert!(read(&on, &disk, range(0, 8), Shape::default()).is_ok());
}

#[test]
fn a_server_that_negotiates_badly_is_refused_in_one_line() {
    let good = Manners::good(MessageForm::Structured);
    let cases: [(Manners, &str); 8] = [
        (Manners { size: 0, ..good }, "size: found 0 bytes"),
        (Manners { size: 1000, ..good }, "size: found 1000 bytes"),
        (Manners { blocks: Some([3, 4096, 65536]), ..good }, "block sizes: found 3"),
        (Manners { blocks: Some([1, 4096, 100]), ..good }, "block sizes: found 1, 4096, 100"),
        (Manners { blocks: Some([1 << 17, 1 << 17, 1 << 25]), ..good }, "block sizes"),
        (Manners { option: |_, bytes| bytes[..5].repeat(9), ..good }, "answer to an option"),
        (Manners { option: |_, bytes| bytes[..8].to_vec(), ..good }, "negotiation"),
        (Manners { option: endless, ..good }, "too many"),
    ];
    fn endless(asked: u32, bytes: Vec<u8>) -> Vec<u8> {
        match asked {
            option::GO => bytes[..32].repeat(100),
            _ => bytes,
        }
    }
    for (manners, expected) in cases {
        let far = Far::serve(manners);
        let uri = far.uri("");
        let line = open(&uri).err().expect(expected).to_string();
        assert!(line.starts_with(&uri) && line.contains(expected), "{line}");
        assert!(!line.contains('\n'));
    }
}

#[test]
fn a_read_only_export_is_a_read_only_disk_unless_the_uri_says_that_it_is_written() {
    let good = Manners::good(MessageForm::Structured);
    let flags = good.flags | TransmissionFlags::READ_ONLY;
    let far = Far::serve(Manners { flags, ..good });
    let line = open(&far.uri("&exclusive")).err().expect("it takes no writes").to_string();
    assert!(line.contains("found a read-only export, expected a writable one"), "{line}");
    let [on, _] = worlds();
    let disk = open(&far.uri("")).unwrap();
    assert!(disk.limits().read_only);
    let one = (range(0, 8), Flags::empty());
    let written = write(&on, &disk, one, vec![1; 4096], Shape::default());
    assert_eq!(written, Err(IoError::READ_ONLY));
    assert!(read(&on, &disk, range(0, 8), Shape::default()).is_ok());
}

#[test]
fn a_disk_that_is_dropped_says_goodbye() {
    let far = Far::serve(Manners::good(MessageForm::Extended));
    let [on, _] = worlds();
    for expected in 1..4 {
        let disk = open(&far.uri("")).unwrap();
        read(&on, &disk, range(0, 8), Shape::default()).unwrap();
        drop(disk);
        // The server takes one client at a time: the next one waits for the goodbye of this one.
        assert_eq!(*far.connections.lock(), expected);
    }
    on.block_on(ReactorId(0), |env| async move { assert_eq!(env.requests_in_use(), 0) });
}

/// A client that loses its first connection with the answer to its first request.
fn with_meta() -> Far {
    Far::serve(Manners {
        answer: |bytes| [bytes, vec![0; 16]].concat(),
        ..Manners::good(MessageForm::Simple)
    })
}

/// Has a client use the export, as the start of a table does.
fn take(on: &Reactors, disk: &Arc<dyn Disk>) {
    let disk = disk.clone();
    let taken = on.block_on(ReactorId(0), async move |env: Env| {
        let MarkerPlace::Store(store) = disk.marker_place() else { panic!("it has a place") };
        store.take(&env).await
    });
    taken.unwrap();
}

fn session_of(far: &Far) -> Vec<u8> {
    far.contents.lock()["m"][..RECORD_BYTES].to_vec()
}

#[test]
fn a_client_that_finds_its_own_session_sends_again_what_it_kept() {
    let far = with_meta();
    let [on, _] = worlds();
    let disk = NbdDisk::open(&far.uri("&meta=m"), false, Arc::default()).unwrap();
    let remote = Arc::new(disk);
    let disk: Arc<dyn Disk> = remote.clone();
    take(&on, &disk);
    let session = session_of(&far);
    assert!(session.iter().any(|byte| *byte != 0));
    let one = (range(0, 8), Flags::empty());
    write(&on, &disk, one, vec![1; 4096], Shape::default()).unwrap();
    far.contents.lock().remove("x");
    assert_eq!(read(&on, &disk, range(0, 8), Shape::default()).unwrap(), vec![1; 4096]);
    assert_eq!((*far.connections.lock(), disk.failures()), (2, 0));
    assert_eq!(remote.figures().replay.unwrap().replayed_bytes, 4096);
    assert_eq!(session_of(&far), session);
}

#[test]
fn a_client_that_finds_the_session_of_another_sends_nothing_and_fails_all() {
    for takes in [true, false] {
        let far = with_meta();
        let [on, _] = worlds();
        let remote = Arc::new(NbdDisk::open(&far.uri("&meta=m"), false, Arc::default()).unwrap());
        let disk: Arc<dyn Disk> = remote.clone();
        take(&on, &disk);
        far.hide(true);
        let one = (range(0, 8), Flags::empty());
        write(&on, &disk, one, vec![1; 4096], Shape::default()).unwrap();
        far.hide(false);
        match takes {
            // Another host has opened the export, and written to it.
            true => {
                let other = open(&far.uri("&meta=m&exclusive")).unwrap();
                take(&on, &other);
                let data = vec![2; 4096];
                write(&on, &other, (range(0, 8), Flags::FUA), data, Shape::default()).unwrap();
            }
            // The server has forgotten all it had.
            false => far.contents.lock().clear(),
        }
        let found = || far.contents.lock().get("x").map(|data| data[0]);
        let before = found();
        for _ in 0..2 {
            let read = read(&on, &disk, range(0, 8), Shape::default());
            assert_eq!(read.err(), Some(IoError::FENCED));
            assert!(disk.failures() > 0, "the write is lost, and told");
            let flush = act(&on, &disk, Op::Flush, range(0, 0), Flags::empty());
            assert_eq!(flush, Err(IoError::FENCED));
        }
        assert_eq!(found(), before, "nothing was sent again");
        assert_eq!(remote.figures().state, RemoteState::Fenced);
    }
}

/// K2: a look before the connection would find its own session.
#[test]
fn a_session_that_changes_while_the_client_connects_again_is_found() {
    let far = Far::serve(Manners {
        answer: |bytes| [bytes, vec![0; 16]].concat(),
        forgets: true,
        ..Manners::good(MessageForm::Simple)
    });
    let [on, _] = worlds();
    let disk = open(&far.uri("&meta=m")).unwrap();
    take(&on, &disk);
    let one = (range(0, 8), Flags::empty());
    write(&on, &disk, one, vec![1; 4096], Shape::default()).unwrap();
    let read = read(&on, &disk, range(0, 8), Shape::default());
    assert_eq!(read.err(), Some(IoError::FENCED));
}

#[test]
fn a_client_that_only_reads_or_is_refused_takes_the_export_from_nobody() {
    let far = with_meta();
    let [on, _] = worlds();
    let disk = open(&far.uri("&meta=m")).unwrap();
    take(&on, &disk);
    let session = session_of(&far);
    let reader = NbdDisk::open(&far.uri("&meta=m"), true, Arc::default()).unwrap();
    take(&on, &(Arc::new(reader) as Arc<dyn Disk>));
    drop(open(&far.uri("&meta=m")).unwrap());
    unmark(&far.uri("&meta=m"), "5f").unwrap_err();
    assert_eq!(session_of(&far), session);
    let one = (range(0, 8), Flags::empty());
    write(&on, &disk, one, vec![1; 4096], Shape::default()).unwrap();
    act(&on, &disk, Op::Flush, range(0, 0), Flags::empty()).unwrap();
}

#[test]
fn an_export_for_sessions_that_has_other_data_is_refused() {
    let far = with_meta();
    let [on, _] = worlds();
    let refused = |uri: &str| open(&far.uri(uri)).err().expect("refused").to_string();
    take(&on, &open(&far.uri("&meta=m")).unwrap());
    far.contents.lock().get_mut("m").unwrap()[4096 + 510] = 0x55;
    // Torn, as far as anybody can tell; the next session goes there.
    take(&on, &open(&far.uri("&meta=m")).unwrap());
    far.contents.lock().get_mut("m").unwrap()[510] = 0x55;
    assert!(refused("&meta=m").contains("meta 'm': found other data, expected zeros"));
    let other = format!("nbd+unix:///y?{}", far.uri("&meta=n").split_once('?').unwrap().1);
    take(&on, &open(&other).unwrap());
    let line = refused("&meta=n");
    assert!(line.contains("session in 'n': found '1 ") && line.contains("that of 'x'"), "{line}");
    assert!(refused("&meta=x").contains("another export than that of the data"));
}

#[test]
fn a_marker_beside_an_export_is_changed_by_the_client_that_has_it() {
    let far = with_meta();
    let [on, _] = worlds();
    let disk = open(&far.uri("&meta=m")).unwrap();
    take(&on, &disk);
    let marker = |disk: &Arc<dyn Disk>, text: Option<Option<&str>>| {
        let (disk, text) = (disk.clone(), text.map(|text| text.map(str::to_owned)));
        on.block_on(ReactorId(0), async move |env: Env| {
            let MarkerPlace::Store(store) = disk.marker_place() else { panic!("it has a place") };
            match text {
                Some(text) => store.write(&env, text).await.map(|()| None),
                None => store.read(&env).await,
            }
        })
    };
    let text = "1 5f writecache /dev/c - a 7";
    assert_eq!(marker(&disk, None).unwrap(), None);
    marker(&disk, Some(Some(text))).unwrap();
    assert_eq!(marker(&disk, None).unwrap().as_deref(), Some(text));
    let other = open(&far.uri("&meta=m")).unwrap();
    take(&on, &other);
    assert_eq!(marker(&other, None).unwrap().as_deref(), Some(text), "a session leaves it");
    let line = marker(&disk, Some(None)).unwrap_err().to_string();
    assert!(line.contains("session in 'm': found '1 "), "{line}");
    assert_eq!(marker(&other, None).unwrap().as_deref(), Some(text));
    drop((disk, other));
    let line = unmark(&far.uri("&meta=m"), "60").unwrap_err().to_string();
    assert!(line.contains("found '5f', expected 60"), "{line}");
    assert_eq!(unmark(&far.uri("&meta=m"), "5f").unwrap().cache, "/dev/c");
    let line = unmark(&far.uri(""), "5f").unwrap_err().to_string();
    assert!(line.contains("meta: found none"), "{line}");
    assert_eq!(marker(&open(&far.uri("&meta=m")).unwrap(), None).unwrap(), None);
}
