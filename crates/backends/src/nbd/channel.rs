//! [`Channel`]: the bytes of one connection, plain or under TLS.
//!
//! One task receives and one sends. Only the sender's bytes reach the socket: what a TLS session
//! wants to say of itself because of something received leaves with the next request.

use std::cell::Cell;
use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use cairn_block::{Env, Segs};
use cairn_reactor::Driver;
use cairn_tls::Session;
use rustix::net::Shutdown;

use super::connect::Connected;
use cairn_nbd::answers::Lost;

/// See the module's description.
pub(super) struct Channel {
    driver: Rc<Driver>,
    socket: Arc<OwnedFd>,
    tls: Option<Session>,
    /// Nothing more is received.
    is_closed: Cell<bool>,
}

impl Channel {
    pub fn new(env: &Env, Connected { socket, tls, .. }: Connected) -> Channel {
        let tls = tls.map(|engine| Session::new(env, engine));
        let (driver, is_closed) = (Driver::of(env).clone(), Cell::new(false));
        Channel { driver, socket: Arc::new(socket), tls, is_closed }
    }

    /// Receives at least one byte into `room`.
    pub async fn receive(&self, room: Segs) -> Result<usize, Lost> {
        let Some(session) = &self.tls else { return self.receive_bytes(room).await };
        let received = session.receive(&room, async |room| self.receive_bytes(room).await).await;
        let why = |lost| session.error().map_or(lost, |error| format!("TLS: {error}"));
        received.map_err(why)?.ok_or_else(|| {
            self.is_closed.set(true);
            closed()
        })
    }

    async fn receive_bytes(&self, room: Segs) -> Result<usize, Lost> {
        loop {
            match self.driver.recv(&self.socket, room.clone(), false).await {
                received @ 1.. => return Ok(received as usize),
                again if again == -libc::EINTR || again == -libc::EAGAIN => {}
                ended => {
                    self.is_closed.set(true);
                    return Err(if ended == 0 { closed() } else { error_of(ended) });
                }
            }
        }
    }

    /// True if the other side has ended it, or the way to it has.
    pub fn is_closed(&self) -> bool {
        self.is_closed.get()
    }

    /// Sends all. That the connection has ended shows in what is received, too.
    pub async fn send(&self, mut segs: Segs) -> Result<(), Lost> {
        match &self.tls {
            None => self.send_bytes(segs).await,
            Some(session) => {
                session.send(&mut segs, async |output| self.send_bytes(output).await).await
            }
        }
    }

    /// Tells the server that nothing more comes. Of plain bytes their end says that.
    pub async fn finish(&self) {
        if let Some(session) = &self.tls {
            session.end();
            while let Some(output) = session.take_output() {
                // If it does not arrive, the connection has ended already.
                if self.send_bytes(output).await.is_err() {
                    return;
                }
            }
        }
    }

    async fn send_bytes(&self, mut segs: Segs) -> Result<(), Lost> {
        while segs.bytes() > 0 {
            match self.driver.send(&self.socket, segs.clone()).await {
                sent @ 1.. => segs.advance(sent as usize),
                again if again == -libc::EINTR || again == -libc::EAGAIN => {}
                errno => return Err(error_of(errno)),
            }
        }
        Ok(())
    }

    /// Ends both directions: what is under way ends soon.
    pub fn hang_up(&self) {
        // An error means that the connection has ended already.
        let _ = rustix::net::shutdown(&*self.socket, Shutdown::Both);
    }
}

fn closed() -> Lost {
    "the server has closed it".to_owned()
}

fn error_of(errno: i32) -> Lost {
    std::io::Error::from_raw_os_error(-errno).to_string()
}
