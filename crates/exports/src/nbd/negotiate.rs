//! The first part of a connection: moves the bytes of a [`Handshake`] over a socket.
//!
//! Bytes that a client sent before the negotiation ended stay in the [`Receiver`]: they are its
//! first requests.

use std::sync::Arc;

use cairn_block::{Env, Segs};

use super::connection::Channel;
use super::facts::Exports;
use super::handshake::{Closing, Handshake, Negotiated, Outcome};
use super::receiver::{Ended, Receiver};

/// Negotiates; none if the connection ends here. The reason was logged.
pub(super) async fn negotiate(
    env: &Env,
    channel: &Channel,
    exports: Arc<Exports>,
) -> Option<(Negotiated, Receiver)> {
    let mut receiver = Receiver::new(env);
    match run(env, channel, &mut receiver, Handshake::new(exports)).await {
        Ok(Outcome::Transmission(negotiated)) => return Some((negotiated, receiver)),
        Ok(Outcome::Closed(Closing::Aborted)) => tracing::debug!("{}", Closing::Aborted),
        Ok(Outcome::Closed(closing)) => {
            env.warn("nbd: negotiation refused", || format!("nbd: negotiation refused: {closing}"));
        }
        Err(ended) => tracing::debug!("negotiation ended: {ended:?}"),
    }
    None
}

/// Tells a client why it is not served.
pub(super) async fn refuse(env: &Env, channel: &Channel, reason: String) {
    let mut receiver = Receiver::new(env);
    if let Err(ended) = run(env, channel, &mut receiver, Handshake::refusing(reason)).await {
        tracing::debug!("connection of a refused client ended: {ended:?}");
    }
}

async fn run(
    env: &Env,
    channel: &Channel,
    receiver: &mut Receiver,
    mut handshake: Handshake,
) -> Result<Outcome, Ended> {
    loop {
        let output = handshake.take_output();
        if !output.is_empty() {
            let mut segs = Segs::of(&env.buf(output.len()), 0, output.len());
            segs.copy_in(0, &output);
            channel.send(&mut segs).await?;
        }
        if let Some(outcome) = handshake.take_outcome() {
            return Ok(outcome);
        }
        if receiver.is_empty() {
            receiver.fill(channel).await?;
        }
        receiver.consume(|bytes| handshake.input(bytes));
    }
}
