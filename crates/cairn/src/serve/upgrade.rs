//! `cairn upgrade`: another program goes on with the volumes and the clients of this server.
//!
//! The steps, and what holds between them, are those of [`cairn_control::handover`]. Here are the
//! two processes: [`Candidate`] is the new one as the server sees it, no child of it
//! ([`Detached`]); [`Heir`] is the server's side in the new one. A server whose candidate failed
//! after it gave everything away starts itself again ([`start_again`]): it is then its own heir.

use std::ffi::OsString;
use std::os::fd::{AsFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use cairn_block::{ConfigError, ConfigKind};
use cairn_control::handover::channel::{Channel, Message, PROTOCOL, Silence};
use cairn_control::handover::{Estate, inherit, leave};
use cairn_control::state::StateFile;
use cairn_outcome::exit;
use cairn_outcome::failure::{Outcome, one_line, refused, system};
use cairn_outcome::signals::Event;

use super::detached::Detached;
use super::{ServeArgs, Server, Sockets, activation, notify, prepare, settle};

/// How long the new program may take for each of its steps.
const PATIENCE: Duration = Duration::from_secs(10);

/// How long the new program waits for what it inherits: the server pauses its clients, ends its
/// verbs and commits before.
const INHERIT_PATIENCE: Duration = Duration::from_secs(300);

/// How long the answers of verbs may take when the server has left.
const ANSWER_PATIENCE: Duration = Duration::from_secs(1);

/// The option that makes a start take over from another server.
const SUCCESSOR: &str = "--successor";

/// This process, while it runs.
const ITSELF: &str = "/proc/self/exe";

/// The new program, which is running and has taken nothing over yet. It is killed if it is dropped.
pub struct Candidate {
    program: PathBuf,
    process: Option<Detached>,
    channel: Channel,
}

impl Candidate {
    /// Starts a program, or else the file that this process was started from. It has read its
    /// configuration, and says that it can start.
    ///
    /// # Errors
    /// It is missing, or refuses, or takes too long.
    pub fn start(program: Option<&Path>) -> Outcome<Candidate> {
        let program = match program {
            Some(program) => program.to_owned(),
            None => own_program()?,
        };
        let (channel, end) = Channel::pair()?;
        let command = serve_command(&program, end.into_end());
        let process = Detached::start(command, || channel.is_closed())
            .map_err(|error| system(program.display().to_string(), "start", error))?;
        let candidate = Candidate { program, process: Some(process), channel };
        match candidate.hear("say whether it can start")? {
            Message::Hello { protocol: PROTOCOL, .. } => Ok(candidate),
            Message::Hello { protocol, version } => {
                let found = format!("{protocol} (cairn {version})");
                Err(candidate.refuse("handover protocol", &found, &PROTOCOL.to_string()))
            }
            other => Err(candidate.refuse("answer", &format!("{other:?}"), "hello")),
        }
    }

    /// Leaves everything to it. On return it is ready to serve, and waits for the word.
    ///
    /// # Errors
    /// It failed, or takes too long.
    pub fn leave(&self, estate: &Estate) -> Outcome<()> {
        leave(&self.channel, estate)?;
        match self.hear("start")? {
            Message::Ready => Ok(()),
            other => Err(self.refuse("answer", &format!("{other:?}"), "ready")),
        }
    }

    /// Gives it the word: from now on it is the server.
    ///
    /// # Errors
    /// It has gone.
    pub fn go(mut self) -> Outcome<Detached> {
        self.channel.send(&Message::Go, &[])?;
        Ok(self.process.take().expect("it is taken here alone"))
    }

    /// What it says next; a refusal is an error.
    fn hear(&self, what: &str) -> Outcome<Message> {
        let of_program = |error| ConfigError { device: self.name(), ..error };
        match self.channel.receive(PATIENCE).map_err(of_program)? {
            Ok((Message::Refused { reason }, _)) => Err(ConfigError::new(
                ConfigKind::Argument,
                self.name(),
                format!("refused: {reason}"),
            )),
            Ok((message, _)) => Ok(message),
            Err(Silence::Closed) => {
                let detail = format!("it ended before it could {what}");
                Err(ConfigError::new(ConfigKind::System, self.name(), detail))
            }
            Err(Silence::TooLate) => {
                let seconds = PATIENCE.as_secs();
                let detail = format!("it took more than {seconds} s to {what}");
                Err(ConfigError::new(ConfigKind::System, self.name(), detail))
            }
        }
    }

    fn name(&self) -> String {
        self.program.display().to_string()
    }

    fn refuse(&self, field: &str, found: &str, expected: &str) -> ConfigError {
        refused(ConfigKind::Unsupported, self.name(), field, found, expected)
    }
}

impl Drop for Candidate {
    /// On return it submits nothing to a device any more.
    fn drop(&mut self) {
        let Some(process) = &self.process else { return };
        if let Err(error) = process.kill() {
            tracing::warn!("{}: cannot end it: {error}", self.program.display());
        }
    }
}

/// The file that this process was started from: by now another program may have its name.
fn own_program() -> Outcome<PathBuf> {
    let path = std::fs::read_link(ITSELF).map_err(|error| system(ITSELF, "read", error))?;
    let text = path.to_string_lossy();
    Ok(text.strip_suffix(" (deleted)").map_or(path.clone(), PathBuf::from))
}

/// A program with the arguments of this process, which takes over through this end of a channel.
fn serve_command(program: &Path, end: OwnedFd) -> Command {
    let mut args: Vec<OsString> = std::env::args_os().skip(1).collect();
    if args.iter().all(|arg| arg != SUCCESSOR) {
        args.push(SUCCESSOR.into());
    }
    let mut command = Command::new(program);
    command.args(args).stdin(Stdio::from(end));
    // It gets the sockets with the estate.
    activation::forget(&mut command);
    command
}

/// Replaces this process by a new start of its program, which goes on with what was to be given
/// away. Nothing in this process writes any more.
///
/// # Errors
/// The system refused; what was to be given away is lost to clients as in a kill.
pub fn start_again(estate: &Estate) -> ConfigError {
    let queued = || -> Outcome<OwnedFd> {
        let (channel, end) = Channel::pair()?;
        leave(&channel, estate)?;
        channel.send(&Message::Go, &[])?;
        Ok(end.into_end())
    };
    match queued() {
        Err(error) => error,
        Ok(end) => {
            let mut command = serve_command(Path::new(ITSELF), end);
            if let Some(name) = std::env::args_os().next() {
                command.arg0(name);
            }
            system(ITSELF, "start again", command.exec())
        }
    }
}

impl Server {
    /// Has another program go on. Tells what comes of it, and answers how this process ends; none
    /// if nothing has changed.
    pub(super) fn upgrade(
        &mut self,
        program: Option<&Path>,
        answer: &Sender<Outcome<u32>>,
        happened: &Receiver<Event>,
    ) -> Option<Outcome<u8>> {
        // The caller may be gone.
        let tell = |outcome| drop(answer.send(outcome));
        notify::upgrading();
        let candidate = match self.pause_for(program) {
            Ok(candidate) => candidate,
            Err(error) => {
                notify::ready(&self.world);
                tell(Err(error));
                return None;
            }
        };
        let estate = self.give_away();
        let gone = candidate.leave(&estate).and_then(|()| candidate.go());
        let next = match gone {
            Ok(next) => {
                let pid = next.pid();
                tracing::info!("process {pid} goes on");
                notify::goes_on_as(pid);
                tell(Ok(pid));
                Some(next)
            }
            Err(error) => {
                tracing::error!("upgrade: {error}; this program starts again");
                let detail = format!("{}; the program of before starts again", error.detail);
                tell(Err(ConfigError { detail, ..error }));
                None
            }
        };
        if let Some((_, control)) = &self.control {
            control.wait_for_answers(ANSWER_PATIENCE);
        }
        // A signal to this process during the upgrade is for the one that goes on.
        let is_stopped = happened.try_iter().any(|event| matches!(event, Event::Stop));
        Some(match (next, is_stopped) {
            (Some(next), true) => pass_on_stop(&next),
            (Some(_), false) => Ok(exit::OK),
            // Everything is committed.
            (None, true) => Ok(exit::OK),
            (None, false) => Err(start_again(&estate)),
        })
    }

    /// Starts another program, and has the clients wait for it.
    ///
    /// # Errors
    /// It cannot go on, or requests do not end. Nothing has changed.
    fn pause_for(&self, program: Option<&Path>) -> Outcome<Candidate> {
        if let Some(name) = self.handles.in_memory() {
            let expected = "devices that outlive the process: its content would be lost";
            return Err(refused(ConfigKind::Argument, name, "upgrade", "memory", expected));
        }
        if let Some(name) = self.handles.remote() {
            let expected = "devices of this machine: a connection to a server is not handed over";
            return Err(refused(
                ConfigKind::Unsupported,
                name,
                "upgrade",
                "a remote disk",
                expected,
            ));
        }
        if std::process::id() == 1 {
            let (found, expected) = ("process 1", "another: with process 1 its container ends");
            return Err(refused(ConfigKind::Argument, "", "upgrade", found, expected));
        }
        let verbs = self.verbs.as_ref().expect("a verb asks for it");
        check_restart(&self.args, verbs.state_path())?;
        let candidate = Candidate::start(program)?;
        verbs.close_if_idle()?;
        let paused = self.exports.pause(&self.world, PATIENCE);
        paused.inspect_err(|_| verbs.open())?;
        Ok(candidate)
    }

    /// Commits, and collects what another process needs to go on. Afterwards nothing in
    /// this one writes.
    fn give_away(&mut self) -> Estate {
        let log = |error| tracing::error!("upgrade: {error}");
        // The other process listens at its address.
        self.http.clear();
        let control = self.control.as_mut().and_then(|(_, it)| it.leave().map_err(log).ok());
        // The clients are told at their next flush.
        settle(self.world.suspend_each(), self.verbs.as_deref()).1.into_iter().for_each(log);
        if let Err(error) = self.world.let_crash_logs_go() {
            log(error);
        }
        let untold = self.world.untold_losses();
        if let Some(verbs) = &self.verbs {
            verbs.leave_state();
        }
        let lock = self.verbs.as_ref().map_or(Ok(None), |verbs| verbs.state_lock());
        let (nbd, vhost) = self.exports.part(&self.world);
        Estate {
            state_lock: lock.unwrap_or_else(|error| {
                log(error);
                None
            }),
            control,
            untold,
            devices: self.handles.all(),
            nbd,
            vhost,
        }
    }

    /// Goes on where an earlier process was, once that has given its word; or ends without a trace
    /// in what it has, if the start failed.
    pub(super) fn go_on(
        mut self,
        started: Outcome<()>,
        heir: &Heir,
        mut estate: Estate,
        sockets: &Sockets,
        (events, happened): (Sender<Event>, &Receiver<Event>),
    ) -> Outcome<u8> {
        // While the server before this one can still go on with them.
        let sessions = match started {
            Ok(()) => self.exports.inherit_sessions(std::mem::take(&mut estate.vhost)),
            Err(_) => 0,
        };
        if let Err(error) = started.and_then(|()| heir.wait_for_word()) {
            let (_, lost) = settle(self.world.suspend_each(), self.verbs.as_deref());
            lost.iter().for_each(|error| tracing::error!("upgrade: {error}"));
            // The other process has the sockets and the devices.
            std::mem::forget(self);
            return Err(error);
        }
        let count = estate.nbd.connections.len() + sessions;
        for (parted, socket) in estate.nbd.connections {
            let socket = Arc::try_unwrap(socket).expect("it was just received");
            self.exports.take_over(parted, socket);
        }
        self.exports.resume();
        if let Err(error) = self.take_verbs(estate.control, sockets) {
            tracing::error!("serving without verbs: {error}");
        }
        if let Err(error) = self.serve_http(sockets) {
            tracing::error!("serving without metrics or dashboard: {error}");
        }
        tracing::info!("took over from an earlier process, with {count} connections");
        self.ask_for_upgrades(events);
        self.stay(happened, None)
    }
}

/// Refuses a configuration with which the program of this process would not start again.
fn check_restart(args: &ServeArgs, state: Option<&Path>) -> Outcome<()> {
    let prepared = prepare(args, |path, _| StateFile::open_to_read(path))?;
    prepared.plan.check_words()?;
    let now = prepared.state.as_ref().map(StateFile::path);
    if now != state {
        let shown =
            |path: Option<&Path>| path.map_or("none".to_owned(), |it| it.display().to_string());
        return Err(refused(ConfigKind::Argument, "", "state file", shown(now), shown(state)));
    }
    Ok(())
}

/// Stops the process that goes on.
fn pass_on_stop(next: &Detached) -> Outcome<u8> {
    if let Err(error) = next.stop() {
        tracing::warn!("process {}: cannot stop it: {error}", next.pid());
    }
    Ok(exit::OK)
}

/// The server before this one, as this one sees it.
pub struct Heir(Channel);

impl Heir {
    /// The server at the other end of standard input.
    ///
    /// # Errors
    /// The system refused.
    pub fn new() -> Outcome<Heir> {
        let end = std::io::stdin().as_fd().try_clone_to_owned();
        end.map(|end| Heir(Channel::of(end))).map_err(|error| system("handover", "stdin", error))
    }

    /// Tells the server that this one can start, and waits for what it leaves. None if it goes on
    /// by itself.
    ///
    /// # Errors
    /// What it left makes no sense.
    pub fn inherit(&self) -> Outcome<Option<Estate>> {
        let version = env!("CARGO_PKG_VERSION").to_owned();
        self.tell(&Message::Hello { protocol: PROTOCOL, version });
        inherit(&self.0, INHERIT_PATIENCE)
    }

    /// Tells the server why this one does not go on.
    pub fn refuse(&self, error: &ConfigError) {
        self.tell(&Message::refused(&one_line(error)));
    }

    /// Tells the server that this one is ready, and waits for its word. Without the server this
    /// one is the only one that can serve.
    ///
    /// # Errors
    /// The server says something else.
    pub fn wait_for_word(&self) -> Outcome<()> {
        self.tell(&Message::Ready);
        // It kills this process if it takes too long.
        match self.0.receive(Duration::from_secs(3600))? {
            Ok((Message::Go, _)) => Ok(()),
            Ok((other, _)) => {
                let found = format!("{other:?}");
                Err(refused(ConfigKind::Unsupported, "handover", "message", found, "go"))
            }
            Err(_) => {
                tracing::warn!("the server before this one ended without a word: serving");
                Ok(())
            }
        }
    }

    /// A server that is gone hears nothing, and its end shows when the next message is awaited.
    fn tell(&self, message: &Message) {
        if let Err(error) = self.0.send(message, &[]) {
            tracing::debug!("the server before this one: {error}");
        }
    }
}
