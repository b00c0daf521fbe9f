//! The server of the control socket: one thread accepts, one thread per connection answers.
//!
//! Verbs wait for reactors, hence threads and not tasks. Bounded: at most [`CONNECTIONS_MAX`]
//! connections, lines of at most [`LINE_BYTES_MAX`]. A connection that breaks the line limit is
//! closed; one that sends nonsense is told so and kept.

use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use serde_json::Value;

use super::rpc::{LINE_BYTES_MAX, Request, Response, RpcError};
use crate::failure::{Outcome, system};
use crate::sockets;

const CONNECTIONS_MAX: usize = 64;

/// What answers requests.
pub trait Answer: Send + Sync {
    /// Answers one request; may wait, as long as somebody waits for the answer.
    fn answer(&self, method: &str, params: Value, caller: &dyn Caller) -> Result<Value, RpcError>;
}

/// Who asked.
pub trait Caller {
    /// True if nobody waits for the answer any more.
    fn is_gone(&self) -> bool;
}

impl Caller for UnixStream {
    fn is_gone(&self) -> bool {
        // Told only when the other end is closed: who has no more to say may still listen.
        let mut polled = [PollFd::new(self, PollFlags::empty())];
        let gone = PollFlags::HUP | PollFlags::ERR;
        poll(&mut polled, Some(&Timespec::default())).is_ok()
            && polled[0].revents().intersects(gone)
    }
}

/// A control socket being served until the process ends; its path goes with this.
pub struct ControlServer {
    path: PathBuf,
}

impl Drop for ControlServer {
    fn drop(&mut self) {
        // A path already gone is as good.
        drop(std::fs::remove_file(&self.path));
    }
}

impl ControlServer {
    /// Listens at `path` and answers with `answer`.
    ///
    /// # Errors
    /// The path is taken, or the system refuses.
    pub fn start(path: &Path, answer: Arc<dyn Answer>) -> Outcome<ControlServer> {
        let listener = sockets::listen_unix(path)?;
        let server = ControlServer { path: path.to_owned() };
        std::thread::Builder::new()
            .name("control".to_owned())
            .spawn(move || accept(&listener, &answer))
            .map_err(|error| system(path.display().to_string(), "control thread", error))?;
        Ok(server)
    }
}

fn accept(listener: &UnixListener, answer: &Arc<dyn Answer>) {
    let open = Arc::new(AtomicUsize::new(0));
    for stream in listener.incoming() {
        let stream = match stream {
            Ok(stream) => stream,
            Err(error) => {
                tracing::warn!("control socket: accept: {error}");
                // Out of descriptors, most likely: some will come back.
                std::thread::sleep(std::time::Duration::from_millis(100));
                continue;
            }
        };
        if open.load(Ordering::Acquire) >= CONNECTIONS_MAX {
            tracing::warn!("control socket: found {CONNECTIONS_MAX} connections, refused one more");
            continue;
        }
        let (answer, place) = (answer.clone(), Place::take(&open));
        let thread = std::thread::Builder::new().name("control".to_owned()).spawn(move || {
            let _place = place;
            if let Err(error) = converse(&stream, answer.as_ref()) {
                tracing::debug!("control socket: {error}");
            }
        });
        if let Err(error) = thread {
            tracing::warn!("control socket: thread: {error}");
        }
    }
}

/// One of the [`CONNECTIONS_MAX`], given back even by a verb that panics.
struct Place(Arc<AtomicUsize>);

impl Place {
    fn take(open: &Arc<AtomicUsize>) -> Place {
        open.fetch_add(1, Ordering::AcqRel);
        Place(open.clone())
    }
}

impl Drop for Place {
    fn drop(&mut self) {
        self.0.fetch_sub(1, Ordering::AcqRel);
    }
}

fn converse(stream: &UnixStream, answer: &dyn Answer) -> std::io::Result<()> {
    let mut reader = BufReader::new(stream);
    loop {
        let mut line = String::new();
        let read = (&mut reader).take(LINE_BYTES_MAX).read_line(&mut line)?;
        if read == 0 || !line.ends_with('\n') {
            return Ok(());
        }
        if line.trim().is_empty() {
            continue;
        }
        let mut text = serde_json::to_string(&respond(&line, answer, stream))?;
        text.push('\n');
        let mut writer = stream;
        writer.write_all(text.as_bytes())?;
    }
}

/// Answers one line.
pub fn respond(line: &str, answer: &dyn Answer, caller: &dyn Caller) -> Response {
    let value: Value = match serde_json::from_str(line) {
        Ok(value) => value,
        Err(error) => return Response::new(Value::Null, Err(RpcError::parse(&error))),
    };
    let id = value.get("id").cloned().unwrap_or(Value::Null);
    match serde_json::from_value::<Request>(value) {
        Ok(request) => Response::new(id, answer.answer(&request.method, request.params, caller)),
        Err(error) => Response::new(id, Err(RpcError::request(&error))),
    }
}

#[cfg(test)]
mod tests {
    use super::{Answer, CONNECTIONS_MAX, Caller, ControlServer, respond};
    use crate::control::rpc::RpcError;
    use proptest::prelude::{any, proptest};
    use serde_json::{Value, json};
    use std::io::{BufRead, BufReader, Write};
    use std::net::Shutdown;
    use std::os::unix::net::UnixStream;
    use std::sync::Arc;

    struct Echo;

    struct Patient;

    impl Caller for Patient {
        fn is_gone(&self) -> bool {
            false
        }
    }

    #[test]
    fn who_closed_the_connection_is_gone_and_who_only_listens_is_not() {
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
        let response = respond(good, &Echo, &Patient);
        assert_eq!((response.id, response.result), (json!(7), Some(json!({"a": 1}))));
        let codes = [
            ("{", -32700),
            ("[]", -32600),
            ("{\"id\":7}", -32600),
            (r#"{"jsonrpc":"2.0","id":7,"method":"frob"}"#, -32601),
        ];
        for (line, code) in codes {
            assert_eq!(respond(line, &Echo, &Patient).error.unwrap().code, code, "{line}");
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
    fn a_verb_that_panics_gives_its_place_back() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("control");
        let _server = ControlServer::start(&path, Arc::new(Careless)).unwrap();
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

    proptest! {
        #[test]
        fn no_line_panics(line in any::<String>()) {
            respond(&line, &Echo, &Patient);
        }
    }
}
