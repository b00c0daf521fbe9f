//! The rules of the history, each with a run that keeps it and one that breaks it.

use super::*;
use cairn_block::IoError;

const SEED: u64 = 11;
const ONE: SectorRange = SectorRange::new(Sector(0), SectorCount(1));

fn history() -> History {
    History::blank(SEED, SectorCount(1))
}

fn start(history: &History, op: Op) -> OpTicket {
    history.submit(op, ONE, Flags::empty())
}

fn end(history: &History, ticket: OpTicket) {
    history.complete(ticket, Ok(()), &[]);
}

fn done(history: &History, op: Op) -> OpTicket {
    let ticket = start(history, op);
    end(history, ticket);
    ticket
}

fn bytes_of(history: &History, ticket: Option<OpTicket>) -> Vec<u8> {
    ticket.map_or(vec![0; 512], |ticket| history.data(ticket))
}

fn read(history: &History, shows: Option<OpTicket>) -> bool {
    let ticket = start(history, Op::Read);
    history.complete(ticket, Ok(()), &bytes_of(history, shows));
    history.verdict().is_ok()
}

fn crash(history: &History, shows: Option<OpTicket>) -> bool {
    let contents = History::contents(Sector(0), &bytes_of(history, shows));
    history.check_after_crash(&contents).is_ok()
}

#[test]
fn a_read_shows_the_latest_completed_write_or_a_concurrent_one() {
    for shown in 0..3 {
        let history = history();
        let first = done(&history, Op::Write);
        let second = start(&history, Op::Write);
        let shows = [None, Some(first), Some(second)][shown];
        assert_eq!(read(&history, shows), shown > 0, "H1: case {shown}");
    }
}

#[test]
fn a_read_does_not_see_the_future() {
    let history = history();
    let reading = start(&history, Op::Read);
    let early = start(&history, Op::Write);
    history.complete(reading, Ok(()), &history.data(early));
    assert!(history.verdict().is_ok(), "submitted before the read completed");
    end(&history, early);
    assert!(!read(&history, None));
}

#[test]
fn two_concurrent_writes_leave_either_but_reads_do_not_go_back_and_forth() {
    for second_look in [false, true] {
        let history = history();
        let (a, b) = (start(&history, Op::Write), start(&history, Op::Write));
        end(&history, a);
        end(&history, b);
        assert!(read(&history, Some(a)));
        assert_eq!(read(&history, Some(if second_look { b } else { a })), !second_look, "H2");
    }
}

#[test]
fn unflushed_writes_may_be_lost_and_flushed_ones_not() {
    let history = history();
    let first = done(&history, Op::Write);
    assert!(crash(&history, None) && crash(&history, Some(first)));
    done(&history, Op::Flush);
    assert!(!crash(&history, None), "H3");
    let second = done(&history, Op::Write);
    assert!(crash(&history, Some(first)) && crash(&history, Some(second)));
}

#[test]
fn a_flush_in_flight_or_failed_promises_nothing() {
    let history = history();
    done(&history, Op::Write);
    let flush = start(&history, Op::Flush);
    assert!(crash(&history, None));
    history.complete(flush, Err(IoError::injected(cairn_block::ErrorKind::Io)), &[]);
    assert!(crash(&history, None));
}

#[test]
fn a_write_that_completed_after_the_flush_was_submitted_is_not_covered() {
    let history = history();
    let write = start(&history, Op::Write);
    let flush = start(&history, Op::Flush);
    end(&history, write);
    end(&history, flush);
    assert!(crash(&history, None));
}

#[test]
fn fua_is_durable_when_it_completes() {
    let history = history();
    let write = history.submit(Op::Write, ONE, Flags::FUA);
    assert!(crash(&history, None));
    end(&history, write);
    assert!(!crash(&history, None));
}

#[test]
fn write_zeroes_is_a_write() {
    let history = history();
    let write = done(&history, Op::Write);
    done(&history, Op::WriteZeroes);
    assert!(crash(&history, Some(write)) && crash(&history, None));
    done(&history, Op::Flush);
    assert!(!crash(&history, Some(write)));
    assert!(!read(&history, Some(write)));
}

#[test]
fn a_failed_write_may_show_or_not_until_it_is_superseded() {
    let history = history();
    let failed = start(&history, Op::Write);
    history.complete(failed, Err(IoError::injected(cairn_block::ErrorKind::Io)), &[]);
    assert!(read(&history, Some(failed)) && read(&history, None), "H4");
    done(&history, Op::Write);
    assert!(!read(&history, Some(failed)));
}

#[test]
fn error_that_was_not_planted_is_a_violation() {
    let history = history();
    let ticket = start(&history, Op::Flush);
    history.complete(ticket, Err(IoError::IO), &[]);
    assert!(history.verdict().is_err());
}

#[test]
fn discard_allows_any_earlier_content_until_the_next_write() {
    let history = history();
    let old = done(&history, Op::Write);
    done(&history, Op::Write);
    done(&history, Op::Flush);
    done(&history, Op::Discard);
    assert!(read(&history, Some(old)) && read(&history, None), "H5");
    assert!(crash(&history, Some(old)));
    let new = done(&history, Op::Write);
    assert!(crash(&history, Some(old)), "the discard may be what is durable");
    done(&history, Op::Flush);
    assert!(crash(&history, Some(new)) && !crash(&history, Some(old)));
    assert!(!read(&history, Some(old)));
}

#[test]
fn after_a_rebase_only_the_contents_read_are_allowed() {
    let history = history();
    let write = done(&history, Op::Write);
    let bytes = history.data(write);
    history.rebase(History::contents(Sector(0), &bytes));
    assert!(history.check_after_crash(&[Content::Zero]).is_err(), "H6");
    assert!(history.check_after_crash(&History::contents(Sector(0), &bytes)).is_ok());
}

#[test]
fn poison_and_torn_sectors_are_never_right() {
    let history = history();
    let write = start(&history, Op::Write);
    let mut torn = history.data(write);
    torn[300..].fill(0);
    let ticket = start(&history, Op::Read);
    history.complete(ticket, Ok(()), &torn);
    assert!(history.verdict().is_err());
}

#[test]
fn discarded_sector_stays_undefined_after_reads() {
    let history = history();
    let first = done(&history, Op::Write);
    done(&history, Op::Discard);
    let shown = History::contents(Sector(0), &bytes_of(&history, Some(first)));
    history.go_on(shown.clone());
    assert!(read(&history, Some(first)) && read(&history, None), "H7");
    history.go_on(shown.clone());
    let second = done(&history, Op::Write);
    history.go_on(History::contents(Sector(0), &bytes_of(&history, Some(second))));
    assert!(!read(&history, None), "H7: it was written");
}

#[test]
fn failed_flush_leaves_writes_in_doubt_that_no_earlier_flush_covered() {
    let history = history();
    history.tolerate_errors(true);
    history.failed_flushes_lose(true);
    let first = done(&history, Op::Write);
    done(&history, Op::Flush);
    let second = done(&history, Op::Write);
    history.complete(start(&history, Op::Flush), Err(IoError::IO), &[]);
    assert!(read(&history, Some(second)) && !read(&history, Some(first)));
    done(&history, Op::Flush);
    assert!(crash(&history, Some(first)) && crash(&history, Some(second)), "H8");
    assert!(!crash(&history, None));
    let third = done(&history, Op::Write);
    done(&history, Op::Flush);
    assert!(!crash(&history, Some(second)) && crash(&history, Some(third)));
}

#[test]
fn a_disk_that_may_roll_back_shows_what_a_crash_would_leave() {
    let history = history();
    history.may_roll_back(true);
    let first = done(&history, Op::Write);
    done(&history, Op::Flush);
    let second = done(&history, Op::Write);
    assert!(read(&history, Some(second)));
    assert!(read(&history, Some(first)), "H9: no flush covered the second");
    assert!(!read(&history, None), "H9: a flush covered the first");
}

#[test]
fn read_may_miss_writes_that_became_durable_during_it() {
    for before in [false, true] {
        let history = history();
        history.may_roll_back(true);
        done(&history, Op::Write);
        let fua = || end(&history, history.submit(Op::Write, ONE, Flags::FUA));
        if before {
            fua();
        }
        let reading = start(&history, Op::Read);
        if !before {
            fua();
        }
        history.complete(reading, Ok(()), &bytes_of(&history, None));
        assert_eq!(history.verdict().is_ok(), !before, "H9");
    }
}

#[test]
fn each_client_relies_on_its_own_flushes_until_it_is_told() {
    for told in [false, true] {
        let history = history();
        history.failed_flushes_lose(true);
        let clients = [history.connect(), history.connect()];
        let flush = |client: ClientId, result| {
            let whole = SectorRange::default();
            let ticket = history.submit_by(client, Op::Flush, whole, Flags::empty());
            history.complete(ticket, result, &[]);
        };
        done(&history, Op::Write);
        flush(clients[0], Err(IoError::injected(cairn_block::ErrorKind::Io)));
        flush(clients[0], Ok(()));
        if told {
            flush(clients[1], Err(IoError::injected(cairn_block::ErrorKind::Io)));
        }
        flush(clients[1], Ok(()));
        flush(history.connect(), Ok(()));
        assert_eq!(crash(&history, None), told, "H8");
    }
}

#[test]
fn a_kill_fails_what_is_in_flight_and_makes_nothing_durable() {
    let history = history();
    let first = done(&history, Op::Write);
    let second = start(&history, Op::Write);
    history.kill();
    for shows in [None, Some(first), Some(second)] {
        assert!(crash(&history, shows), "H10");
    }
}

#[test]
fn writes_lost_by_a_kill_are_not_covered_by_a_later_flush() {
    let history = history();
    done(&history, Op::Write);
    history.kill();
    history.reopen(&[Content::Zero]);
    let client = history.connect();
    end(&history, history.submit_by(client, Op::Flush, SectorRange::default(), Flags::empty()));
    assert!(crash(&history, None), "H10");
}

#[test]
fn contents_read_after_a_kill_become_durable_with_the_next_flush() {
    for flushed in [false, true] {
        let history = history();
        let first = done(&history, Op::Write);
        let second = start(&history, Op::Write);
        history.kill();
        let contents = History::contents(Sector(0), &bytes_of(&history, Some(first)));
        history.reopen(&contents);
        let client = history.connect();
        if flushed {
            let whole = SectorRange::default();
            end(&history, history.submit_by(client, Op::Flush, whole, Flags::empty()));
        }
        assert!(crash(&history, Some(first)));
        assert_eq!(crash(&history, None), !flushed, "H10");
        assert_eq!(crash(&history, Some(second)), !flushed, "H10");
        for (shows, allowed) in [(first, true), (second, false)] {
            let ticket = history.submit_by(client, Op::Read, ONE, Flags::empty());
            history.complete(ticket, Ok(()), &bytes_of(&history, Some(shows)));
            assert_eq!(history.verdict().is_ok(), allowed, "H10");
        }
    }
}
