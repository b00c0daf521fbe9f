//! What a server hands over to its successor, another process, and how the two agree on the moment.
//!
//! | step | the server | the successor |
//! |---|---|---|
//! | 1 | starts the successor, which has one end of a [`channel`] | reads its configuration |
//! | 2 | waits | says hello, or refuses |
//! | 3 | pauses its clients, commits, and sends the [`Estate`] | waits |
//! | 4 | waits | starts over the devices that it was given, and says that it is ready |
//! | 5 | says go, and ends | serves |
//!
//! U1. At any moment at most one of the two serves. The successor takes nothing from a client,
//!     accepts none and carries out no verb before the word to go; the server does nothing of that
//!     from step 3 on.
//! U2. A server that has not said go can go on: up to step 3 it ends the pause, and from then on it
//!     kills the successor, waits for its end, and starts itself again with the same estate. A
//!     server that has said go never does.
//! U3. A successor that has the estate, and whose server has gone without a word, serves: no other
//!     process has the clients any more.
//!
//! The locks of devices and of the state file belong to open files, which both have, so that no
//! third process gets one in between.
//!
//! The manifest is one line of JSON, and behind it the bytes of connections, in their order. It
//! counts the descriptors that were sent before it.
//!
//! What the other process sends is judged like bytes from a wire: it may be of another version, or
//! broken. What is read is bounded by what there is, not by the numbers in it ([`decode`]).

pub mod channel;

use std::borrow::Cow;
use std::fs::File;
use std::io::{BufRead, BufReader, Read, Seek, SeekFrom, Write};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

use cairn_backends::Handle;
use cairn_block::{ConfigError, ConfigKind};
use cairn_exports::nbd::{ListenAddress, Listening, Parted, REST_BYTES_MAX};
use cairn_exports::vhost_user::{PartedExport, PartedSession};
use cairn_outcome::failure::{Outcome, refused, system};
use rustix::fs::{MemfdFlags, memfd_create};
use serde::{Deserialize, Serialize};

use crate::sockets::ControlSocket;

use self::channel::{Channel, DESCRIPTORS_MAX, Message, Silence};

/// The longest manifest. A connection has some hundred bytes in it, a session some thousand.
const MANIFEST_BYTES_MAX: u64 = 256 << 20;

/// All that a server hands over.
#[derive(Default)]
pub struct Estate {
    /// The lock of the state file.
    pub state_lock: Option<File>,
    /// The control socket.
    pub control: Option<ControlSocket>,
    /// The devices, with their locks.
    pub devices: Vec<Handle>,
    /// Volumes that lost writes of which no client was told.
    pub untold: Vec<String>,
    /// What listens, and the connections.
    pub nbd: cairn_exports::nbd::Estate,
    /// The sockets for virtual machines, and the sessions.
    pub vhost: cairn_exports::vhost_user::Estate,
}

/// An estate without its descriptors: each number counts them.
#[derive(Serialize, Deserialize)]
struct Manifest<'a> {
    untold: Vec<String>,
    state_lock: Option<usize>,
    control: Option<(PathBuf, usize)>,
    /// The numbers of the sockets that were given by socket activation.
    #[serde(default)]
    activated: Vec<usize>,
    devices: Vec<DeviceRow>,
    listeners: Vec<(ListenAddress, usize)>,
    connections: Vec<ConnectionRow<'a>>,
    /// An earlier server that hands over has none.
    #[serde(default)]
    vhost: Vec<VhostRow>,
}

#[derive(Serialize, Deserialize)]
struct DeviceRow {
    fd: usize,
    read_only: bool,
}

#[derive(Serialize, Deserialize)]
struct ConnectionRow<'a> {
    fd: usize,
    /// How many bytes behind the manifest are its own.
    bytes: usize,
    parted: Cow<'a, Parted>,
}

#[derive(Serialize, Deserialize)]
struct VhostRow {
    name: String,
    address: ListenAddress,
    listener: usize,
    writeback: bool,
    owes: bool,
    session: Option<SessionRow>,
}

#[derive(Serialize, Deserialize)]
struct SessionRow {
    /// Its descriptors, in the order in which the record counts them.
    fds: Vec<usize>,
    /// Of some version: one that cannot be read costs its session alone.
    record: serde_json::Value,
}

impl VhostRow {
    fn of<'a>(parted: &'a PartedExport, named: &mut Named<'a>) -> VhostRow {
        let PartedExport { name, listening, writeback, owes, session } = parted;
        let session = session.as_ref().map(|PartedSession { record, descriptors }| SessionRow {
            fds: descriptors.iter().map(|fd| named.add(&**fd)).collect(),
            record: serde_json::to_value(record).expect("a record has text and numbers"),
        });
        VhostRow {
            name: name.clone(),
            address: listening.address.clone(),
            listener: named.add(&*listening.socket),
            writeback: *writeback,
            owes: *owes,
            session,
        }
    }

    fn parted(self, take: &mut impl FnMut(usize) -> Outcome<OwnedFd>) -> Outcome<PartedExport> {
        let VhostRow { name, address, listener, writeback, owes, session } = self;
        let mut take = |fd| take(fd).map(Arc::new);
        let socket = take(listener)?;
        let session = session.map(|SessionRow { fds, record }| {
            let descriptors = fds.into_iter().map(&mut take).collect::<Outcome<_>>()?;
            let record = serde_json::from_value(record).ok();
            Ok(PartedSession { record, descriptors })
        });
        let listening = Listening { address, socket, is_activated: false };
        Ok(PartedExport { name, listening, writeback, owes, session: session.transpose()? })
    }
}

/// Counts descriptors as they are named.
#[derive(Default)]
struct Named<'a>(Vec<BorrowedFd<'a>>);

impl<'a> Named<'a> {
    fn add(&mut self, fd: &'a impl AsFd) -> usize {
        self.0.push(fd.as_fd());
        self.0.len() - 1
    }
}

/// Sends an estate.
///
/// # Errors
/// The successor has gone, or the system refused.
pub fn leave(channel: &Channel, estate: &Estate) -> Outcome<()> {
    let mut named = Named::default();
    let device = |handle: &'_ Handle, fd| DeviceRow { fd, read_only: handle.read_only };
    let mut manifest = Manifest {
        activated: Vec::new(),
        untold: estate.untold.clone(),
        state_lock: estate.state_lock.as_ref().map(|lock| named.add(lock)),
        control: estate.control.as_ref().map(|it| (it.path.clone(), named.add(&it.listener))),
        devices: estate.devices.iter().map(|it| device(it, named.add(&*it.fd))).collect(),
        listeners: estate
            .nbd
            .listeners
            .iter()
            .map(|listening| (listening.address.clone(), named.add(&*listening.socket)))
            .collect(),
        connections: estate
            .nbd
            .connections
            .iter()
            .map(|(parted, socket)| ConnectionRow {
                fd: named.add(&**socket),
                bytes: parted.bytes.len(),
                parted: Cow::Borrowed(parted),
            })
            .collect(),
        vhost: estate.vhost.iter().map(|parted| VhostRow::of(parted, &mut named)).collect(),
    };
    let control = manifest.control.iter().zip(&estate.control);
    let control = control.map(|((_, fd), socket)| (*fd, socket.is_activated));
    let listeners = manifest.listeners.iter().zip(&estate.nbd.listeners);
    let listeners = listeners.map(|((_, fd), listening)| (*fd, listening.is_activated));
    manifest.activated = control.chain(listeners).filter(|(_, it)| *it).map(|(fd, _)| fd).collect();
    for descriptors in named.0.chunks(DESCRIPTORS_MAX) {
        channel.send(&Message::Descriptors, descriptors)?;
    }
    let failed = |error: std::io::Error| system("handover", "write", error);
    let memory = memfd_create("cairn-handover", MemfdFlags::CLOEXEC);
    let mut memory =
        File::from(memory.map_err(|error| system("handover", "memory", error.into()))?);
    let mut line = serde_json::to_vec(&manifest).map_err(|error| failed(error.into()))?;
    line.push(b'\n');
    memory.write_all(&line).map_err(failed)?;
    for (parted, _) in &estate.nbd.connections {
        memory.write_all(&parted.bytes).map_err(failed)?;
    }
    channel.send(&Message::Manifest, &[memory.as_fd()])
}

/// Receives an estate. None if the server has gone, or took its time: it goes on by itself.
///
/// # Errors
/// What it sent makes no sense.
pub fn inherit(channel: &Channel, patience: Duration) -> Outcome<Option<Estate>> {
    let mut descriptors = Vec::new();
    let memory = loop {
        match channel.receive(patience)? {
            Ok((Message::Descriptors, more)) => descriptors.extend(more),
            Ok((Message::Manifest, mut memory)) => break memory.pop(),
            Ok((other, _)) => return Err(senseless(format!("{other:?}"))),
            Err(Silence::Closed | Silence::TooLate) => return Ok(None),
        }
    };
    let memory = memory.ok_or_else(|| senseless("no memory".to_owned()))?;
    let failed = |error: std::io::Error| system("handover", "read", error);
    let mut file = File::from(memory);
    file.seek(SeekFrom::Start(0)).map_err(failed)?;
    decode(BufReader::new(file), descriptors).map(Some)
}

/// Decodes an estate: the manifest with what is behind it, and the descriptors that it counts.
///
/// # Errors
/// It makes no sense.
pub fn decode(mut bytes: impl BufRead, descriptors: Vec<OwnedFd>) -> Outcome<Estate> {
    let mut line = Vec::new();
    let limited = bytes.by_ref().take(MANIFEST_BYTES_MAX).read_until(b'\n', &mut line);
    limited.map_err(|error| system("handover", "read", error))?;
    let Some(line) = line.strip_suffix(b"\n") else {
        return Err(senseless(format!("{} bytes without an end", line.len())));
    };
    let manifest = serde_json::from_slice(line);
    // It quotes words as they were found.
    let manifest = manifest.map_err(|error: serde_json::Error| {
        senseless(error.to_string().escape_debug().to_string())
    })?;
    let mut descriptors: Vec<_> = descriptors.into_iter().map(Some).collect();
    estate_of(manifest, &mut descriptors, &mut bytes)
}

fn estate_of(
    manifest: Manifest<'_>,
    descriptors: &mut [Option<OwnedFd>],
    bytes: &mut impl Read,
) -> Outcome<Estate> {
    let mut take = |at: usize| {
        let fd = descriptors.get_mut(at).and_then(Option::take);
        fd.ok_or_else(|| senseless(format!("descriptor {at} twice or not at all")))
    };
    let mut estate = Estate {
        untold: manifest.untold,
        state_lock: manifest.state_lock.map(&mut take).transpose()?.map(File::from),
        ..Estate::default()
    };
    if let Some((path, fd)) = manifest.control {
        let is_activated = manifest.activated.contains(&fd);
        estate.control = Some(ControlSocket { path, listener: take(fd)?.into(), is_activated });
    }
    for DeviceRow { fd, read_only } in manifest.devices {
        estate.devices.push(Handle { fd: Arc::new(take(fd)?), read_only });
    }
    for (address, fd) in manifest.listeners {
        let is_activated = manifest.activated.contains(&fd);
        let socket = Arc::new(take(fd)?);
        estate.nbd.listeners.push(Listening { address, socket, is_activated });
    }
    for ConnectionRow { fd, bytes: count, parted } in manifest.connections {
        let mut parted = parted.into_owned();
        parted.bytes = rest_of(bytes, count)?;
        estate.nbd.connections.push((parted, Arc::new(take(fd)?)));
    }
    for row in manifest.vhost {
        estate.vhost.push(row.parted(&mut take)?);
    }
    Ok(estate)
}

/// The bytes of a connection, if they are there.
fn rest_of(bytes: &mut impl Read, count: usize) -> Outcome<Vec<u8>> {
    let mut rest = Vec::new();
    let wanted = count.min(REST_BYTES_MAX) as u64;
    let read = bytes.by_ref().take(wanted).read_to_end(&mut rest);
    read.map_err(|error| system("handover", "read", error))?;
    match rest.len() == count {
        true => Ok(rest),
        false => Err(senseless(format!("{count} bytes of a connection, {} there", rest.len()))),
    }
}

fn senseless(found: String) -> ConfigError {
    let expected = "what a server of this version hands over";
    refused(ConfigKind::Unsupported, "handover", "estate", found, expected)
}

#[cfg(test)]
mod tests {
    use std::os::fd::OwnedFd;
    use std::sync::Arc;
    use std::time::Duration;

    use cairn_backends::Handle;
    use cairn_exports::nbd::{ListenAddress, Listening, Parted};
    use cairn_exports::vhost_user::{PartedExport, PartedSession};

    use super::channel::{Channel, Message};
    use super::{Estate, decode, estate_of, inherit, leave};

    const PATIENCE: Duration = Duration::from_secs(30);

    fn file() -> OwnedFd {
        tempfile::tempfile().unwrap().into()
    }

    #[test]
    fn estate_arrives_as_it_was_left_with_more_descriptors_than_one_message_takes() {
        let (server, successor) = Channel::pair().unwrap();
        let mut estate =
            Estate { state_lock: Some(tempfile::tempfile().unwrap()), ..Estate::default() };
        estate.untold.push("vm".to_owned());
        for at in 0..100 {
            estate.devices.push(Handle { fd: Arc::new(file()), read_only: at % 3 == 0 });
        }
        for at in 0..70_u8 {
            let bytes = vec![at; usize::from(at) * 100];
            let parted = Parted { export: format!("vm{at}"), bytes, ..Parted::default() };
            estate.nbd.connections.push((parted, Arc::new(file())));
        }
        for is_activated in [false, true] {
            let address = ListenAddress::Unix(format!("/run/{is_activated}").into());
            let socket = Arc::new(file());
            estate.nbd.listeners.push(Listening { address, socket, is_activated });
        }
        leave(&server, &estate).unwrap();
        server.send(&Message::Go, &[]).unwrap();
        let got = inherit(&successor, PATIENCE).unwrap().unwrap();
        assert!(got.state_lock.is_some() && got.control.is_none());
        assert_eq!(got.untold, ["vm"]);
        let flags = |estate: &Estate| -> Vec<bool> {
            estate.devices.iter().map(|device| device.read_only).collect()
        };
        assert_eq!(flags(&got), flags(&estate));
        let parted = |estate: &Estate| -> Vec<Parted> {
            estate.nbd.connections.iter().map(|(parted, _)| parted.clone()).collect()
        };
        assert_eq!(parted(&got), parted(&estate));
        for (got, left) in got.nbd.listeners.iter().zip(&estate.nbd.listeners) {
            assert_eq!((&got.address, got.is_activated), (&left.address, left.is_activated));
        }
        assert_eq!(got.nbd.listeners.len(), 2);
        assert_eq!(successor.receive(PATIENCE).unwrap().unwrap().0, Message::Go);
    }

    #[test]
    fn sockets_for_virtual_machines_arrive_with_sessions_of_which_none_need_be_read() {
        let (server, successor) = Channel::pair().unwrap();
        let descriptors = |count| (0..count).map(|_| Arc::new(file())).collect();
        let mut estate = Estate::default();
        for (at, fds) in [None, Some(3), Some(200)].into_iter().enumerate() {
            let address = ListenAddress::Unix(format!("/run/{at}").into());
            let (socket, is_activated) = (Arc::new(file()), false);
            estate.vhost.push(PartedExport {
                name: format!("vm{at}"),
                listening: Listening { address, socket, is_activated },
                writeback: at == 1,
                owes: at == 2,
                session: fds
                    .map(|fds| PartedSession { record: None, descriptors: descriptors(fds) }),
            });
        }
        leave(&server, &estate).unwrap();
        let got = inherit(&successor, PATIENCE).unwrap().unwrap();
        let facts = |estate: &Estate| -> Vec<_> {
            let facts = |it: &PartedExport| {
                let fds = it.session.as_ref().map(|session| session.descriptors.len());
                (it.name.clone(), it.listening.address.clone(), it.writeback, it.owes, fds)
            };
            estate.vhost.iter().map(facts).collect()
        };
        assert_eq!(facts(&got), facts(&estate));
        // What a later version may write, and what an earlier one did.
        let row = r#"{"name":"vm","address":{"Unix":"s"},"listener":0,"writeback":true,
            "owes":false,"session":{"fds":[1],"record":{"version":7,"rings":"other"}}}"#;
        let rest = r#""untold":[],"state_lock":null,"control":null,"devices":[],"listeners":[],
            "connections":[]"#;
        let read = |text: &str| {
            let mut fds = [Some(file()), Some(file())];
            estate_of(serde_json::from_str(text).unwrap(), &mut fds, &mut &[][..])
        };
        let estate = read(&format!("{{{rest},\"vhost\":[{row}]}}")).unwrap();
        let session = estate.vhost[0].session.as_ref().unwrap();
        assert!(session.record.is_none() && session.descriptors.len() == 1);
        assert!(read(&format!("{{{rest}}}")).unwrap().vhost.is_empty());
        let twice = row.replace("[1]", "[0]");
        assert!(read(&format!("{{{rest},\"vhost\":[{twice}]}}")).is_err());
    }

    #[test]
    fn estate_without_a_server_is_none_and_one_that_lacks_a_descriptor_is_refused() {
        let (server, successor) = Channel::pair().unwrap();
        drop(server);
        assert!(inherit(&successor, PATIENCE).unwrap().is_none());
        let (server, successor) = Channel::pair().unwrap();
        server.send(&Message::Manifest, &[]).unwrap();
        assert!(inherit(&successor, PATIENCE).is_err());
    }

    #[test]
    fn bytes_that_a_manifest_only_promises_take_no_memory_and_are_refused() {
        let promise = |bytes: usize, there: usize| {
            let text = format!(
                r#"{{"untold":[],"state_lock":null,"control":null,"devices":[],"listeners":[],
                "connections":[{{"fd":0,"bytes":{bytes},"parted":{{"export":"vm","flags":1,
                "structured_replies":true,"contexts":[],"client_knows_block_size":true,
                "owes":false,"skip":0}}}}]}}"#
            );
            let mut text = text.replace('\n', "").into_bytes();
            text.push(b'\n');
            text.resize(text.len() + there, 7);
            decode(&text[..], vec![file()])
        };
        assert_eq!(promise(3, 3).unwrap().nbd.connections[0].0.bytes, [7; 3]);
        for (bytes, there) in [(4, 3), (usize::MAX, 3), (1 << 40, 0)] {
            let line = promise(bytes, there).err().unwrap().to_string();
            assert!(line.contains("bytes of a connection"), "{line}");
        }
        let line = decode(&b"{}"[..], Vec::new()).err().unwrap().to_string();
        assert!(line.contains("2 bytes without an end"), "{line}");
    }

    #[test]
    fn words_of_a_manifest_that_are_unknown_are_told_in_one_line() {
        let text = r#"{"untold":[],"state_lock":null,"control":null,"devices":[],
            "listeners":[[{"\nix":"s"},0]],"connections":[]}"#;
        let line = format!("{}\n", text.replace('\n', ""));
        let error = decode(line.as_bytes(), vec![file()]).err().unwrap().to_string();
        assert!(error.contains("unknown variant") && !error.contains('\n'), "{error:?}");
    }
}
