//! The server of the control socket: one thread accepts, one thread per connection answers.
//!
//! Verbs wait for reactors, so connections are threads, not tasks. Limits: [`CONNECTIONS_MAX`]
//! connections, lines of [`LINE_BYTES_MAX`], [`IDLE`] for receiving a line and for sending an
//! answer. A connection that breaks a limit is closed. One that sends an invalid line gets an error
//! and stays open.
//!
//! A method that waits for an event ([`Answer::waits`]) gives its connection's slot back during the
//! wait, and takes one of [`WAITERS_MAX`] waiting slots instead, so that waiting clients do not
//! keep other verbs from being answered. For the answer it takes a connection slot again at once,
//! even if that exceeds the limit for a moment.

use std::io::{BufRead, BufReader, ErrorKind, Read, Write};
use std::net::Shutdown;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cairn_block::{ConfigError, ConfigKind};
use cairn_exports::unix_socket::{SocketRights, listen_unix};
use cairn_outcome::failure::{Outcome, system};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::sockopt::socket_peercred;
use serde_json::Value;

use crate::sockets::ControlSocket;

use super::log::Verb;
use super::rpc::{LINE_BYTES_MAX, Request, Response, RpcError};

const CONNECTIONS_MAX: usize = 64;

/// The most connections that may wait for an event.
const WAITERS_MAX: usize = 256;

/// How long a connection may take for a line, or to take an answer.
const IDLE: Duration = Duration::from_secs(60);

/// What answers requests.
pub trait Answer: Send + Sync {
    /// Answers one request. May wait until the caller is gone.
    fn answer(&self, method: &str, params: Value, caller: &dyn Caller) -> Result<Value, RpcError>;

    /// True if a method waits for an event without a time limit.
    fn waits(&self, _method: &str) -> bool {
        false
    }

    /// Logs a warning; those of one key only now and then.
    fn warn(&self, _key: &str, line: String) {
        tracing::warn!("{line}");
    }
}

/// The caller of a request.
pub trait Caller {
    /// True if the caller has hung up.
    fn is_gone(&self) -> bool;

    /// The caller's name, for the log.
    fn who(&self) -> String {
        "unknown".to_owned()
    }
}

/// The caller of verbs that no client asked for, and of those that must go to their end although
/// their client is gone.
pub struct TheServer;

impl Caller for TheServer {
    fn is_gone(&self) -> bool {
        false
    }

    fn who(&self) -> String {
        "the server".to_owned()
    }
}

impl Caller for UnixStream {
    fn is_gone(&self) -> bool {
        // Only a closed connection counts: a client that has shut down its sending side may still
        // read.
        let mut polled = [PollFd::new(self, PollFlags::empty())];
        let gone = PollFlags::HUP | PollFlags::ERR;
        poll(&mut polled, Some(&Timespec::default())).is_ok()
            && polled[0].revents().intersects(gone)
    }

    fn who(&self) -> String {
        match socket_peercred(self) {
            Ok(peer) => format!("uid {}, process {}", peer.uid.as_raw(), peer.pid.as_raw_pid()),
            Err(error) => format!("unknown ({error})"),
        }
    }
}

/// A control socket being served until the process ends; its path goes with this, unless it was
/// given by socket activation.
pub struct ControlServer {
    path: PathBuf,
    listener: Arc<UnixListener>,
    is_activated: bool,
    /// Ends the thread that accepts.
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
    /// The connections.
    open: Arc<AtomicUsize>,
    /// Another process has the socket.
    is_left: bool,
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        if !self.is_left && !self.is_activated {
            // The path may be removed already.
            drop(std::fs::remove_file(&self.path));
        }
    }
}

impl ControlServer {
    /// Listens at `path`, a socket with these rights, and answers with `answer`.
    ///
    /// # Errors
    /// The path is taken, or the system refuses.
    pub fn start(
        path: &Path,
        rights: SocketRights,
        answer: Arc<dyn Answer>,
    ) -> Outcome<ControlServer> {
        let listener = listen_unix(path, rights)?.into();
        let (path, is_activated) = (path.to_owned(), false);
        ControlServer::start_on(ControlSocket { path, listener, is_activated }, answer)
    }

    /// The same on a socket that listens.
    ///
    /// # Errors
    /// The system refuses a thread.
    pub fn start_on(socket: ControlSocket, answer: Arc<dyn Answer>) -> Outcome<ControlServer> {
        let ControlSocket { path, listener, is_activated } = socket;
        let shown = path.display().to_string();
        let listener = Arc::new(listener);
        listener.set_nonblocking(true).map_err(|error| system(&shown, "listen", error))?;
        let (stop, stopped) =
            UnixStream::pair().map_err(|error| system(&shown, "socket pair", error))?;
        let open = Arc::<AtomicUsize>::default();
        let (accepts, count) = (listener.clone(), open.clone());
        let thread = std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || accept(&accepts, &stopped, &count, &answer))
            .map_err(|error| system(&shown, "control thread", error))?;
        let (thread, is_left) = (Some(thread), false);
        Ok(ControlServer { path, listener, is_activated, stop, thread, open, is_left })
    }

    /// Accepts no more connections, and leaves the socket to another process.
    ///
    /// # Errors
    /// The system refused.
    pub fn leave(&mut self) -> Outcome<ControlSocket> {
        self.is_left = true;
        let shown = || self.path.display().to_string();
        self.stop.shutdown(Shutdown::Both).map_err(|error| system(shown(), "stop", error))?;
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::debug!("the thread of the control socket panicked");
        }
        let listener = self.listener.try_clone().map_err(|error| system(shown(), "copy", error))?;
        let (path, is_activated) = (self.path.clone(), self.is_activated);
        Ok(ControlSocket { path, listener, is_activated })
    }

    /// Waits until the connections have ended, at most for `patience`.
    pub fn wait_for_answers(&self, patience: Duration) {
        let until = Instant::now() + patience;
        while self.open.load(Ordering::Acquire) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
    }
}

/// Waits for a connection. None if the server accepts no more.
fn next_of(listener: &UnixListener, stopped: &UnixStream) -> Option<std::io::Result<UnixStream>> {
    loop {
        let wanted = PollFlags::IN;
        let mut polled = [PollFd::new(listener, wanted), PollFd::new(stopped, wanted)];
        match poll(&mut polled, None) {
            Err(error) if error != Errno::INTR => return Some(Err(error.into())),
            _ if !polled[1].revents().is_empty() => return None,
            _ => {}
        }
        match listener.accept() {
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            accepted => {
                let blocking = |(stream, _): (UnixStream, _)| {
                    stream.set_nonblocking(false)?;
                    Ok(stream)
                };
                return Some(accepted.and_then(blocking));
            }
        }
    }
}

fn accept(
    listener: &UnixListener,
    stopped: &UnixStream,
    open: &Arc<AtomicUsize>,
    answer: &Arc<dyn Answer>,
) {
    let waiting = Arc::default();
    while let Some(stream) = next_of(listener, stopped) {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                let key = "control socket: accept";
                answer.warn(key, format!("{key}: {error}"));
                // Probably out of descriptors; others will be closed.
                std::thread::sleep(Duration::from_millis(100));
                continue;
            }
        };
        let Some(slot) = ConnectionSlot::try_take(open, CONNECTIONS_MAX) else {
            let key = "control socket: connection refused";
            answer.warn(key, format!("{key}: {CONNECTIONS_MAX} are open, the most allowed"));
            continue;
        };
        let (server, waiting) = (answer.clone(), Arc::clone(&waiting));
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(move || {
            let slots = ConnectionSlots { slot, waiting };
            if let Err(error) = converse(&stream, server.as_ref(), slots) {
                tracing::debug!("control socket: {error}");
            }
        });
        if let Err(error) = thread {
            let key = "control socket: thread";
            answer.warn(key, format!("{key}: {error}"));
        }
    }
}

/// One of a limited number of slots. It is given back even by an answer that panics.
pub(crate) struct ConnectionSlot(Arc<AtomicUsize>);

impl ConnectionSlot {
    fn take(taken: &Arc<AtomicUsize>) -> ConnectionSlot {
        taken.fetch_add(1, Ordering::AcqRel);
        ConnectionSlot(taken.clone())
    }

    /// Takes a slot, unless so many are taken.
    pub(crate) fn try_take(taken: &Arc<AtomicUsize>, most: usize) -> Option<ConnectionSlot> {
        let slot = ConnectionSlot::take(taken);
        (taken.load(Ordering::Acquire) <= most).then_some(slot)
    }
}

impl Drop for ConnectionSlot {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

/// The slot of a connection, and the count of waiting connections.
struct ConnectionSlots {
    slot: ConnectionSlot,
    waiting: Arc<AtomicUsize>,
}

impl ConnectionSlots {
    /// Runs `work`, which waits, and gives the slot to other connections during the wait.
    fn aside(self, work: impl FnOnce() -> Response) -> (ConnectionSlots, Option<Response>) {
        let Some(aside) = ConnectionSlot::try_take(&self.waiting, WAITERS_MAX) else {
            return (self, None);
        };
        let ConnectionSlots { slot, waiting } = self;
        let connections = slot.0.clone();
        drop(slot);
        let response = work();
        drop(aside);
        (ConnectionSlots { slot: ConnectionSlot::take(&connections), waiting }, Some(response))
    }
}

/// A connection that fails when a line has not arrived in time.
struct Patient<'a> {
    stream: &'a UnixStream,
    until: Instant,
}

impl Read for Patient<'_> {
    fn read(&mut self, buf: &mut [u8]) -> std::io::Result<usize> {
        let left = self.until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(std::io::ErrorKind::TimedOut.into());
        }
        self.stream.set_read_timeout(Some(left))?;
        self.stream.read(buf)
    }
}

fn converse(
    mut stream: &UnixStream,
    answer: &dyn Answer,
    mut slots: ConnectionSlots,
) -> std::io::Result<()> {
    stream.set_write_timeout(Some(IDLE))?;
    let mut reader = BufReader::new(Patient { stream, until: Instant::now() });
    loop {
        let mut line = String::new();
        reader.get_mut().until = Instant::now() + IDLE;
        let read = (&mut reader).take(LINE_BYTES_MAX).read_line(&mut line)?;
        if read == 0 || !line.ends_with('\n') {
            return Ok(());
        }
        if line.trim().is_empty() {
            continue;
        }
        let request = Asked::parse(&line);
        let response = match request {
            Ok(asked) if answer.waits(&asked.request.method) => {
                let id = asked.id.clone();
                let (again, response) = slots.aside(|| asked.respond(answer, stream));
                slots = again;
                response.unwrap_or_else(|| too_many_wait(id, answer))
            }
            Ok(asked) => asked.respond(answer, stream),
            Err(refused) => *refused,
        };
        let mut text = serde_json::to_string(&response)?;
        text.push('\n');
        stream.write_all(text.as_bytes())?;
    }
}

fn too_many_wait(id: Value, answer: &dyn Answer) -> Response {
    let key = "control socket: wait refused";
    let reason = format!("{WAITERS_MAX} connections wait already, the most allowed");
    answer.warn(key, format!("{key}: {reason}"));
    let refused = ConfigError::new(ConfigKind::Busy, "control socket", reason);
    Response::new(id, Err(RpcError::of_verb(&refused)))
}

/// A request with the id that its answer bears.
struct Asked {
    id: Value,
    request: Request,
}

impl Asked {
    /// Reads a line, or answers it if it is no request.
    fn parse(line: &str) -> Result<Asked, Box<Response>> {
        let refused = |id, error| Box::new(Response::new(id, Err(error)));
        let value: Value = serde_json::from_str(line)
            .map_err(|error| refused(Value::Null, RpcError::parse(&error)))?;
        let id = value.get("id").cloned().unwrap_or(Value::Null);
        match serde_json::from_value(value) {
            Ok(request) => Ok(Asked { id, request }),
            Err(error) => Err(refused(id, RpcError::request(&error))),
        }
    }

    fn respond(self, answer: &dyn Answer, caller: &dyn Caller) -> Response {
        let Request { method, params, .. } = self.request;
        let verb = Verb::begin(&method, &params);
        let answered = answer.answer(&method, params, caller);
        if let Some(verb) = verb {
            verb.end(&caller.who(), &answered);
        }
        Response::new(self.id, answered)
    }
}

/// Answers one line.
pub fn respond(line: &str, answer: &dyn Answer, caller: &dyn Caller) -> Response {
    match Asked::parse(line) {
        Ok(asked) => asked.respond(answer, caller),
        Err(refused) => *refused,
    }
}

#[cfg(test)]
mod tests {
    use super::{
        Answer, CONNECTIONS_MAX, Caller, ConnectionSlot, ConnectionSlots, ControlServer, Patient,
        WAITERS_MAX, respond, too_many_wait,
    };
    use crate::control::rpc::{Response, RpcError};
    use cairn_block::ConfigKind;
    use cairn_exports::unix_socket::SocketRights;
    use proptest::prelude::{any, proptest};
    use serde_json::{Value, json};
    use std::io::{BufRead, BufReader, Read, Write};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;
    use std::sync::atomic::Ordering;
    use std::time::{Duration, Instant};

    struct Echo;

    struct Listener;

    impl Caller for Listener {
        fn is_gone(&self) -> bool {
            false
        }
    }

    #[test]
    fn a_caller_is_gone_when_it_closed_the_connection_not_when_it_only_reads() {
        let (caller, server) = UnixStream::pair().unwrap();
        assert!(!server.is_gone());
        caller.shutdown(Shutdown::Write).unwrap();
        assert!(!server.is_gone());
        drop(caller);
        assert!(server.is_gone());
    }

    impl Answer for Echo {
        fn answer(&self, method: &str, params: Value, _: &dyn Caller) -> Result<Value, RpcError> {
            if method == "echo" { Ok(params) } else { Err(RpcError::no_method(method)) }
        }
    }

    #[test]
    fn every_line_gets_one_answer_with_its_id() {
        let good = r#"{"jsonrpc":"2.0","id":7,"method":"echo","params":{"a":1}}"#;
        let response = respond(good, &Echo, &Listener);
        assert_eq!((response.id, response.result), (json!(7), Some(json!({"a": 1}))));
        let codes = [
            ("{", -32700),
            ("[]", -32600),
            ("{\"id\":7}", -32600),
            (r#"{"jsonrpc":"2.0","id":7,"method":"frob"}"#, -32601),
        ];
        for (line, code) in codes {
            assert_eq!(respond(line, &Echo, &Listener).error.unwrap().code, code, "{line}");
        }
    }

    struct Careless;

    impl Answer for Careless {
        fn answer(&self, method: &str, _: Value, _: &dyn Caller) -> Result<Value, RpcError> {
            assert_eq!(method, "answer");
            Ok(json!("answered"))
        }
    }

    #[test]
    fn a_verb_that_panics_gives_its_slot_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let _server = ControlServer::start(&path, SocketRights::OWNER, Arc::new(Careless)).unwrap();
        // No answer: the verb panicked, or there was no place.
        let ask = |method: &str| {
            let mut stream = UnixStream::connect(&path).unwrap();
            let line = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#);
            drop(writeln!(stream, "{line}"));
            let mut answer = String::new();
            drop(BufReader::new(stream).read_line(&mut answer));
            answer
        };
        for _ in 0..=CONNECTIONS_MAX {
            assert_eq!(ask("panic"), "");
        }
        assert!(ask("answer").contains("answered"));
    }

    /// Waits for as long as its caller listens, or answers.
    struct WaitOrAnswer;

    impl Answer for WaitOrAnswer {
        fn answer(&self, method: &str, _: Value, caller: &dyn Caller) -> Result<Value, RpcError> {
            while method == "wait" && !caller.is_gone() {
                std::thread::sleep(Duration::from_millis(1));
            }
            Ok(json!("answered"))
        }

        fn waits(&self, method: &str) -> bool {
            method == "wait"
        }
    }

    #[test]
    fn connections_that_wait_leave_the_places_to_others() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let _server =
            ControlServer::start(&path, SocketRights::OWNER, Arc::new(WaitOrAnswer)).unwrap();
        let ask = |method: &str| {
            let mut stream = UnixStream::connect(&path).unwrap();
            let line = format!(r#"{{"jsonrpc":"2.0","id":1,"method":"{method}"}}"#);
            drop(writeln!(stream, "{line}"));
            stream
        };
        let answered = |stream| {
            let mut answer = String::new();
            drop(BufReader::new(stream).read_line(&mut answer));
            answer
        };
        let mut waiting: Vec<UnixStream> = Vec::new();
        while waiting.len() < 2 * CONNECTIONS_MAX {
            waiting.push(ask("wait"));
            // Its place is free once it waits.
            while !answered(ask("verb")).contains("answered") {}
        }
    }

    #[test]
    fn more_connections_that_wait_than_allowed_are_refused_with_a_reason() {
        let (open, waiting) = (Arc::default(), Arc::default());
        let mut aside: Vec<_> = (0..WAITERS_MAX)
            .map(|_| ConnectionSlot::try_take(&waiting, WAITERS_MAX).unwrap())
            .collect();
        let (slot, count) = (ConnectionSlot::take(&open), waiting.clone());
        let slots = ConnectionSlots { slot, waiting: count };
        let (slots, response) = slots.aside(|| unreachable!("there is no slot to wait"));
        assert!(response.is_none());
        let refused = too_many_wait(json!(7), &Echo).error.unwrap().into_error();
        assert_eq!(refused.kind, ConfigKind::Busy);
        aside.pop();
        let (slots, response) = slots.aside(|| {
            assert_eq!(open.load(Ordering::Acquire), 0, "another connection may have it");
            Response::new(json!(7), Ok(Value::Null))
        });
        assert!(response.is_some() && open.load(Ordering::Acquire) == 1);
        drop(slots);
        assert_eq!(open.load(Ordering::Acquire), 0);
    }

    #[test]
    fn a_line_that_does_not_come_in_time_ends_the_connection() {
        let (_client, server) = UnixStream::pair().unwrap();
        let mut late = Patient { stream: &server, until: Instant::now() };
        assert_eq!(late.read(&mut [0]).unwrap_err().kind(), std::io::ErrorKind::TimedOut);
        let mut late =
            Patient { stream: &server, until: Instant::now() + Duration::from_millis(1) };
        // The system has another name for it.
        assert!(late.read(&mut [0]).is_err());
    }

    proptest! {
        #[test]
        fn no_line_panics(line in any::<String>()) {
            respond(&line, &Echo, &Listener);
        }
    }
}
