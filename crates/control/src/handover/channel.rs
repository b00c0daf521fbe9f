//! [`Channel`]: messages with descriptors between a server and the one that succeeds it.
//!
//! A message is one line of JSON in one packet of a unix socket, with the descriptors that belong
//! to it. An end that is closed shows as such to the other one, after what was sent before.

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::time::{Duration, Instant};

use cairn_block::ConfigKind;
use cairn_outcome::failure::{Outcome, refused, system};
use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::io::Errno;
use rustix::net::{
    AddressFamily, RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, SocketFlags, SocketType, recvmsg, sendmsg, socketpair,
};
use serde::{Deserialize, Serialize};

/// The version of what is said over a channel, and of what is handed over.
pub const PROTOCOL: u32 = 1;

/// The most descriptors of one message.
pub const DESCRIPTORS_MAX: usize = 64;

/// The longest message in bytes.
const MESSAGE_BYTES_MAX: usize = 32 << 10;

/// So much is shown of a message that makes no sense.
const SHOWN_BYTES: usize = 60;

/// The longest reason of a refusal in bytes: a message has room for it, escaped.
const REASON_BYTES_MAX: usize = 4 << 10;

/// What is said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Message {
    /// The successor can start: its version, and that of the protocol that it speaks.
    Hello {
        /// The version of the protocol.
        protocol: u32,
        /// That of the program.
        version: String,
    },
    /// The successor cannot go on.
    Refused {
        /// Why not.
        reason: String,
    },
    /// Descriptors, in the order in which the manifest counts them.
    Descriptors,
    /// A descriptor of memory with the manifest, which is all that is handed over.
    Manifest,
    /// The successor has all that was handed over, and waits for the word to use it.
    Ready,
    /// The successor is the server from now on.
    Go,
}

impl Message {
    /// The refusal with this reason.
    pub fn refused(reason: &str) -> Message {
        let end = reason.floor_char_boundary(REASON_BYTES_MAX);
        Message::Refused { reason: reason[..end].to_owned() }
    }
}

/// One end; see the module's description.
pub struct Channel(OwnedFd);

/// Why no message came.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Silence {
    /// The other end is closed.
    Closed,
    /// There was none in time.
    TooLate,
}

impl Channel {
    /// The two ends of a channel.
    ///
    /// # Errors
    /// The system refused.
    pub fn pair() -> Outcome<(Channel, Channel)> {
        let (family, kind) = (AddressFamily::UNIX, SocketType::SEQPACKET);
        let pair = socketpair(family, kind, SocketFlags::CLOEXEC, None);
        let (one, other) = pair.map_err(|error| system("handover", "socket pair", error.into()))?;
        Ok((Channel(one), Channel(other)))
    }

    /// The end that another process made.
    pub fn of(end: OwnedFd) -> Channel {
        Channel(end)
    }

    /// Its descriptor, for another process.
    pub fn into_end(self) -> OwnedFd {
        self.0
    }

    /// Sends a message with at most [`DESCRIPTORS_MAX`] descriptors. Never waits.
    ///
    /// # Errors
    /// The other end is closed, or does not receive.
    pub fn send(&self, message: &Message, descriptors: &[BorrowedFd<'_>]) -> Outcome<()> {
        let text = serde_json::to_string(message).expect("a message has text and numbers");
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut beside = SendAncillaryBuffer::new(&mut space);
        if !descriptors.is_empty() {
            assert!(beside.push(SendAncillaryMessage::ScmRights(descriptors)), "it has room");
        }
        let flags = SendFlags::NOSIGNAL | SendFlags::DONTWAIT;
        loop {
            match sendmsg(&self.0, &[IoSlice::new(text.as_bytes())], &mut beside, flags) {
                Ok(_) => return Ok(()),
                Err(Errno::INTR) => {}
                Err(error) => return Err(system("handover", "send", error.into())),
            }
        }
    }

    /// True if no process has the other end any more.
    pub fn is_closed(&self) -> bool {
        let mut polled = [PollFd::new(&self.0, PollFlags::empty())];
        poll(&mut polled, Some(&Timespec::default())).is_ok_and(|count| count > 0)
    }

    /// Waits for a message.
    ///
    /// # Errors
    /// It makes no sense, or the system refused. The inner error says why there is none.
    pub fn receive(&self, patience: Duration) -> Outcome<Result<(Message, Vec<OwnedFd>), Silence>> {
        let until = Instant::now() + patience;
        loop {
            let left = until.saturating_duration_since(Instant::now());
            let left =
                Timespec { tv_sec: left.as_secs() as i64, tv_nsec: left.subsec_nanos().into() };
            let mut polled = [PollFd::new(&self.0, PollFlags::IN)];
            match poll(&mut polled, Some(&left)) {
                Ok(0) => return Ok(Err(Silence::TooLate)),
                Ok(_) => break,
                Err(Errno::INTR) => {}
                Err(error) => return Err(system("handover", "poll", error.into())),
            }
        }
        let mut bytes = vec![0; MESSAGE_BYTES_MAX];
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
        let mut beside = RecvAncillaryBuffer::new(&mut space);
        let mut slices = [IoSliceMut::new(&mut bytes)];
        let received = recvmsg(&self.0, &mut slices, &mut beside, RecvFlags::CMSG_CLOEXEC);
        let count = match received {
            Ok(received) if received.bytes == 0 => return Ok(Err(Silence::Closed)),
            Ok(received) => received.bytes,
            Err(Errno::CONNRESET) => return Ok(Err(Silence::Closed)),
            Err(error) => return Err(system("handover", "receive", error.into())),
        };
        let mut descriptors = Vec::new();
        for message in beside.drain() {
            if let RecvAncillaryMessage::ScmRights(rights) = message {
                descriptors.extend(rights);
            }
        }
        let message = serde_json::from_slice(&bytes[..count]).map_err(|_| {
            let text = String::from_utf8_lossy(&bytes[..count.min(SHOWN_BYTES)]);
            let (found, expected) = (format!("{text:?}"), "one of this protocol");
            refused(ConfigKind::Unsupported, "handover", "message", found, expected)
        })?;
        Ok(Ok((message, descriptors)))
    }
}

impl AsFd for Channel {
    fn as_fd(&self) -> BorrowedFd<'_> {
        self.0.as_fd()
    }
}

#[cfg(test)]
mod tests {
    use std::io::{Read, Seek, SeekFrom, Write};
    use std::os::fd::AsFd;
    use std::time::Duration;

    use super::{Channel, Message, Silence};

    const PATIENCE: Duration = Duration::from_secs(30);

    #[test]
    fn message_arrives_with_its_descriptors_also_after_its_sender_has_gone() {
        let (one, other) = Channel::pair().unwrap();
        let mut file = tempfile::tempfile().unwrap();
        file.write_all(b"in the file").unwrap();
        one.send(&Message::Descriptors, &[file.as_fd(), file.as_fd()]).unwrap();
        one.send(&Message::Go, &[]).unwrap();
        drop((one, file));
        let (message, descriptors) = other.receive(PATIENCE).unwrap().unwrap();
        assert_eq!((message, descriptors.len()), (Message::Descriptors, 2));
        let mut file = std::fs::File::from(descriptors.into_iter().next().unwrap());
        let mut text = String::new();
        file.seek(SeekFrom::Start(0)).unwrap();
        file.read_to_string(&mut text).unwrap();
        assert_eq!(text, "in the file");
        assert_eq!(other.receive(PATIENCE).unwrap().unwrap().0, Message::Go);
        assert_eq!(other.receive(PATIENCE).unwrap().unwrap_err(), Silence::Closed);
        assert!(other.send(&Message::Ready, &[]).is_err());
    }

    #[test]
    fn nothing_that_comes_in_time_is_told_from_a_closed_end() {
        let (one, other) = Channel::pair().unwrap();
        let silence = other.receive(Duration::from_millis(1)).unwrap().unwrap_err();
        assert_eq!(silence, Silence::TooLate);
        drop(one);
        assert_eq!(other.receive(PATIENCE).unwrap().unwrap_err(), Silence::Closed);
    }

    #[test]
    fn refusal_of_any_length_has_room() {
        let (one, other) = Channel::pair().unwrap();
        one.send(&Message::refused(&"\u{1}é".repeat(10_000)), &[]).unwrap();
        let (message, _) = other.receive(PATIENCE).unwrap().unwrap();
        let Message::Refused { reason } = message else { panic!("{message:?}") };
        assert!(reason.starts_with('\u{1}') && reason.len() > 4000);
    }
}
