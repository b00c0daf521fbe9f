//! Disks of objects at web servers, good and hostile.

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use cairn_block::{ConfigError, Disk, Flags, IoError, Op, Opener, ReactorId, SectorCount};

use super::web::{Manners, Web};
use super::{Shape, act, range, read, worlds, write};
use crate::remote::RemoteState;
use crate::{DeviceOpener, Handles};

/// Longer than what is read at the open.
const BYTES: usize = 4 << 20;

fn open(uri: &str) -> Result<Arc<dyn Disk>, ConfigError> {
    DeviceOpener::default().open(uri, false, Arc::default())
}

#[test]
fn an_object_reads_as_it_is_on_all_reactors() {
    for on in worlds() {
        let web = Web::serve(BYTES);
        let disk = open(&web.uri("")).unwrap();
        assert_eq!(disk.sectors(), SectorCount(BYTES as u64 / 512));
        for (start, count) in [(0, 8), (8000, 8), (100, 1), (0, 8192), (8191, 1)] {
            let at = range(start, count);
            let expected = &web.data[start as usize * 512..(start + count) as usize * 512];
            for shape in [Shape::default(), Shape { cut: Some(512), ..Shape::default() }] {
                assert!(read(&on, &disk, at, shape).unwrap() == expected, "{at:?}");
            }
        }
        act(&on, &disk, Op::Flush, range(0, 0), Flags::empty()).unwrap();
        on.block_on(ReactorId(0), |env| async move { assert_eq!(env.requests_in_use(), 0) });
    }
}

#[test]
fn a_write_is_refused_as_of_any_read_only_disk() {
    let [on, _] = worlds();
    let web = Web::serve(BYTES);
    let disk = open(&web.uri("")).unwrap();
    let at = (range(0, 8), Flags::empty());
    let written = write(&on, &disk, at, vec![1; 4096], Shape::default());
    assert_eq!(written, Err(IoError::READ_ONLY));
    for op in [Op::Discard, Op::WriteZeroes] {
        assert_eq!(act(&on, &disk, op, range(0, 8), Flags::empty()), Err(IoError::READ_ONLY));
    }
    assert_eq!(disk.failures(), 0);
}

#[test]
fn the_last_sector_of_an_object_ends_in_zeroes() {
    let [on, _] = worlds();
    for bytes in [700, 100_100] {
        let web = Web::serve(bytes);
        let disk = open(&web.uri("")).unwrap();
        let last = bytes as u64 / 512;
        assert_eq!(disk.sectors(), SectorCount(last + 1));
        let mut expected = web.data[last as usize * 512..].to_vec();
        expected.resize(512, 0);
        assert_eq!(read(&on, &disk, range(last, 1), Shape::default()).unwrap(), expected);
    }
}

#[test]
fn the_begin_of_an_object_comes_with_its_open() {
    let [on, _] = worlds();
    let web = Web::serve(BYTES);
    let disk = open(&web.uri("")).unwrap();
    read(&on, &disk, range(0, 8), Shape::default()).unwrap();
    assert_eq!(web.asked.lock().len(), 1);
}

#[test]
fn an_object_without_a_strong_etag_is_read_only_as_unchecked() {
    let [on, _] = worlds();
    for (manners, found) in
        [(Manners::NoEtag, "found none"), (Manners::WeakEtag, "found W/\"one\"")]
    {
        let web = Web::serve(BYTES);
        web.behave(manners);
        let line = open(&web.uri("")).err().unwrap().to_string();
        assert!(line.contains(found) && line.contains("#unchecked"), "{line}");
        let disk = open(&web.uri("#unchecked")).unwrap();
        let at = read(&on, &disk, range(4096, 8), Shape::default()).unwrap();
        assert!(at == web.data[2 << 20..(2 << 20) + 4096]);
        // The length is looked at.
        web.behave(Manners::OtherLength);
        assert_eq!(read(&on, &disk, range(0, 8192), Shape::default()), Err(IoError::IO));
    }
}

#[test]
fn an_etag_that_was_asked_for_must_be_found() {
    let web = Web::serve(BYTES);
    open(&web.uri("#etag=one")).unwrap();
    let line = open(&web.uri("#etag=two")).err().unwrap().to_string();
    assert!(line.contains("ETag: found \"one\", expected \"two\""), "{line}");
}

#[test]
fn a_changed_object_fails_every_read_from_then_on() {
    let [on, _] = worlds();
    for manners in [Manners::OtherObject, Manners::Replaced, Manners::OtherLength] {
        let web = Web::serve(BYTES);
        let disk = open(&web.uri("")).unwrap();
        web.behave(manners);
        let begin = Instant::now();
        for at in [range(4096, 8), range(0, 8)] {
            assert_eq!(read(&on, &disk, at, Shape::default()), Err(IoError::IO), "{manners:?}");
        }
        web.behave(Manners::Good);
        assert_eq!(read(&on, &disk, range(4096, 8), Shape::default()), Err(IoError::IO));
        assert!(begin.elapsed() < Duration::from_secs(10), "without a repeat");
    }
}

#[test]
fn figures_show_tries_and_their_end() {
    let [on, _] = worlds();
    let web = Web::serve(BYTES);
    let handles = Arc::<Handles>::default();
    let opener = DeviceOpener::with_handles(handles.clone());
    let disk = opener.open(&web.uri("&token=secret#reconnect=1"), false, Arc::default()).unwrap();
    let one = || handles.remote_figures().pop().unwrap();
    let fresh = one();
    assert!(fresh.uri.contains("secret") && !fresh.shown.contains("secret"), "{fresh:?}");
    assert!(fresh.shown.ends_with("/image?...#reconnect=1"), "{}", fresh.shown);
    assert_eq!((fresh.state, fresh.fetched_bytes), (RemoteState::Connected, Some(64 << 10)));
    for (manners, state) in [
        (Manners::Status(500), RemoteState::Unreachable),
        (Manners::Status(403), RemoteState::Refused),
        (Manners::Good, RemoteState::Connected),
        (Manners::OtherObject, RemoteState::Changed),
        (Manners::Good, RemoteState::Changed),
    ] {
        web.behave(manners);
        let read = read(&on, &disk, range(4096, 8), Shape::default());
        assert_eq!(read.is_ok(), state == RemoteState::Connected, "{manners:?}");
        assert_eq!(one().state, state, "{manners:?}");
    }
    let told = one();
    let reads = told.traffic.of(Op::Read);
    assert_eq!((reads.count(), reads.failed, reads.sectors.0), (5, 4, 40));
    assert!(told.retries > Some(1), "{told:?}");
    assert_eq!(told.fetched_bytes, Some((64 << 10) + 4096));
}

#[test]
fn names_that_are_shown_differ_also_where_a_query_is_left_out() {
    let web = Web::serve(BYTES);
    let handles = Arc::<Handles>::default();
    let opener = DeviceOpener::with_handles(handles.clone());
    let open = |more| opener.open(&web.uri(more), false, Arc::default()).unwrap();
    let _disks = ["&a=1", "&a=2", "&a=1"].map(open);
    let shown: Vec<_> = handles.remote_figures().into_iter().map(|it| it.shown).collect();
    let [first, second] = &shown[..] else { panic!("{shown:?}") };
    assert_eq!(*second, format!("{first} (2)"));
}

#[test]
fn a_lying_answer_is_no_data_and_the_read_runs_again() {
    let [on, _] = worlds();
    let hostile = [
        Manners::Short,
        Manners::Long,
        Manners::OtherRange,
        Manners::NoRanges,
        Manners::Status(500),
        Manners::Status(503),
    ];
    for manners in hostile {
        let web = Web::serve(BYTES);
        let disk = open(&web.uri("#reconnect=20")).unwrap();
        web.behave(manners);
        let (on, asked) = (&on, web.asked.clone());
        let expected = &web.data[2 << 20..(2 << 20) + 4096];
        thread::scope(|scope| {
            let got = scope.spawn(|| read(on, &disk, range(4096, 8), Shape::default()));
            while asked.lock().len() < 3 {
                thread::sleep(Duration::from_millis(5));
            }
            web.behave(Manners::Good);
            assert!(got.join().unwrap().unwrap() == expected, "{manners:?}");
        });
    }
}

#[test]
fn a_server_that_is_silent_fails_its_reads_in_time_and_no_others() {
    let [on, _] = worlds();
    let (silent, good) = (Web::serve(BYTES), Web::serve(BYTES));
    let disk = open(&silent.uri("#reconnect=2")).unwrap();
    let other = open(&good.uri("")).unwrap();
    silent.behave(Manners::Hang);
    thread::scope(|scope| {
        let begin = Instant::now();
        let waits = scope.spawn(|| read(&on, &disk, range(4096, 8), Shape::default()));
        for at in 0..50 {
            read(&on, &other, range(1000 + at * 64, 8), Shape::default()).unwrap();
        }
        assert!(begin.elapsed() < Duration::from_secs(2));
        assert_eq!(waits.join().unwrap(), Err(IoError::IO));
        assert!(begin.elapsed() < Duration::from_secs(5));
    });
}

#[test]
fn a_slow_link_that_works_fails_no_reads() {
    let [on, _] = worlds();
    let web = Web::serve(BYTES);
    let disk = open(&web.uri("#reconnect=1")).unwrap();
    web.behave(Manners::Slow(Duration::from_millis(50)));
    let begin = Instant::now();
    let found = read(&on, &disk, range(4096, 512), Shape::default()).unwrap();
    assert!(found == web.data[2 << 20..(2 << 20) + (256 << 10)]);
    assert!(begin.elapsed() > Duration::from_secs(3), "it took longer than it may try again");
}

#[test]
fn a_link_that_hardly_moves_fails_its_reads() {
    let [on, _] = worlds();
    let web = Web::serve(BYTES);
    let disk = open(&web.uri("#reconnect=0")).unwrap();
    // 4 KiB each time: 30 KiB within the patience.
    web.behave(Manners::Slow(Duration::from_secs(2)));
    let begin = Instant::now();
    let found = read(&on, &disk, range(4096, 128), Shape::default());
    assert_eq!(found, Err(IoError::IO));
    assert!(begin.elapsed() < Duration::from_secs(25));
    assert_eq!(web.asked.lock().len(), 2, "the open and one try");
}

#[test]
fn many_reads_of_a_silent_server_wait_as_long_as_one() {
    let [on, _] = worlds();
    let web = Web::serve(BYTES);
    let disk = open(&web.uri("#reconnect=2")).unwrap();
    web.behave(Manners::Hang);
    let begin = Instant::now();
    thread::scope(|scope| {
        for at in 0..40 {
            let (on, disk) = (&on, &disk);
            scope.spawn(move || {
                let found = read(on, disk, range(1000 + at * 128, 8), Shape::default());
                assert_eq!(found, Err(IoError::IO));
            });
        }
    });
    // Eight are under way at one time.
    assert!(begin.elapsed() < Duration::from_secs(7), "{:?}", begin.elapsed());
}

#[test]
fn an_object_that_cannot_be_opened_is_refused_in_one_line() {
    let cases = [
        (Manners::NoRanges, "Range request not supported"),
        (Manners::Status(404), "no such object (404)"),
        (Manners::Status(403), "refuses access (403)"),
        (Manners::Status(401), "asks for credentials (401)"),
        (Manners::Status(500), "500"),
        (Manners::Short, "open: "),
        (Manners::Long, "Content-Length"),
        (Manners::OtherRange, "512"),
        (Manners::EndlessHeaders, "open: "),
        (Manners::Encoded, "Content-Encoding: found gzip"),
    ];
    for (manners, expected) in cases {
        let web = Web::serve(BYTES);
        web.behave(manners);
        let uri = web.uri("");
        let line = open(&uri).err().expect(expected).to_string();
        assert!(line.starts_with(&uri) && line.contains(expected), "{manners:?}: {line}");
        assert!(!line.contains('\n') && line.len() < 400, "{line}");
    }
    let line = open("http://127.0.0.1:1/x").err().unwrap().to_string();
    assert!(line.contains("refused"), "{line}");
    let empty = Web::serve(0);
    assert!(open(&empty.uri("")).is_err());
}

#[test]
fn an_error_with_a_body_without_a_limit_is_an_error_and_no_more() {
    let [on, _] = worlds();
    for code in [403, 412, 416, 500] {
        for manners in [Manners::HugeError(code), Manners::EndlessError(code)] {
            let web = Web::serve(BYTES);
            let disk = open(&web.uri("#reconnect=1")).unwrap();
            web.behave(manners);
            assert!(open(&web.uri("")).is_err());
            let found = read(&on, &disk, range(4096, 8), Shape::default());
            assert_eq!(found, Err(IoError::IO), "{manners:?}");
        }
    }
}

#[test]
fn reads_in_order_are_fetched_ahead() {
    let [on, _] = worlds();
    let web = Web::serve(BYTES);
    let disk = open(&web.uri("")).unwrap();
    for at in (0..8192).step_by(64) {
        let found = read(&on, &disk, range(at, 64), Shape::default()).unwrap();
        assert!(found == web.data[at as usize * 512..][..32768]);
    }
    let asked = web.asked.lock().len();
    assert!(asked < 20, "{asked} questions for 128 reads");
}
