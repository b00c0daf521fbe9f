//! Each rule of the transmission phase.

use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, proptest};
use proptest::sample::select;
use zerocopy::IntoBytes;
use zerocopy::byteorder::big_endian::{U16, U32, U64};

use super::{
    Breach, ByteRange, Command, Decoded, PAYLOAD_SKIP_BYTES_MAX, REQUEST_BYTES_MAX, Refusal,
    Request, Terms, decode, peek,
};
use crate::nbd::wire::{
    CommandFlags, Cookie, EXTENDED_REQUEST_MAGIC, ErrorCode, ExtendedRequestHeader, MessageForm,
    REQUEST_MAGIC, RequestHeader, TransmissionFlags, command,
};

const COOKIE: Cookie = Cookie(0x1122_3344_5566_7788);

fn everything() -> Terms {
    Terms {
        size_bytes: 1 << 20,
        flags: TransmissionFlags::all() - TransmissionFlags::READ_ONLY,
        form: MessageForm::Structured,
        has_contexts: true,
        alignment: 512,
        payload_bytes_max: 64 << 10,
    }
}

fn without(flags: TransmissionFlags) -> Terms {
    Terms { flags: everything().flags - flags, ..everything() }
}

fn extended() -> Terms {
    Terms { form: MessageForm::Extended, ..everything() }
}

fn header(number: u16, flags: CommandFlags, offset: u64, length: u32) -> Vec<u8> {
    let header = RequestHeader {
        magic: U32::new(REQUEST_MAGIC),
        flags: U16::new(flags.bits()),
        command: U16::new(number),
        cookie: U64::new(COOKIE.0),
        offset: U64::new(offset),
        length: U32::new(length),
    };
    header.as_bytes().to_vec()
}

fn extended_header(number: u16, flags: CommandFlags, offset: u64, length: u64) -> Vec<u8> {
    let header = ExtendedRequestHeader {
        magic: U32::new(EXTENDED_REQUEST_MAGIC),
        flags: U16::new(flags.bits()),
        command: U16::new(number),
        cookie: U64::new(COOKIE.0),
        offset: U64::new(offset),
        length: U64::new(length),
    };
    header.as_bytes().to_vec()
}

fn ask_extended(number: u16, flags: CommandFlags, offset: u64, length: u64) -> Decoded {
    let terms = Terms { size_bytes: 1 << 43, ..extended() };
    decode(&extended_header(number, flags, offset, length), &terms)
}

fn ask(terms: &Terms, number: u16, flags: CommandFlags, offset: u64, length: u32) -> Decoded {
    decode(&header(number, flags, offset, length), terms)
}

fn accepted(decoded: Decoded) -> Command {
    match decoded {
        Decoded::Request(Request { echo, command }) => {
            assert_eq!(echo.cookie, COOKIE);
            command
        }
        other => panic!("expected a request, found {other:?}"),
    }
}

fn refused(decoded: Decoded) -> (ErrorCode, u32) {
    match decoded {
        Decoded::Refused(Refusal { echo, error, payload_to_skip, .. }) => {
            assert_eq!(echo.cookie, COOKIE);
            (error, payload_to_skip)
        }
        other => panic!("expected a refusal, found {other:?}"),
    }
}

const NONE: CommandFlags = CommandFlags::empty();
const RANGE: ByteRange = ByteRange { offset: 4096, length: 1024 };
const RANGED: [u16; 6] = [
    command::READ,
    command::WRITE,
    command::TRIM,
    command::CACHE,
    command::WRITE_ZEROES,
    command::BLOCK_STATUS,
];

#[test]
fn every_command_is_decoded_with_its_range() {
    let terms = everything();
    let plain = |number| accepted(ask(&terms, number, NONE, 4096, 1024));
    assert_eq!(plain(command::READ), Command::Read { range: RANGE, unfragmented: false });
    assert_eq!(plain(command::WRITE), Command::Write { range: RANGE, fua: false });
    assert_eq!(plain(command::TRIM), Command::Trim { range: RANGE, fua: false });
    assert_eq!(plain(command::CACHE), Command::Cache { range: RANGE });
    let zeroes =
        Command::WriteZeroes { range: RANGE, fua: false, no_hole: false, fast_only: false };
    assert_eq!(plain(command::WRITE_ZEROES), zeroes);
    let status = Command::BlockStatus { range: RANGE, one_extent: false };
    assert_eq!(plain(command::BLOCK_STATUS), status);
    assert_eq!(accepted(ask(&terms, command::FLUSH, NONE, 0, 0)), Command::Flush);
    assert_eq!(accepted(ask(&terms, command::DISC, NONE, 0, 0)), Command::Disconnect);
}

#[test]
fn every_flag_reaches_the_command_it_belongs_to() {
    let terms = everything();
    let flagged = |number, flags| accepted(ask(&terms, number, flags, 4096, 1024));
    let read = Command::Read { range: RANGE, unfragmented: true };
    assert_eq!(flagged(command::READ, CommandFlags::DF), read);
    let write = Command::Write { range: RANGE, fua: true };
    assert_eq!(flagged(command::WRITE, CommandFlags::FUA), write);
    let trim = Command::Trim { range: RANGE, fua: true };
    assert_eq!(flagged(command::TRIM, CommandFlags::FUA), trim);
    let zeroes = Command::WriteZeroes { range: RANGE, fua: true, no_hole: true, fast_only: true };
    let all = CommandFlags::FUA | CommandFlags::NO_HOLE | CommandFlags::FAST_ZERO;
    assert_eq!(flagged(command::WRITE_ZEROES, all), zeroes);
    let status = Command::BlockStatus { range: RANGE, one_extent: true };
    assert_eq!(flagged(command::BLOCK_STATUS, CommandFlags::REQ_ONE), status);
}

#[test]
fn a_wrong_magic_ends_the_connection() {
    let mut bytes = header(command::READ, NONE, 0, 512);
    bytes[0] ^= 1;
    let found = REQUEST_MAGIC ^ 0x0100_0000;
    let broken = Breach::BadMagic { found, expected: REQUEST_MAGIC };
    assert_eq!(decode(&bytes, &everything()), Decoded::Broken(broken));
}

#[test]
fn an_unknown_command_is_invalid_and_the_connection_goes_on() {
    for number in [8, 9, 255, u16::MAX] {
        let verdict = refused(ask(&everything(), number, NONE, 0, 512));
        assert_eq!(verdict, (ErrorCode::Invalid, 0));
    }
}

#[test]
fn a_refused_write_skips_exactly_its_payload() {
    let terms = everything();
    let too_long = ask(&terms, command::WRITE, NONE, 0, 128 << 10);
    assert_eq!(refused(too_long), (ErrorCode::Invalid, 128 << 10));
    let bad_flag = ask(&terms, command::WRITE, CommandFlags::DF, 0, 512);
    assert_eq!(refused(bad_flag), (ErrorCode::Invalid, 512));
    let unaligned = ask(&terms, command::WRITE, NONE, 1, 512);
    assert_eq!(refused(unaligned), (ErrorCode::Invalid, 512));
}

#[test]
fn a_refused_command_without_payload_skips_nothing() {
    for number in [command::READ, command::TRIM, command::WRITE_ZEROES] {
        assert_eq!(refused(ask(&everything(), number, NONE, 1, 512)), (ErrorCode::Invalid, 0));
    }
}

#[test]
fn write_with_oversized_payload_ends_the_connection() {
    let length = u64::from(PAYLOAD_SKIP_BYTES_MAX) + 1;
    let decoded = ask(&everything(), command::WRITE, NONE, 0, length as u32);
    assert_eq!(decoded, Decoded::Broken(Breach::OversizedPayload { length }));
    let text = Breach::OversizedPayload { length }.to_string();
    assert!(text.contains(&PAYLOAD_SKIP_BYTES_MAX.to_string()), "{text}");
}

#[test]
fn a_range_beyond_the_end_is_no_space_for_writers_and_invalid_for_the_rest() {
    for number in RANGED {
        let expected = match number {
            command::WRITE | command::WRITE_ZEROES => ErrorCode::NoSpace,
            _ => ErrorCode::Invalid,
        };
        for offset in [(1 << 20) - 512, 1 << 20, u64::MAX - 511, u64::MAX - 1023] {
            let decoded = ask(&everything(), number, NONE, offset, 1024);
            assert_eq!(refused(decoded).0, expected, "command {number} at {offset}");
        }
    }
}

#[test]
fn the_last_block_of_the_export_is_inside_it() {
    for number in RANGED {
        accepted(ask(&everything(), number, NONE, (1 << 20) - 512, 512));
    }
}

#[test]
fn ranges_beyond_two_tebibytes_are_served() {
    let terms = Terms { size_bytes: 1 << 43, ..everything() };
    let range = ByteRange { offset: (1 << 43) - 512, length: 512 };
    let decoded = ask(&terms, command::WRITE, NONE, range.offset, range.length as u32);
    assert_eq!(accepted(decoded), Command::Write { range, fua: false });
}

#[test]
fn a_read_only_export_refuses_every_kind_of_write() {
    let terms = Terms { flags: everything().flags | TransmissionFlags::READ_ONLY, ..everything() };
    for number in [command::WRITE, command::TRIM, command::WRITE_ZEROES] {
        let payload = if number == command::WRITE { 512 } else { 0 };
        let decoded = ask(&terms, number, NONE, 0, 512);
        assert_eq!(refused(decoded), (ErrorCode::NotPermitted, payload));
    }
    for number in [command::READ, command::CACHE, command::BLOCK_STATUS] {
        accepted(ask(&terms, number, NONE, 0, 512));
    }
    accepted(ask(&terms, command::FLUSH, NONE, 0, 0));
}

#[test]
fn a_command_that_was_not_offered_is_invalid() {
    for (flag, number) in [
        (TransmissionFlags::SEND_TRIM, command::TRIM),
        (TransmissionFlags::SEND_CACHE, command::CACHE),
        (TransmissionFlags::SEND_WRITE_ZEROES, command::WRITE_ZEROES),
        (TransmissionFlags::SEND_FLUSH, command::FLUSH),
    ] {
        let length = if number == command::FLUSH { 0 } else { 512 };
        let decoded = ask(&without(flag), number, NONE, 0, length);
        assert_eq!(refused(decoded), (ErrorCode::Invalid, 0));
    }
}

#[test]
fn block_status_without_a_selected_context_is_invalid() {
    let terms = Terms { has_contexts: false, ..everything() };
    let decoded = ask(&terms, command::BLOCK_STATUS, NONE, 0, 512);
    assert_eq!(refused(decoded), (ErrorCode::Invalid, 0));
}

#[test]
fn a_flag_on_a_command_it_does_not_apply_to_is_invalid() {
    for (number, flag) in [
        (command::READ, CommandFlags::NO_HOLE),
        (command::READ, CommandFlags::REQ_ONE),
        (command::READ, CommandFlags::FAST_ZERO),
        (command::TRIM, CommandFlags::NO_HOLE),
        (command::CACHE, CommandFlags::DF),
        (command::WRITE_ZEROES, CommandFlags::DF),
        (command::BLOCK_STATUS, CommandFlags::FAST_ZERO),
    ] {
        let decoded = ask(&everything(), number, flag, 0, 512);
        assert_eq!(refused(decoded).0, ErrorCode::Invalid, "command {number} with {flag:?}");
    }
}

#[test]
fn undefined_flag_bit_is_invalid() {
    for bit in 5..16 {
        let flags = CommandFlags::from_bits_retain(1 << bit);
        let decoded = ask(&everything(), command::WRITE, flags, 0, 512);
        assert_eq!(refused(decoded), (ErrorCode::Invalid, 512), "bit {bit}");
    }
}

#[test]
fn fua_is_taken_on_every_command_once_offered_and_on_none_before() {
    let deny = without(TransmissionFlags::SEND_FUA);
    for number in RANGED {
        accepted(ask(&everything(), number, CommandFlags::FUA, 0, 512));
        let decoded = ask(&deny, number, CommandFlags::FUA, 0, 512);
        assert_eq!(refused(decoded).0, ErrorCode::Invalid, "command {number}");
    }
    accepted(ask(&everything(), command::FLUSH, CommandFlags::FUA, 0, 0));
}

#[test]
fn an_unfragmented_read_needs_structured_replies() {
    let simple = Terms { form: MessageForm::Simple, ..everything() };
    let decoded = ask(&simple, command::READ, CommandFlags::DF, 0, 512);
    assert_eq!(refused(decoded).0, ErrorCode::Invalid);
    let unoffered = without(TransmissionFlags::SEND_DF);
    let decoded = ask(&unoffered, command::READ, CommandFlags::DF, 0, 512);
    assert_eq!(refused(decoded).0, ErrorCode::Invalid);
}

#[test]
fn a_fast_zero_that_was_not_offered_is_invalid() {
    let terms = without(TransmissionFlags::SEND_FAST_ZERO);
    let decoded = ask(&terms, command::WRITE_ZEROES, CommandFlags::FAST_ZERO, 0, 512);
    assert_eq!(refused(decoded).0, ErrorCode::Invalid);
}

#[test]
fn a_payload_beyond_the_maximum_is_invalid_or_overflows_if_unfragmented() {
    let long = 128 << 10;
    let terms = everything();
    assert_eq!(refused(ask(&terms, command::READ, NONE, 0, long)).0, ErrorCode::Invalid);
    let unfragmented = ask(&terms, command::READ, CommandFlags::DF, 0, long);
    assert_eq!(refused(unfragmented).0, ErrorCode::Overflow);
    for number in [command::TRIM, command::WRITE_ZEROES, command::CACHE, command::BLOCK_STATUS] {
        accepted(ask(&terms, number, NONE, 0, long));
    }
}

#[test]
fn a_client_that_knows_the_block_size_must_align_and_another_need_not() {
    let unaware = Terms { alignment: 1, ..everything() };
    for number in RANGED {
        for (offset, length) in [(1, 512), (512, 511)] {
            let decoded = ask(&everything(), number, NONE, offset, length);
            assert_eq!(refused(decoded).0, ErrorCode::Invalid);
            accepted(ask(&unaware, number, NONE, offset, length));
        }
    }
}

#[test]
fn an_empty_range_inside_the_export_succeeds_with_nothing_to_do() {
    for number in
        [command::READ, command::WRITE, command::TRIM, command::CACHE, command::WRITE_ZEROES]
    {
        for offset in [0, 7, 1 << 20] {
            let decoded = ask(&everything(), number, NONE, offset, 0);
            assert_eq!(accepted(decoded), Command::Nothing);
        }
        refused(ask(&everything(), number, NONE, (1 << 20) + 1, 0));
    }
}

#[test]
fn an_empty_block_status_is_invalid() {
    let decoded = ask(&everything(), command::BLOCK_STATUS, NONE, 0, 0);
    assert_eq!(refused(decoded), (ErrorCode::Invalid, 0));
}

#[test]
fn a_flush_with_an_offset_or_a_length_is_invalid() {
    for (offset, length) in [(0, 512), (512, 0)] {
        let decoded = ask(&everything(), command::FLUSH, NONE, offset, length);
        assert_eq!(refused(decoded), (ErrorCode::Invalid, 0));
    }
}

#[test]
fn disconnect_is_accepted_with_any_other_fields() {
    let flags = CommandFlags::from_bits_retain(u16::MAX);
    let decoded = ask(&everything(), command::DISC, flags, u64::MAX, u32::MAX);
    assert_eq!(accepted(decoded), Command::Disconnect);
}

fn range_of(command: Command) -> Option<ByteRange> {
    match command {
        Command::Read { range, .. }
        | Command::Write { range, .. }
        | Command::Trim { range, .. }
        | Command::Cache { range }
        | Command::WriteZeroes { range, .. }
        | Command::BlockStatus { range, .. } => Some(range),
        Command::Flush | Command::Nothing | Command::Disconnect => None,
    }
}

#[test]
fn an_extended_range_may_be_longer_than_32_bits_can_say() {
    let range = ByteRange { offset: 1 << 33, length: 5 << 32 };
    let plain = |number| accepted(ask_extended(number, NONE, range.offset, range.length));
    assert_eq!(plain(command::TRIM), Command::Trim { range, fua: false });
    assert_eq!(plain(command::CACHE), Command::Cache { range });
    let zeroes = Command::WriteZeroes { range, fua: false, no_hole: false, fast_only: false };
    assert_eq!(plain(command::WRITE_ZEROES), zeroes);
    let status = Command::BlockStatus { range, one_extent: false };
    assert_eq!(plain(command::BLOCK_STATUS), status);
    let too_far = ask_extended(command::TRIM, NONE, 512, 1 << 43);
    assert_eq!(refused(too_far), (ErrorCode::Invalid, 0));
    let overflow = ask_extended(command::WRITE_ZEROES, NONE, 512, u64::MAX - 511);
    assert_eq!(refused(overflow), (ErrorCode::NoSpace, 0));
    let read = ask_extended(command::READ, NONE, 0, 5 << 32);
    assert_eq!(refused(read), (ErrorCode::Invalid, 0));
}

#[test]
fn an_extended_write_has_its_payload_with_the_flag_and_without_it_as_qemu_10_sends_it() {
    let payload = CommandFlags::PAYLOAD_LEN;
    let decoded = ask_extended(command::WRITE, payload | CommandFlags::FUA, 4096, 1024);
    assert_eq!(accepted(decoded), Command::Write { range: RANGE, fua: true });
    let without = extended_header(command::WRITE, CommandFlags::FUA, 4096, 1024);
    let write = accepted(ask_extended(command::WRITE, CommandFlags::FUA, 4096, 1024));
    assert_eq!(write, Command::Write { range: RANGE, fua: true });
    assert_eq!(peek(&without, MessageForm::Extended), Some((4096, 1024)));
    let beyond = ask_extended(command::WRITE, NONE, u64::MAX, 512);
    assert_eq!(refused(beyond), (ErrorCode::NoSpace, 512), "the payload is skipped");
    let too_long = ask_extended(command::WRITE, payload, 0, 128 << 10);
    assert_eq!(refused(too_long), (ErrorCode::Invalid, 128 << 10));
    let (length, max) = (1 << 32, u64::from(PAYLOAD_SKIP_BYTES_MAX));
    let oversized = Decoded::Broken(Breach::OversizedPayload { length });
    assert_eq!(ask_extended(command::WRITE, payload, 0, length), oversized);
    assert_eq!(refused(ask_extended(command::WRITE, payload, 0, max)).1, PAYLOAD_SKIP_BYTES_MAX);
}

#[test]
fn an_extended_payload_where_none_belongs_is_skipped_and_refused() {
    for number in RANGED.into_iter().chain([command::FLUSH, 99]) {
        let decoded = ask_extended(number, CommandFlags::PAYLOAD_LEN, 0, 512);
        match number {
            command::WRITE => _ = accepted(decoded),
            _ => assert_eq!(refused(decoded), (ErrorCode::Invalid, 512), "command {number}"),
        }
    }
}

#[test]
fn the_payload_flag_is_invalid_in_a_compact_request() {
    for number in [command::READ, command::WRITE, command::BLOCK_STATUS] {
        let decoded = ask(&everything(), number, CommandFlags::PAYLOAD_LEN, 0, 512);
        assert_eq!(refused(decoded).0, ErrorCode::Invalid);
    }
}

#[test]
fn a_request_of_the_other_form_ends_the_connection() {
    let mut compact = header(command::READ, NONE, 0, 512);
    compact.extend([0; 4]);
    let broken = |found, expected| Decoded::Broken(Breach::BadMagic { found, expected });
    let expected = broken(REQUEST_MAGIC, EXTENDED_REQUEST_MAGIC);
    assert_eq!(decode(&compact, &extended()), expected);
    let extended = extended_header(command::READ, NONE, 0, 512);
    let expected = broken(EXTENDED_REQUEST_MAGIC, REQUEST_MAGIC);
    assert_eq!(decode(&extended[..28], &everything()), expected);
}

#[test]
fn a_request_echoes_its_cookie_and_the_offset_of_its_header() {
    let decoded = ask_extended(command::TRIM, NONE, 0x1_0000_0200, 512);
    let Decoded::Request(Request { echo, .. }) = decoded else { panic!("{decoded:?}") };
    assert_eq!((echo.cookie, echo.offset), (COOKIE, 0x1_0000_0200));
    let decoded = ask_extended(command::FLUSH, NONE, 7, 0);
    let Decoded::Refused(Refusal { echo, .. }) = decoded else { panic!("{decoded:?}") };
    assert_eq!((echo.cookie, echo.offset), (COOKIE, 7));
}

fn form() -> impl Strategy<Value = MessageForm> {
    select(vec![MessageForm::Simple, MessageForm::Structured, MessageForm::Extended])
}

proptest! {
    #[test]
    fn arbitrary_headers_never_panic_and_accepted_ranges_lie_inside(
        mut bytes in any::<[u8; REQUEST_BYTES_MAX]>(),
        magic in any::<bool>(),
        number in 0u16..10,
        near in any::<bool>(),
        flags in any::<u16>(),
        form in form(),
        has_contexts in any::<bool>(),
    ) {
        if magic {
            bytes[..4].copy_from_slice(&form.request_magic().to_be_bytes());
            bytes[6..8].copy_from_slice(&number.to_be_bytes());
        }
        if near {
            bytes[4] = 0;
            bytes[5] &= 0x3f;
            bytes[16..22].fill(0);
            bytes[24..form.request_bytes() - 2].fill(0);
        }
        let flags = TransmissionFlags::from_bits_truncate(flags);
        let terms = Terms { flags, form, has_contexts, ..everything() };
        if let Decoded::Request(request) = decode(&bytes[..form.request_bytes()], &terms) {
            let range = range_of(request.command).unwrap_or(ByteRange { offset: 0, length: 512 });
            prop_assert!(range.length > 0);
            prop_assert!(range.offset + range.length <= terms.size_bytes);
            prop_assert_eq!(range.offset % 512, 0);
            prop_assert_eq!(range.length % 512, 0);
        }
    }
}

#[test]
fn peek_returns_offset_and_payload_length() {
    let (plain, form) = (CommandFlags::empty(), MessageForm::Simple);
    assert_eq!(peek(&header(command::READ, plain, 4096, 512), form), Some((4096, 0)));
    let write = header(command::WRITE, plain, u64::MAX, 512);
    assert_eq!(peek(&write, form), Some((u64::MAX, 512)));
    assert_eq!(peek(&[0; 28], form), None);
    let form = MessageForm::Extended;
    let status = extended_header(command::BLOCK_STATUS, CommandFlags::PAYLOAD_LEN, 4096, 12);
    assert_eq!(peek(&status, form), Some((4096, 12)));
    assert_eq!(peek(&extended_header(command::TRIM, plain, 4096, 12), form), Some((4096, 0)));
    assert_eq!(peek(&[0; 32], form), None);
}
