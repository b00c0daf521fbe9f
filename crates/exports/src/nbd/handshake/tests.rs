//! Negotiations: the client's messages and the server's answers.

use std::sync::Arc;

use proptest::collection::vec;
use proptest::prelude::{Strategy, any, prop_assert, prop_assert_eq, prop_oneof, proptest};

use super::{Closing, Handshake, MetaContext, Negotiated, OPTION_BYTES_MAX, Outcome};
use crate::nbd::facts::tests::sample;
use crate::nbd::facts::{ExportFacts, Exports};
use crate::nbd::wire::{
    BASE_ALLOCATION, MessageForm, OPTION_MAGIC, OPTION_REPLY_MAGIC, TransmissionFlags, info,
    option, option_error, option_reply,
};

const FIXED: u32 = 1;
const FIXED_NO_ZEROES: u32 = 3;

fn exports() -> Arc<Exports> {
    let quiet = ExportFacts {
        description: String::new(),
        flags: TransmissionFlags::READ_ONLY,
        contexts: vec![],
        ..sample("quiet")
    };
    Arc::new(Exports::new(vec![sample("disk"), quiet], Some("disk")).unwrap())
}

/// An option as a client sends it.
pub(super) fn opt(number: u32, payload: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend(number.to_be_bytes());
    bytes.extend((payload.len() as u32).to_be_bytes());
    bytes.extend(payload);
    bytes
}

fn string(text: &str) -> Vec<u8> {
    let mut bytes = (text.len() as u32).to_be_bytes().to_vec();
    bytes.extend(text.as_bytes());
    bytes
}

fn info_payload(name: &str, wants: &[u16]) -> Vec<u8> {
    let mut bytes = string(name);
    bytes.extend((wants.len() as u16).to_be_bytes());
    bytes.extend(wants.iter().flat_map(|kind| kind.to_be_bytes()));
    bytes
}

fn meta_payload(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut bytes = string(name);
    bytes.extend((queries.len() as u32).to_be_bytes());
    bytes.extend(queries.iter().flat_map(|query| string(query)));
    bytes
}

/// The result of a whole negotiation.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Talk {
    pub(super) output: Vec<u8>,
    pub(super) consumed: usize,
    pub(super) outcome: Option<Outcome>,
}

/// What comes of bytes in a negotiation that has begun.
pub(super) fn talk_on(handshake: &mut Handshake, bytes: &[u8]) -> Talk {
    let mut talk = Talk { output: Vec::new(), consumed: 0, outcome: None };
    while talk.consumed < bytes.len() && talk.outcome.is_none() {
        talk.consumed += handshake.input(&bytes[talk.consumed..]);
        talk.output.extend(handshake.take_output());
        talk.outcome = handshake.take_outcome();
    }
    talk
}

/// Feeds `bytes` in pieces of the given lengths, repeatedly, and takes output as it comes.
fn talk_in_pieces(bytes: &[u8], pieces: &[usize]) -> Talk {
    let mut handshake = Handshake::new(exports());
    let mut talk = Talk { output: handshake.take_output(), consumed: 0, outcome: None };
    for &piece in pieces.iter().cycle() {
        let end = bytes.len().min(talk.consumed + piece);
        talk.consumed += handshake.input(&bytes[talk.consumed..end]);
        talk.output.extend(handshake.take_output());
        talk.outcome = handshake.take_outcome();
        if talk.outcome.is_some() || talk.consumed == bytes.len() {
            break;
        }
    }
    talk
}

fn talk(client_flags: u32, options: &[Vec<u8>]) -> Talk {
    let mut bytes = client_flags.to_be_bytes().to_vec();
    bytes.extend(options.concat());
    talk_in_pieces(&bytes, &[usize::MAX / 2])
}

/// The replies, after the greeting if there is one, as option, kind and payload.
pub(super) fn replies(talk: &Talk) -> Vec<(u32, u32, Vec<u8>)> {
    let mut rest = talk.output.as_slice();
    rest = rest.strip_prefix(b"NBDMAGICIHAVEOPT\0\x03").unwrap_or(rest);
    let mut replies = Vec::new();
    while !rest.is_empty() {
        let number = |at: usize| u32::from_be_bytes(rest[at..at + 4].try_into().unwrap());
        assert_eq!(rest[..8], OPTION_REPLY_MAGIC.to_be_bytes());
        let end = 20 + number(16) as usize;
        replies.push((number(8), number(12), rest[20..end].to_vec()));
        rest = &rest[end..];
    }
    replies
}

pub(super) fn kinds(talk: &Talk) -> Vec<u32> {
    replies(talk).into_iter().map(|(_, kind, _)| kind).collect()
}

pub(super) fn negotiated(talk: Talk) -> Negotiated {
    match talk.outcome {
        Some(Outcome::Transmission(negotiated)) => negotiated,
        other => panic!("expected transmission, found {other:?}"),
    }
}

fn closing(talk: Talk) -> Closing {
    match talk.outcome {
        Some(Outcome::Closed(closing)) => closing,
        other => panic!("expected a close, found {other:?}"),
    }
}

#[test]
fn the_greeting_offers_fixed_newstyle_and_no_zeroes() {
    let mut handshake = Handshake::new(exports());
    assert_eq!(handshake.take_output(), b"NBDMAGICIHAVEOPT\0\x03");
}

#[test]
fn nothing_is_consumed_while_output_waits() {
    let mut handshake = Handshake::new(exports());
    assert_eq!(handshake.input(&[0; 4]), 0);
    handshake.take_output();
    assert_eq!(handshake.input(&FIXED.to_be_bytes()), 4);
    let two = [opt(option::LIST, &[]), opt(option::LIST, &[])].concat();
    assert_eq!(handshake.input(&two), 16);
    assert_eq!(handshake.input(&two[16..]), 0);
}

#[test]
fn unknown_client_flags_close_the_connection() {
    assert_eq!(closing(talk(5, &[])), Closing::BadClientFlags { found: 5 });
}

#[test]
fn a_wrong_option_magic_closes_the_connection() {
    let talk = talk(FIXED, &[vec![0; 16]]);
    assert_eq!(closing(talk), Closing::BadOptionMagic { found: 0 });
}

#[test]
fn without_fixed_newstyle_only_export_name_is_understood() {
    let refused = talk(0, &[opt(option::LIST, &[])]);
    assert_eq!(closing(refused), Closing::NotFixedNewstyle { option: option::LIST });
    assert_eq!(negotiated(talk(0, &[opt(option::EXPORT_NAME, b"disk")])).export, 0);
}

#[test]
fn export_name_answers_size_flags_and_zeroes_unless_declined() {
    let with = talk(FIXED, &[opt(option::EXPORT_NAME, b"quiet")]);
    assert_eq!(with.output.len(), 18 + 134);
    assert_eq!(with.output[18..26], (1u64 << 20).to_be_bytes());
    assert_eq!(with.output[26..28], 3u16.to_be_bytes());
    assert!(with.output[28..].iter().all(|&byte| byte == 0));
    let without = talk(FIXED_NO_ZEROES, &[opt(option::EXPORT_NAME, b"quiet")]);
    assert_eq!(without.output.len(), 18 + 10);
    let agreed = negotiated(without);
    assert!(!agreed.client_knows_block_size && agreed.form == MessageForm::Simple);
    assert_eq!(agreed.export, 1);
}

#[test]
fn export_name_of_an_unknown_or_invalid_name_closes_without_reply() {
    let unknown = talk(FIXED, &[opt(option::EXPORT_NAME, b"nosuch")]);
    assert_eq!(unknown.output.len(), 18);
    assert_eq!(closing(unknown), Closing::ExportUnknown { name: "nosuch".to_owned() });
    for name in [vec![b'x'; 4097], vec![0xff, 0xfe], b"a\0b".to_vec()] {
        let improper = talk(FIXED, &[opt(option::EXPORT_NAME, &name)]);
        assert!(matches!(closing(improper), Closing::BadExportName { .. }));
    }
}

#[test]
fn the_empty_name_enters_the_default_export() {
    assert_eq!(negotiated(talk(FIXED, &[opt(option::EXPORT_NAME, b"")])).export, 0);
    assert_eq!(negotiated(talk(FIXED, &[opt(option::GO, &info_payload("", &[]))])).export, 0);
}

#[test]
fn list_names_every_export_with_its_description() {
    let listing = talk(FIXED, &[opt(option::LIST, &[])]);
    let server = |name: &str, description: &str| {
        (option::LIST, option_reply::SERVER, [&string(name), description.as_bytes()].concat())
    };
    let ack = (option::LIST, option_reply::ACK, vec![]);
    let expected = vec![server("disk", "the disk volume"), server("quiet", ""), ack];
    assert_eq!(replies(&listing), expected);
    assert_eq!(listing.outcome, None);
}

#[test]
fn list_with_a_payload_is_invalid() {
    let talk = talk(FIXED, &[opt(option::LIST, b"x"), opt(option::LIST, &[])]);
    assert_eq!(kinds(&talk)[..2], [option_error::INVALID, option_reply::SERVER]);
}

#[test]
fn abort_is_acknowledged_before_the_close() {
    let talk = talk(FIXED, &[opt(option::ABORT, b"whatever")]);
    assert_eq!(kinds(&talk), [option_reply::ACK]);
    assert_eq!(closing(talk), Closing::Aborted);
}

#[test]
fn go_sends_requested_information_and_enters_transmission() {
    let wants = [info::NAME, info::DESCRIPTION, info::BLOCK_SIZE, info::NAME, 77];
    let talk = talk(FIXED, &[opt(option::GO, &info_payload("", &wants))]);
    let told: Vec<_> = replies(&talk).into_iter().map(|(_, _, payload)| payload).collect();
    let flags = sample("disk").offered_flags(MessageForm::Simple).bits().to_be_bytes();
    assert_eq!(told[0], [&[0, 0], &(1u64 << 20).to_be_bytes()[..], &flags].concat());
    assert_eq!(told[1], b"\0\x01disk");
    assert_eq!(told[2], b"\0\x02the disk volume");
    let sizes = [&[0, 3], &512u32.to_be_bytes()[..], &4096u32.to_be_bytes(), &[0, 0x10, 0, 0]];
    assert_eq!(told[3], sizes.concat());
    assert_eq!(told.len(), 5);
    let agreed = negotiated(talk);
    assert!(agreed.client_knows_block_size);
    let terms = agreed.terms(&sample("disk"));
    assert_eq!((terms.alignment, terms.payload_bytes_max), (512, 1 << 20));
    assert!(!terms.has_contexts);
}

#[test]
fn go_without_asking_for_block_sizes_demands_no_alignment() {
    let talk = talk(FIXED, &[opt(option::GO, &info_payload("disk", &[info::NAME]))]);
    assert_eq!(kinds(&talk), [option_reply::INFO, option_reply::INFO, option_reply::ACK]);
    let agreed = negotiated(talk);
    assert!(!agreed.client_knows_block_size);
    assert_eq!(agreed.terms(&sample("disk")).alignment, 1);
}

#[test]
fn info_describes_and_stays_in_negotiation() {
    let asked = opt(option::INFO, &info_payload("quiet", &[info::DESCRIPTION]));
    let talk = talk(FIXED, &[asked]);
    assert_eq!(kinds(&talk), [option_reply::INFO, option_reply::ACK]);
    assert_eq!(talk.outcome, None);
}

#[test]
fn an_unknown_export_is_refused_by_name_and_negotiation_goes_on() {
    let long = "€".repeat(100);
    for name in ["nosuch", &long] {
        let go = opt(option::GO, &info_payload(name, &[]));
        let talk = talk(FIXED, &[go, opt(option::GO, &info_payload("disk", &[]))]);
        let first = replies(&talk).remove(0);
        assert_eq!(first.1, option_error::UNKNOWN);
        assert!(str::from_utf8(&first.2).unwrap().contains(&name[..6]));
        negotiated(talk);
    }
}

#[test]
fn a_malformed_info_payload_is_invalid_and_negotiation_goes_on() {
    let whole = info_payload("disk", &[info::NAME]);
    let mut bad: Vec<Vec<u8>> = (0..whole.len()).map(|end| whole[..end].to_vec()).collect();
    bad.push([&whole[..], b"x"].concat());
    bad.push([&u32::MAX.to_be_bytes()[..], b"disk"].concat());
    bad.push([&2u32.to_be_bytes()[..], &[0xff, 0xfe], &[0, 0]].concat());
    let options: Vec<_> = bad.iter().map(|payload| opt(option::GO, payload)).collect();
    let talk = talk(FIXED, &options);
    assert_eq!(kinds(&talk), vec![option_error::INVALID; bad.len()]);
    assert_eq!(talk.outcome, None);
}

#[test]
fn a_name_beyond_4096_bytes_is_too_big() {
    let talk = talk(FIXED, &[opt(option::INFO, &info_payload(&"x".repeat(4097), &[]))]);
    assert_eq!(kinds(&talk), [option_error::TOO_BIG]);
}

#[test]
fn structured_replies_are_granted_and_offer_unfragmented_reads() {
    let structured = opt(option::STRUCTURED_REPLY, &[]);
    let go = opt(option::GO, &info_payload("disk", &[]));
    let agreed = negotiated(talk(FIXED, &[structured, go.clone()]));
    assert_eq!(agreed.form, MessageForm::Structured);
    assert!(agreed.flags.contains(TransmissionFlags::SEND_DF));
    let plain = negotiated(talk(FIXED, &[go]));
    assert_eq!(plain.form, MessageForm::Simple);
    assert!(!plain.flags.contains(TransmissionFlags::SEND_DF));
    let bad = talk(FIXED, &[opt(option::STRUCTURED_REPLY, b"x")]);
    assert_eq!(kinds(&bad), [option_error::INVALID]);
}

#[test]
fn extended_headers_are_granted_with_and_without_structured_replies_and_never_left() {
    let extended = || opt(option::EXTENDED_HEADERS, &[]);
    let structured = || opt(option::STRUCTURED_REPLY, &[]);
    let ack = option_reply::ACK;
    for (options, expected) in [
        (vec![extended()], vec![ack]),
        (vec![structured(), extended()], vec![ack, ack]),
        (vec![extended(), extended()], vec![ack, ack]),
        (vec![extended(), structured()], vec![ack, option_error::EXT_HEADER_REQD]),
    ] {
        let then = [set("disk", &[BASE_ALLOCATION]), go("disk")];
        let talk = talk(FIXED, &[&options[..], &then].concat());
        assert_eq!(kinds(&talk)[..expected.len()], expected);
        let agreed = negotiated(talk);
        assert_eq!((agreed.form, agreed.contexts.len()), (MessageForm::Extended, 1));
        assert!(agreed.flags.contains(TransmissionFlags::SEND_DF));
    }
}

#[test]
fn extended_headers_with_a_payload_are_invalid_and_not_in_use() {
    let bad = opt(option::EXTENDED_HEADERS, b"x");
    let talk = talk(FIXED, &[bad, opt(option::EXPORT_NAME, b"disk")]);
    assert_eq!(negotiated(talk).form, MessageForm::Simple);
}

#[test]
fn export_name_after_extended_headers_closes_without_reply() {
    let extended = opt(option::EXTENDED_HEADERS, &[]);
    let talk = talk(FIXED, &[extended, opt(option::EXPORT_NAME, b"disk")]);
    assert_eq!(talk.output.len(), 18 + 20, "the greeting and the acknowledgement");
    assert_eq!(closing(talk), Closing::ExportNameForExtended);
}

#[test]
fn options_that_are_not_served_are_refused_and_their_payload_skipped() {
    let unserved = [option::STARTTLS, option::PEEK_EXPORT, 12, 4711];
    for number in unserved {
        let talk = talk(FIXED, &[opt(number, &[7; 99]), opt(option::ABORT, &[])]);
        assert_eq!(kinds(&talk), [option_error::UNSUP, option_reply::ACK]);
        assert_eq!(closing(talk), Closing::Aborted);
    }
}

#[test]
fn an_oversized_option_is_too_big_and_its_payload_is_never_held() {
    let mut handshake = Handshake::new(exports());
    handshake.take_output();
    handshake.input(&FIXED.to_be_bytes());
    let length = OPTION_BYTES_MAX + 1;
    let bytes = opt(option::GO, &vec![0; length as usize]);
    assert_eq!(handshake.input(&bytes[..bytes.len() - 1]), bytes.len() - 1);
    assert!(handshake.buffer.capacity() < 100, "{}", handshake.buffer.capacity());
    assert!(handshake.take_output().is_empty());
    assert_eq!(handshake.input(&[0]), 1);
    let output = handshake.take_output();
    assert_eq!(output[12..16], option_error::TOO_BIG.to_be_bytes());
}

fn structured_then(options: &[Vec<u8>]) -> Talk {
    talk(FIXED, &[&[opt(option::STRUCTURED_REPLY, &[])], options].concat())
}

pub(super) fn set(name: &str, queries: &[&str]) -> Vec<u8> {
    opt(option::SET_META_CONTEXT, &meta_payload(name, queries))
}

pub(super) fn list(name: &str, queries: &[&str]) -> Vec<u8> {
    opt(option::LIST_META_CONTEXT, &meta_payload(name, queries))
}

pub(super) fn go(name: &str) -> Vec<u8> {
    opt(option::GO, &info_payload(name, &[]))
}

/// The numbers and names of the contexts in the replies.
fn contexts(talk: &Talk) -> Vec<(u32, String)> {
    let is_context = |kind| kind == option_reply::META_CONTEXT;
    let replies = replies(talk).into_iter().filter(|(_, kind, _)| is_context(*kind));
    let parsed = replies.map(|(_, _, payload)| {
        let id = u32::from_be_bytes(payload[..4].try_into().unwrap());
        (id, String::from_utf8(payload[4..].to_vec()).unwrap())
    });
    parsed.collect()
}

#[test]
fn metadata_contexts_need_structured_replies_first() {
    let talk = talk(FIXED, &[set("disk", &[BASE_ALLOCATION]), list("disk", &[])]);
    assert_eq!(kinds(&talk), [option_error::INVALID, option_error::INVALID]);
}

#[test]
fn a_listing_without_queries_or_with_a_wildcard_finds_contexts() {
    let listed = |queries: &[&str]| {
        let found = contexts(&structured_then(&[list("disk", queries)]));
        assert!(found.iter().all(|(id, _)| *id == 0));
        found.into_iter().map(|(_, name)| name).collect::<Vec<_>>()
    };
    assert_eq!(listed(&[]), [BASE_ALLOCATION, "x-cairn:dirty"]);
    assert_eq!(listed(&["base:"]), [BASE_ALLOCATION]);
    assert_eq!(listed(&["x-cairn:dirty", "x-cairn:", "x-cairn:dirty"]), ["x-cairn:dirty"]);
    assert_eq!(listed(&["base:allocation", "base:nosuch", "qemu:"]), [BASE_ALLOCATION]);
    assert!(listed(&["base:alloc"]).is_empty());
}

#[test]
fn a_selection_is_kept_for_transmission() {
    let talk = structured_then(&[set("disk", &["base:allocation", "x-other:"]), go("disk")]);
    assert_eq!(contexts(&talk), [(1, BASE_ALLOCATION.to_owned())]);
    let agreed = negotiated(talk);
    assert_eq!(agreed.contexts, [MetaContext { id: 1, name: BASE_ALLOCATION.to_owned() }]);
    assert!(agreed.terms(&sample("disk")).has_contexts);
}

#[test]
fn a_wildcard_or_an_empty_list_selects_nothing() {
    for queries in [&["base:"][..], &[]] {
        let talk = structured_then(&[set("disk", queries), go("disk")]);
        assert!(contexts(&talk).is_empty());
        assert!(negotiated(talk).contexts.is_empty());
    }
}

#[test]
fn a_second_selection_replaces_the_first_even_if_it_fails() {
    let both = ["x-cairn:dirty", "base:allocation"];
    let chosen = |options: &[Vec<u8>]| negotiated(structured_then(options)).contexts.len();
    assert_eq!(chosen(&[set("disk", &["base:allocation"]), set("disk", &both), go("disk")]), 2);
    assert_eq!(chosen(&[set("disk", &both), set("disk", &["nocolon"]), go("disk")]), 0);
    assert_eq!(chosen(&[set("disk", &both), set("nosuch", &both), go("disk")]), 0);
}

#[test]
fn selection_belongs_to_its_export_under_any_name() {
    let chosen = |options: &[Vec<u8>]| negotiated(structured_then(options)).contexts.len();
    let select = set("disk", &[BASE_ALLOCATION]);
    assert_eq!(chosen(&[select.clone(), go("quiet")]), 0);
    assert_eq!(chosen(&[select.clone(), go("")]), 1);
    let info = opt(option::INFO, &info_payload("quiet", &[]));
    assert_eq!(chosen(&[select.clone(), info, go("disk")]), 1);
    assert_eq!(chosen(&[select.clone(), go("nosuch"), go("disk")]), 1);
    assert_eq!(chosen(&[select, opt(option::EXPORT_NAME, b"disk")]), 1);
}

#[test]
fn contexts_of_an_unknown_export_are_refused() {
    let talk = structured_then(&[set("nosuch", &[]), list("nosuch", &[])]);
    assert_eq!(kinds(&talk)[1..], [option_error::UNKNOWN, option_error::UNKNOWN]);
}

#[test]
fn a_malformed_query_list_is_invalid_and_a_long_query_too_big() {
    let whole = meta_payload("disk", &[BASE_ALLOCATION]);
    let mut options: Vec<_> =
        (0..whole.len()).map(|end| opt(option::SET_META_CONTEXT, &whole[..end])).collect();
    options.push(opt(option::SET_META_CONTEXT, &[&whole[..], b"x"].concat()));
    options.push(set("disk", &["nocolon"]));
    options.push(set("disk", &[""]));
    let mut expected = vec![option_reply::ACK];
    expected.extend(vec![option_error::INVALID; options.len()]);
    options.push(set("disk", &[&format!("base:{}", "x".repeat(4096))]));
    expected.push(option_error::TOO_BIG);
    assert_eq!(kinds(&structured_then(&options)), expected);
}

#[test]
fn bytes_after_the_last_option_are_left_for_transmission() {
    let talk = talk(FIXED, &[go("disk"), vec![0x25, 0x60, 0x95, 0x13]]);
    assert_eq!(talk.consumed, 4 + go("disk").len());
    negotiated(talk);
}

#[test]
fn a_finished_negotiation_consumes_nothing_even_after_its_outcome_was_taken() {
    let mut handshake = Handshake::new(exports());
    handshake.take_output();
    handshake.input(&u32::MAX.to_be_bytes());
    assert!(handshake.take_outcome().is_some());
    assert_eq!(handshake.input(&[0; 64]), 0);
    assert_eq!(handshake.take_outcome(), None);
}

/// Options that are well-formed, nearly so, or random bytes.
fn some_option() -> impl Strategy<Value = Vec<u8>> {
    let name = || prop_oneof!["disk", "quiet", "", "nosuch"];
    let query = prop_oneof!["base:allocation", "base:", "x-cairn:[a-z]{0,5}", "[a-z]{0,3}"];
    let meta = (9u32..11, name(), vec(query, 0..4)).prop_map(|(number, name, queries)| {
        let queries: Vec<_> = queries.iter().map(String::as_str).collect();
        opt(number, &meta_payload(&name, &queries))
    });
    let describe = (6u32..8, name(), vec(0u16..5, 0..4))
        .prop_map(|(number, name, wants)| opt(number, &info_payload(&name, &wants)));
    let noise = (0u32..14, vec(any::<u8>(), 0..40)).prop_map(|(number, data)| opt(number, &data));
    let plain = prop_oneof![3u32..4, 8u32..9, 11u32..12].prop_map(|number| opt(number, &[]));
    prop_oneof![4 => meta, 4 => describe, 1 => noise, 4 => plain, 1 => vec(any::<u8>(), 0..40)]
}

proptest! {
    #[test]
    fn splitting_the_input_does_not_change_the_conversation(
        flags in prop_oneof![8 => 0u32..4, 1 => any::<u32>()],
        options in vec(some_option(), 0..8),
        pieces in vec(1usize..40, 1..20),
    ) {
        let mut bytes = flags.to_be_bytes().to_vec();
        bytes.extend(options.concat());
        let whole = talk_in_pieces(&bytes, &[bytes.len()]);
        prop_assert_eq!(&talk_in_pieces(&bytes, &pieces), &whole);
        prop_assert!(whole.outcome.is_some() || whole.consumed == bytes.len());
    }

    #[test]
    fn arbitrary_bytes_never_panic(bytes in vec(any::<u8>(), 1..600)) {
        talk_in_pieces(&bytes, &[bytes.len()]);
    }
}

#[test]
fn refused_client_gets_the_reason_when_it_asks_for_an_export() {
    for number in [option::GO, option::INFO, option::LIST, option::EXPORT_NAME] {
        let mut handshake = Handshake::refusing("too many".to_owned());
        let greeted = handshake.take_output();
        assert_eq!(&greeted[..8], b"NBDMAGIC");
        handshake.input(&FIXED.to_be_bytes());
        handshake.input(&opt(option::STRUCTURED_REPLY, &[]));
        assert_eq!(handshake.take_output()[12..16], option_reply::ACK.to_be_bytes());
        handshake.input(&opt(number, &string("disk")));
        let reply = handshake.take_output();
        if number == option::EXPORT_NAME {
            assert!(reply.is_empty(), "it has no way to hear");
        } else {
            assert_eq!(reply[12..16], option_error::POLICY.to_be_bytes());
            assert!(reply.ends_with(b"too many"));
        }
        let refused = Closing::Refused { reason: "too many".to_owned() };
        assert_eq!(handshake.take_outcome(), Some(Outcome::Closed(refused)));
    }
}
