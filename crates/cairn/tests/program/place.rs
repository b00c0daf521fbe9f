//! A folder to work in, the program run there, and images with known bytes.

use std::fmt::Write as _;
use std::fs;
use std::io::{BufRead, BufReader, Read, Write as _};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;

pub fn json(text: &str) -> Value {
    serde_json::from_str(text).unwrap()
}

/// What a run of the program came to.
#[derive(Debug)]
pub struct Ran {
    pub code: i32,
    pub out: String,
    pub err: String,
}

impl Ran {
    /// Expects success and gives what was printed.
    pub fn ok(self) -> String {
        assert_eq!(self.code, 0, "{self:?}");
        self.out
    }

    /// Expects a refusal: this exit code, nothing printed, one line on stderr.
    pub fn refused(self, code: i32) -> String {
        assert_eq!(self.code, code, "{self:?}");
        assert_eq!(self.out, "", "{self:?}");
        assert_eq!(self.err.lines().count(), 1, "{self:?}");
        assert!(self.err.starts_with("cairn: "), "{self:?}");
        self.err
    }
}

fn ran(output: Output) -> Ran {
    Ran {
        code: output.status.code().unwrap(),
        out: String::from_utf8(output.stdout).unwrap(),
        err: String::from_utf8(output.stderr).unwrap(),
    }
}

/// A folder of its own.
pub struct Place {
    folder: tempfile::TempDir,
    /// In memory.
    pub crash_logs: tempfile::TempDir,
}

impl Place {
    pub fn new() -> Place {
        let own = std::os::unix::fs::PermissionsExt::from_mode(0o700);
        let crash_logs = tempfile::Builder::new().permissions(own).tempdir_in("/dev/shm").unwrap();
        Place { folder: tempfile::tempdir().unwrap(), crash_logs }
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.folder.path().join(name)
    }

    /// A sparse file.
    pub fn sparse(&self, name: &str, bytes: u64) {
        fs::File::create(self.path(name)).unwrap().set_len(bytes).unwrap();
    }

    pub fn write(&self, name: &str, bytes: impl AsRef<[u8]>) {
        fs::write(self.path(name), bytes).unwrap();
    }

    /// Changes bytes of a file in place.
    pub fn patch(&self, name: &str, offset: usize, bytes: &[u8]) {
        let mut all = self.read(name);
        all[offset..offset + bytes.len()].copy_from_slice(bytes);
        self.write(name, all);
    }

    pub fn read(&self, name: &str) -> Vec<u8> {
        fs::read(self.path(name)).unwrap()
    }

    /// A golden image of the kernel's, unpacked into the folder.
    pub fn golden(&self, format: &str, name: &str) {
        self.write(name, cairn_testkit::image(format, name));
    }

    /// The XML of a pool with one volume, of so many mappings that do not go on from each other.
    pub fn pool_xml(&self, name: &str, mappings: u64) {
        let mut xml = format!(
            "<superblock time=\"0\" transaction=\"7\" data_block_size=\"128\" \
             nr_data_blocks=\"{}\">\n<device dev_id=\"1\" mapped_blocks=\"{mappings}\" \
             transaction=\"0\" creation_time=\"0\" snap_time=\"0\">\n",
            2 * mappings
        );
        for at in 0..mappings {
            let data = 2 * at;
            writeln!(
                xml,
                "<single_mapping origin_block=\"{at}\" data_block=\"{data}\" time=\"0\"/>"
            )
            .unwrap();
        }
        xml.push_str("</device>\n</superblock>\n");
        self.write(name, xml);
    }

    pub fn exists(&self, name: &str) -> bool {
        self.path(name).exists()
    }

    /// The program, in this folder, with sockets nobody else uses.
    pub fn command(&self, args: &[&str]) -> Command {
        let mut command = Command::new(env!("CARGO_BIN_EXE_cairn"));
        let folder = self.folder.path();
        command.args(args).current_dir(folder).env("XDG_RUNTIME_DIR", folder);
        command.env_remove("CAIRN_CONTROL").stdin(Stdio::null());
        command.env("CAIRN_CRASH_LOGS", self.crash_logs.path());
        let program = Path::new(env!("CARGO_BIN_EXE_cairn")).parent().unwrap();
        let path = std::env::var("PATH").unwrap_or_default();
        command.env("PATH", format!("{}:{path}", program.display()));
        command
    }

    /// Nothing in memory outlives a power cut.
    pub fn cut_power(&self) {
        for file in fs::read_dir(self.crash_logs.path()).unwrap() {
            fs::remove_file(file.unwrap().path()).unwrap();
        }
    }

    pub fn cairn(&self, args: &[&str]) -> Ran {
        ran(self.command(args).output().unwrap())
    }

    /// Runs a script beside a server whose control socket is `c` in this folder.
    pub fn shell(&self, script: &str) -> Ran {
        let like = self.command(&[]);
        let mut shell = Command::new("sh");
        shell.args(["-c", script]).current_dir(self.folder.path()).stdin(Stdio::null());
        shell.envs(like.get_envs().filter_map(|(key, value)| Some((key, value?))));
        shell.env("CAIRN_CONTROL", "c");
        ran(shell.output().unwrap())
    }

    /// The process that answers at a control socket in this folder.
    pub fn pid_at(&self, control: &str) -> Option<i32> {
        let mut stream = UnixStream::connect(self.path(control)).ok()?;
        let request = r#"{"jsonrpc":"2.0","id":1,"method":"server_info"}"#;
        writeln!(stream, "{request}").ok()?;
        let mut line = String::new();
        BufReader::new(stream).read_line(&mut line).ok()?;
        Some(json(&line)["result"]["pid"].as_i64().unwrap() as i32)
    }

    /// Serves while `script` runs.
    pub fn serve_run(&self, args: &[&str], script: &str) -> Ran {
        let all: Vec<&str> = [&["serve"], args, &["--run", script]].concat();
        self.cairn(&all)
    }

    /// Serves in the background; ready when this returns.
    pub fn serve(&self, args: &[&str]) -> Server {
        let all: Vec<&str> = [&["serve"], args].concat();
        let mut command = self.command(&all);
        command.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().unwrap();
        let mut out = BufReader::new(child.stdout.take().unwrap());
        let mut uri = String::new();
        out.read_line(&mut uri).unwrap();
        Server { child, out, uri: uri.trim().to_owned() }
    }
}

/// A server in the background; killed when dropped.
pub struct Server {
    child: Child,
    out: BufReader<std::process::ChildStdout>,
    pub uri: String,
}

impl Server {
    /// Ends it by SIGINT and tells what it said.
    pub fn interrupt(self) -> Ran {
        let (status, out, err) = self.end_by(Signal::INT);
        Ran { code: status.code().unwrap(), out, err }
    }

    /// Ends it by a signal. Returns how it ended, and what it said on stdout and stderr.
    pub fn end_by(mut self, signal: Signal) -> (ExitStatus, String, String) {
        kill_process(Pid::from_child(&self.child), signal).unwrap();
        let (mut out, mut err) = (String::new(), String::new());
        self.out.read_to_string(&mut out).unwrap();
        self.child.stderr.take().unwrap().read_to_string(&mut err).unwrap();
        (self.child.wait().unwrap(), out, err)
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        // Already gone after `interrupt`.
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Asks again until there is an answer, for a while.
pub fn until<T>(mut answer: impl FnMut() -> Option<T>) -> T {
    let began = Instant::now();
    loop {
        if let Some(answer) = answer() {
            return answer;
        }
        assert!(began.elapsed() < Duration::from_secs(20), "it takes too long");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// Sends signals, and waits for the end. The pipe stays open.
pub fn signalled(child: &mut Child, signals: &[Signal]) -> ExitStatus {
    for signal in signals {
        kill_process(Pid::from_child(child), *signal).unwrap();
    }
    until(|| child.try_wait().unwrap())
}
