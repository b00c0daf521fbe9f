//! [`Web`]: a web server with ranges on the loopback, `tests/web.py`, as a process over a folder.
//! Dropping it ends it. [`Web::get`] is a client without any library: what the server alone takes.

use std::io::{BufRead, BufReader, Read, Write};
use std::net::TcpStream;
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use cairn_block::ConfigKind;
use cairn_outcome::failure::{Outcome, refused, system};

use super::peers;

const PYTHON: &str = "python3";
/// How long an answer may take.
const PATIENCE: Duration = Duration::from_secs(10);

/// A running server.
pub struct Web {
    port: u16,
    child: Child,
}

impl Web {
    /// Starts the script on the files of a folder; none if it or python3 is not there.
    ///
    /// # Errors
    /// It did not start to listen.
    pub fn start(script: &Path, folder: &Path) -> Outcome<Option<Web>> {
        if !script.is_file() || !peers::is_there(PYTHON) {
            return Ok(None);
        }
        let shown = script.display().to_string();
        let mut command = Command::new(PYTHON);
        command.arg(script).arg(folder).arg("strong").env_remove("WEB_PORT");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(|error| system(&shown, "start", error))?;
        let mut line = String::new();
        if let Some(out) = child.stdout.take() {
            // It prints its port once it listens; at its end there is nothing to read.
            drop(BufReader::new(out).read_line(&mut line));
        }
        let web = Web { port: line.trim().parse().unwrap_or(0), child };
        match web.port {
            0 => Err(refused(ConfigKind::System, shown, "port", format!("{line:?}"), "a number")),
            _ => Ok(Some(web)),
        }
    }

    /// Where clients find a file.
    pub fn uri(&self, name: &str) -> String {
        format!("http://127.0.0.1:{}/{name}", self.port)
    }

    /// Connects, and reads the first bytes of a file. Answers how long that took.
    ///
    /// # Errors
    /// The server does not answer, or refuses.
    pub fn get(&self, name: &str, bytes: usize) -> Outcome<Duration> {
        let began = Instant::now();
        let failed = |error| system(self.uri(name), "read", error);
        let answer = self.ask(name, bytes).map_err(failed)?;
        let took = began.elapsed();
        let is_whole = answer.starts_with(b"HTTP/1.1 206") && answer.len() > bytes;
        if !is_whole {
            let found = format!("{} bytes", answer.len());
            return Err(refused(ConfigKind::System, self.uri(name), "answer", found, "206"));
        }
        Ok(took)
    }

    fn ask(&self, name: &str, bytes: usize) -> std::io::Result<Vec<u8>> {
        let mut stream = TcpStream::connect(("127.0.0.1", self.port))?;
        stream.set_read_timeout(Some(PATIENCE))?;
        let (host, last) = ("Host: 127.0.0.1\r\nConnection: close", bytes - 1);
        write!(stream, "GET /{name} HTTP/1.1\r\n{host}\r\nRange: bytes=0-{last}\r\n\r\n")?;
        let mut answer = Vec::new();
        stream.read_to_end(&mut answer)?;
        Ok(answer)
    }
}

impl Drop for Web {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}
