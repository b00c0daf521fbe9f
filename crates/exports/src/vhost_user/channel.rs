//! [`Channel`]: the socket of a session: messages with descriptors in, answers out.
//!
//! Nothing blocks: a peer that sends half a message, or does not read, has only its own session
//! wait. What is received of a message is bounded by the head that came before it.

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
pub(super) type Descriptors = SmallVec<[OwnedFd; DESCRIPTORS_MAX]>;

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
    socket: Arc<OwnedFd>,
    /// A peer that does not read is not waited for once this was raised.
    closing: Arc<Shutdown>,
}

impl Channel {
    /// A channel over a socket that does not block.
    pub(super) fn new(env: &Env, socket: OwnedFd, closing: Arc<Shutdown>) -> Channel {
        Channel { driver: Driver::of(env).clone(), socket: Arc::new(socket), closing }
    }

    /// The next message, with its head and descriptors. Dropping the future loses what was received
    /// of it: it is dropped only with the session.
    pub(super) async fn message(&self) -> Result<(Header, Message, Descriptors), Ended> {
        let mut descriptors = Descriptors::new();
        let mut head = [0; HEADER_BYTES];
        self.receive(&mut head, &mut descriptors).await?;
        let header = Header::decode(&head)?;
        let mut payload = [0; PAYLOAD_BYTES_MAX];
        let payload = &mut payload[..header.payload_bytes];
        self.receive(payload, &mut descriptors).await?;
        let message = header.message(payload, descriptors.len())?;
        Ok((header, message, descriptors))
    }

    /// Fills `bytes`.
    async fn receive(&self, bytes: &mut [u8], descriptors: &mut Descriptors) -> Result<(), Ended> {
        let mut filled = 0;
        while filled < bytes.len() {
            match receive_some(&self.socket, &mut bytes[filled..], descriptors) {
                Ok(0) => return Err(Ended::Closed),
                Ok(count) => filled += count,
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
            descriptors.extend(passed);
        }
    }
    if received.flags.contains(ReturnFlags::CTRUNC) || descriptors.len() > DESCRIPTORS_MAX {
        return Err(Breach::field("descriptors of a message", "more", "at most 8").into());
    }
    Ok(received.bytes)
}
