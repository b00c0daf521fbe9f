//! Negotiations with TLS: before it, the change to it, and what a certificate's names open.

use std::sync::Arc;

use super::tests::{go, kinds, list, negotiated, opt, replies, set, talk_on};
use super::{Closing, Handshake, Outcome, Security};
use crate::nbd::facts::tests::sample;
use crate::nbd::facts::{ExportFacts, Exports};
use crate::nbd::wire::{MessageForm, option, option_error, option_reply};

const ALL: [u32; 11] = [1, 3, 4, 6, 7, 8, 9, 10, 11, 12, 99];

/// `open` for every client, `alice` and `both` for those with names; the default is `alice`.
fn exports() -> Arc<Exports> {
    let only = |export: &str, names: &[&str]| ExportFacts {
        clients: names.iter().map(|&name| name.to_owned()).collect(),
        ..sample(export)
    };
    let all = vec![sample("open"), only("alice", &["alice"]), only("both", &["alice", "bob"])];
    Arc::new(Exports::new(all, Some("alice")).unwrap())
}

fn with(security: Security) -> Handshake {
    let mut handshake = Handshake::with_security(exports(), security);
    handshake.take_output();
    assert_eq!(handshake.input(&3_u32.to_be_bytes()), 4);
    handshake
}

fn secured(names: &[&str]) -> Handshake {
    let mut handshake = with(Security::Required);
    handshake.input(&opt(option::STARTTLS, &[]));
    handshake.take_output();
    assert_eq!(handshake.take_outcome(), Some(Outcome::StartTls));
    handshake.secured(names.iter().map(|&name| name.to_owned()).collect());
    handshake
}

#[test]
fn starttls_is_acknowledged_and_no_byte_behind_it_is_consumed() {
    for security in [Security::Offered, Security::Required] {
        let mut handshake = with(security);
        let bytes = [opt(option::STARTTLS, &[]), opt(option::LIST, &[])].concat();
        let talk = talk_on(&mut handshake, &bytes);
        assert_eq!(kinds(&talk), [option_reply::ACK]);
        assert_eq!((talk.consumed, talk.outcome), (16, Some(Outcome::StartTls)));
        assert_eq!(handshake.input(&bytes[16..]), 0);
    }
}

#[test]
fn starttls_is_refused_if_it_is_not_offered_in_use_or_has_a_payload() {
    let refused = |mut handshake: Handshake, payload: &[u8]| {
        let talk = talk_on(&mut handshake, &opt(option::STARTTLS, payload));
        assert_eq!(talk.outcome, None);
        kinds(&talk)
    };
    assert_eq!(refused(with(Security::Plain), &[]), [option_error::UNSUP]);
    assert_eq!(refused(with(Security::Offered), &[0]), [option_error::INVALID]);
    assert_eq!(refused(with(Security::Required), &[0; 70000]), [option_error::TOO_BIG]);
    assert_eq!(refused(secured(&[]), &[]), [option_error::INVALID]);
}

#[test]
fn without_required_tls_a_client_learns_nothing_about_exports() {
    for number in ALL.into_iter().filter(|number| *number != option::EXPORT_NAME) {
        let mut handshake = with(Security::Required);
        let talk = talk_on(&mut handshake, &opt(number, b"payload"));
        assert_eq!(kinds(&talk), [option_error::TLS_REQD], "{number}");
        assert_eq!(talk.outcome, None);
    }
    let talk = talk_on(&mut with(Security::Required), &opt(option::EXPORT_NAME, b"open"));
    assert_eq!((talk.output.len(), talk.outcome), (0, Some(Outcome::Closed(Closing::TlsRequired))));
    let talk = talk_on(&mut with(Security::Required), &opt(option::ABORT, &[]));
    assert_eq!(kinds(&talk), [option_reply::ACK]);
}

#[test]
fn what_was_agreed_before_tls_is_forgotten() {
    let mut handshake = with(Security::Offered);
    let before = [
        opt(option::STRUCTURED_REPLY, &[]),
        set("open", &["base:allocation"]),
        opt(option::STARTTLS, &[]),
    ];
    talk_on(&mut handshake, &before.concat());
    handshake.secured(Vec::new());
    let negotiated = negotiated(talk_on(&mut handshake, &go("open")));
    assert_eq!(negotiated.form, MessageForm::Simple);
    assert!(negotiated.contexts.is_empty());
}

#[test]
fn clients_find_the_exports_that_admit_a_name_of_theirs() {
    let listed = |mut handshake: Handshake| {
        let talk = talk_on(&mut handshake, &opt(option::LIST, &[]));
        let names = replies(&talk).into_iter().filter(|(_, kind, _)| *kind != option_reply::ACK);
        let text = |payload: Vec<u8>| {
            let len = payload[3] as usize;
            String::from_utf8(payload[4..4 + len].to_vec()).unwrap()
        };
        names.map(|(_, _, payload)| text(payload)).collect::<Vec<_>>()
    };
    assert_eq!(listed(with(Security::Offered)), ["open"]);
    assert_eq!(listed(secured(&[])), ["open"]);
    assert_eq!(listed(secured(&["bob", "carol"])), ["open", "both"]);
    assert_eq!(listed(secured(&["alice"])), ["open", "alice", "both"]);
}

#[test]
fn export_that_does_not_admit_a_client_is_unknown_by_every_option() {
    for name in ["alice", ""] {
        let ask = |bytes: Vec<u8>| talk_on(&mut secured(&["bob"]), &bytes);
        assert_eq!(kinds(&ask(go(name))), [option_error::UNKNOWN]);
        let unknown = ask([opt(option::STRUCTURED_REPLY, &[]), set(name, &[])].concat());
        assert_eq!(kinds(&unknown), [option_reply::ACK, option_error::UNKNOWN]);
        let unknown = ask([opt(option::STRUCTURED_REPLY, &[]), list(name, &[])].concat());
        assert_eq!(kinds(&unknown), [option_reply::ACK, option_error::UNKNOWN]);
        let closed = ask(opt(option::EXPORT_NAME, name.as_bytes()));
        let unknown = Closing::ExportUnknown { name: name.to_owned() };
        assert_eq!(closed.outcome, Some(Outcome::Closed(unknown)));
    }
    assert_eq!(negotiated(talk_on(&mut secured(&["alice"]), &go(""))).export, 1);
    assert_eq!(negotiated(talk_on(&mut secured(&["bob"]), &go("both"))).export, 2);
}
