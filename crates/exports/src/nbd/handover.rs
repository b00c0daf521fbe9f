//! Connections that go on in another process, with their sockets and those that listen.
//!
//! The server pauses: it accepts no connection, and each client waits between two requests, or
//! within one whose payload has not arrived. [`NbdServer::resume`] undoes that.
//! [`NbdServer::part`] ends it: the connections leave with all that this process knows of them,
//! their bytes that no request has used among it. The other process makes connections of that
//! ([`NbdServer::take_over`]), which answer the client's next request as this one would have.
//!
//! A connection with TLS does not leave: its keys are this process's. It is closed between two
//! requests, and its client connects again.
//!
//! Negotiations get a moment to end. One that has not ended when the connections part is closed.

use std::os::fd::OwnedFd;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{ConfigError, Env, Mail};
use serde::{Deserialize, Serialize};

use crate::front::{Level, Membership, Phase, first};
use crate::listener::{Listener, Listening};

use super::connection::{Channel, Connection};
use super::export::Export;
use super::handshake::{MetaContext, Negotiated};
use super::receiver::{Receiver, Rest};
use super::server::{NbdServer, Shared, serve};
use super::wire::{MessageForm, PAYLOAD_BYTES_USUAL_MAX, TransmissionFlags};

/// How long negotiations may take before they do not count any more.
const NEGOTIATION_GRACE: Duration = Duration::from_millis(500);

/// The most bytes that may have been received from a connection and used by no request: what is
/// staged, and a payload that has not arrived as a whole, with room to spare.
pub const REST_BYTES_MAX: usize = 2 * PAYLOAD_BYTES_USUAL_MAX as usize;

/// How often a pause is looked at.
const LOOK: Duration = Duration::from_millis(1);

/// What is known of a connection between two requests, beside its socket.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Parted {
    /// The export's name.
    pub export: String,
    /// The transmission flags that the client was told.
    pub flags: u16,
    /// It takes structured replies, or extended ones.
    pub structured_replies: bool,
    /// Its messages are extended. An earlier server that hands over does not know them.
    #[serde(default)]
    pub extended_headers: bool,
    /// The metadata contexts that it selected: their numbers and names.
    pub contexts: Vec<(u32, String)>,
    /// It asked for block sizes.
    pub client_knows_block_size: bool,
    /// Its next flush is to report a loss.
    pub owes: bool,
    /// So many of its next bytes belong to a request that was refused.
    pub skip: u32,
    /// What was received from it behind those, or instead of them, and used by no request.
    #[serde(skip)]
    pub bytes: Vec<u8>,
}

impl Parted {
    /// Judges what another process says: no client has negotiated the rest.
    ///
    /// # Errors
    /// Why it makes no sense.
    pub fn judge(&self) -> Result<(), &'static str> {
        let mut ids: Vec<u32> = self.contexts.iter().map(|(id, _)| *id).collect();
        ids.sort_unstable();
        let count = ids.len();
        ids.dedup();
        match () {
            () if TransmissionFlags::from_bits(self.flags).is_none() => {
                Err("its client was told flags of a later version")
            }
            () if count > 0 && !self.form().has_chunks() => {
                Err("it has contexts that its replies cannot tell of")
            }
            () if ids.len() < count => Err("it has a context twice"),
            () if self.bytes.len() > REST_BYTES_MAX => Err("more was received than is ever kept"),
            () => Ok(()),
        }
    }

    fn form(&self) -> MessageForm {
        match (self.extended_headers, self.structured_replies) {
            (true, _) => MessageForm::Extended,
            (false, true) => MessageForm::Structured,
            (false, false) => MessageForm::Simple,
        }
    }
}

/// What a server leaves to another process.
#[derive(Default)]
pub struct Estate {
    /// Where it listened.
    pub listeners: Vec<Listening>,
    /// Its connections.
    pub connections: Vec<(Parted, Arc<OwnedFd>)>,
}

impl NbdServer {
    /// Pauses: on return no connection has a request that is not answered, and none is taken.
    ///
    /// # Errors
    /// So many connections have requests that did not end within `patience`. All go on.
    pub async fn pause(&self, env: &Env, patience: Duration) -> Result<(), usize> {
        let (shared, began) = (&self.0, env.now());
        shared.pause.set(Phase::Pausing);
        loop {
            let waiting = shared.pause.waiting();
            let (all, negotiating) = (shared.shutdown.users(), shared.negotiating.users());
            let taken = env.now().since(began);
            let excused = if taken < NEGOTIATION_GRACE { 0 } else { negotiating };
            if waiting + excused >= all {
                return Ok(());
            }
            if taken >= patience {
                self.resume();
                return Err(all - waiting - excused);
            }
            env.sleep(LOOK).await;
        }
    }

    /// Ends the pause: the connections go on here.
    pub fn resume(&self) {
        self.0.pause.set(Phase::Going);
    }

    /// A server that has no connection yet begins with a pause: it accepts none before its end.
    pub fn begin_paused(&self) {
        self.0.pause.set(Phase::Pausing);
    }

    /// Ends the pause: all connections leave, and the server with them. One that does not within
    /// `patience` is closed.
    pub async fn part(&self, env: &Env, patience: Duration) -> Estate {
        let shared = &self.0;
        shared.accepting.raise(Level::Cut);
        shared.accepting.empty().await;
        shared.shutdown.raise(Level::Draining);
        shared.pause.set(Phase::Leaving);
        first(shared.shutdown.empty(), env.sleep(patience)).await;
        let listeners = std::mem::take(&mut *shared.listeners.lock());
        Estate {
            listeners: listeners.iter().map(|listener| listener.leave()).collect(),
            connections: std::mem::take(&mut *shared.parted.lock()),
        }
    }

    /// Listens on a socket that another process opened.
    ///
    /// # Errors
    /// It does not listen.
    pub fn listen_on(&self, given: Listening) -> Result<(), ConfigError> {
        self.accept_on(Listener::inherited(given)?);
        Ok(())
    }

    /// Goes on with a connection of another process. Without its export the connection is closed.
    pub fn take_over(&self, parted: Parted, socket: OwnedFd) {
        let (shared, member) = (self.0.clone(), self.0.shutdown.join());
        let post = shared.post.clone();
        let to = shared.next_reactor();
        let job = move |env: &Env| env.spawn(go_on(env.clone(), shared, parted, socket, member));
        post.post(to, Mail::Call(Box::new(job)));
    }
}

async fn go_on(env: Env, shared: Arc<Shared>, parted: Parted, socket: OwnedFd, member: Membership) {
    let export = shared.export(&parted.export);
    let flags = TransmissionFlags::from_bits_truncate(parted.flags);
    let may_only_read = |export: &Export| {
        let now = export.facts().flags;
        now.contains(TransmissionFlags::READ_ONLY) && !flags.contains(TransmissionFlags::READ_ONLY)
    };
    let is_required = shared.tls.get().is_some_and(|tls| tls.is_required);
    let needs_tls = |export: &Export| is_required || !export.facts().admits(&[]);
    let senseless = parted.judge().err();
    let reason = match &export {
        _ if senseless.is_some() => senseless,
        None => Some("it is not served"),
        Some(export) if may_only_read(export) => Some("it may only be read now"),
        // A connection with TLS does not come here.
        Some(export) if needs_tls(export) => Some("it needs TLS now"),
        Some(_) => None,
    };
    let (Some(export), None) = (export, reason) else {
        env.warn("nbd: connection of an earlier process closed", || {
            let (name, reason) = (&parted.export, reason.unwrap_or_default());
            format!("export '{name}': connection of an earlier process closed: {reason}")
        });
        return;
    };
    let context = |(id, name)| MetaContext { id, name };
    let negotiated = Negotiated {
        export: 0,
        flags,
        form: parted.form(),
        contexts: parted.contexts.into_iter().map(context).collect(),
        client_knows_block_size: parted.client_knows_block_size,
    };
    let terms = negotiated.terms(&export.facts());
    let channel = Channel::new(&env, socket);
    let on = (export, shared.pause.clone());
    let conn = Connection::new(&env, channel, on, &negotiated, terms);
    if parted.owes {
        conn.queue.owe();
    }
    let receiver = Receiver::after(&env, Rest { skip: parted.skip, bytes: parted.bytes });
    serve(&env, &shared, conn, receiver, member).await;
}

#[cfg(test)]
mod tests {
    use super::Parted;

    #[test]
    fn connection_that_no_client_has_negotiated_does_not_go_on() {
        let contexts = vec![(1, "base:allocation".to_owned())];
        let sound = Parted { flags: 3565, structured_replies: true, contexts, ..Parted::default() };
        let context = sound.contexts[0].clone();
        sound.judge().unwrap();
        for (changed, expected) in [
            (Parted { flags: 1 << 15, ..sound.clone() }, "flags of a later version"),
            (Parted { structured_replies: false, ..sound.clone() }, "cannot tell of"),
            (Parted { contexts: vec![context; 2], ..sound.clone() }, "a context twice"),
        ] {
            let reason = changed.judge().unwrap_err();
            assert!(reason.contains(expected), "{reason}");
        }
    }
}
