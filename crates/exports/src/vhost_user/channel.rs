//! [`Channel`]: the socket of a session: messages with descriptors in, answers out.
//!
//! Nothing blocks: a peer that sends half a message, or does not read, has only its own session
//! wait. What is received of a message is bounded by the head that came before it, and kept here
//! until the message is whole: another process goes on with it (see `handover`).

use std::io::{IoSlice, IoSliceMut};
use std::mem::MaybeUninit;
use std::os::fd::{BorrowedFd, OwnedFd};
use std::rc::Rc;
use std::sync::Arc;

use cairn_block::Env;
use cairn_reactor::Driver;
use rustix::io::Errno;
use rustix::net::{
    RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, ReturnFlags, SendAncillaryBuffer,
    SendAncillaryMessage, SendFlags, recvmsg, sendmsg,
};
use smallvec::SmallVec;

use crate::front::{First, Level, Shutdown, first};

use super::wire::{Breach, DESCRIPTORS_MAX, HEADER_BYTES, Header, Message, PAYLOAD_BYTES_MAX};

/// The descriptors of a message.
pub(super) type Descriptors = SmallVec<[Arc<OwnedFd>; DESCRIPTORS_MAX]>;

/// The most bytes of a message.
const MESSAGE_BYTES_MAX: usize = HEADER_BYTES + PAYLOAD_BYTES_MAX;

/// What was received of a message.
pub(super) struct Half {
    bytes: Box<[u8; MESSAGE_BYTES_MAX]>,
    filled: usize,
    descriptors: Descriptors,
}

impl Default for Half {
    fn default() -> Half {
        let bytes = Box::new([0; MESSAGE_BYTES_MAX]);
        Half { bytes, filled: 0, descriptors: Descriptors::new() }
    }
}

impl Half {
    /// What another process received, if a message may begin so.
    pub(super) fn of(received: &[u8], descriptors: Descriptors) -> Result<Half, Breach> {
        let mut half = Half { descriptors, ..Half::default() };
        let most = match received.first_chunk() {
            Some(head) => HEADER_BYTES + Header::decode(head)?.payload_bytes,
            None => HEADER_BYTES,
        };
        if received.len() > most {
            return Err(Breach::field("bytes of a message", received.len(), "at most a message"));
        }
        if half.descriptors.len() > DESCRIPTORS_MAX {
            return Err(Breach::field("descriptors of a message", "more", "at most 8"));
        }
        half.bytes[..received.len()].copy_from_slice(received);
        half.filled = received.len();
        Ok(half)
    }

    /// The bytes, and the descriptors that came with them.
    pub(super) fn parts(&self) -> (&[u8], &Descriptors) {
        (&self.bytes[..self.filled], &self.descriptors)
    }
}

/// Why a session ended.
#[derive(Debug)]
pub(super) enum Ended {
    /// The peer closed its socket.
    Closed,
    /// The socket failed.
    Failed(Errno),
    /// The peer broke the protocol.
    Broken(Breach),
}

impl From<Breach> for Ended {
    fn from(breach: Breach) -> Ended {
        Ended::Broken(breach)
    }
}

/// See the module's description.
pub(super) struct Channel {
    driver: Rc<Driver>,
    pub(super) socket: Arc<OwnedFd>,
    pub(super) half: Half,
    /// A peer that does not read is not waited for once this was raised.
    closing: Arc<Shutdown>,
}

impl Channel {
    /// A channel over a socket that does not block.
    pub(super) fn new(
        env: &Env,
        socket: Arc<OwnedFd>,
        half: Half,
        closing: Arc<Shutdown>,
    ) -> Channel {
        Channel { driver: Driver::of(env).clone(), socket, half, closing }
    }

    /// The next message, with its head and descriptors. If the future is dropped, the next one goes
    /// on with what was received.
    pub(super) async fn message(&mut self) -> Result<(Header, Message, Descriptors), Ended> {
        self.receive(HEADER_BYTES).await?;
        let head = self.half.bytes.first_chunk().expect("a head has room");
        let header = Header::decode(head)?;
        let end = HEADER_BYTES + header.payload_bytes;
        self.receive(end).await?;
        self.half.filled = 0;
        let descriptors = std::mem::take(&mut self.half.descriptors);
        let message = header.message(&self.half.bytes[HEADER_BYTES..end], descriptors.len())?;
        Ok((header, message, descriptors))
    }

    /// Receives the message up to this byte.
    async fn receive(&mut self, end: usize) -> Result<(), Ended> {
        let Half { bytes, filled, descriptors } = &mut self.half;
        while *filled < end {
            match receive_some(&self.socket, &mut bytes[*filled..end], descriptors) {
                Ok(0) => return Err(Ended::Closed),
                Ok(count) => *filled += count,
                Err(Ended::Failed(Errno::AGAIN)) => {
                    self.driver.readable(&self.socket).await;
                }
                Err(Ended::Failed(Errno::INTR)) => {}
                Err(ended) => return Err(ended),
            }
        }
        Ok(())
    }

    /// Sends all of `bytes`.
    pub(super) async fn send(&self, bytes: &[u8]) -> Result<(), Ended> {
        self.send_with(bytes, None).await
    }

    /// Sends all of `bytes`, with a descriptor.
    pub(super) async fn send_with(
        &self,
        mut bytes: &[u8],
        mut passed: Option<BorrowedFd<'_>>,
    ) -> Result<(), Ended> {
        while !bytes.is_empty() {
            let flags = SendFlags::DONTWAIT | SendFlags::NOSIGNAL;
            let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
            let mut control = SendAncillaryBuffer::new(&mut space);
            if let Some(passed) = &passed {
                control.push(SendAncillaryMessage::ScmRights(std::slice::from_ref(passed)));
            }
            match sendmsg(&*self.socket, &[IoSlice::new(bytes)], &mut control, flags) {
                Ok(count) => (bytes, passed) = (&bytes[count..], None),
                Err(Errno::AGAIN) => {
                    let closing = self.closing.above(Level::Serving);
                    if let First::Left(_) = first(closing, self.driver.writable(&self.socket)).await
                    {
                        return Err(Ended::Closed);
                    }
                }
                Err(Errno::INTR) => {}
                Err(error) => return Err(Ended::Failed(error)),
            }
        }
        Ok(())
    }
}

/// Receives what is there.
fn receive_some(
    socket: &OwnedFd,
    bytes: &mut [u8],
    descriptors: &mut Descriptors,
) -> Result<usize, Ended> {
    let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(DESCRIPTORS_MAX))];
    let mut control = RecvAncillaryBuffer::new(&mut space);
    let flags = RecvFlags::DONTWAIT | RecvFlags::CMSG_CLOEXEC;
    let received = recvmsg(socket, &mut [IoSliceMut::new(bytes)], &mut control, flags);
    let received = received.map_err(Ended::Failed)?;
    for message in control.drain() {
        if let RecvAncillaryMessage::ScmRights(passed) = message {
            descriptors.extend(passed.map(Arc::new));
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > DESCRIPTORS_MAX {
        return Err(Breach::field("descriptors of a message", "more", "at most 8").into());
    }
    Ok(received.bytes)
}
