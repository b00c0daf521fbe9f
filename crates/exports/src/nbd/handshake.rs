//! Negotiates a connection: from the greeting to the start of transmission, or to its end.
//!
//! Owns: the state of one fixed-newstyle negotiation. Bytes from the client go in by
//! [`Handshake::input`], bytes for the client come out by [`Handshake::take_output`], and at the
//! end [`Handshake::take_outcome`] says what was agreed or why the connection must be closed.
//!
//! ```text
//! greeting -> client flags -> option header -> payload -> reply -> option header ...
//!                                          \-> skipped  -/             \-> outcome
//! ```
//!
//! One outcome is not the end: [`Outcome::StartTls`]. The negotiation goes on over TLS, by
//! [`Handshake::secured`], and remembers nothing that was agreed before.
//!
//! Invariants:
//! - I1: while output waits, nothing is consumed. So a client that sends options without reading
//!   replies holds the reply to one option and no more.
//! - I2: at most [`OPTION_BYTES_MAX`] bytes of an option are held; a longer one is skipped as it
//!   arrives and then refused.
//! - I3: once an outcome is known nothing more is consumed: the bytes behind it belong to
//!   transmission.
//! - I4: metadata contexts belong to the export they were selected for; entering transmission
//!   with another export drops them.
//! - I5: a client finds only the exports that admit the names in its certificate, which a client
//!   without TLS has not. If TLS is required, a client without it learns nothing about exports.
//!
//! Must never: wait, know a socket, or trust a length before the bytes are there.

use std::mem;
use std::sync::Arc;

use thiserror::Error;
use zerocopy::byteorder::big_endian::{U16, U32, U64};
use zerocopy::{FromBytes, IntoBytes};

use super::facts::{ExportFacts, Exports};
use super::options::{InfoRequest, Malformed, MetaRequest, parse_name};
use super::request::Terms;
use super::wire::{
    ClientFlags, EXPORT_NAME_ZEROES, ExportNameReply, GREETING_MAGIC, Greeting, HandshakeFlags,
    InfoBlockSize, InfoExport, MessageForm, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionHeader,
    OptionReplyHeader, STRING_BYTES_MAX, TransmissionFlags, info, option, option_error,
    option_reply,
};

/// Longest option payload that is parsed, in bytes.
pub const OPTION_BYTES_MAX: u32 = 64 << 10;

/// How a negotiation ended.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Outcome {
    /// Once the output is sent, the bytes of the connection are those of TLS, and the negotiation
    /// goes on within.
    StartTls,
    /// Requests follow, under the terms agreed on.
    Transmission(Negotiated),
    /// The connection must be closed once the output is sent.
    Closed(Closing),
}

/// What client and server agreed on.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Negotiated {
    /// Index of the export in [`Exports::all`].
    pub export: usize,
    /// The flags the client was told.
    pub flags: TransmissionFlags,
    /// The form of requests and replies.
    pub form: MessageForm,
    /// The metadata contexts that every block status reports.
    pub contexts: Vec<MetaContext>,
    /// Whether the client asked for block sizes, and so promised to obey them.
    pub client_knows_block_size: bool,
}

/// A metadata context that the client selected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct MetaContext {
    /// Its number in block status replies.
    pub id: u32,
    /// Its name, one of [`ExportFacts::contexts`].
    pub name: String,
}

/// How the bytes of a negotiation are protected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Security {
    /// TLS is not offered.
    Plain,
    /// The client may start TLS.
    Offered,
    /// The client must start TLS.
    Required,
    /// TLS is in use.
    Secured {
        /// The names in the client's certificate.
        client: Vec<String>,
    },
}

/// Why a negotiation ended without transmission.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum Closing {
    /// The client asked to end; nothing is wrong.
    #[error("the client ended the negotiation")]
    Aborted,
    /// The client set flags that were not offered.
    #[error("client flags are {found:#x}, expected no bits but 0x3")]
    BadClientFlags {
        /// The flags found.
        found: u32,
    },
    /// The client sent an option that needs fixed newstyle, which it did not agree to.
    #[error("option {option} without fixed newstyle, expected option 1 (EXPORT_NAME)")]
    NotFixedNewstyle {
        /// The option found.
        option: u32,
    },
    /// The stream is out of step.
    #[error("option magic is {found:#018x}, expected 0x49484156454f5054")]
    BadOptionMagic {
        /// The magic found.
        found: u64,
    },
    /// `EXPORT_NAME` named no export; the option has no error reply.
    #[error("EXPORT_NAME asks for export `{name}`, which does not exist")]
    ExportUnknown {
        /// The name found, perhaps shortened.
        name: String,
    },
    /// TLS is required; `EXPORT_NAME` has no error reply.
    #[error("EXPORT_NAME without TLS, which is required")]
    TlsRequired,
    /// The client sent bytes after `STARTTLS` before it had the reply: they would be taken for
    /// protected ones, or lost.
    #[error("found bytes behind STARTTLS, expected the client to wait for the reply")]
    BytesBehindStartTls,
    /// A client that uses extended headers must ask with `GO`; this option has no error reply.
    #[error("option 1 (EXPORT_NAME) after extended headers, expected option 7 (GO)")]
    ExportNameForExtended,
    /// The client was told that it is not served.
    #[error("{reason}")]
    Refused {
        /// The reason that the client was told.
        reason: String,
    },
    /// `EXPORT_NAME` carried no proper name.
    #[error("EXPORT_NAME carries no name: {reason}")]
    BadExportName {
        /// The rule that was broken.
        reason: &'static str,
    },
}

impl Negotiated {
    /// The terms that requests are judged by, given the export's facts as they are now.
    pub fn terms(&self, facts: &ExportFacts) -> Terms {
        Terms {
            size_bytes: facts.size_bytes,
            flags: self.flags,
            form: self.form,
            has_contexts: !self.contexts.is_empty(),
            alignment: if self.client_knows_block_size { facts.block_sizes.minimum } else { 1 },
            payload_bytes_max: facts.block_sizes.maximum,
        }
    }
}

/// A negotiation in progress.
#[derive(Debug)]
pub struct Handshake {
    exports: Arc<Exports>,
    state: State,
    /// The part of the current message that has arrived.
    buffer: Vec<u8>,
    output: Vec<u8>,
    outcome: Option<Outcome>,
    client: ClientFlags,
    form: MessageForm,
    /// The export that contexts were last selected for, and the contexts.
    selected: Option<(usize, Vec<MetaContext>)>,
    /// Why the client gets no export.
    refusal: Option<String>,
    security: Security,
}

/// What the next bytes are.
#[derive(Debug, Clone, Copy)]
enum State {
    ClientFlags,
    OptionHeader,
    Payload { option: u32, length: u32 },
    Skipped { option: u32, left: u32 },
    Finished,
}

impl Handshake {
    /// Starts a negotiation without TLS over `exports`; the greeting waits in the output.
    pub fn new(exports: Arc<Exports>) -> Self {
        Handshake::with_security(exports, Security::Plain)
    }

    /// The same with this much of TLS.
    pub fn with_security(exports: Arc<Exports>, security: Security) -> Self {
        let greeting = Greeting {
            magic: U64::new(GREETING_MAGIC),
            option_magic: U64::new(OPTION_MAGIC),
            flags: U16::new(HandshakeFlags::all().bits()),
        };
        Self {
            exports,
            state: State::ClientFlags,
            buffer: Vec::new(),
            output: greeting.as_bytes().to_vec(),
            outcome: None,
            client: ClientFlags::empty(),
            form: MessageForm::Simple,
            selected: None,
            refusal: None,
            security,
        }
    }

    /// Goes on over TLS, after [`Outcome::StartTls`]. `client` are the names in the certificate
    /// that the client has shown.
    pub fn secured(&mut self, client: Vec<String>) {
        self.security = Security::Secured { client };
        self.state = State::OptionHeader;
    }

    /// Starts a negotiation that ends with the first option that asks for an export: the client is
    /// told `reason`, if the option has a reply.
    pub fn refusing(reason: String) -> Self {
        let exports = Exports::new(Vec::new(), None).expect("no export breaks no rule");
        Self { refusal: Some(reason), ..Self::new(Arc::new(exports)) }
    }

    /// Takes bytes from the client and says how many were consumed. Fewer than given means that
    /// output or an outcome waits to be taken; the rest must be offered again afterwards (or,
    /// after an outcome, belongs to the transmission phase).
    pub fn input(&mut self, bytes: &[u8]) -> usize {
        let mut consumed = 0;
        // I1, I3
        while self.output.is_empty() && !matches!(self.state, State::Finished) {
            let rest = &bytes[consumed..];
            let wanted = self.wanted();
            let taken = wanted.min(rest.len());
            consumed += taken;
            match self.state {
                State::Skipped { ref mut left, .. } => *left -= taken as u32,
                _ => self.buffer.extend_from_slice(&rest[..taken]),
            }
            if taken < wanted {
                break;
            }
            let mut message = mem::take(&mut self.buffer);
            self.advance(&message);
            message.clear();
            self.buffer = message;
        }
        consumed
    }

    /// Takes the bytes to send to the client; they must be sent before the outcome is acted on.
    pub fn take_output(&mut self) -> Vec<u8> {
        mem::take(&mut self.output)
    }

    /// Takes the outcome, if the negotiation has ended.
    pub fn take_outcome(&mut self) -> Option<Outcome> {
        self.outcome.take()
    }

    /// Bytes that are missing from the current message.
    fn wanted(&self) -> usize {
        let length = match self.state {
            State::ClientFlags => size_of::<U32>(),
            State::OptionHeader => size_of::<OptionHeader>(),
            State::Payload { length, .. } => length as usize,
            State::Skipped { left, .. } => left as usize,
            State::Finished => 0,
        };
        length - self.buffer.len()
    }

    /// Acts on a complete message.
    fn advance(&mut self, message: &[u8]) {
        match self.state {
            State::ClientFlags => self.on_client_flags(message),
            State::OptionHeader => self.on_option_header(message),
            State::Payload { option, .. } => {
                self.state = State::OptionHeader;
                self.on_option(option, message);
            }
            State::Skipped { option, .. } => {
                self.state = State::OptionHeader;
                self.on_skipped(option);
            }
            State::Finished => unreachable!("a finished negotiation takes no input (I3)"),
        }
    }

    fn on_client_flags(&mut self, message: &[u8]) {
        let found =
            U32::read_from_bytes(message).expect("a message is as long as was wanted").get();
        match ClientFlags::from_bits(found) {
            Some(flags) => {
                self.client = flags;
                self.state = State::OptionHeader;
            }
            None => self.close(Closing::BadClientFlags { found }),
        }
    }

    fn on_option_header(&mut self, message: &[u8]) {
        let header =
            OptionHeader::read_from_bytes(message).expect("a message is as long as was wanted");
        let (magic, number, length) =
            (header.magic.get(), header.option.get(), header.length.get());
        if magic != OPTION_MAGIC {
            return self.close(Closing::BadOptionMagic { found: magic });
        }
        let fixed = self.client.contains(ClientFlags::FIXED_NEWSTYLE);
        if !fixed && number != option::EXPORT_NAME {
            return self.close(Closing::NotFixedNewstyle { option: number });
        }
        if number == option::EXPORT_NAME && length as usize > STRING_BYTES_MAX {
            return self.close(Closing::BadExportName { reason: "it is longer than 4096 bytes" });
        }
        if self.needs_tls(number) && number == option::EXPORT_NAME {
            return self.close(Closing::TlsRequired);
        }
        // I2
        self.state =
            match is_served(number) && !self.needs_tls(number) && length <= OPTION_BYTES_MAX {
                true => State::Payload { option: number, length },
                false => State::Skipped { option: number, left: length },
            };
    }

    fn on_option(&mut self, number: u32, payload: &[u8]) {
        if !matches!(number, option::STRUCTURED_REPLY | option::EXTENDED_HEADERS)
            && let Some(reason) = self.refusal.take()
        {
            if number != option::EXPORT_NAME {
                self.refuse(number, option_error::POLICY, &reason);
            }
            return self.close(Closing::Refused { reason });
        }
        match number {
            option::STARTTLS => self.on_starttls(payload),
            option::EXPORT_NAME => self.on_export_name(payload),
            option::LIST => self.on_list(payload),
            option::INFO | option::GO => self.on_info(number, payload),
            option::STRUCTURED_REPLY | option::EXTENDED_HEADERS => self.on_form(number, payload),
            option::LIST_META_CONTEXT | option::SET_META_CONTEXT => {
                self.on_meta_context(number, payload);
            }
            _ => unreachable!("only served options are looked at, not {number}"),
        }
    }

    fn on_skipped(&mut self, number: u32) {
        match number {
            option::ABORT => {
                self.ack(number);
                self.close(Closing::Aborted);
            }
            number if self.needs_tls(number) => {
                self.refuse(number, option_error::TLS_REQD, "TLS is required: start it first");
            }
            number if is_served(number) => {
                self.refuse(number, option_error::TOO_BIG, "the option's payload is too long");
            }
            _ => self.refuse(number, option_error::UNSUP, "the option is not served"),
        }
    }

    /// True if the option is refused as long as the client has not started TLS.
    fn needs_tls(&self, number: u32) -> bool {
        let is_allowed = matches!(number, option::STARTTLS | option::ABORT);
        self.security == Security::Required && !is_allowed
    }

    fn on_starttls(&mut self, payload: &[u8]) {
        let number = option::STARTTLS;
        match self.security {
            Security::Plain => {
                self.refuse(number, option_error::UNSUP, "TLS is not served");
            }
            _ if !payload.is_empty() => {
                self.refuse(number, option_error::INVALID, "the option has no payload");
            }
            Security::Secured { .. } => {
                self.refuse(number, option_error::INVALID, "TLS is in use already");
            }
            Security::Offered | Security::Required => {
                self.ack(number);
                (self.form, self.selected) = (MessageForm::Simple, None);
                self.state = State::Finished;
                self.outcome = Some(Outcome::StartTls);
            }
        }
    }

    /// The names in the client's certificate.
    fn client_names(&self) -> &[String] {
        match &self.security {
            Security::Secured { client } => client,
            _ => &[],
        }
    }

    /// The export that this client means by `name`. (I5)
    fn find<'a>(&self, exports: &'a Exports, name: &str) -> Option<(usize, &'a ExportFacts)> {
        exports.find(name).filter(|(_, facts)| facts.admits(self.client_names()))
    }

    fn on_export_name(&mut self, payload: &[u8]) {
        if self.form == MessageForm::Extended {
            return self.close(Closing::ExportNameForExtended);
        }
        let name = match parse_name(payload) {
            Ok(name) => name,
            Err(Malformed { message, .. }) => {
                return self.close(Closing::BadExportName { reason: message });
            }
        };
        let exports = Arc::clone(&self.exports);
        let Some((export, facts)) = self.find(&exports, name) else {
            return self.close(Closing::ExportUnknown { name: shortened(name).to_owned() });
        };
        let reply = ExportNameReply {
            size_bytes: U64::new(facts.size_bytes),
            flags: U16::new(facts.offered_flags(self.form).bits()),
        };
        self.output.extend_from_slice(reply.as_bytes());
        if !self.client.contains(ClientFlags::NO_ZEROES) {
            self.output.extend_from_slice(&[0; EXPORT_NAME_ZEROES]);
        }
        self.enter(export, facts, false);
    }

    fn on_list(&mut self, payload: &[u8]) {
        if !payload.is_empty() {
            return self.refuse(option::LIST, option_error::INVALID, "a listing has no payload");
        }
        let exports = Arc::clone(&self.exports);
        for facts in exports.all() {
            if !facts.admits(self.client_names()) {
                continue;
            }
            let length = U32::new(facts.name.len() as u32);
            let parts = [length.as_bytes(), facts.name.as_bytes(), facts.description.as_bytes()];
            self.reply(option::LIST, option_reply::SERVER, &parts);
        }
        self.ack(option::LIST);
    }

    /// The client chooses another form of messages. The extended one includes what the structured
    /// one has, and is never left.
    fn on_form(&mut self, number: u32, payload: &[u8]) {
        if !payload.is_empty() {
            return self.refuse(number, option_error::INVALID, "the option has no payload");
        }
        if number == option::EXTENDED_HEADERS {
            self.form = MessageForm::Extended;
        } else if self.form == MessageForm::Extended {
            let message = "extended headers are in use";
            return self.refuse(number, option_error::EXT_HEADER_REQD, message);
        } else {
            self.form = MessageForm::Structured;
        }
        self.ack(number);
    }

    fn on_info(&mut self, number: u32, payload: &[u8]) {
        let request = match InfoRequest::parse(payload) {
            Ok(request) => request,
            Err(malformed) => return self.refuse(number, malformed.kind, malformed.message),
        };
        let exports = Arc::clone(&self.exports);
        let Some((export, facts)) = self.find(&exports, request.name) else {
            return self.refuse_unknown_export(number, request.name);
        };
        self.describe(number, facts, &request);
        self.ack(number);
        if number == option::GO {
            self.enter(export, facts, request.wants_block_sizes);
        }
    }

    /// Sends what every client is told about an export, and what this one asked for.
    fn describe(&mut self, number: u32, facts: &ExportFacts, request: &InfoRequest<'_>) {
        let export = InfoExport {
            kind: U16::new(info::EXPORT),
            size_bytes: U64::new(facts.size_bytes),
            flags: U16::new(facts.offered_flags(self.form).bits()),
        };
        self.reply(number, option_reply::INFO, &[export.as_bytes()]);
        if request.wants_name {
            let kind = U16::new(info::NAME);
            let parts = [kind.as_bytes(), facts.name.as_bytes()];
            self.reply(number, option_reply::INFO, &parts);
        }
        if request.wants_description && !facts.description.is_empty() {
            let kind = U16::new(info::DESCRIPTION);
            let parts = [kind.as_bytes(), facts.description.as_bytes()];
            self.reply(number, option_reply::INFO, &parts);
        }
        if request.wants_block_sizes {
            let sizes = InfoBlockSize {
                kind: U16::new(info::BLOCK_SIZE),
                minimum: U32::new(facts.block_sizes.minimum),
                preferred: U32::new(facts.block_sizes.preferred),
                maximum: U32::new(facts.block_sizes.maximum),
            };
            self.reply(number, option_reply::INFO, &[sizes.as_bytes()]);
        }
    }

    fn on_meta_context(&mut self, number: u32, payload: &[u8]) {
        let is_set = number == option::SET_META_CONTEXT;
        if is_set {
            // A selection replaces the one before it, even if it fails.
            self.selected = None;
        }
        if !self.form.has_chunks() {
            let message = "metadata contexts need structured replies or extended headers first";
            return self.refuse(number, option_error::INVALID, message);
        }
        let request = match MetaRequest::parse(payload) {
            Ok(request) => request,
            Err(malformed) => return self.refuse(number, malformed.kind, malformed.message),
        };
        let exports = Arc::clone(&self.exports);
        let Some((export, facts)) = self.find(&exports, request.name) else {
            return self.refuse_unknown_export(number, request.name);
        };
        let matching = match is_set {
            true => selected_contexts(facts, &request),
            false => listed_contexts(facts, &request),
        };
        for context in &matching {
            let id = U32::new(context.id);
            let parts = [id.as_bytes(), context.name.as_bytes()];
            self.reply(number, option_reply::META_CONTEXT, &parts);
        }
        self.ack(number);
        if is_set {
            self.selected = Some((export, matching));
        }
    }

    /// Ends the negotiation in transmission.
    fn enter(&mut self, export: usize, facts: &ExportFacts, client_knows_block_size: bool) {
        // I4
        let contexts = match self.selected.take() {
            Some((owner, contexts)) if owner == export => contexts,
            _ => Vec::new(),
        };
        self.state = State::Finished;
        self.outcome = Some(Outcome::Transmission(Negotiated {
            export,
            flags: facts.offered_flags(self.form),
            form: self.form,
            contexts,
            client_knows_block_size,
        }));
    }

    fn close(&mut self, closing: Closing) {
        self.state = State::Finished;
        self.outcome = Some(Outcome::Closed(closing));
    }

    fn ack(&mut self, number: u32) {
        self.reply(number, option_reply::ACK, &[]);
    }

    fn refuse_unknown_export(&mut self, number: u32, name: &str) {
        let message = match name {
            "" => "there is no default export".to_owned(),
            _ => format!("there is no export named `{}`", shortened(name)),
        };
        self.refuse(number, option_error::UNKNOWN, &message);
    }

    fn refuse(&mut self, number: u32, kind: u32, message: &str) {
        self.reply(number, kind, &[message.as_bytes()]);
    }

    fn reply(&mut self, number: u32, kind: u32, parts: &[&[u8]]) {
        let length: usize = parts.iter().map(|part| part.len()).sum();
        let header = OptionReplyHeader {
            magic: U64::new(OPTION_REPLY_MAGIC),
            option: U32::new(number),
            kind: U32::new(kind),
            length: U32::new(length as u32),
        };
        self.output.extend_from_slice(header.as_bytes());
        for part in parts {
            self.output.extend_from_slice(part);
        }
    }
}

/// Whether the option's payload is parsed. `ABORT` is not: it has none.
fn is_served(number: u32) -> bool {
    matches!(
        number,
        option::EXPORT_NAME
            | option::LIST
            | option::INFO
            | option::GO
            | option::STARTTLS
            | option::STRUCTURED_REPLY
            | option::EXTENDED_HEADERS
            | option::LIST_META_CONTEXT
            | option::SET_META_CONTEXT
    )
}

/// The contexts named by the queries, numbered from 1. A bare namespace selects nothing: it is a
/// wildcard for listings only.
fn selected_contexts(facts: &ExportFacts, request: &MetaRequest<'_>) -> Vec<MetaContext> {
    let is_named = |name: &String| request.queries.contains(&name.as_str());
    let named = facts.contexts.iter().zip(1..).filter(|(name, _)| is_named(name));
    named.map(|(name, id)| MetaContext { id, name: name.clone() }).collect()
}

/// The contexts that match a query, or all without queries; in a listing, numbers are zero.
fn listed_contexts(facts: &ExportFacts, request: &MetaRequest<'_>) -> Vec<MetaContext> {
    let matches = |name: &str, query: &str| {
        name == query || (query.ends_with(':') && name.starts_with(query))
    };
    let is_listed = |name: &&String| {
        request.queries.is_empty() || request.queries.iter().any(|query| matches(name, query))
    };
    let listed = facts.contexts.iter().filter(is_listed);
    listed.map(|name| MetaContext { id: 0, name: name.clone() }).collect()
}

/// The part of a client's string that a message repeats.
fn shortened(name: &str) -> &str {
    &name[..name.floor_char_boundary(80)]
}

#[cfg(test)]
mod tests;
#[cfg(test)]
mod tls_tests;
