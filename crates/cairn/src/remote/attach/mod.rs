//! `attach` and `detach`: exports as block devices of the kernel, `/dev/nbdN`.
//!
//! This process connects to the server as any client does, and gives the kernel the connections.
//! Without a connection the kernel has requests wait for a while: until `attach` is called again
//! for the same export, or by an `attach --stay`, which does so whenever one is lost. The kernel
//! sends the requests again that were not answered.
//!
//! The kernel keeps of each device whose it is: the export and the place of its server. By that a
//! second `attach`, and `detach`, find it.

mod netlink;

use std::fmt::Display;
use std::fs;
use std::os::fd::OwnedFd;
use std::path::{Path, PathBuf};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::time::Duration;

use cairn_backends::nbd::{self, Agreed, Place};
use cairn_block::{ConfigError, ConfigKind};
use cairn_control::client::Client;
use cairn_control::verbs::export::ExportList;
use cairn_outcome::exit;
use cairn_outcome::failure::{Outcome, refused, system};
use cairn_outcome::signals::{self, Event};
use cairn_outcome::stdout::print;

use self::netlink::{Deaths, KernelNbd, Wanted};
use crate::cli::{AttachArgs, DEAD_SECONDS, DetachArgs};

/// Where the kernel shows its block devices.
const SYS_BLOCK: &str = "/sys/block";

/// The pause between two attempts to reach a server that is gone.
const RETRY: Duration = Duration::from_millis(100);

/// The smallest and the largest block size that the kernel takes, in bytes.
const BLOCK_BYTES: (u32, u32) = (512, 4096);

/// An export, as the kernel's device names it.
struct Wish<'a> {
    export: &'a str,
    place: Place,
    backend: String,
    connections: u16,
    dead_seconds: u64,
}

/// `attach`
///
/// # Errors
/// There is no such export, or the kernel refuses.
pub fn attach(server: &Client, args: &AttachArgs) -> Outcome<u8> {
    let place = place_of(server, &args.name)?;
    let backend = backend_of(&args.name, &place);
    let (connections, dead_seconds) = (args.connections, args.dead_timeout);
    let wish = Wish { export: &args.name, place, backend, connections, dead_seconds };
    let (kernel, deaths) = KernelNbd::open()?;
    let wanted = args.device.as_deref().map(index_of).transpose()?;
    let index = wish.attach(&kernel, wanted)?;
    let done = print(&format!("/dev/nbd{index}\n"))?;
    match args.stay {
        true => stay(&wish, index, &kernel, deaths),
        false => Ok(done),
    }
}

/// `detach`
///
/// # Errors
/// It is not attached, or the kernel refuses.
pub fn detach(server: &Client, args: &DetachArgs) -> Outcome<u8> {
    let (kernel, _) = KernelNbd::open()?;
    let index = match args.name.starts_with("/dev/") {
        true => index_of(Path::new(&args.name))?,
        false => {
            let backend = backend_of(&args.name, &place_of(server, &args.name)?);
            let index = attached_as(&backend);
            index.ok_or_else(|| {
                let expected = "an export that `cairn attach` attached";
                refused(ConfigKind::Argument, &args.name, "device", "none", expected)
            })?
        }
    };
    kernel.disconnect(index)?;
    Ok(exit::OK)
}

/// The kernel's block devices, for verbs that attach by themselves.
pub struct KernelDevices(KernelNbd);

impl KernelDevices {
    /// Finds the driver.
    ///
    /// # Errors
    /// The kernel does not have it.
    pub fn open() -> Outcome<KernelDevices> {
        KernelNbd::open().map(|(kernel, _)| KernelDevices(kernel))
    }

    /// Makes an export a device, or gives its device the size of now. Answers the device.
    ///
    /// # Errors
    /// There is no such export, or the kernel refuses.
    pub fn attach(&self, server: &Client, export: &str) -> Outcome<PathBuf> {
        let place = place_of(server, export)?;
        let backend = backend_of(export, &place);
        let (connections, dead_seconds) = (1, DEAD_SECONDS);
        let wish = Wish { export, place, backend, connections, dead_seconds };
        let index = wish.attach(&self.0, None)?;
        Ok(PathBuf::from(format!("/dev/nbd{index}")))
    }

    /// Ends a device.
    ///
    /// # Errors
    /// It is no nbd device, or the kernel refuses.
    pub fn detach(&self, device: &Path) -> Outcome<()> {
        self.0.disconnect(index_of(device)?)
    }
}

/// The server with this URI, as [`is_of`] knows it.
pub fn place_in(uri: &str) -> Option<String> {
    Place::of_uri(uri).map(|place| place.to_string())
}

/// True if the kernel has an export of the server at this place as this device.
pub fn is_of(device: &Path, export: &str, place: &str) -> bool {
    let backend = backend_of(export, place);
    index_of(device).is_ok_and(|index| backend_is(index, &backend))
}

/// True if the kernel serves this device.
pub fn is_in_use(device: &Path) -> bool {
    index_of(device).is_ok_and(is_attached)
}

/// The size of a device.
pub fn bytes_of(device: &Path) -> Option<u64> {
    let index = index_of(device).ok()?;
    let sectors = fs::read_to_string(format!("{SYS_BLOCK}/nbd{index}/size")).ok()?;
    Some(sectors.trim().parse::<u64>().ok()? * 512)
}

impl Wish<'_> {
    /// Makes it a device, or connects its device again. Answers the device's number.
    fn attach(&self, kernel: &KernelNbd, wanted: Option<u32>) -> Outcome<u32> {
        let (agreed, sockets) = self.agree()?;
        let Some(index) = attached_as(&self.backend) else {
            return kernel.connect(&self.wanted(wanted, &agreed), &sockets);
        };
        if let Some(other) = wanted.filter(|wanted| *wanted != index) {
            let (found, expected) = (format!("/dev/nbd{index}"), format!("/dev/nbd{other}"));
            return Err(refused(ConfigKind::Busy, self.export, "device", found, expected));
        }
        kernel.reconnect(index, &self.wanted(Some(index), &agreed), &sockets)?;
        Ok(index)
    }

    /// Connects as often as wished. The kernel takes simple replies only.
    fn agree(&self) -> Outcome<(Agreed, Vec<OwnedFd>)> {
        let device = self.place.to_string();
        let wish = nbd::Wish { device: &device, export: self.export, is_simple: true };
        let mut sockets = Vec::new();
        loop {
            let connected = nbd::connect(&self.place, wish, None)?;
            sockets.push(connected.socket);
            if sockets.len() >= usize::from(self.connections) {
                return Ok((connected.agreed, sockets));
            }
        }
    }

    fn wanted(&self, index: Option<u32>, agreed: &Agreed) -> Wanted<'_> {
        let (least, most) = BLOCK_BYTES;
        Wanted {
            index,
            size_bytes: agreed.size_bytes,
            block_bytes: agreed.block_bytes.clamp(least, most).into(),
            flags: agreed.flags.bits(),
            dead_seconds: self.dead_seconds,
            backend: &self.backend,
        }
    }
}

/// What ends a wait.
enum Happened {
    Stopped,
    Died(u32),
}

/// Connects again whenever a connection is lost, until a signal: then detaches.
fn stay(wish: &Wish<'_>, index: u32, kernel: &KernelNbd, deaths: Deaths) -> Outcome<u8> {
    let (_events, stops) = signals::watch()?;
    let (send, happened) = channel();
    tell_deaths(deaths, send.clone())?;
    tell_stops(stops, send)?;
    let is_stopped = |event: &Happened| matches!(event, Happened::Stopped);
    loop {
        match happened.recv() {
            Ok(Happened::Died(died)) if died == index => {
                tracing::warn!("/dev/nbd{index}: a connection was lost");
                while let Err(error) = again(wish, index, kernel) {
                    tracing::debug!("/dev/nbd{index}: {error}");
                    if !is_attached(index) {
                        let detail = "it was detached";
                        let device = format!("/dev/nbd{index}");
                        return Err(ConfigError::new(ConfigKind::Lost, device, detail));
                    }
                    if happened.recv_timeout(RETRY).is_ok_and(|event| is_stopped(&event)) {
                        kernel.disconnect(index)?;
                        return Ok(exit::OK);
                    }
                }
                tracing::warn!("/dev/nbd{index}: connected again");
            }
            Ok(Happened::Died(_)) => {}
            Ok(Happened::Stopped) | Err(_) => break,
        }
    }
    kernel.disconnect(index)?;
    Ok(exit::OK)
}

fn again(wish: &Wish<'_>, index: u32, kernel: &KernelNbd) -> Outcome<()> {
    let (agreed, sockets) = wish.agree()?;
    kernel.reconnect(index, &wish.wanted(Some(index), &agreed), &sockets)
}

fn tell_deaths(mut deaths: Deaths, send: Sender<Happened>) -> Outcome<()> {
    let tell = move || {
        while let Some(index) = deaths.next() {
            // The receiver is gone only when the process is ending.
            drop(send.send(Happened::Died(index)));
        }
    };
    let thread = std::thread::Builder::new().name("deaths".to_owned()).spawn(tell);
    thread.map(drop).map_err(|error| system("attach", "thread", error))
}

fn tell_stops(stops: Receiver<Event>, send: Sender<Happened>) -> Outcome<()> {
    let tell = move || {
        while let Ok(event) = stops.recv() {
            if matches!(event, Event::Stop) {
                drop(send.send(Happened::Stopped));
            }
        }
    };
    let thread = std::thread::Builder::new().name("stops".to_owned()).spawn(tell);
    thread.map(drop).map_err(|error| system("attach", "thread", error))
}

/// Where the server has the export.
fn place_of(server: &Client, name: &str) -> Outcome<Place> {
    let exports = server.ask(&ExportList {})?;
    let Some(export) = exports.iter().find(|export| export.name == name) else {
        let known: Vec<_> = exports.iter().map(|export| export.name.as_str()).collect();
        let expected = format!("one of {}", known.join(", "));
        return Err(refused(ConfigKind::Argument, name, "export", "none of this name", expected));
    };
    let uri = export.uri.as_deref().unwrap_or_default();
    Place::of_uri(uri).ok_or_else(|| {
        let expected = "nbd+unix:///NAME?socket=PATH or nbd://HOST:PORT/NAME";
        refused(ConfigKind::Unsupported, name, "URI", format!("'{uri}'"), expected)
    })
}

fn backend_of(export: &str, place: impl Display) -> String {
    format!("cairn {export} {place}")
}

/// The device that the kernel has for an export.
fn attached_as(backend: &str) -> Option<u32> {
    let devices = fs::read_dir(SYS_BLOCK).ok()?.flatten();
    let mut numbers =
        devices.filter_map(|device| device.file_name().to_str()?.strip_prefix("nbd")?.parse().ok());
    numbers.find(|index| backend_is(*index, backend))
}

fn backend_is(index: u32, backend: &str) -> bool {
    let path = PathBuf::from(SYS_BLOCK).join(format!("nbd{index}/backend"));
    is_attached(index) && fs::read_to_string(path).is_ok_and(|text| text.trim() == backend)
}

/// True if the kernel serves a device of this number.
fn is_attached(index: u32) -> bool {
    PathBuf::from(SYS_BLOCK).join(format!("nbd{index}/pid")).exists()
}

/// The number of `/dev/nbdN`.
///
/// # Errors
/// The path is another.
pub fn index_of(device: &Path) -> Outcome<u32> {
    let number = device.to_str().and_then(|text| text.strip_prefix("/dev/nbd")?.parse().ok());
    number.ok_or_else(|| {
        refused(
            ConfigKind::Argument,
            device.display().to_string(),
            "device",
            "another",
            "/dev/nbdN",
        )
    })
}
