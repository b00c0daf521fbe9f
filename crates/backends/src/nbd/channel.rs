//! [`Channel`]: the bytes of one connection, plain or under TLS.
//!
//! One task receives and one sends. Only the sender's bytes reach the socket: what a TLS session
//! wants to say of itself because of something received leaves with the next request.

use std::os::fd::OwnedFd;
use std::rc::Rc;
use std::sync::Arc;

use cairn_block::{Env, Segs};
use cairn_reactor::Driver;
use cairn_tls::{Broken, Session, Taken};
use rustix::net::Shutdown;

use super::connect::Connected;
use super::receive::Lost;

/// See the module's description.
pub(super) struct Channel {
    driver: Rc<Driver>,
    socket: Arc<OwnedFd>,
    tls: Option<Session>,
}

impl Channel {
    pub fn new(env: &Env, Connected { socket, tls, .. }: Connected) -> Channel {
        let tls = tls.map(|engine| Session::new(env, engine));
        Channel { driver: Driver::of(env).clone(), socket: Arc::new(socket), tls }
    }

    /// Receives at least one byte into `room`.
    pub async fn receive(&self, room: Segs) -> Result<usize, Lost> {
        let Some(session) = &self.tls else { return self.receive_bytes(room).await };
        let mut count = 0;
        loop {
            match session.take(&room, count) {
                Taken::Bytes(more) => count += more,
                Taken::Closed if count == 0 => return Err(closed()),
                Taken::Closed => {}
            }
            let is_fed =
                count < room.bytes() && session.feed().map_err(|Broken| insecure(session))?;
            match (is_fed, count) {
                (true, _) => {}
                (false, 0) => {
                    let count = self.receive_bytes(session.room()).await?;
                    session.received(count);
                }
                (false, count) => return Ok(count),
            }
        }
    }

    async fn receive_bytes(&self, room: Segs) -> Result<usize, Lost> {
        loop {
            match self.driver.recv(&self.socket, room.clone(), false).await {
                received @ 1.. => return Ok(received as usize),
                0 => return Err(closed()),
                again if again == -libc::EINTR || again == -libc::EAGAIN => {}
                errno => return Err(std::io::Error::from_raw_os_error(-errno).to_string()),
            }
        }
    }

    /// Sends all; false if the connection has ended.
    pub async fn send(&self, mut segs: Segs) -> bool {
        let Some(session) = &self.tls else { return self.send_bytes(segs).await };
        while segs.bytes() > 0 {
            let encrypted = session.encrypt(&segs);
            if !self.send_output(session).await {
                return false;
            }
            let Ok(count) = encrypted else { return false };
            segs.advance(count);
        }
        true
    }

    /// Tells the server that nothing more comes. Of plain bytes their end says that.
    pub async fn finish(&self) {
        if let Some(session) = &self.tls {
            session.end();
            // If it does not arrive, the connection has ended already.
            self.send_output(session).await;
        }
    }

    async fn send_output(&self, session: &Session) -> bool {
        while let Some(segs) = session.take_output() {
            if !self.send_bytes(segs).await {
                return false;
            }
        }
        true
    }

    async fn send_bytes(&self, mut segs: Segs) -> bool {
        while segs.bytes() > 0 {
            match self.driver.send(&self.socket, segs.clone()).await {
                sent @ 1.. => segs.advance(sent as usize),
                again if again == -libc::EINTR || again == -libc::EAGAIN => {}
                _ => return false,
            }
        }
        true
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

fn insecure(session: &Session) -> Lost {
    format!("TLS: {}", session.error().unwrap_or_default())
}
