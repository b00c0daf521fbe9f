//! `passthrough`: the template for a new target. It sends every request on, watches the completions
//! and counts them. Copy this file. Every hook of [`Target`] is here with what it may assume and
//! what it must return, even where the default is enough.
//!
//! The life of a target, in the order of the hooks: `construct` at load, `resume`, then `map` and
//! `end_io` for each request on any reactor, `presuspend`, `suspend` (or `presuspend_undo`, if the
//! suspend was called off), and either `resume` again or the end.
//!
//! Promises: requests are changed in nothing but their place; counters never lose a request.
//! Must never, like every target: block, allocate on the ready path, hold a lock across an
//! await, name a file, a socket, a thread or a clock, or store an [`Env`].

use std::any::Any;
use std::future::ready;
use std::sync::Arc;

use cairn_block::{
    Attribute, Claim, ConfigError, Counters, Ctor, Dirty, Disk, EndIo, Env, Extent, Field, IoError,
    IoResult, Limits, LocalFuture, MessageError, Nature, Op, Report, Request, Sector, SectorCount,
    SectorRange, SuspendMode, Target, Unit, Value, Verdict,
};

use crate::area::Area;
use crate::args::Args;
use crate::kind::{TargetKind, built};
use crate::spec::{Arg, Spec, Use};

/// The fields of the report: how many requests of each kind came, and how many failed.
const FIELDS: &[Field] = &[
    Field::new("reads", Unit::Requests),
    Field::new("writes", Unit::Requests),
    Field::new("flushes", Unit::Requests),
    Field::new("discards", Unit::Requests),
    Field::new("write_zeroes", Unit::Requests),
    Field::new("errors", Unit::Requests),
];

/// What `passthrough` declares: its name (one lower-case word; also the name of the source file and
/// of the manual), the version of the kernel's target of this name (there is none, so this is our
/// own), its arguments, status fields and messages. The parser, the printer of the table line, the
/// status line, `cairn targets passthrough` and the test of the manual all read them here, so none
/// can drift.
pub const SPEC: Spec = Spec {
    own: true,
    status_fields: FIELDS,
    messages: &["reset_counters"],
    ..Spec::plain(
        "passthrough",
        [1, 0, 0],
        &[
            Arg::device("device", Use::Maps, "the device").gives_length(),
            Arg::offset("offset").optional(),
        ],
    )
};

/// One counter per status field.
const COUNTERS: usize = FIELDS.len();
const ERRORS: usize = COUNTERS - 1;

/// The kind of target: what a table line's third word names. The constructor builds the target from
/// its words. It may open devices through the registry in [`Ctor`], read fixed header fields, and
/// find kin. It must not write a byte, start a task or read mutable metadata: the table being
/// replaced still serves. [`Args::parse`] refuses every word that is not declared.
pub const KIND: TargetKind =
    TargetKind { spec: &SPEC, construct: |env, ctor| built(Passthrough::parse(env, &ctor)) };

/// The target: shared by all reactors, hence immutable, or behind short locks, or (counters)
/// one row per reactor.
struct Passthrough {
    area: Area,
    counters: Counters<COUNTERS>,
}

impl Passthrough {
    fn parse(env: &Env, ctor: &Ctor<'_>) -> Result<Passthrough, ConfigError> {
        let mut args = Args::parse(&SPEC, ctor)?;
        args.set_number("offset", args.given("offset").unwrap_or(0));
        Ok(Passthrough { area: args.area()?, counters: Counters::new(env) })
    }
}

/// The index of an operation's status field.
fn counter_of(op: Op) -> usize {
    match op {
        Op::Read => 0,
        Op::Write => 1,
        Op::Flush => 2,
        Op::Discard => 3,
        Op::WriteZeroes => 4,
    }
}

impl Target for Passthrough {
    /// Decides at once. The range of `request` is relative to the target, lies inside it and
    /// consists of whole logical blocks; a flush has an empty range. The verdict is one of:
    /// remapped (the engine sends it on), completed or failed (it ends here), or queued (the target
    /// keeps its id, and completes, remaps or hands it back exactly once). A target may first
    /// `accept` only the head of the range; the engine maps the rest again. `watch` asks for
    /// `end_io`, with a word that the request keeps.
    fn map<'a>(&'a self, _env: &Env, request: &mut Request) -> Verdict<'a> {
        request.watch(0);
        self.area.remap(request)
    }

    /// Warms what `map` will look up for a request that begins at `at`. A hint only: most requests
    /// come without it. For a target with an index; here there is none.
    fn prefetch(&self, _env: &Env, _at: Sector) {}

    /// Where the target's first sector lies on its lower disk, if `map` does nothing but remap, as
    /// in `linear`: the engine then does not call `map`. None here, as `map` watches requests.
    fn straight(&self) -> Option<(Arc<dyn Disk>, Sector)> {
        None
    }

    /// Sees the end of a request that `map` watched, on the same reactor; the range is again
    /// what `map` accepted. Returns done (the result goes on upward, perhaps another one),
    /// requeue (`map` sees it again) or held (completed later by its id, exactly once).
    fn end_io(&self, env: &Env, request: &mut Request, result: IoResult) -> EndIo {
        let counter = if result.is_ok() { counter_of(request.op) } else { ERRORS };
        self.counters.add(env, counter, 1);
        EndIo::Done(result)
    }

    /// How many copies of each flush `map` wants to see; `Request::flush_copy` tells them
    /// apart. One per lower disk that holds data; none if nothing can be volatile below.
    fn flush_copies(&self) -> u16 {
        1
    }

    /// The lower disks in the order of the arguments: for limits, loops and sizes.
    fn lowers(&self) -> Vec<Arc<dyn Disk>> {
        vec![self.area.disk.clone()]
    }

    /// What tells it from other targets of its kind over the same lower disks.
    fn part(&self) -> u64 {
        0
    }

    /// The ranges of lower disks that the target needs for itself, and whether it only reads them.
    /// None here: see `remaps`. The answer must not change in the target's life.
    fn claims(&self) -> Vec<Claim> {
        Vec::new()
    }

    /// Where a range lies on the lower disks. A target that only remaps claims nothing for itself,
    /// and claims on its volume go through it. A target that keeps data implements `claims`
    /// instead.
    fn remaps(&self, range: SectorRange) -> Option<Vec<(Arc<dyn Disk>, SectorRange)>> {
        Some(vec![self.area.place(range)])
    }

    /// The lower disk of which the target is a cache, if it keeps a dirty marker beside it. None
    /// here: a marker beside a lower disk keeps the target from starting.
    fn keeps_marker_of(&self) -> Option<Arc<dyn Disk>> {
        None
    }

    /// The generation of that marker while it stands. Must not wait.
    fn dirty_marker(&self) -> Option<String> {
        None
    }

    /// Adapts the combined limits of the lower disks. Must promise only what the target keeps.
    fn limits(&self, stacked: Limits) -> Limits {
        stacked
    }

    /// What the volume is made of: whether seeks cost time, and whether completed writes are
    /// durable without a flush. A target that keeps data or may hold writes says unknown, the
    /// default.
    fn nature(&self) -> Nature {
        Nature::UNKNOWN
    }

    /// Starts to serve, on its home reactor. No request is under way. Reads mutable metadata,
    /// recovers, starts tasks; on an error the device stays suspended.
    fn resume<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(ready(Ok(())))
    }

    /// A suspend began. Every parked request must end soon, without the arrival of a new one (or,
    /// with [`SuspendMode::NoFlush`], go back through `Env::hand_back`). Parts of requests in
    /// flight may still arrive.
    fn presuspend(&self, _env: &Env, _mode: SuspendMode) {}

    /// The suspend was called off while it waited for requests. Undo what `presuspend` changed:
    /// requests continue afterwards.
    fn presuspend_undo<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, ()> {
        Box::pin(ready(()))
    }

    /// No request is left. Makes durable what must be and stops every task; when it returns,
    /// nothing of the target runs. An error says that acknowledged writes may be lost.
    fn suspend<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(ready(Ok(())))
    }

    /// The target was suspended, and its table is replaced or removed. Afterwards no reactor writes
    /// to the lower disks on its behalf. If the new table cannot start, `resume` follows, and must
    /// read mutable metadata again. Errors are those of `suspend`.
    fn close<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, Result<(), ConfigError>> {
        Box::pin(ready(Ok(())))
    }

    /// How many failures of lower disks concern the clients: clients compare it at each flush. A
    /// target that can write lost data again leaves out those that it made good, and raises
    /// [`Ctor::failures`] for acknowledged writes that it cannot restore.
    fn failures(&self) -> u64 {
        self.area.disk.failures()
    }

    /// Of `failures`, those of which some client was told already. Overridden with `failures`.
    fn failures_told(&self) -> u64 {
        self.area.disk.failures_told()
    }

    /// A client was told of all `failures`. Overridden with `failures`: those that a target made
    /// good it acknowledges itself.
    fn acknowledge_failures(&self) {
        self.area.disk.acknowledge_failures(self.area.disk.failures());
    }

    /// A value for each declared status field, or the state in their place (`Report::State`) if
    /// there is nothing to show, say after a failure. Never waits.
    fn report(&self) -> Report {
        Report::new(FIELDS, self.counters.read().map(Value::Counter))
    }

    /// The status line after the target's name, as the kernel prints it: the report's values with
    /// single spaces between them. Nothing overrides this.
    fn status(&self) -> String {
        self.report().line()
    }

    /// The options of the table line as they are now, defaults and changes by messages included:
    /// [`Args::attributes`] makes them of the parsed line. None here, as no option is declared.
    fn attributes(&self) -> Vec<Attribute> {
        Vec::new()
    }

    /// The words of the table line after the target's name: parsing them gives this target
    /// again. Devices print as they were named.
    fn table(&self) -> String {
        self.area.to_string()
    }

    /// A message from the operator, split into words; answers mostly with nothing.
    fn message<'a>(
        &'a self,
        _env: &'a Env,
        words: &'a [&'a str],
    ) -> LocalFuture<'a, Result<String, MessageError>> {
        let [known] = SPEC.messages else { unreachable!("the template has one message") };
        let answer = match words {
            [word] if word.eq_ignore_ascii_case(known) => {
                self.counters.clear();
                Ok(String::new())
            }
            _ => {
                let found = words.join(" ");
                let text = format!("passthrough message: found '{found}', expected '{known}'");
                Err(MessageError::Invalid(text))
            }
        };
        Box::pin(ready(answer))
    }

    /// What a range holds, from its start and perhaps not to its end. Data is always a true
    /// answer; hole and zero only where a read gives zeros.
    fn extents<'a>(
        &'a self,
        env: &'a Env,
        range: SectorRange,
    ) -> LocalFuture<'a, Result<Vec<Extent>, IoError>> {
        self.area.extents(env, range)
    }

    /// A line for the operator when the server stops, if `dirty` does not cover it.
    fn parting_word(&self) -> Option<String> {
        None
    }

    /// Content of this target's own device that another disk lacks, such as blocks that a cache has
    /// not written back. It is reported at a stop, and a table change must not lose it silently.
    fn dirty(&self) -> Option<Dirty> {
        None
    }

    /// How much of that content was copied to the other disk since the table was loaded.
    fn written_back(&self) -> SectorCount {
        SectorCount::ZERO
    }

    /// True if `drain` leaves no dirty content: `cairn flush` then works for this kind of target.
    fn drains(&self) -> bool {
        false
    }

    /// The device that the first resume formats, as it is blank: `cairn flush` refuses it.
    fn formats(&self) -> Option<String> {
        None
    }

    /// Writes back what is `dirty` now, and waits for that. `dirty` tells how much is left.
    fn drain<'a>(&'a self, _env: &'a Env) -> LocalFuture<'a, Result<(), MessageError>> {
        Box::pin(ready(Ok(())))
    }

    /// True if the origin durably names its cache, as the superblock of a bcache backing device
    /// does: `cairn flush --detach` then works for this kind of target.
    fn detaches(&self) -> bool {
        false
    }

    /// Ends that, durably. Nothing is dirty, or it is of the set that is given up.
    fn detach<'a>(
        &'a self,
        _env: &'a Env,
        _given_up: Option<&'a str>,
    ) -> LocalFuture<'a, Result<Option<String>, MessageError>> {
        Box::pin(ready(Ok(None)))
    }

    /// Of a cache: which range of the origin has the content of `range` once nothing is dirty.
    fn shows_of_origin(&self, _range: SectorRange) -> Option<(Arc<dyn Disk>, SectorRange)> {
        None
    }

    /// A table change asks that the next `suspend` writes back all that is `dirty`, too, or takes
    /// that back if there is no suspend. Returns what was asked before. Called only where `drains`
    /// says true.
    fn drain_in_suspend(&self, _drains: bool) -> bool {
        false
    }

    /// A drain begins whose end is a table without this target, or it was called off: nothing may
    /// become `dirty` in between. Called only where `drains` says true.
    fn set_leaving(&self, _is_leaving: bool) {}

    /// The concrete target, if verbs exist that belong to this kind alone.
    fn as_any(&self) -> Option<&dyn Any> {
        None
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{OneVolume, SECTOR, initial};
    use cairn_sim::{Fault, OpSet};

    #[test]
    fn template_has_every_hook_of_a_target() {
        let hooks = |text: &str, from: &str| {
            let all = text.split(from).nth(1).unwrap().split("\n}\n").next().unwrap();
            let names = all.lines().filter_map(|line| line.strip_prefix("    fn "));
            let mut names: Vec<_> =
                names.map(|line| line.split(['(', '<']).next().unwrap().to_owned()).collect();
            names.sort();
            names
        };
        let declared = hooks(include_str!("../../block/src/target.rs"), "pub trait Target:");
        let here = hooks(include_str!("passthrough.rs"), "impl Target for Passthrough {");
        assert_eq!(here, declared);
        assert!(declared.len() > 20);
    }

    #[test]
    fn every_operation_goes_on_and_is_counted() {
        let test = OneVolume::new(&[("a", 64)]);
        test.load("0 16 passthrough a 8");
        assert_eq!(test.target().status(), "0 0 0 0 0 0");
        let mut model = initial("a", 64);
        assert_eq!(test.read(0, 16).unwrap(), model[8 * SECTOR..24 * SECTOR]);
        test.read(15, 1).unwrap();
        test.write(3, 1, 9).unwrap();
        model[11 * SECTOR..12 * SECTOR].fill(9);
        test.on(Op::WriteZeroes, 0, 1).unwrap();
        model[8 * SECTOR..9 * SECTOR].fill(0);
        test.on(Op::Flush, 0, 0).unwrap();
        assert_eq!(test.contents("a"), model);
        test.on(Op::Discard, 0, 16).unwrap();
        assert_eq!(test.target().status(), "2 1 1 1 1 0");
    }

    #[test]
    fn errors_are_passed_on_and_counted_apart() {
        let test = OneVolume::new(&[("a", 64)]);
        test.load("0 16 passthrough a");
        test.drive("a").faults().add(Fault::error(OpSet::READS).shots(1));
        let error = test.read(0, 1).unwrap_err();
        assert!(error.injected);
        test.read(0, 1).unwrap();
        assert_eq!(test.target().status(), "1 0 0 0 0 1");
    }

    #[test]
    fn a_message_starts_the_counters_again() {
        let test = OneVolume::new(&[("a", 64)]);
        test.load("0 16 passthrough a");
        test.read(0, 1).unwrap();
        assert_eq!(test.message(&["Reset_Counters"]).unwrap(), "");
        assert_eq!(test.target().status(), "0 0 0 0 0 0");
        test.read(0, 1).unwrap();
        assert_eq!(test.target().status(), "1 0 0 0 0 0");
        for wrong in [&["reset"] as &[_], &["reset_counters", "now"], &[]] {
            let refusal = test.message(wrong).unwrap_err().to_string();
            let expected = format!(
                "passthrough message: found '{}', expected 'reset_counters'",
                wrong.join(" ")
            );
            assert_eq!(refusal, expected);
        }
    }

    #[test]
    fn the_offset_may_be_left_out_and_is_printed() {
        let test = OneVolume::new(&[("a", 64)]);
        test.load("0 64 passthrough a");
        assert_eq!(test.target().table(), "a 0");
        test.load("0 64 passthrough a 0");
        assert_eq!(test.target().table(), "a 0");
    }

    #[test]
    fn each_wrong_argument_is_named() {
        let test = OneVolume::new(&[("a", 64)]);
        for (table, expected) in [
            ("0 16 passthrough", "passthrough: device: found nothing"),
            ("0 16 passthrough b", "b: device: found none of this name"),
            ("0 16 passthrough a x", "passthrough: offset: found 'x'"),
            ("0 16 passthrough a 0 0", "passthrough: trailing words: found '0'"),
            ("0 16 passthrough a 60", "a: passthrough offset: found 60 for 16 sectors"),
        ] {
            let refusal = test.refusal(table);
            assert!(refusal.starts_with(expected), "{refusal}");
        }
    }
}
