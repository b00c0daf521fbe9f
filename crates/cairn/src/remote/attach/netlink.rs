//! [`KernelNbd`]: the kernel's nbd driver over generic netlink. Numbers: `linux/nbd-netlink.h`.

use std::os::fd::{AsRawFd, OwnedFd};

use cairn_block::{ConfigError, ConfigKind};
use cairn_outcome::failure::{Outcome, system};
use neli::ToBytes;
use neli::consts::nl::NlmF;
use neli::consts::socket::NlFamily;
use neli::genl::{AttrTypeBuilder, Genlmsghdr, GenlmsghdrBuilder, Nlattr, NlattrBuilder};
use neli::nl::NlPayload;
use neli::router::synchronous::{NlRouter, NlRouterReceiverHandle};
use neli::types::{Buffer, GenlBuffer};
use neli::utils::Groups;

const FAMILY: &str = "nbd";
const GROUP: &str = "nbd_mc_group";
const VERSION: u8 = 1;

/// Commands.
const CONNECT: u8 = 1;
const DISCONNECT: u8 = 2;
const RECONFIGURE: u8 = 3;
const LINK_DEAD: u8 = 4;

/// Attributes.
const INDEX: u16 = 1;
const SIZE_BYTES: u16 = 2;
const BLOCK_BYTES: u16 = 3;
const SERVER_FLAGS: u16 = 5;
const SOCKETS: u16 = 7;
const DEAD_TIMEOUT: u16 = 8;
const BACKEND: u16 = 10;
/// Inside of `SOCKETS`.
const SOCKET_ITEM: u16 = 1;
const SOCKET_FD: u16 = 1;

type Message = Genlmsghdr<u8, u16>;
type Attributes = GenlBuffer<u16, Buffer>;

/// What the kernel is to know of a device.
pub struct Wanted<'a> {
    /// Its number; none lets the kernel choose.
    pub index: Option<u32>,
    /// Bytes of the export.
    pub size_bytes: u64,
    /// The smallest request, in bytes.
    pub block_bytes: u64,
    /// The transmission flags of the export.
    pub flags: u16,
    /// How long requests wait for another connection, in seconds, when there is none.
    pub dead_seconds: u64,
    /// Says later whose the device is.
    pub backend: &'a str,
}

/// The driver.
pub struct KernelNbd {
    router: NlRouter,
    family: u16,
}

/// Devices that have lost a connection, as they lose it.
pub struct Deaths(NlRouterReceiverHandle<u16, Message>);

impl Deaths {
    /// Waits for the next one; answers its number. None if the kernel tells no more.
    pub fn next(&mut self) -> Option<u32> {
        loop {
            // A message of another kind makes no sense here; it is no end.
            let Ok(message) = self.0.next_typed::<u16, Message>()? else { continue };
            let Some(message) = message.get_payload() else { continue };
            if *message.cmd() == LINK_DEAD
                && let Some(index) = index_of(message)
            {
                return Some(index);
            }
        }
    }
}

fn index_of(message: &Message) -> Option<u32> {
    message.attrs().get_attr_handle().get_attr_payload_as::<u32>(INDEX).ok()
}

impl KernelNbd {
    /// Finds the driver, and its messages about connections.
    ///
    /// # Errors
    /// The kernel does not have it.
    pub fn open() -> Outcome<(KernelNbd, Deaths)> {
        let absent = |error: &dyn std::fmt::Display| {
            let detail = format!("not found in this kernel (modprobe nbd): {error}");
            ConfigError::new(ConfigKind::Unsupported, "nbd", detail)
        };
        let (router, deaths) = NlRouter::connect(NlFamily::Generic, None, Groups::empty())
            .map_err(|error| absent(&error))?;
        let family = router.resolve_genl_family(FAMILY).map_err(|error| absent(&error))?;
        let group = router.resolve_nl_mcast_group(FAMILY, GROUP).map_err(|error| absent(&error))?;
        router
            .add_mcast_membership(Groups::new_groups(&[group]))
            .map_err(|error| absent(&error))?;
        Ok((KernelNbd { router, family }, Deaths(deaths)))
    }

    /// Makes a device over connections in transmission, of which the kernel keeps copies. Answers
    /// its number.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn connect(&self, wanted: &Wanted<'_>, sockets: &[OwnedFd]) -> Outcome<u32> {
        let mut attributes = vec![
            attribute(SIZE_BYTES, wanted.size_bytes),
            attribute(BLOCK_BYTES, wanted.block_bytes),
            attribute(SERVER_FLAGS, u64::from(wanted.flags)),
            attribute(DEAD_TIMEOUT, wanted.dead_seconds),
            text(BACKEND, wanted.backend),
            self::sockets(sockets),
        ];
        attributes.extend(wanted.index.map(|index| attribute(INDEX, index)));
        let answer = self.ask(CONNECT, attributes)?;
        answer.or(wanted.index).ok_or_else(|| {
            ConfigError::new(ConfigKind::System, "nbd", "connect: the kernel named no device")
        })
    }

    /// Gives a device connections in the place of dead ones, and its size.
    ///
    /// # Errors
    /// The kernel refuses: the device is another's, or has been given up.
    pub fn reconnect(&self, index: u32, wanted: &Wanted<'_>, sockets: &[OwnedFd]) -> Outcome<()> {
        let attributes = vec![
            attribute(INDEX, index),
            attribute(SIZE_BYTES, wanted.size_bytes),
            attribute(BLOCK_BYTES, wanted.block_bytes),
            text(BACKEND, wanted.backend),
            self::sockets(sockets),
        ];
        self.ask(RECONFIGURE, attributes).map(drop)
    }

    /// Ends a device.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn disconnect(&self, index: u32) -> Outcome<()> {
        self.ask(DISCONNECT, vec![attribute(INDEX, index)]).map(drop)
    }

    /// Sends a command; answers the device that the kernel names.
    fn ask(&self, command: u8, attributes: Vec<Nlattr<u16, Buffer>>) -> Outcome<Option<u32>> {
        let attributes: Attributes = attributes.into_iter().collect();
        let message = GenlmsghdrBuilder::default()
            .cmd(command)
            .version(VERSION)
            .attrs(attributes)
            .build()
            .expect("all parts are set");
        let failed = |error: String| {
            ConfigError::new(ConfigKind::System, "nbd", format!("the kernel refuses: {error}"))
        };
        let answers: NlRouterReceiverHandle<u16, Message> = self
            .router
            .send::<u16, Message, u16, Message>(self.family, NlmF::ACK, NlPayload::Payload(message))
            .map_err(|error| failed(error.to_string()))?;
        let mut index = None;
        for answer in answers {
            match answer {
                Ok(answer) => index = index.or(answer.get_payload().and_then(index_of)),
                Err(error) => return Err(refusal(error)),
            }
        }
        Ok(index)
    }
}

/// What the kernel says, as an error of the system if it is one.
fn refusal(error: neli::err::RouterError<u16, Message>) -> ConfigError {
    match error {
        neli::err::RouterError::Nlmsgerr(error) => {
            let errno = std::io::Error::from_raw_os_error(-*error.error());
            system("nbd", "the kernel refuses", errno)
        }
        other => ConfigError::new(ConfigKind::System, "nbd", format!("netlink: {other}")),
    }
}

fn attribute(kind: u16, value: impl neli::Size + ToBytes) -> Nlattr<u16, Buffer> {
    let kind = AttrTypeBuilder::default().nla_type(kind).build().expect("it has a type");
    NlattrBuilder::default()
        .nla_type(kind)
        .nla_payload(value)
        .build()
        .expect("a number has a few bytes")
}

fn text(kind: u16, value: &str) -> Nlattr<u16, Buffer> {
    attribute(kind, value)
}

fn nested(kind: u16, inside: &[Nlattr<u16, Buffer>]) -> Nlattr<u16, Buffer> {
    let of_type = AttrTypeBuilder::default().nla_type(kind).nla_nested(true).build();
    let outer = NlattrBuilder::default()
        .nla_type(of_type.expect("it has a type"))
        .nla_payload(Vec::<u8>::new())
        .build()
        .expect("it is empty");
    inside.iter().fold(outer, |outer, inner| outer.nest(inner).expect("a few bytes more"))
}

fn sockets(sockets: &[OwnedFd]) -> Nlattr<u16, Buffer> {
    let item = |socket: &OwnedFd| {
        let number = socket.as_raw_fd() as u32;
        nested(SOCKET_ITEM, &[attribute(SOCKET_FD, number)])
    };
    nested(SOCKETS, &sockets.iter().map(item).collect::<Vec<_>>())
}
