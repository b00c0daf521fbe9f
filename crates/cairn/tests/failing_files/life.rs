//! [`Life`]: the servers that one set of files has, one after the other.
//!
//! Every other life uses the ring of threads, whose system calls are pwritev2 and fdatasync; half
//! of the lives find that direct I/O is refused.
//!
//! L1. A server starts over files that are whole, and everything is read and judged. Then they
//!     begin to fail, by chance; without failures no request may fail.
//! L2. A server ends by SIGINT, by `kill -9`, or by `kill -9` and a power cut. One that ends by
//!     itself with exit code 0, and met no failure, has kept all that was acknowledged.
//! L3. A power cut ends the histories; after another end they continue. Files that lost
//!     completed writes have a power cut at the end: only the process that used them knew of the
//!     loss.

use std::fmt::Write as _;
use std::path::PathBuf;

use cairn_sim::History;
use cairn_testkit::{FailingFiles, Faults};

use crate::place::{Place, Server};
use crate::stacks::Stack;
use crate::volume::{Client, Log, Volume, draw, read_all};

const STEPS: u32 = 150;
const CLIENTS: usize = 2;
const IN_FLIGHT: usize = 4;

/// What happened in lives.
#[derive(Clone, Copy, Debug, Default)]
pub struct Tally {
    stops: u32,
    kills: u32,
    cuts: u32,
    lost: u32,
    failed: u64,
    failed_verbs: u32,
}

impl Tally {
    pub fn add(&mut self, other: Tally) {
        self.stops += other.stops;
        self.kills += other.kills;
        self.cuts += other.cuts;
        self.lost += other.lost;
        self.failed += other.failed;
        self.failed_verbs += other.failed_verbs;
    }

    /// A test that met none of something proves nothing of it.
    pub fn assert_all_met(self) {
        let met = self.stops.min(self.kills).min(self.cuts).min(self.lost) > 0 && self.failed > 0;
        assert!(met, "{self:?}");
    }
}

pub struct Life<'a> {
    stack: &'a Stack,
    /// Unmounted before the place is removed, which it is mounted in.
    files: FailingFiles,
    place: Place,
    rng: fastrand::Rng,
    volumes: Vec<Volume>,
    /// The last end was a power cut.
    was_cut: bool,
    tally: Tally,
    log: Log,
}

impl<'a> Life<'a> {
    pub fn new(stack: &'a Stack, seed: u64) -> Life<'a> {
        let place = Place::new();
        let drives = place.path("drives");
        std::fs::create_dir(&drives).unwrap();
        let files = FailingFiles::mount(&drives, stack.files, seed).unwrap();
        if seed % 4 >= 2 {
            files.refuse_direct();
        }
        let ring = ["auto", "threads"][seed as usize % 2];
        place.write("conf.toml", format!("ring = \"{ring}\"\nreactors = 2\n"));
        let volume = |&name: &&'static str| Volume { name, history: None, gone: false };
        Life {
            stack,
            place,
            files,
            rng: fastrand::Rng::with_seed(seed),
            volumes: stack.volumes.iter().map(volume).collect(),
            was_cut: false,
            tally: Tally::default(),
            log: Log::default(),
        }
    }

    pub fn tally(&self) -> Tally {
        Tally { failed: self.files.failed(), ..self.tally }
    }

    /// What was done, line by line.
    pub fn log(&self) -> String {
        self.log.borrow().clone()
    }

    pub fn run(&mut self) -> Result<(), String> {
        for generation in 0..self.rng.u32(2..=4) {
            self.note(format_args!("server {generation}"));
            let server = self.start(generation);
            if generation == 0 {
                for verb in self.stack.setup {
                    self.verb(verb).map_err(|said| format!("{verb:?}: {said}"))?;
                }
            }
            self.judge()?;
            let clients = self.connect();
            let may_fail = generation > 0 || self.stack.later.is_none();
            self.generation(server, clients, may_fail)?;
        }
        let server = self.start(1);
        self.judge()?;
        match server.interrupt().code {
            0 => Ok(()),
            // A killed server knew of a loss that no client was told of.
            1 if !self.was_cut && self.files.failed() > 0 => Ok(()),
            code => Err(format!("a server that did nothing exits {code}")),
        }
    }

    fn note(&self, what: std::fmt::Arguments<'_>) {
        writeln!(self.log.borrow_mut(), "{what}").expect("a string takes what is written");
    }

    fn start(&self, generation: u32) -> Server {
        let later = self.stack.later.filter(|_| generation > 0);
        let args = later.unwrap_or(self.stack.args);
        let ends = ["--listen", "unix:nbd.sock", "--control", "ctl.sock", "--state", "state"];
        self.place.serve(&[&["conf.toml"], args, &ends].concat())
    }

    fn socket(&self) -> PathBuf {
        self.place.path("nbd.sock")
    }

    /// What went wrong, if it did.
    fn verb(&self, verb: &[&str]) -> Result<(), String> {
        let ran = self.place.cairn(&[&verb[..1], &["--control", "ctl.sock"], &verb[1..]].concat());
        if ran.code == 0 { Ok(()) } else { Err(format!("exit {}: {}", ran.code, ran.err.trim())) }
    }

    /// L1.
    fn judge(&mut self) -> Result<(), String> {
        let socket = self.socket();
        let seed = self.rng.u64(..);
        let failed = self.files.failed() > 0;
        for (index, volume) in self.volumes.iter_mut().enumerate() {
            if volume.gone {
                continue;
            }
            let Some(contents) = read_all(&socket, volume.name) else {
                if failed && self.stack.may_fail.contains(&volume.name) {
                    volume.gone = true;
                    continue;
                }
                return Err(format!("{}: it can't be read", volume.name));
            };
            match &volume.history {
                None => {
                    let history = History::new(seed ^ index as u64, contents);
                    history.failed_flushes_lose(true);
                    history.may_roll_back(true);
                    volume.history = Some(history);
                }
                Some(history) => {
                    let judged = history.check_after_crash(&contents);
                    judged.map_err(|wrong| format!("{}: {wrong}", volume.name))?;
                    match self.was_cut {
                        true => history.rebase(contents),
                        false => history.reopen(&contents),
                    }
                }
            }
        }
        Ok(())
    }

    fn connect(&self) -> Vec<Client> {
        let socket = self.socket();
        let served = self.volumes.iter().filter(|volume| !volume.gone);
        let several = served.flat_map(|volume| std::iter::repeat_n(volume, CLIENTS));
        several.map(|volume| Client::connect(&socket, volume, &self.log)).collect()
    }

    fn generation(
        &mut self,
        server: Server,
        mut clients: Vec<Client>,
        may_fail: bool,
    ) -> Result<(), String> {
        let failed_before = self.files.failed();
        if may_fail && self.rng.u8(..4) > 0 {
            self.plant();
        }
        for _ in 0..self.rng.u32(1..STEPS) {
            self.step(&mut clients, may_fail);
        }
        for volume in &self.volumes {
            let verdict = volume.history.as_ref().map_or(Ok(()), History::verdict);
            verdict.map_err(|wrong| format!("{}: {wrong}", volume.name))?;
        }
        self.end(server, clients, failed_before)
    }

    /// From now on a file fails, or several.
    fn plant(&mut self) {
        for &(name, _) in self.stack.files {
            if self.rng.bool() {
                let faults = Faults {
                    flush: [0, 10, 50][self.rng.usize(..3)],
                    write: [0, 0, 5][self.rng.usize(..3)],
                    room: [0, 0, 5][self.rng.usize(..3)],
                };
                self.note(format_args!("{name}: {faults:?}"));
                self.files.set_faults(name, faults);
            }
        }
    }

    fn step(&mut self, clients: &mut [Client], may_fail: bool) {
        match self.rng.u8(..200) {
            0 => self.suspend(clients),
            1 => self.swap(),
            2..6 => self.files.heal(),
            6..10 if may_fail => self.plant(),
            10..50 => {
                clients.iter_mut().for_each(|client| client.receive_all(&self.files));
            }
            _ => {
                let index = self.rng.usize(..clients.len());
                if clients[index].in_flight() == IN_FLIGHT {
                    clients[index].receive(&self.files);
                }
                let (op, flags, range) = draw(&mut self.rng);
                clients[index].send(op, flags, range);
            }
        }
    }

    /// Suspends and resumes a volume, with requests that wait meanwhile.
    fn suspend(&mut self, clients: &mut [Client]) {
        let volume = self.volumes[self.rng.usize(..self.volumes.len())].name;
        self.check_verb(&["suspend", volume]);
        for client in clients {
            if client.in_flight() < IN_FLIGHT {
                let (op, flags, range) = draw(&mut self.rng);
                client.send(op, flags, range);
            }
        }
        self.resume(volume);
    }

    /// Replaces a table by itself.
    fn swap(&mut self) {
        let volume = self.volumes[self.rng.usize(..self.volumes.len())].name;
        let table = self.place.cairn(&["table", volume, "--control", "ctl.sock"]).ok();
        self.check_verb(&["load", volume, "--table", table.trim()]);
        self.resume(volume);
    }

    /// If it is refused the files are replaced by good ones; then one failure more may be told.
    fn resume(&mut self, volume: &str) {
        if !self.check_verb(&["resume", volume]) {
            self.files.heal();
            let resumed = self.check_verb(&["resume", volume]);
            assert!(resumed || self.check_verb(&["resume", volume]), "{}", self.log());
        }
    }

    /// A verb may fail if files do; true if it did not.
    fn check_verb(&mut self, verb: &[&str]) -> bool {
        let done = self.verb(verb);
        self.note(format_args!("{verb:?}: {done:?}"));
        if let Err(said) = &done {
            assert!(self.files.failed() > 0, "{verb:?}: {said}\n{}", self.log());
            self.tally.failed_verbs += 1;
        }
        done.is_ok()
    }

    /// L2, L3.
    fn end(
        &mut self,
        server: Server,
        mut clients: Vec<Client>,
        failed_before: u64,
    ) -> Result<(), String> {
        let how = self.rng.u8(..3);
        if how == 0 {
            self.tally.stops += 1;
            if self.rng.bool() {
                self.files.heal();
            }
            clients.iter_mut().for_each(|client| client.receive_all(&self.files));
            let ended = server.interrupt();
            self.note(format_args!("stopped: {} {}", ended.code, ended.err));
            match ended.code {
                // A client that ends without a flush may have had a loss that others were told of.
                0 if self.files.failed() == failed_before => {
                    clients.iter().for_each(Client::record_whole_stop);
                }
                0 => {}
                _ if self.files.failed() > 0 => {}
                code => return Err(format!("it exits {code}: {}", ended.err)),
            }
        } else {
            drop(server);
        }
        drop(clients);
        self.files.wait_until_closed();
        self.files.heal();
        let lost = self.files.has_lost();
        self.tally.lost += u32::from(lost);
        let cut = how == 2 || lost;
        self.was_cut = cut;
        self.note(format_args!("ended: {how}, power cut {cut}, lost {lost}"));
        if cut {
            self.tally.cuts += 1;
            self.files.cut_power();
            self.place.cut_power();
        } else if how == 1 {
            self.tally.kills += 1;
        }
        for volume in &self.volumes {
            if let Some(history) = &volume.history {
                history.kill();
            }
        }
        Ok(())
    }
}
