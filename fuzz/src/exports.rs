//! What a fuzzer does with a client's bytes: judge them, and hold the judges to their promises.
//!
//! Shared with the ordinary property tests of `crates/exports`, which run the same bodies on random
//! and mutated bytes in every `cargo test`. A body panics when a promise is broken, and must never
//! depend on anything but its input.

use std::sync::Arc;

use cairn_exports::nbd::facts::{BlockSizes, ExportFacts, Exports};
use cairn_exports::nbd::handshake::{Handshake, OPTION_BYTES_MAX, Outcome, Security};
use cairn_exports::nbd::request::{ByteRange, Command, Decoded, Terms, decode};
use cairn_exports::nbd::wire::{BASE_ALLOCATION, CommandFlags, MessageForm, TransmissionFlags};
use cairn_exports::vhost_user::trial::Trial;
use cairn_exports::vhost_user::wire::{DESCRIPTORS_MAX, HEADER_BYTES, Header, Message};
use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

/// A header, compact or extended, then the connection's terms: transmission flags (16 bits),
/// whether a context was selected (a byte, bit 1), the alignment as a power of two (a byte), the
/// size in bytes (64 bits). Judged as if each form had been negotiated.
pub fn nbd_request(bytes: &[u8]) {
    for form in [MessageForm::Simple, MessageForm::Structured, MessageForm::Extended] {
        request_of(bytes, form);
    }
}

fn request_of(bytes: &[u8], form: MessageForm) {
    let Some((header, rest)) = bytes.split_at_checked(form.request_bytes()) else { return };
    let Some((numbers, _)) = rest.split_first_chunk::<12>() else { return };
    let [flags_high, flags_low, switches, shift, size @ ..] = *numbers;
    let alignment = 1 << (shift % 17);
    let size_bytes = u64::from_be_bytes(size);
    let terms = Terms {
        size_bytes: size_bytes - size_bytes % u64::from(alignment),
        flags: TransmissionFlags::from_bits_truncate(u16::from_be_bytes([flags_high, flags_low])),
        form,
        has_contexts: switches & 2 != 0,
        alignment,
        payload_bytes_max: 32 << 20,
    };
    match decode(header, &terms) {
        Decoded::Request(request) => {
            check_command(&request.command, &terms);
            check_payload(header, &request.command, form);
        }
        Decoded::Refused(refusal) => assert!(!refusal.reason.is_empty()),
        Decoded::Broken(breach) => assert!(!breach.to_string().is_empty()),
    }
}

/// Of the requests that are served, writes have a payload, and no others: none announces one.
fn check_payload(header: &[u8], command: &Command, form: MessageForm) {
    let flags = u16::from_be_bytes([header[4], header[5]]);
    let announced = flags & CommandFlags::PAYLOAD_LEN.bits() != 0;
    match command {
        Command::Write { .. } => assert!(!announced || form == MessageForm::Extended),
        // The stream ends behind a disconnect; a write of nothing may announce its payload.
        Command::Disconnect | Command::Nothing => {}
        _ => assert!(!announced),
    }
}

fn check_command(command: &Command, terms: &Terms) {
    let (range, writes) = match command {
        Command::Read { range, .. } => {
            assert!(range.length <= u64::from(terms.payload_bytes_max));
            (range, false)
        }
        Command::Write { range, fua } => {
            assert!(range.length <= u64::from(terms.payload_bytes_max));
            assert!(!fua || terms.flags.contains(TransmissionFlags::SEND_FUA));
            (range, true)
        }
        Command::Trim { range, .. } | Command::WriteZeroes { range, .. } => (range, true),
        Command::BlockStatus { range, .. } => {
            assert!(terms.form.has_chunks() && terms.has_contexts);
            (range, false)
        }
        Command::Cache { range } => (range, false),
        Command::Flush | Command::Nothing | Command::Disconnect => return,
    };
    assert!(!writes || !terms.flags.contains(TransmissionFlags::READ_ONLY));
    let ByteRange { offset, length } = *range;
    assert!(length > 0 && offset.checked_add(length).is_some());
    assert!(offset + length <= terms.size_bytes);
    assert!(offset.is_multiple_of(u64::from(terms.alignment)));
    assert!(length.is_multiple_of(u64::from(terms.alignment)));
}

/// How long the pieces are in which the bytes arrive (a byte), then everything a client says.
pub fn nbd_handshake(bytes: &[u8]) {
    let Some((piece, said)) = bytes.split_first() else { return };
    let security = match piece >> 6 {
        0 | 1 => Security::Plain,
        2 => Security::Offered,
        _ => Security::Required,
    };
    let whole = converse(said, said.len().max(1), security.clone());
    let pieces = converse(said, usize::from(*piece).max(1), security);
    assert_eq!(whole, pieces);
    let (answers, consumed, outcome) = whole;
    assert!(consumed <= said.len());
    assert!(outcome.is_some() || consumed == said.len());
    // Every option is at least its header, and is answered with at most its payload's worth.
    let options = said.len() / 16 + 1;
    assert!(answers.len() <= 18 + options * 1024 + 8 * said.len() + OPTION_BYTES_MAX as usize);
    if let Some(Outcome::Transmission(negotiated)) = outcome {
        let exports = exports();
        let terms = negotiated.terms(&exports.all()[negotiated.export]);
        assert!(negotiated.contexts.is_empty() || negotiated.form.has_chunks());
        assert!(terms.size_bytes.is_multiple_of(u64::from(terms.alignment)));
    }
}

type Conversation = (Vec<u8>, usize, Option<Outcome>);

fn converse(said: &[u8], piece: usize, security: Security) -> Conversation {
    let mut handshake = Handshake::with_security(exports(), security);
    let mut answers = handshake.take_output();
    let mut consumed = 0;
    for piece in said.chunks(piece) {
        let mut used = 0;
        loop {
            used += handshake.input(&piece[used..]);
            let output = handshake.take_output();
            let quiet = output.is_empty();
            answers.extend(output);
            if let Some(outcome) = handshake.take_outcome() {
                return (answers, consumed + used, Some(outcome));
            }
            if quiet && used == piece.len() {
                break;
            }
        }
        consumed += used;
    }
    (answers, consumed, None)
}

fn exports() -> Arc<Exports> {
    let export = |name: &str, minimum| ExportFacts {
        name: name.to_owned(),
        description: "a volume".to_owned(),
        size_bytes: 1 << 20,
        flags: TransmissionFlags::SEND_FLUSH | TransmissionFlags::SEND_FUA,
        block_sizes: BlockSizes { minimum, preferred: 4096, maximum: 32 << 20 },
        contexts: vec![BASE_ALLOCATION.to_owned()],
        clients: Vec::new(),
    };
    let facts = vec![export("a", 512), export("b", 4096)];
    Arc::new(Exports::new(facts, Some("a")).expect("two proper exports"))
}

/// How many descriptors came, then the head of a message and its payload.
pub fn vhost_user_message(bytes: &[u8]) {
    let Some((&[descriptors], rest)) = bytes.split_first_chunk::<1>() else { return };
    let Some((head, payload)) = rest.split_first_chunk::<HEADER_BYTES>() else { return };
    let header = match Header::decode(head) {
        Ok(header) => header,
        Err(breach) => return assert!(!breach.to_string().is_empty()),
    };
    let Some(payload) = payload.get(..header.payload_bytes) else { return };
    let descriptors = usize::from(descriptors) % (DESCRIPTORS_MAX + 2);
    match header.message(payload, descriptors) {
        Ok(Message::SetMemTable(regions)) => assert_eq!(regions.len(), descriptors),
        Ok(Message::GetConfig { offset, bytes }) => {
            assert!(offset.checked_add(bytes).is_some_and(|end| end <= 256));
            let reply = header.reply_config(offset, &payload[12..]);
            assert_eq!(reply.len(), HEADER_BYTES + payload.len());
        }
        Ok(Message::SetConfig { offset, data }) => assert!(offset as usize + data.len() <= 256),
        Ok(_) => {}
        Err(breach) => assert!(!breach.to_string().is_empty()),
    }
}

/// The memory of a driver with a ring of 8 entries: descriptors, what is available from byte 128,
/// what is used from byte 192, and from byte 1024 what an earlier server left in flight. The first
/// byte of all says whether places are named (1), whether the ring is packed (2; it is at its begin
/// in the first lap, or with 8 in the second), and whether there was such a server (4).
pub fn vhost_user_ring(bytes: &[u8]) {
    const MEMORY_BYTES: u64 = 16 << 10;
    let Some((&[switches], content)) = bytes.split_first_chunk::<1>() else { return };
    let content = &content[..content.len().min(MEMORY_BYTES as usize)];
    let memory = memfd_create("memory", MemfdFlags::CLOEXEC).expect("memory");
    ftruncate(&memory, MEMORY_BYTES).expect("memory");
    rustix::io::pwrite(&memory, content, 0).expect("memory");
    let is_packed = switches & 2 != 0;
    let trial = Trial {
        bytes: MEMORY_BYTES,
        entries: 8,
        places: [0, 192, 128],
        base: if is_packed && switches & 8 == 0 { 0x8000_8000 } else { 0 },
        is_packed,
        event_idx: switches & 1 != 0,
        inflight: (switches & 4 != 0).then_some(1024),
    };
    match trial.take_all(&memory.into()) {
        Ok(requests) => assert!(requests <= 1 << 16),
        Err(breach) => assert!(!breach.to_string().is_empty()),
    }
}
