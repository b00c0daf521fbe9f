//! The first part of a connection: moves the bytes of a [`Handshake`] over a socket.
//!
//! Bytes that a client sent before the negotiation ended stay in the [`Receiver`]: they are its
//! first requests. Those behind `STARTTLS` are refused, since no TLS protects them.

use std::sync::Arc;

use cairn_block::{Env, Segs};
use cairn_tls::{Session, Tls};

use super::connection::Channel;
use super::facts::Exports;
use super::handshake::{Closing, Handshake, Negotiated, Outcome, Security};
use super::receiver::{Ended, Receiver};

/// Negotiates; none if the connection ends here. The reason was logged.
pub(super) async fn negotiate(
    env: &Env,
    channel: &Channel,
    exports: Arc<Exports>,
    tls: Option<&Tls>,
) -> Option<(Negotiated, Receiver)> {
    let mut receiver = Receiver::new(env);
    let security = match tls {
        None => Security::Plain,
        Some(tls) if tls.is_required => Security::Required,
        Some(_) => Security::Offered,
    };
    let mut handshake = Handshake::with_security(exports, security);
    let ended = loop {
        match (run(env, channel, &mut receiver, &mut handshake).await, tls) {
            (Ok(Outcome::Transmission(negotiated)), _) => return Some((negotiated, receiver)),
            (Ok(Outcome::StartTls), Some(tls)) if receiver.is_empty() => {
                let client = match tls.engine() {
                    Ok(engine) => channel.start_tls(Session::new(env, engine)).await,
                    Err(error) => {
                        env.warn("nbd: TLS", || format!("nbd: TLS: {error}"));
                        return None;
                    }
                };
                match client {
                    Ok(client) => handshake.secured(client),
                    Err(ended) => break ended,
                }
            }
            // T2 of the crate `tls`.
            (Ok(Outcome::StartTls), _) => return refused(env, &Closing::BytesBehindStartTls),
            (Ok(Outcome::Closed(closing)), _) => return refused(env, &closing),
            (Err(ended), _) => break ended,
        }
    };
    match channel.tls().and_then(Session::error) {
        Some(error) => {
            // Numbers in the reason are the client's, and must not make a key of their own.
            let reason = error.split(|c: char| c.is_ascii_digit()).next().unwrap_or_default();
            env.warn(&format!("nbd: TLS client refused: {reason}"), || {
                format!("nbd: TLS client refused: {error}")
            });
        }
        None => tracing::debug!("negotiation ended: {ended:?}"),
    }
    None
}

fn refused<T>(env: &Env, closing: &Closing) -> Option<T> {
    match closing {
        Closing::Aborted => tracing::debug!("{closing}"),
        closing => {
            env.warn("nbd: negotiation refused", || format!("nbd: negotiation refused: {closing}"));
        }
    }
    None
}

/// Tells a client why it is not served.
pub(super) async fn refuse(env: &Env, channel: &Channel, reason: String) {
    let mut receiver = Receiver::new(env);
    let mut handshake = Handshake::refusing(reason);
    if let Err(ended) = run(env, channel, &mut receiver, &mut handshake).await {
        tracing::debug!("connection of a refused client ended: {ended:?}");
    }
}

async fn run(
    env: &Env,
    channel: &Channel,
    receiver: &mut Receiver,
    handshake: &mut Handshake,
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
