//! Traces: what real clients asked for, read from a file one line at a time.
//!
//! - [`Trace`]: reads `fio`'s iologs of versions 2 and 3 and the text that `blkparse` prints by
//!   default, which the first line tells apart. `fio`, `blkparse`: one line of each. `line`: its
//!   words and numbers, and errors that name it.
//!
//! Promises, which the tests hold:
//! - T1. A line that cannot be read ends the trace with an error that names file, line, what was
//!   found and what was expected; so does a range that is not on the device. No line is passed over
//!   in silence but those that are no operations of the client (files opened, requests merged).
//! - T2. No bytes make it panic, and it holds one line, of at most 64 KiB.
//! - T3. Moments never go back.
//!
//! A trace is of one device. If its file has several, the caller names the one to read.

mod blkparse;
mod fio;
mod line;

use std::io::BufRead;
use std::time::Duration;

use cairn_block::{Op, SectorCount, SectorRange, Time};
use cairn_outcome::failure::Outcome;

use crate::workload::Operation;
use line::{Line, Lines};

/// Moments may go back by so much: lines of several processors or clients are not always in order.
/// The later line is then taken to be of the moment of the earlier. More is two traces in one file.
const BACK_MAX: Duration = Duration::from_secs(1);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Format {
    FioV2,
    FioV3,
    Blkparse,
}

/// What a line tells.
enum Event<'a> {
    /// Nothing that a client asked for.
    Nothing,
    /// No more events.
    End,
    /// The next operation starts no earlier than so long after the last wait.
    Wait(Duration),
    /// A client asks for something.
    Ask(Ask<'a>),
}

/// What a client asks for.
struct Ask<'a> {
    /// When; `None` if the format tells it by waits.
    at: Option<Time>,
    /// The device or file.
    source: &'a str,
    /// What.
    op: Op,
    /// Where, perhaps not on the device; empty for a flush.
    range: SectorRange,
    /// The write is durable when it ends.
    is_fua: bool,
    /// A flush comes before it.
    has_preflush: bool,
}

/// The operations of a trace, in order. Ends after the first error.
///
/// [`Operation::not_before`] is the moment of the operation in the trace, from its start. A write
/// with a flush before it (`blkparse` prints `FW`) is two operations of one moment. In an iolog of
/// version 2, which tells no moments, it is the sum of the waits; as `fio` does, a wait of less
/// than 100 us counts as none.
pub struct Trace<R> {
    lines: Lines<R>,
    state: State,
    is_over: bool,
}

/// What the lines so far mean for the next one.
struct State {
    size: SectorCount,
    /// The device or file: the chosen one, or the first that was asked for something.
    source: Option<String>,
    has_choice: bool,
    format: Option<Format>,
    now: Time,
    /// A write whose flush was told.
    pending: Option<Operation>,
}

impl<R: BufRead> Trace<R> {
    /// Reads `input`, a file called `name`, as a trace of a device of `size`. `source` chooses one
    /// of several: the name of a file as an iolog has it, or a device as in `8,0`.
    pub fn new(name: &str, input: R, size: SectorCount, source: Option<&str>) -> Trace<R> {
        let state = State {
            size,
            source: source.map(str::to_owned),
            has_choice: source.is_some(),
            format: None,
            now: Time(0),
            pending: None,
        };
        Trace { lines: Lines::new(name, input), state, is_over: false }
    }

    /// Reads lines until one has an operation.
    fn advance(&mut self) -> Outcome<Option<Operation>> {
        if let Some(write) = self.state.pending.take() {
            return Ok(Some(write));
        }
        while let Some(line) = self.lines.next()? {
            match self.state.event(&line)? {
                Event::Nothing => {}
                Event::End => break,
                Event::Wait(wait) => self.state.now = self.state.now + wait,
                Event::Ask(ask) => {
                    if let Some(operation) = self.state.operation(&line, &ask)? {
                        return Ok(Some(operation));
                    }
                }
            }
        }
        Ok(None)
    }
}

impl<R: BufRead> Iterator for Trace<R> {
    type Item = Outcome<Operation>;

    fn next(&mut self) -> Option<Outcome<Operation>> {
        if self.is_over {
            return None;
        }
        let next = self.advance().transpose();
        self.is_over = !matches!(next, Some(Ok(_)));
        next
    }
}

impl State {
    fn event<'a>(&mut self, line: &'a Line<'_>) -> Outcome<Event<'a>> {
        let Some(format) = self.format else {
            let format = match line.text.trim() {
                "fio version 2 iolog" => Format::FioV2,
                "fio version 3 iolog" => Format::FioV3,
                _ => Format::Blkparse,
            };
            self.format = Some(format);
            let is_header = format != Format::Blkparse;
            return if is_header { Ok(Event::Nothing) } else { blkparse::event(line) };
        };
        match format {
            Format::FioV2 => fio::event_v2(line),
            Format::FioV3 => fio::event_v3(line),
            Format::Blkparse => blkparse::event(line),
        }
    }

    /// The first operation of what is asked for; the second is kept. `None` if it is of a device
    /// that was not chosen.
    fn operation(&mut self, line: &Line<'_>, ask: &Ask<'_>) -> Outcome<Option<Operation>> {
        match &self.source {
            Some(source) if source == ask.source => {}
            Some(_) if self.has_choice => return Ok(None),
            Some(source) => {
                let expected = format!("{source:?} alone: choose one of them");
                return Err(line.wrong("device", format!("{:?} too", ask.source), expected));
            }
            None => self.source = Some(ask.source.to_owned()),
        }
        if !ask.range.fits_in(self.size) {
            let expected = format!("a range within the {} sectors of the device", self.size);
            return Err(line.wrong("range", ask.range, expected));
        }
        if let Some(at) = ask.at {
            if at + BACK_MAX < self.now {
                let expected = format!("{} ns or later, as before", self.now.0);
                return Err(line.wrong("time", format!("{} ns", at.0), expected));
            }
            self.now = self.now.max(at);
        }
        let at = |operation| Operation { not_before: self.now, ..operation };
        let asked = at(Operation { is_fua: ask.is_fua, ..Operation::on(ask.op, ask.range) });
        if ask.has_preflush && ask.op != Op::Flush {
            self.pending = Some(asked);
            return Ok(Some(at(Operation::flush())));
        }
        Ok(Some(asked))
    }
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader, Cursor, Read};
    use std::time::Duration;

    use cairn_block::{Op, SectorCount, Time};
    use proptest::prelude::*;

    use super::Trace;
    use super::line::LINE_BYTES_MAX;
    use crate::workload::Operation;

    const SIZE: SectorCount = SectorCount(10_000);

    fn read(text: &str) -> Result<Vec<Operation>, String> {
        read_of(text, None)
    }

    fn read_of(text: &str, source: Option<&str>) -> Result<Vec<Operation>, String> {
        let trace = Trace::new("t.log", text.as_bytes(), SIZE, source);
        trace.collect::<Result<_, _>>().map_err(|error| error.to_string())
    }

    fn v2(lines: &str) -> String {
        format!("fio version 2 iolog\n/d add\n/d open\n{lines}\n/d close\n")
    }

    fn v3(lines: &str) -> String {
        format!("fio version 3 iolog\n0 /d add\n0 /d open\n{lines}\n")
    }

    fn queued(what: &str) -> String {
        format!("  8,0    1        1     0.000001500   700  Q {what}\n")
    }

    fn at(nanos: u64, operation: Operation) -> Operation {
        Operation { not_before: Time(nanos), ..operation }
    }

    #[test]
    fn lines_of_iologs_become_operations_at_their_moments() {
        let (read_op, write) = (Operation::new(Op::Read, 8, 16), Operation::new(Op::Write, 0, 1));
        let text =
            v2("/d write 0 512\n/d wait 250 0\n/d wait 99 0\n/d read 4096 8192\n/d sync 0 0");
        let expected = [write, at(250_000, read_op), at(250_000, Operation::flush())];
        assert_eq!(read(&text).unwrap(), expected);
        let trim = Operation::new(Op::Discard, 8, 16);
        let text = v3("7 /d datasync 512 0\r\n\n9 /d trim 4096 8192");
        assert_eq!(read(&text).unwrap(), [at(7000, Operation::flush()), at(9000, trim)]);
    }

    #[test]
    fn queued_lines_of_blkparse_become_operations() {
        let fua = |op| Operation { is_fua: true, ..op };
        let write = at(1500, Operation::new(Op::Write, 8, 4));
        let flush = at(1500, Operation::flush());
        let cases = [
            ("  WS 8 + 4 [fio]", vec![write]),
            ("  RA 8 + 4 [a b]", vec![at(1500, Operation::new(Op::Read, 8, 4))]),
            ("   D 8 + 4 [fio]", vec![at(1500, Operation::new(Op::Discard, 8, 4))]),
            (" WFS 8 + 4 [fio]", vec![fua(write)]),
            ("FWFS 8 + 4 [fio]", vec![flush, fua(write)]),
            (" FWS 8 + 4 [fio]", vec![flush, write]),
            (" FWS [jbd2/sda1-8]", vec![flush]),
            ("  FN [fio]", vec![flush]),
        ];
        for (what, expected) in cases {
            assert_eq!(read(&queued(what)).unwrap(), expected, "{what}");
        }
    }

    #[test]
    fn line_that_cannot_be_read_is_named_with_what_was_found_and_expected() {
        let cases = [
            (v2("/d raed 0 512"), "line 4: action: found \"raed\", expected add, open, close, "),
            (
                v2("/d read 0"),
                "line 4: fields: found 3, expected 2 or 4: FILE ACTION [OFFSET LENGTH]",
            ),
            (v2("/d read"), "line 4: action: found \"read\" without a range"),
            (v2("/d read x 512"), "line 4: offset: found \"x\", expected a number"),
            (v2("/d read +0 512"), "line 4: offset: found \"+0\", expected a number"),
            (v2("/d read 100 512"), "line 4: offset: found 100, expected a multiple of 512"),
            (v2("/d read 0 100"), "line 4: length: found 100, expected a multiple of 512"),
            (v2("/d write 0 0"), "line 4: length: found 0, expected more"),
            (v2("/d wait 18446744073709551615 0"), "line 4: wait: found 18446744073709551615"),
            (v2("/d read 5119488 1024"), "line 4: range: found 9999+2, expected a range within"),
            (v2("/d read 18446744073709551104 1024"), "line 4: range: found"),
            (v2("fio version 2 iolog"), "line 4: action: found \"version\""),
            (
                v2("/d read 0 512\n/e read 0 512"),
                "line 5: device: found \"/e\" too, expected \"/d\"",
            ),
            (v3("1 /d wait 0 0"), "line 4: action: found \"wait\", expected"),
            (v3("/d read 0 512"), "line 4: fields: found 4, expected 3 or 5: TIME FILE ACTION"),
            (v3("x /d read 0 512"), "line 4: time: found \"x\", expected a number"),
            (
                v3("2000000 /d sync 0 0\n1 /d sync 0 0"),
                "line 5: time: found 1000 ns, expected 20000",
            ),
            ("fio version 4 iolog\n".to_owned(), "line 1: device: found \"fio\", expected"),
            ("\u{1}\u{2}".to_owned(), "line 1: device: found \"\\u{1}\\u{2}\", expected"),
            (queued(""), "line 1: fields: found 6, expected 7 or more"),
            (queued("Z 8 + 4 [fio]"), "line 1: operation: found \"Z\", expected R, W or D"),
            (queued("WX 8 + 4 [fio]"), "line 1: operation: found \"WX\", expected R, W or D"),
            (queued("N 8 + 4 [fio]"), "line 1: operation: found \"N\""),
            (queued("W [fio]"), "line 1: range: found none, expected SECTOR + COUNT"),
            (queued("W 8 4 [fio]"), "line 1: range: found \"8 4 [fio]\", expected SECTOR + COUNT"),
            (
                queued("W 9999 + 2 [fio]"),
                "line 1: range: found 9999+2, expected a range within the",
            ),
            (queued("W 8 + 0 [fio]"), "line 1: range: found 8+0, expected 1 sector or more"),
            (queued("W 8 + 4 [a]").replace("0.0000015", "0.x"), "line 1: time: found \"0.x00\""),
            (queued("W 8 + 4 [a]").replace(" Q ", " ? "), "line 1: action: found \"?\", expected"),
            ("a".repeat(LINE_BYTES_MAX + 1), "line 1: line: found more than 65536 bytes"),
        ];
        for (text, expected) in cases {
            let error = read(&text).unwrap_err();
            assert!(error.starts_with("t.log: line "), "{error}");
            assert!(error.contains(expected), "{error}\n{expected}");
            assert!(error.len() < 300 && !error.contains('\n'), "{error}");
        }
    }

    #[test]
    fn trace_ends_after_the_first_error() {
        let text = v3("1 /d read 0 512\n2 /d what 0 512\n3 /d read 0 512");
        let mut trace = Trace::new("t", text.as_bytes(), SIZE, None);
        assert!(trace.next().unwrap().is_ok());
        assert!(trace.next().unwrap().is_err());
        assert!(trace.next().is_none());
    }

    #[test]
    fn chosen_device_is_the_only_one_that_is_read() {
        let text = v3("1 /d read 0 512\n2 /e write 0 512\n3 /d read 51200000000 512");
        let operations = read_of(&text, Some("/e")).unwrap();
        assert_eq!(operations, [at(2000, Operation::new(Op::Write, 0, 1))]);
        let text = queued("W 8 + 4 [a]") + &queued("R 8 + 4 [a]").replace("8,0", "8,16");
        assert_eq!(read_of(&text, Some("8,16")).unwrap().len(), 1);
        assert!(read(&text).unwrap_err().contains("found \"8,16\" too"));
    }

    #[test]
    fn moments_that_go_back_a_little_are_those_of_the_line_before() {
        let text = v3("900000 /d sync 0 0\n5 /d sync 0 0\n900001 /d sync 0 0");
        let moments: Vec<u64> =
            read(&text).unwrap().iter().map(|operation| operation.not_before.0).collect();
        assert_eq!(moments, [900_000_000, 900_000_000, 900_001_000]);
    }

    /// The same bytes without end. Reading fails if it goes on for long.
    struct Endless {
        bytes: &'static [u8],
        reads: u64,
    }

    impl Read for Endless {
        fn read(&mut self, into: &mut [u8]) -> std::io::Result<usize> {
            self.reads += 1;
            assert!(self.reads < 100, "more is read than is needed");
            let count = into.len().min(self.bytes.len() * 64);
            for (byte, from) in into[..count].iter_mut().zip(self.bytes.iter().cycle()) {
                *byte = *from;
            }
            Ok(count)
        }
    }

    #[test]
    fn trace_is_read_only_as_far_as_it_is_used() {
        let endless = |bytes| {
            let header = Cursor::new("fio version 3 iolog\n");
            let input = header.chain(BufReader::new(Endless { bytes, reads: 0 }));
            Trace::new("t", input, SIZE, None)
        };
        let trace = endless(b"1 /d read 0 512\n");
        assert_eq!(trace.take(1000).filter(Result::is_ok).count(), 1000);
        let error = endless(&[b'x'; 64]).next().unwrap().unwrap_err().to_string();
        assert!(error.contains("line 2: line: found more than 65536 bytes"), "{error}");
    }

    fn words() -> impl Strategy<Value = String> {
        let word = prop_oneof![
            Just("fio version 3 iolog\n".to_owned()),
            Just("8,0 0 1 0.000000001 7 Q".to_owned()),
            "[0-9]{1,21}",
            "(/d|read|write|wait|sync|trim|add|Q|C|m|FWFS|R|D|N|\\+|\\[a\\]|CPU0|8,0|0\\.5|-1)",
            "[ \n\r\t]{1,3}",
            any::<String>(),
        ];
        proptest::collection::vec(word, 0..40).prop_map(|words| words.join(" "))
    }

    fn assert_sane(input: impl BufRead) {
        let mut last = Time(0);
        for operation in Trace::new("t", input, SIZE, None).take(1000) {
            match operation {
                Ok(operation) => {
                    assert!(operation.range.fits_in(SIZE) && operation.not_before >= last);
                    assert_eq!(operation.range.is_empty(), operation.op == Op::Flush);
                    assert_eq!(operation.think, Duration::ZERO);
                    last = operation.not_before;
                }
                Err(error) => assert!(error.to_string().contains("expected"), "{error}"),
            }
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_a_trace_panic(bytes: Vec<u8>, format in 2..4) {
            assert_sane(bytes.as_slice());
            let header = format!("fio version {format} iolog\n");
            assert_sane(Cursor::new(header).chain(bytes.as_slice()));
        }

        #[test]
        fn no_words_make_a_trace_panic(text in words(), format in 2..4) {
            assert_sane(text.as_bytes());
            let header = format!("fio version {format} iolog\n");
            assert_sane(Cursor::new(header).chain(text.as_bytes()));
        }
    }
}
