//! A small HTTP server for what people and monitoring read: one thread accepts, one thread per
//! connection answers one request, with a page or with a stream of events.
//!
//! Limits: [`CONNECTIONS_MAX`] connections, of which [`STREAMS_MAX`] may be streams, heads of
//! [`head::HEAD_BYTES_MAX`], [`PATIENCE`] for a whole head and for taking an answer or an event. A
//! connection that breaks a limit is refused or closed; the others do not notice. Bodies of
//! requests are not read. On TCP the header `Host` must name this machine
//! ([`head::is_own_host`]), so that a page of another site cannot read this server.

mod head;

use std::borrow::Cow;
use std::io::{ErrorKind, Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::os::fd::AsFd;
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use cairn_outcome::failure::{Outcome, system};
use rustix::event::{PollFd, PollFlags, poll};

use self::head::{HEAD_BYTES_MAX, Head, Refusal};
use crate::control::server::ConnectionSlot;

/// The most connections at once.
const CONNECTIONS_MAX: usize = 16;

/// The most of them that are streams, so that pages are answered, too.
const STREAMS_MAX: usize = 12;

/// How often a stream looks whether the server ends.
const STEP: Duration = Duration::from_millis(50);

/// How long the end of a server waits for answers that are being made. A reactor that is held up
/// must not hold up the end, too.
const LAST_ANSWERS: Duration = Duration::from_secs(1);

/// How long a client may take for its head, and for taking the answer.
const PATIENCE: Duration = Duration::from_secs(10);

const EVENT_STREAM: &str = "text/event-stream";

/// A page may load what this server has, and nothing else; no page of another site may show it.
const COMMON_HEADERS: &str = "Cache-Control: no-store\r\nX-Content-Type-Options: nosniff\r\n\
    Content-Security-Policy: default-src 'none'; script-src 'self'; style-src 'self'; \
    connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'\r\n\
    Referrer-Policy: no-referrer\r\nCross-Origin-Resource-Policy: same-origin\r\n";

/// The answer to a request.
pub struct Page {
    /// What it is.
    pub media_type: &'static str,
    /// The text.
    pub body: Cow<'static, str>,
}

/// Events that a client is sent as they happen (`text/event-stream`).
pub struct EventStream {
    /// Makes the data of the next event: one line.
    pub next: Box<dyn FnMut() -> Outcome<String> + Send>,
    /// The time from one to the next.
    pub interval: Duration,
}

/// What a path has.
pub enum Found {
    /// A page.
    Page(Page),
    /// Events.
    Events(EventStream),
}

/// What answers requests.
pub trait Pages: Send + Sync {
    /// What is at a path; none if there is nothing. `accept` is what the client reads best.
    ///
    /// # Errors
    /// It cannot be made now.
    fn find(&self, path: &str, accept: &str) -> Outcome<Option<Found>>;
}

/// A socket that listens.
pub enum HttpListener {
    /// At a path, which goes with the server.
    Unix(UnixListener, PathBuf),
    /// At an address.
    Tcp(TcpListener),
}

/// A server until it is dropped. Then it begins no more answers.
pub struct HttpServer {
    /// Ends the thread that accepts.
    stop: UnixStream,
    thread: Option<JoinHandle<()>>,
    path: Option<PathBuf>,
    shared: Arc<Shared>,
}

/// What the threads of a server share.
#[derive(Default)]
struct Shared {
    /// Connections.
    open: Arc<AtomicUsize>,
    /// Those of them that are streams.
    streams: Arc<AtomicUsize>,
    /// Answers that are being made.
    making: Arc<AtomicUsize>,
    /// The server ends.
    is_closing: AtomicBool,
}

impl Shared {
    /// Makes an answer, for which the end of the server waits. None once that has begun: what
    /// follows must not be seen.
    fn make<T>(&self, make: impl FnOnce() -> T) -> Option<T> {
        let _making = ConnectionSlot::try_take(&self.making, usize::MAX);
        (!self.is_closing.load(Ordering::SeqCst)).then(make)
    }
}

impl Drop for HttpServer {
    fn drop(&mut self) {
        self.shared.is_closing.store(true, Ordering::SeqCst);
        drop(self.stop.shutdown(Shutdown::Both));
        if self.thread.take().is_some_and(|thread| thread.join().is_err()) {
            tracing::debug!("the thread of the HTTP server panicked");
        }
        let until = Instant::now() + LAST_ANSWERS;
        while self.shared.making.load(Ordering::SeqCst) > 0 && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(1));
        }
        // The path may be removed already.
        self.path.iter().for_each(|path| drop(std::fs::remove_file(path)));
    }
}

trait Stream: Read + Write + Send {
    fn set_patience(&self, left: Duration) -> std::io::Result<()>;
}

impl Stream for UnixStream {
    fn set_patience(&self, left: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(left))?;
        self.set_write_timeout(Some(left))
    }
}

impl Stream for TcpStream {
    fn set_patience(&self, left: Duration) -> std::io::Result<()> {
        self.set_read_timeout(Some(left))?;
        self.set_write_timeout(Some(left))
    }
}

impl HttpListener {
    fn set_nonblocking(&self) -> std::io::Result<()> {
        match self {
            HttpListener::Unix(listener, _) => listener.set_nonblocking(true),
            HttpListener::Tcp(listener) => listener.set_nonblocking(true),
        }
    }

    /// The next connection.
    fn accept(&self) -> std::io::Result<Box<dyn Stream>> {
        Ok(match self {
            HttpListener::Unix(listener, _) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Box::new(stream)
            }
            HttpListener::Tcp(listener) => {
                let (stream, _) = listener.accept()?;
                stream.set_nonblocking(false)?;
                Box::new(stream)
            }
        })
    }

    fn is_tcp(&self) -> bool {
        matches!(self, HttpListener::Tcp(_))
    }
}

impl HttpServer {
    /// Answers at a socket.
    ///
    /// # Errors
    /// The system refuses.
    pub fn start(listener: HttpListener, pages: Arc<dyn Pages>) -> Outcome<HttpServer> {
        let failed = |error| system("metrics", "listen", error);
        listener.set_nonblocking().map_err(failed)?;
        let (stop, stopped) = UnixStream::pair().map_err(failed)?;
        let path = match &listener {
            HttpListener::Unix(_, path) => Some(path.clone()),
            HttpListener::Tcp(_) => None,
        };
        let shared = Arc::<Shared>::default();
        let for_thread = shared.clone();
        let thread = std::thread::Builder::new()
            .name("http".to_owned())
            .spawn(move || serve(&listener, &stopped, &pages, &for_thread))
            .map_err(failed)?;
        Ok(HttpServer { stop, thread: Some(thread), path, shared })
    }
}

fn serve(
    listener: &HttpListener,
    stopped: &UnixStream,
    pages: &Arc<dyn Pages>,
    shared: &Arc<Shared>,
) {
    loop {
        let socket = match listener {
            HttpListener::Unix(listener, _) => listener.as_fd(),
            HttpListener::Tcp(listener) => listener.as_fd(),
        };
        let wanted = PollFlags::IN;
        let mut polled = [PollFd::new(&socket, wanted), PollFd::new(stopped, wanted)];
        if poll(&mut polled, None).is_ok() && !polled[1].revents().is_empty() {
            return;
        }
        let Ok(stream) = listener.accept() else {
            // The client has gone, or descriptors are short.
            std::thread::sleep(Duration::from_millis(10));
            continue;
        };
        let Some(slot) = ConnectionSlot::try_take(&shared.open, CONNECTIONS_MAX) else {
            refuse(stream, (503, "Service Unavailable"));
            continue;
        };
        let (pages, shared, is_tcp) = (pages.clone(), shared.clone(), listener.is_tcp());
        let thread = std::thread::Builder::new().name("http".to_owned()).spawn(move || {
            converse(stream, is_tcp, pages.as_ref(), &shared);
            drop(slot);
        });
        if let Err(error) = thread {
            tracing::debug!("HTTP: thread: {error}");
        }
    }
}

fn converse(mut stream: Box<dyn Stream>, is_tcp: bool, pages: &dyn Pages, shared: &Shared) {
    let head = match read_head(stream.as_mut()) {
        Ok(Some(head)) => head,
        // It went away.
        Ok(None) => return,
        Err(refusal) => return refuse(stream, refusal),
    };
    if is_tcp && !head::is_own_host(head.host.as_deref()) {
        return refuse(stream, (403, "Forbidden: the header Host does not name this machine"));
    }
    if head.is_cross_site {
        return refuse(stream, (403, "Forbidden: a page of another site asks"));
    }
    let Some(found) = shared.make(|| pages.find(&head.path, &head.accept)) else { return };
    match found {
        Ok(Some(Found::Page(Page { media_type, body }))) => {
            answer(stream, (200, "OK"), (media_type, &body), head.head_only);
        }
        Ok(Some(Found::Events(_))) if head.head_only => {
            answer(stream, (200, "OK"), (EVENT_STREAM, ""), true);
        }
        Ok(Some(Found::Events(events))) => {
            match ConnectionSlot::try_take(&shared.streams, STREAMS_MAX) {
                Some(_slot) => send_events(stream, events, shared),
                None => refuse(stream, (503, "Service Unavailable")),
            }
        }
        Ok(None) => refuse(stream, (404, "Not Found")),
        Err(error) => {
            tracing::warn!("HTTP: {}: {error}", head.path.escape_debug());
            refuse(stream, (500, "Internal Server Error"));
        }
    }
}

/// Reads a head, for no longer than [`PATIENCE`] in all.
fn read_head(stream: &mut dyn Stream) -> Result<Option<Head>, Refusal> {
    let until = Instant::now() + PATIENCE;
    let mut bytes = Vec::with_capacity(1024);
    loop {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() || stream.set_patience(left).is_err() {
            return Err((408, "Request Timeout"));
        }
        let mut piece = [0; 1024];
        let wanted = piece.len().min(HEAD_BYTES_MAX - bytes.len());
        match stream.read(&mut piece[..wanted]) {
            Ok(0) => return Ok(None),
            Ok(len) => bytes.extend_from_slice(&piece[..len]),
            Err(error) if error.kind() == ErrorKind::Interrupted => continue,
            Err(_) => return Err((408, "Request Timeout")),
        }
        if let Some(head) = head::parse(&bytes)? {
            return Ok(Some(head));
        }
    }
}

/// Sends events until the client goes away or takes none, or the server ends.
fn send_events(mut stream: Box<dyn Stream>, mut events: EventStream, shared: &Shared) {
    let head = format!(
        "HTTP/1.1 200 OK\r\nContent-Type: {EVENT_STREAM}\r\n{COMMON_HEADERS}\
         Connection: close\r\n\r\n"
    );
    let mut text = head;
    while let Some(next) = shared.make(|| (events.next)()) {
        match next {
            Ok(data) => text.push_str(&format!("data: {data}\n\n")),
            Err(error) => return tracing::warn!("HTTP: events: {error}"),
        }
        if let Err(error) = send(stream.as_mut(), text.as_bytes()) {
            return tracing::debug!("HTTP: the client takes no more events: {error}");
        }
        text.clear();
        let due = Instant::now() + events.interval;
        while Instant::now() < due {
            if shared.is_closing.load(Ordering::SeqCst) {
                return;
            }
            std::thread::sleep(STEP.min(due.saturating_duration_since(Instant::now())));
        }
    }
}

/// Sends all of `bytes`, for no longer than [`PATIENCE`] in all.
fn send(stream: &mut dyn Stream, mut bytes: &[u8]) -> std::io::Result<()> {
    let until = Instant::now() + PATIENCE;
    while !bytes.is_empty() {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(ErrorKind::TimedOut.into());
        }
        stream.set_patience(left)?;
        match stream.write(bytes) {
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => bytes = &bytes[count..],
            Err(error) if error.kind() == ErrorKind::Interrupted => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

fn refuse(stream: Box<dyn Stream>, (code, words): Refusal) {
    let body = format!("{words}\n");
    answer(stream, (code, words), ("text/plain; charset=utf-8", &body), false);
}

fn answer(
    mut stream: Box<dyn Stream>,
    (code, words): Refusal,
    (media_type, body): (&str, &str),
    head_only: bool,
) {
    let words = words.split_once(':').map_or(words, |(words, _)| words);
    let allow = if code == 405 { "Allow: GET, HEAD\r\n" } else { "" };
    let head = format!(
        "HTTP/1.1 {code} {words}\r\nContent-Type: {media_type}\r\nContent-Length: {}\r\n{allow}\
         {COMMON_HEADERS}Connection: close\r\n\r\n",
        body.len()
    );
    let body = if head_only { "" } else { body };
    if let Err(error) = send(stream.as_mut(), &[head.as_bytes(), body.as_bytes()].concat()) {
        tracing::debug!("HTTP: the client does not take the answer: {error}");
    }
}

#[cfg(test)]
mod tests {
    use super::{
        CONNECTIONS_MAX, EventStream, Found, HttpListener, HttpServer, Page, Pages, STREAMS_MAX,
    };
    use cairn_outcome::failure::Outcome;
    use std::io::{Read, Write};
    use std::net::{SocketAddr, TcpListener, TcpStream};
    use std::sync::Arc;
    use std::time::Duration;

    struct One;

    impl Pages for One {
        fn find(&self, path: &str, accept: &str) -> Outcome<Option<Found>> {
            let body = format!("you read {accept}\n").into();
            let mut events = 0;
            let next = move || {
                events += 1;
                Ok(format!("event {events}"))
            };
            let (next, interval) = (Box::new(next), Duration::from_millis(1));
            Ok(match path {
                "/metrics" => Some(Found::Page(Page { media_type: "text/plain", body })),
                "/stream" => Some(Found::Events(EventStream { next, interval })),
                _ => None,
            })
        }
    }

    fn start() -> (HttpServer, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        (HttpServer::start(HttpListener::Tcp(listener), Arc::new(One)).unwrap(), address)
    }

    fn ask(address: SocketAddr, request: &str) -> String {
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(request.as_bytes()).unwrap();
        let mut answer = Vec::new();
        // One that is refused before its request was read may see a reset after the answer.
        drop(stream.read_to_end(&mut answer));
        String::from_utf8(answer).unwrap()
    }

    #[test]
    fn a_page_is_answered_and_everything_else_refused() {
        let (_server, address) = start();
        let got = ask(address, "GET /metrics HTTP/1.1\r\nHost: localhost\r\nAccept: b\r\n\r\n");
        assert!(got.starts_with("HTTP/1.1 200 OK\r\n"), "{got}");
        assert!(
            got.contains("\r\nContent-Length: 11\r\n") && got.ends_with("\r\n\r\nyou read b\n")
        );
        let got = ask(address, "HEAD /metrics HTTP/1.1\r\nHost: 127.0.0.1:9\r\n\r\n");
        assert!(got.contains("\r\nContent-Length: 10\r\n") && got.ends_with("\r\n\r\n"), "{got}");
        for (request, code) in [
            ("GET / HTTP/1.1\r\nHost: localhost\r\n\r\n", "404"),
            ("PUT /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n", "405"),
            ("GET /metrics HTTP/1.1\r\nHost: evil.example\r\n\r\n", "403"),
            ("GET /metrics HTTP/1.1\r\n\r\n", "403"),
            (
                "GET /metrics HTTP/1.1\r\nHost: localhost\r\nSec-Fetch-Site: cross-site\r\n\
                 Sec-Fetch-Mode: no-cors\r\n\r\n",
                "403",
            ),
            ("nonsense\r\n\r\n", "400"),
        ] {
            let got = ask(address, request);
            assert!(got.starts_with(&format!("HTTP/1.1 {code} ")), "{request}: {got}");
        }
    }

    #[test]
    fn clients_that_send_half_a_head_keep_others_out_only_up_to_a_limit() {
        let (server, address) = start();
        let half = |_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET /metr").unwrap();
            stream
        };
        let mut slow: Vec<_> = (0..CONNECTIONS_MAX).map(half).collect();
        let request = "GET /metrics HTTP/1.1\r\nHost: localhost\r\n\r\n";
        let got = ask(address, request);
        assert!(got.is_empty() || got.starts_with("HTTP/1.1 503 "), "{got}");
        // The rest of a head is answered, and its place is free again.
        slow[0].write_all(b"ics HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
        let mut answer = String::new();
        slow[0].read_to_string(&mut answer).unwrap();
        assert!(answer.starts_with("HTTP/1.1 200 "), "{answer}");
        drop(slow);
        while !ask(address, request).starts_with("HTTP/1.1 200 ") {
            std::thread::yield_now();
        }
        drop(server);
        assert!(TcpStream::connect(address).is_err(), "it listens no more");
    }

    #[test]
    fn streams_send_events_until_the_client_or_the_server_ends_and_leave_room_for_pages() {
        let (server, address) = start();
        let stream = |_| {
            let mut stream = TcpStream::connect(address).unwrap();
            stream.write_all(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            let mut text = String::new();
            let mut piece = [0; 256];
            while !text.contains("data: event 3\n\n") {
                let len = stream.read(&mut piece).unwrap();
                assert!(len > 0, "{text}");
                text.push_str(std::str::from_utf8(&piece[..len]).unwrap());
            }
            assert!(text.starts_with("HTTP/1.1 200 OK\r\nContent-Type: text/event-stream\r\n"));
            assert!(text.contains("\r\nContent-Security-Policy: default-src 'none'; "), "{text}");
            stream
        };
        let mut streams: Vec<_> = (0..STREAMS_MAX).map(stream).collect();
        let ask =
            |path: &str| ask(address, &format!("GET /{path} HTTP/1.1\r\nHost: localhost\r\n\r\n"));
        assert!(ask("stream").starts_with("HTTP/1.1 503 "));
        assert!(ask("metrics").starts_with("HTTP/1.1 200 "));
        streams.pop();
        // Its place is free once an event could not be sent.
        streams.push(loop {
            let mut again = TcpStream::connect(address).unwrap();
            again.write_all(b"GET /stream HTTP/1.1\r\nHost: localhost\r\n\r\n").unwrap();
            let mut begin = [0; 12];
            again.read_exact(&mut begin).unwrap();
            if &begin == b"HTTP/1.1 200" {
                break again;
            }
        });
        drop(server);
        for mut stream in streams {
            // It ends, with a reset if something was not read.
            drop(stream.read_to_end(&mut Vec::new()));
        }
    }
}
