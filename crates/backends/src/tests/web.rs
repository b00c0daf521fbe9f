//! A web server of one object, good or hostile.

use std::io::{BufRead, BufReader, Write};
use std::net::{TcpListener, TcpStream};
use std::ops::Range;
use std::sync::Arc;
use std::thread;
use std::time::Duration;

use cairn_block::sync::Mutex;

/// How a server answers a question, from the second one on, or always.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Manners {
    Good,
    /// No such word, or `W/"..."`.
    NoEtag,
    WeakEtag,
    /// All of the object in place of a range.
    NoRanges,
    /// This status.
    Status(u16),
    /// This status, with a body that is announced to be as long as can be.
    HugeError(u16),
    /// This status, with a body in pieces that does not end.
    EndlessError(u16),
    /// The data in pieces of 4 KiB, with this pause before each of them.
    Slow(Duration),
    /// Half of the data, then the end of the connection.
    Short,
    /// More data than announced, in pieces.
    Long,
    /// Another range than the one asked for.
    OtherRange,
    /// Another total length, with the same ETag.
    OtherLength,
    /// Other content, with its own ETag; `If-Match` is not looked at.
    OtherObject,
    /// The same, and `If-Match` is looked at.
    Replaced,
    /// Data that is said to be compressed.
    Encoded,
    /// Header lines without an end.
    EndlessHeaders,
    /// Nothing.
    Hang,
}

/// A server, and what it was asked for.
pub struct Web {
    port: u16,
    pub data: Arc<Vec<u8>>,
    pub manners: Arc<Mutex<Manners>>,
    pub asked: Arc<Mutex<Vec<Range<u64>>>>,
}

impl Web {
    pub fn serve(bytes: usize) -> Web {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let data: Vec<u8> = (0..bytes).map(|at| (at / 3 * 7 + at / 4096) as u8).collect();
        let web = Web {
            port: listener.local_addr().unwrap().port(),
            data: Arc::new(data),
            manners: Arc::new(Mutex::new(Manners::Good)),
            asked: Arc::default(),
        };
        let (data, manners, asked) = (web.data.clone(), web.manners.clone(), web.asked.clone());
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (data, manners, asked) = (data.clone(), manners.clone(), asked.clone());
                thread::spawn(move || answer_all(&stream.unwrap(), &data, &manners, &asked));
            }
        });
        web
    }

    pub fn uri(&self, parameters: &str) -> String {
        format!("http://127.0.0.1:{}/image?x=1{parameters}", self.port)
    }

    pub fn behave(&self, manners: Manners) {
        *self.manners.lock() = manners;
    }
}

/// Reads a question: its range, and its `If-Match`. None at the end of the connection.
fn question(lines: &mut impl BufRead) -> Option<(Range<u64>, Option<String>)> {
    let (mut range, mut etag) = (0..0, None);
    loop {
        let mut line = String::new();
        if lines.read_line(&mut line).ok()? == 0 {
            return None;
        }
        let line = line.trim();
        if line.is_empty() {
            return Some((range, etag));
        }
        let (name, value) = line.split_once(": ").unwrap_or((line, ""));
        if name.eq_ignore_ascii_case("range") {
            let (start, end) = value.strip_prefix("bytes=").unwrap().split_once('-').unwrap();
            range = start.parse().unwrap()..end.parse::<u64>().unwrap() + 1;
        } else if name.eq_ignore_ascii_case("if-match") {
            etag = Some(value.to_owned());
        }
    }
}

fn answer_all(
    stream: &TcpStream,
    data: &[u8],
    manners: &Mutex<Manners>,
    asked: &Mutex<Vec<Range<u64>>>,
) {
    stream.set_nodelay(true).unwrap();
    let mut lines = BufReader::new(stream);
    while let Some((range, wanted)) = question(&mut lines) {
        asked.lock().push(range.clone());
        let manners = *manners.lock();
        if answer(stream, data, manners, (range, wanted)).is_none() {
            return;
        }
    }
}

/// Answers; none if the connection ends with it.
fn answer(
    mut stream: &TcpStream,
    data: &[u8],
    manners: Manners,
    (asked, wanted): (Range<u64>, Option<String>),
) -> Option<()> {
    let end = asked.end.min(data.len() as u64);
    let mut range = asked.start as usize..end as usize;
    let mut total = data.len();
    let etag = match manners {
        Manners::NoEtag => String::new(),
        Manners::WeakEtag => "ETag: W/\"one\"\r\n".to_owned(),
        Manners::OtherObject | Manners::Replaced => "ETag: \"two\"\r\n".to_owned(),
        _ => "ETag: \"one\"\r\n".to_owned(),
    };
    let mut body = data[range.clone()].to_vec();
    let mut status = "206 Partial Content".to_owned();
    match manners {
        Manners::Hang => {
            thread::sleep(Duration::from_secs(60));
            return None;
        }
        Manners::EndlessHeaders => {
            stream.write_all(b"HTTP/1.1 206 Partial Content\r\n").ok()?;
            while stream.write_all(&b"X: aaaaaaaaaaaaaaaaaaaaaaaaaaaaaaa\r\n".repeat(99)).is_ok() {}
            return None;
        }
        Manners::HugeError(code) => return send_huge(stream, code),
        Manners::EndlessError(code) => return send_endless(stream, code),
        Manners::Status(code) => (status, body) = (format!("{code} Status"), b"why\nnot".to_vec()),
        Manners::Replaced if wanted.is_some_and(|wanted| wanted != "\"two\"") => {
            (status, body) = ("412 Precondition Failed".to_owned(), Vec::new());
        }
        Manners::NoRanges => (status, body) = ("200 OK".to_owned(), data.to_vec()),
        Manners::OtherRange => range = range.start + 512..range.end + 512,
        Manners::OtherLength => total += 512,
        Manners::OtherObject => body.fill(0xaa),
        _ => {}
    }
    let mut head = format!("HTTP/1.1 {status}\r\n{etag}");
    if status.starts_with("206") {
        let last = range.end - 1;
        head += &format!("Content-Range: bytes {}-{last}/{total}\r\n", range.start);
    }
    if manners == Manners::Encoded {
        head += "Content-Encoding: gzip\r\n";
    }
    if manners == Manners::Long {
        head += "Transfer-Encoding: chunked\r\n\r\n";
        stream.write_all(head.as_bytes()).ok()?;
        for _ in 0..3 {
            stream.write_all(format!("{:x}\r\n", body.len()).as_bytes()).ok()?;
            stream.write_all(&[&body[..], b"\r\n"].concat()).ok()?;
        }
        stream.write_all(b"0\r\n\r\n").ok()?;
        return Some(());
    }
    head += &format!("Content-Length: {}\r\n\r\n", body.len());
    stream.write_all(head.as_bytes()).ok()?;
    if manners == Manners::Short {
        stream.write_all(&body[..body.len() / 2]).ok()?;
        return None;
    }
    if let Manners::Slow(pause) = manners {
        for piece in body.chunks(4096) {
            thread::sleep(pause);
            stream.write_all(piece).ok()?;
        }
        return Some(());
    }
    stream.write_all(&body).ok()
}

/// An error with more bytes than there is memory, of which some come, a pause, and some more.
fn send_huge(mut stream: &TcpStream, code: u16) -> Option<()> {
    let head = format!("HTTP/1.1 {code} Status\r\nContent-Length: {}\r\n\r\n", 1_u64 << 62);
    stream.write_all(head.as_bytes()).ok()?;
    stream.write_all(b"some").ok()?;
    thread::sleep(Duration::from_millis(100));
    stream.write_all(b"more").ok()?;
    None
}

/// An error in pieces of 64 KiB, until the client has enough: 1 GiB at most.
fn send_endless(mut stream: &TcpStream, code: u16) -> Option<()> {
    let head = format!("HTTP/1.1 {code} Status\r\nTransfer-Encoding: chunked\r\n\r\n");
    stream.write_all(head.as_bytes()).ok()?;
    let piece = [b"10000\r\n", &[b'x'; 65536][..], b"\r\n"].concat();
    for _ in 0..1 << 14 {
        stream.write_all(&piece).ok()?;
    }
    stream.write_all(b"0\r\n\r\n").ok()
}
