//! Servers to measure: `cairn` and its peers, each a process on a socket in a folder of the
//! benchmark's own. Dropping a server ends it.

use std::fs::File;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::Duration;

use cairn_block::ConfigKind;
use cairn_outcome::failure::{Outcome, refused, system};
use cairn_outcome::program::sibling;

/// The kernel tells processor times in hundredths of a second, whatever its own clock.
const TICK: Duration = Duration::from_millis(10);
/// How long a server may take to listen.
const START_TRIES: u32 = 500;
const TRY_EVERY: Duration = Duration::from_millis(20);

/// The kinds of server.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Peer {
    /// `cairn` on a memory disk.
    Memory,
    /// `cairn` on a write cache over memory disks.
    Cache,
    /// nbdkit's memory plugin.
    Nbdkit,
    /// qemu-storage-daemon on a file in memory.
    Qemu,
}

impl Peer {
    /// Ours first.
    pub const ALL: [Peer; 4] = [Peer::Memory, Peer::Cache, Peer::Nbdkit, Peer::Qemu];

    /// The name in the rows.
    pub fn name(self) -> &'static str {
        match self {
            Peer::Memory => "cairn_memory",
            Peer::Cache => "cairn_writecache",
            Peer::Nbdkit => "nbdkit_memory",
            Peer::Qemu => "qemu_raw",
        }
    }

    /// True for `cairn`.
    pub fn is_ours(self) -> bool {
        matches!(self, Peer::Memory | Peer::Cache)
    }

    fn program(self) -> &'static str {
        match self {
            Peer::Memory | Peer::Cache => "cairn",
            Peer::Nbdkit => "nbdkit",
            Peer::Qemu => "qemu-storage-daemon",
        }
    }
}

/// True if there is such a program on the path.
pub fn is_there(program: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(program).is_file())
}

/// A folder that is gone when this is dropped.
pub struct Folder(PathBuf);

impl Folder {
    /// Makes it, in memory if the system has a place for that.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn make() -> Outcome<Folder> {
        let shared = Path::new("/dev/shm");
        let parent = if shared.is_dir() { shared.to_owned() } else { std::env::temp_dir() };
        Folder::make_in(&parent)
    }

    /// Makes it where files are temporary, which is on a disk as a rule.
    ///
    /// # Errors
    /// It cannot be made.
    pub fn on_disk() -> Outcome<Folder> {
        Folder::make_in(&std::env::temp_dir())
    }

    fn make_in(parent: &Path) -> Outcome<Folder> {
        let folder = parent.join(format!("cairn-bench-{}", std::process::id()));
        let shown = folder.display().to_string();
        std::fs::create_dir_all(&folder).map_err(|error| system(shown, "make a folder", error))?;
        Ok(Folder(folder))
    }

    /// Where a file of this name is, or would be.
    pub fn path(&self, name: &str) -> PathBuf {
        self.0.join(name)
    }
}

impl Drop for Folder {
    fn drop(&mut self) {
        drop(std::fs::remove_dir_all(&self.0));
    }
}

/// A running server.
pub struct Server {
    /// Which.
    pub peer: Peer,
    /// Where clients find its disk.
    pub uri: String,
    child: Child,
}

impl Server {
    /// Starts a server of `bytes`; none if its program is not there.
    ///
    /// # Errors
    /// It did not start to listen.
    pub fn start(peer: Peer, folder: &Folder, bytes: u64) -> Outcome<Option<Server>> {
        if !peer.is_ours() && !is_there(peer.program()) {
            return Ok(None);
        }
        let failed = |error| system(peer.name(), "start", error);
        let socket = folder.path(peer.name());
        let mut command = command(peer, folder, &socket, bytes).map_err(failed)?;
        command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
        let mut child = command.spawn().map_err(failed)?;
        for _ in 0..START_TRIES {
            if UnixStream::connect(&socket).is_ok() {
                let uri = format!("nbd+unix:///?socket={}", socket.display());
                return Ok(Some(Server { peer, uri, child }));
            }
            if child.try_wait().map_err(failed)?.is_some() {
                break;
            }
            std::thread::sleep(TRY_EVERY);
        }
        drop(child.kill());
        drop(child.wait());
        Err(refused(ConfigKind::System, peer.name(), "server", "none", "one that listens"))
    }

    /// Processor time of the whole process so far, its own and the kernel's for it.
    ///
    /// # Errors
    /// The process is gone.
    pub fn processor_time(&self) -> Outcome<Duration> {
        processor_time(self.child.id())
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        drop(self.child.kill());
        drop(self.child.wait());
    }
}

/// Processor time of a process so far, its own and the kernel's for it.
///
/// # Errors
/// The process is gone.
pub fn processor_time(process: u32) -> Outcome<Duration> {
    // utime and stime are the 12th and 13th words after the name.
    times(&format!("/proc/{process}/stat"), 11)
}

/// The same of the processes that this one started and waited for, and of theirs.
///
/// # Errors
/// The system does not tell.
pub fn children_time() -> Outcome<Duration> {
    // cutime and cstime follow.
    times("/proc/self/stat", 13)
}

/// The sum of two times.
fn times(path: &str, skipped: usize) -> Outcome<Duration> {
    let text = std::fs::read_to_string(path).map_err(|error| system(path, "read", error))?;
    // The name before the last parenthesis may hold anything.
    let rest = text.rsplit_once(')').map_or("", |(_, rest)| rest);
    let ticks = rest.split_whitespace().skip(skipped).take(2).map(str::parse::<u32>);
    let ticks = ticks.collect::<Result<Vec<u32>, _>>().unwrap_or_default();
    Ok(TICK * ticks.iter().sum::<u32>())
}

fn command(peer: Peer, folder: &Folder, socket: &Path, bytes: u64) -> std::io::Result<Command> {
    let (sectors, at) = (bytes / 512, socket.display());
    let mut command = match peer {
        Peer::Memory | Peer::Cache => Command::new(sibling(peer.program())),
        _ => Command::new(peer.program()),
    };
    match peer {
        Peer::Memory | Peer::Cache => {
            // Twice the size: what is half full is not written back meanwhile.
            let table = match peer {
                Peer::Memory => format!("0 {sectors} linear mem:{bytes} 0"),
                _ => format!("0 {sectors} writecache s mem:{bytes} mem:{} 4096 0", bytes * 3),
            };
            let control = folder.path(&format!("{}.control", peer.name()));
            command.args(["serve", "--table", &table, "--listen", &format!("unix:{at}")]);
            command.arg("--control").arg(control);
        }
        Peer::Nbdkit => {
            command.args(["-f", "-U"]).arg(socket).args(["memory", &bytes.to_string()]);
        }
        Peer::Qemu => {
            let file = folder.path("qemu.img");
            File::create(&file)?.set_len(bytes)?;
            let blockdev = format!("driver=file,filename={},node-name=file", file.display());
            command.args(["--blockdev", &blockdev]);
            command.args(["--blockdev", "driver=raw,file=file,node-name=disk"]);
            command.args(["--nbd-server", &format!("addr.type=unix,addr.path={at}")]);
            command.args(["--export", "type=nbd,id=disk,node-name=disk,name=,writable=on"]);
        }
    }
    Ok(command)
}
