//! The client's side of a negotiation, over any stream of bytes. It waits for the server: no
//! reactor runs it.
//!
//! What a server says is judged here: sizes, flags and lengths that later code relies on. Memory is
//! bounded: an answer to an option has at most [`ANSWER_BYTES_MAX`] bytes, an option at most
//! [`ANSWERS_MAX`] answers.

use std::io::{self, Read, Write};

use crate::wire::{
    BASE_ALLOCATION, ClientFlags, GREETING_MAGIC, Greeting, HandshakeFlags, InfoBlockSize,
    InfoExport, MessageForm, OPTION_MAGIC, OPTION_REPLY_MAGIC, OptionHeader, OptionReplyHeader,
    PAYLOAD_BYTES_USUAL_MAX, STRING_BYTES_MAX, TransmissionFlags, info, option, option_error,
    option_reply,
};
use cairn_block::{ConfigError, ConfigKind, SECTOR_BYTES};
use zerocopy::{FromBytes, FromZeros, IntoBytes};

/// The longest answer to an option, in bytes.
const ANSWER_BYTES_MAX: u32 = 64 << 10;

/// The most answers to one option.
const ANSWERS_MAX: usize = 64;

/// The largest block that is understood: one of a request's sectors has to be a whole of it.
const BLOCK_BYTES_MAX: u32 = 64 << 10;

/// What is asked of a server.
#[derive(Clone, Copy, Debug)]
pub struct Wish<'a> {
    /// The server, or its export, as the user named it.
    pub device: &'a str,
    /// The export.
    pub export: &'a str,
    /// Simple replies only: the client that goes on takes no others.
    pub is_simple: bool,
}

/// What a server and this client agreed on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Agreed {
    /// Bytes of the export.
    pub size_bytes: u64,
    /// What it offers.
    pub flags: TransmissionFlags,
    /// The form of all messages from now on.
    pub form: MessageForm,
    /// Every offset and length is a multiple of this, in bytes.
    pub block_bytes: u32,
    /// Preferred block, in bytes.
    pub preferred_bytes: u32,
    /// The longest payload, in bytes.
    pub payload_bytes_max: u32,
    /// The number of the context for extents, if the server has it.
    pub allocation: Option<u32>,
}

impl Agreed {
    /// Its size in sectors.
    pub fn sectors(&self) -> u64 {
        self.size_bytes / SECTOR_BYTES
    }

    /// Compares the export with that of an earlier connection. It may have grown.
    ///
    /// # Errors
    /// It is another one.
    pub fn refuse_other_than(
        &self,
        before: &Agreed,
        sectors: u64,
        uri: &str,
    ) -> Result<(), ConfigError> {
        let terms = |it: &Agreed| (it.flags, it.block_bytes, it.allocation.is_some());
        let is_same = terms(self) == terms(before)
            && self.sectors() >= sectors
            && self.payload_bytes_max >= before.payload_bytes_max;
        if is_same {
            return Ok(());
        }
        let shown = |it: &Agreed, sectors: u64| {
            let (flags, block, most) = (it.flags.bits(), it.block_bytes, it.payload_bytes_max);
            let extents = it.allocation.map_or("without", |_| "with");
            let bytes = sectors * SECTOR_BYTES;
            let told = format!("{bytes} bytes, flags {flags:#x}, blocks of {block} bytes");
            format!("{told}, payloads of {most} bytes, {extents} extents")
        };
        let (found, expected) = (shown(self, self.sectors()), shown(before, sectors));
        let detail = format!("export: found {found}, expected {expected}");
        Err(ConfigError::new(ConfigKind::Unsupported, uri, detail))
    }
}

/// Negotiates with the server at the other end of `stream`.
///
/// # Errors
/// The server does not have the export, or is none that this client understands.
pub fn negotiate(stream: &mut (impl Read + Write), wish: Wish<'_>) -> Result<Agreed, ConfigError> {
    check_name(wish)?;
    let mut negotiation = Negotiation { stream, wish };
    negotiation.greet()?;
    negotiation.agree()
}

/// The first part of a negotiation under TLS: from now on all bytes are those of a session.
///
/// # Errors
/// The server has no TLS, or is none that this client understands.
pub fn start_tls(stream: &mut (impl Read + Write), wish: Wish<'_>) -> Result<(), ConfigError> {
    let mut negotiation = Negotiation { stream, wish };
    negotiation.greet()?;
    match negotiation.takes(option::STARTTLS)? {
        true => Ok(()),
        false => Err(negotiation.refused("TLS", "a server without it", "one with it")),
    }
}

/// The second part, over the session.
///
/// # Errors
/// Those of [`negotiate`].
pub fn agree(stream: &mut (impl Read + Write), wish: Wish<'_>) -> Result<Agreed, ConfigError> {
    check_name(wish)?;
    Negotiation { stream, wish }.agree()
}

fn check_name(wish: Wish<'_>) -> Result<(), ConfigError> {
    if wish.export.len() > STRING_BYTES_MAX {
        let found = format!("{} bytes", wish.export.len());
        return Err(ConfigError::argument(wish.device, "export", found, "at most 4096"));
    }
    Ok(())
}

struct Negotiation<'a, S> {
    stream: &'a mut S,
    wish: Wish<'a>,
}

/// One answer to an option.
type Answer = (u32, Vec<u8>);

impl<S: Read + Write> Negotiation<'_, S> {
    fn agree(&mut self) -> Result<Agreed, ConfigError> {
        let form = self.form()?;
        let allocation = if form.has_chunks() { self.allocation()? } else { None };
        self.go(form, allocation)
    }

    fn failed(&self, error: &io::Error) -> ConfigError {
        let why = match error.kind() {
            io::ErrorKind::UnexpectedEof => "the server has closed the connection".to_owned(),
            io::ErrorKind::WouldBlock | io::ErrorKind::TimedOut => {
                "the server does not answer".to_owned()
            }
            _ => error.to_string(),
        };
        ConfigError::new(ConfigKind::System, self.wish.device, format!("negotiation: {why}"))
    }

    fn refused(&self, field: &str, found: impl Into<String>, expected: &str) -> ConfigError {
        let detail = format!("{field}: found {}, expected {expected}", found.into());
        ConfigError::new(ConfigKind::Unsupported, self.wish.device, detail)
    }

    fn receive(&mut self, bytes: &mut [u8]) -> Result<(), ConfigError> {
        self.stream.read_exact(bytes).map_err(|error| self.failed(&error))
    }

    fn send(&mut self, bytes: &[u8]) -> Result<(), ConfigError> {
        self.stream.write_all(bytes).map_err(|error| self.failed(&error))
    }

    fn greet(&mut self) -> Result<(), ConfigError> {
        let mut greeting = Greeting::new_zeroed();
        self.receive(greeting.as_mut_bytes())?;
        let magic = (greeting.magic.get(), greeting.option_magic.get());
        if magic != (GREETING_MAGIC, OPTION_MAGIC) {
            let found = format!("{:#x} {:#x}", magic.0, magic.1);
            return Err(self.refused("greeting", found, "that of a newstyle NBD server"));
        }
        let flags = HandshakeFlags::from_bits_truncate(greeting.flags.get());
        if !flags.contains(HandshakeFlags::FIXED_NEWSTYLE) {
            return Err(self.refused("greeting", "no fixed newstyle", "a server with it"));
        }
        let mut answer = ClientFlags::FIXED_NEWSTYLE;
        answer.set(ClientFlags::NO_ZEROES, flags.contains(HandshakeFlags::NO_ZEROES));
        self.send(&answer.bits().to_be_bytes())
    }

    fn option(&mut self, option: u32, payload: &[u8]) -> Result<(), ConfigError> {
        let (magic, length) = (OPTION_MAGIC.into(), (payload.len() as u32).into());
        let header = OptionHeader { magic, option: option.into(), length };
        self.send(&[header.as_bytes(), payload].concat())
    }

    fn answer(&mut self, option: u32) -> Result<Answer, ConfigError> {
        let mut head = OptionReplyHeader::new_zeroed();
        self.receive(head.as_mut_bytes())?;
        let (magic, length) = (head.magic.get(), head.length.get());
        if magic != OPTION_REPLY_MAGIC || head.option.get() != option || length > ANSWER_BYTES_MAX {
            let found = format!("magic {magic:#x}, option {}, {length} bytes", head.option.get());
            return Err(self.refused("answer to an option", found, "one of NBD"));
        }
        let mut payload = vec![0; length as usize];
        self.receive(&mut payload)?;
        Ok((head.kind.get(), payload))
    }

    /// All answers to an option; the last one acknowledges or refuses it.
    fn answers(&mut self, option: u32) -> Result<Vec<Answer>, ConfigError> {
        let mut answers = Vec::new();
        while answers.len() < ANSWERS_MAX {
            let answer = self.answer(option)?;
            let is_last = answer.0 == option_reply::ACK || answer.0 >= 1 << 31;
            answers.push(answer);
            if is_last {
                return Ok(answers);
            }
        }
        Err(self.refused("answers to an option", "too many", "at most 64"))
    }

    /// True if the server takes an option without a payload.
    fn takes(&mut self, option: u32) -> Result<bool, ConfigError> {
        self.option(option, &[])?;
        let answers = self.answers(option)?;
        self.refuse_without_tls(&answers)?;
        Ok(answers.iter().any(|(kind, _)| *kind == option_reply::ACK))
    }

    fn refuse_without_tls(&self, answers: &[Answer]) -> Result<(), ConfigError> {
        match answers.iter().any(|(kind, _)| *kind == option_error::TLS_REQD) {
            true => Err(self.refused("TLS", "a server that requires it", "one without")),
            false => Ok(()),
        }
    }

    fn form(&mut self) -> Result<MessageForm, ConfigError> {
        if self.wish.is_simple {
            return Ok(MessageForm::Simple);
        }
        if self.takes(option::EXTENDED_HEADERS)? {
            return Ok(MessageForm::Extended);
        }
        match self.takes(option::STRUCTURED_REPLY)? {
            true => Ok(MessageForm::Structured),
            false => Ok(MessageForm::Simple),
        }
    }

    fn name(&self) -> Vec<u8> {
        string(self.wish.export)
    }

    /// The number of the context for extents.
    fn allocation(&mut self) -> Result<Option<u32>, ConfigError> {
        let one = 1_u32.to_be_bytes().to_vec();
        let payload = [self.name(), one, string(BASE_ALLOCATION)].concat();
        self.option(option::SET_META_CONTEXT, &payload)?;
        let answers = self.answers(option::SET_META_CONTEXT)?;
        let context = answers.iter().find_map(|(kind, payload)| {
            let (number, name) = payload.split_first_chunk()?;
            let is_it = *kind == option_reply::META_CONTEXT && name == BASE_ALLOCATION.as_bytes();
            is_it.then(|| u32::from_be_bytes(*number))
        });
        Ok(context)
    }

    fn go(&mut self, form: MessageForm, allocation: Option<u32>) -> Result<Agreed, ConfigError> {
        let wanted = info::BLOCK_SIZE.to_be_bytes();
        let payload = [self.name(), 1_u16.to_be_bytes().to_vec(), wanted.to_vec()].concat();
        self.option(option::GO, &payload)?;
        let answers = self.answers(option::GO)?;
        self.refuse_without_tls(&answers)?;
        let (mut export, mut blocks) = (None, None);
        for (kind, payload) in &answers {
            match *kind {
                option_reply::INFO => {
                    export = export.or_else(|| {
                        information(payload, info::EXPORT, |it: &InfoExport| it.kind.get())
                    });
                    blocks = blocks.or_else(|| {
                        information(payload, info::BLOCK_SIZE, |it: &InfoBlockSize| it.kind.get())
                    });
                }
                option_reply::ACK => {}
                refusal => return Err(self.no_export(refusal, payload)),
            }
        }
        let Some(export) = export else {
            return Err(self.refused("export", "no size", "a server that tells it"));
        };
        let (block_bytes, preferred_bytes, payload_bytes_max) = match blocks {
            Some(told) => self.block_sizes(&told)?,
            None => (1, 4096, PAYLOAD_BYTES_USUAL_MAX),
        };
        let flags = TransmissionFlags::from_bits_truncate(export.flags.get());
        let size_bytes = export.size_bytes.get();
        let agreed = Agreed {
            size_bytes,
            flags,
            form,
            block_bytes,
            preferred_bytes,
            payload_bytes_max,
            allocation,
        };
        self.check_size(&agreed)?;
        Ok(agreed)
    }

    fn no_export(&self, refusal: u32, payload: &[u8]) -> ConfigError {
        let device = self.wish.device;
        let told = String::from_utf8_lossy(payload);
        let told = told.trim().replace(|it: char| it.is_control(), " ");
        if refusal == option_error::UNKNOWN {
            let found = format!("'{}', which the server does not have", self.wish.export);
            return ConfigError::argument(device, "export", found, "one of its exports");
        }
        let detail = format!("export '{}': the server refuses: {told}", self.wish.export);
        ConfigError::new(ConfigKind::Unsupported, device, detail)
    }

    fn block_sizes(&self, told: &InfoBlockSize) -> Result<(u32, u32, u32), ConfigError> {
        let (least, preferred, most) =
            (told.minimum.get(), told.preferred.get(), told.maximum.get());
        let is_fair = least.is_power_of_two()
            && least <= BLOCK_BYTES_MAX
            && preferred.is_power_of_two()
            && preferred >= least
            && most >= least.max(512);
        if !is_fair {
            let found = format!("{least}, {preferred}, {most}");
            return Err(self.refused("block sizes", found, "powers of two, at most 65536 first"));
        }
        // Whole blocks and whole sectors.
        let most = most.min(PAYLOAD_BYTES_USUAL_MAX);
        Ok((least, preferred, most / least.max(512) * least.max(512)))
    }

    fn check_size(&self, agreed: &Agreed) -> Result<(), ConfigError> {
        let block = u64::from(agreed.block_bytes.max(512));
        if agreed.size_bytes == 0 || !agreed.size_bytes.is_multiple_of(block) {
            let found = format!("{} bytes", agreed.size_bytes);
            let expected = format!("a multiple of {block} above zero");
            return Err(self.refused("size", found, &expected));
        }
        if agreed.size_bytes > i64::MAX as u64 {
            let found = format!("{} bytes", agreed.size_bytes);
            return Err(self.refused("size", found, "less than 2^63"));
        }
        Ok(())
    }
}

fn string(text: &str) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes(), text.as_bytes()].concat()
}

/// The information in a payload, if it is of this kind.
fn information<T: FromBytes>(payload: &[u8], wanted: u16, kind: fn(&T) -> u16) -> Option<T> {
    T::read_from_bytes(payload).ok().filter(|told| kind(told) == wanted)
}
