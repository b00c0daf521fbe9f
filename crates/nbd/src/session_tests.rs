//! A session beside a server that forgets what it did not flush whenever it is lost.

use std::collections::BTreeMap;

use proptest::prelude::*;

use super::*;

const SECTORS: usize = 24;

type Content = [u32; SECTORS];

/// The number of a write stands for the data of each of its sectors.
impl Data for u32 {
    fn part(&self, _bytes: Range<usize>) -> u32 {
        *self
    }
}

/// A server with a volatile cache. Each write carries a number of its own.
#[derive(Default)]
struct Server {
    durable: Content,
    /// Writes in the order in which they were taken, until a flush.
    volatile: Vec<Taken>,
    /// How many writes it has taken, and how many of them are durable.
    taken: usize,
    durable_writes: usize,
    /// What has arrived and was not carried out.
    arrived: Vec<Arrived>,
}

/// A write that the server has taken.
struct Taken {
    range: SectorRange,
    number: u32,
    /// It is durable. It is here for its place among the others.
    is_fua: bool,
}

#[derive(Clone, Copy)]
struct Arrived {
    cookie: u64,
    what: What,
    range: SectorRange,
    is_fua: bool,
    number: u32,
    /// How many writes the server had taken when this arrived: a flush covers no more.
    after: usize,
}

fn put(content: &mut Content, range: SectorRange, number: u32) {
    content[range.start.0 as usize..range.end().0 as usize].fill(number);
}

impl Server {
    fn content(&self) -> Content {
        let mut content = self.durable;
        self.volatile.iter().for_each(|write| put(&mut content, write.range, write.number));
        content
    }

    /// Carries out one of the requests, in whatever order.
    fn carry_out(&mut self, which: usize) -> Option<Arrived> {
        if self.arrived.is_empty() {
            return None;
        }
        let one = self.arrived.remove(which % self.arrived.len());
        match one.what {
            What::Op(Op::Write) => self.take(one),
            What::Op(Op::Flush) => {
                let covered = one.after.saturating_sub(self.durable_writes);
                for write in self.volatile.drain(..covered) {
                    put(&mut self.durable, write.range, write.number);
                    self.durable_writes += 1;
                }
            }
            _ => {}
        }
        Some(one)
    }

    fn take(&mut self, write: Arrived) {
        let Arrived { range, number, is_fua, .. } = write;
        self.volatile.push(Taken { range, number, is_fua });
        self.taken += 1;
    }

    /// The server is killed: of what was not flushed, some is lost.
    fn kill(&mut self, survives: u64) {
        self.arrived.clear();
        let volatile = std::mem::take(&mut self.volatile);
        self.durable_writes = self.taken;
        for (at, write) in volatile.into_iter().enumerate() {
            if write.is_fua || survives >> (at % 64) & 1 == 1 {
                put(&mut self.durable, write.range, write.number);
            }
        }
    }
}

#[derive(Clone, Debug)]
enum Step {
    Write {
        start: usize,
        count: usize,
        fua: bool,
    },
    Flush,
    /// The session sends so many requests.
    Send(usize),
    /// The server carries out one request and answers it.
    Answer(usize),
    /// It carries out one, and the answer is lost with the connection.
    Kill {
        which: Option<usize>,
        survives: u64,
    },
    /// The connection is lost; the server goes on.
    Cut,
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0..SECTORS, 1..6_usize, prop::bool::weighted(0.2))
            .prop_map(|(start, count, fua)| Step::Write { start, count, fua }),
        1 => Just(Step::Flush),
        4 => (1..4_usize).prop_map(Step::Send),
        6 => (0..8_usize).prop_map(Step::Answer),
        1 => (prop::option::of(0..8_usize), any::<u64>())
            .prop_map(|(which, survives)| Step::Kill { which, survives }),
        1 => Just(Step::Cut),
    ]
}

/// The client, and what it may expect.
struct Client {
    session: Session<u32, u32>,
    server: Server,
    /// The last answered write of each sector.
    answered: Content,
    /// Writes without an answer, by their numbers.
    open: BTreeMap<u32, SectorRange>,
    next: u32,
    losses: usize,
}

impl Client {
    fn new(care: Care) -> Client {
        let mut session = Session::new(care);
        session.connected();
        let server = Server::default();
        let mut client = Client {
            session,
            server,
            answered: [0; SECTORS],
            open: BTreeMap::new(),
            next: 1,
            losses: 0,
        };
        // N6.
        client.settle();
        client
    }

    fn submit(&mut self, what: What, range: SectorRange, flags: Flags) {
        let number = self.next;
        self.next += 1;
        if what != What::Op(Op::Flush) {
            self.open.insert(number, range);
        }
        self.session.submit(Ask { what, range, flags, data: number, owner: number });
    }

    fn send(&mut self, most: usize) {
        for _ in 0..most {
            let Some(wire) = self.session.take_next() else { return };
            let (what, range, cookie) = (wire.what, wire.range, wire.cookie);
            let is_fua = wire.flags.contains(Flags::FUA);
            let number = wire.data.copied().unwrap_or(0);
            let writes = |it: &&Arrived| it.what == What::Op(Op::Write) && what == it.what;
            let overlapping = self.server.arrived.iter().filter(writes);
            for other in overlapping {
                assert!(!other.range.overlaps(range), "N1: {range:?} beside {:?}", other.range);
            }
            let after = self.server.taken;
            self.server.arrived.push(Arrived { cookie, what, range, is_fua, number, after });
        }
    }

    fn answer(&mut self, which: usize) {
        let Some(one) = self.server.carry_out(which) else { return };
        let mut told = Vec::new();
        assert!(self.session.answered(one.cookie, Ok(()), &mut |it| told.push(it)));
        self.hear(told);
    }

    fn hear(&mut self, told: Vec<Told<u32, u32>>) {
        for one in told {
            match one {
                Told::Ended(number, result, _) => {
                    result.unwrap();
                    if let Some(range) = self.open.remove(&number) {
                        put(&mut self.answered, range, number);
                    }
                }
                Told::Lost => self.losses += 1,
            }
        }
    }

    fn cut(&mut self) {
        let mut told = Vec::new();
        self.session.lost(&mut |it| told.push(it));
        self.hear(told);
        self.session.connected();
    }

    fn run(&mut self, step: &Step) {
        match *step {
            Step::Write { start, count, fua } => {
                let count = count.min(SECTORS - start) as u64;
                let range = SectorRange::new(Sector(start as u64), SectorCount(count));
                let flags = if fua { Flags::FUA } else { Flags::empty() };
                self.submit(What::Op(Op::Write), range, flags);
            }
            Step::Flush => self.submit(What::Op(Op::Flush), NOWHERE, Flags::empty()),
            Step::Send(most) => self.send(most),
            Step::Answer(which) => self.answer(which),
            Step::Kill { which, survives } => {
                if let Some(which) = which {
                    self.server.carry_out(which);
                }
                self.server.kill(survives);
                self.cut();
            }
            Step::Cut => {
                self.server.arrived.clear();
                self.cut();
            }
        }
    }

    /// Until nothing waits.
    fn settle(&mut self) {
        for _ in 0..10_000 {
            if !self.session.is_busy() && !self.session.has_next() {
                return;
            }
            self.send(usize::MAX);
            self.answer(0);
        }
        panic!("requests wait for ever");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    /// N3: whenever nothing waits, a reader finds the last answered write of each sector.
    #[test]
    fn a_session_that_keeps_writes_loses_none(
        steps in prop::collection::vec(step(), 1..120),
        sectors in 2..64_u64,
    ) {
        let mut client = Client::new(Care::Keep(sectors * 1024));
        for step in &steps {
            client.run(step);
        }
        client.settle();
        prop_assert_eq!(client.server.content(), client.answered);
        prop_assert_eq!(client.losses, 0);
        prop_assert!(client.open.is_empty());
        client.submit(What::Op(Op::Flush), NOWHERE, Flags::empty());
        client.settle();
        client.server.kill(0);
        prop_assert_eq!(client.server.content(), client.answered, "a flush covers all");
        prop_assert_eq!(client.session.kept_bytes(), 0);
        prop_assert_eq!(client.session.bytes, 0);
    }

    /// N5: what a session that does not keep has lost, it tells.
    #[test]
    fn a_session_that_does_not_keep_tells_of_a_loss(
        steps in prop::collection::vec(step(), 1..120),
    ) {
        let mut client = Client::new(Care::Tell);
        for step in &steps {
            client.run(step);
        }
        client.settle();
        let same = client.server.content() == client.answered;
        prop_assert!(same || client.losses > 0);
    }
}

#[test]
fn a_write_waits_for_one_that_it_overlaps_and_others_pass() {
    let mut client = Client::new(Care::Tell);
    let range = |start, count| SectorRange::new(Sector(start), SectorCount(count));
    for at in [range(0, 4), range(2, 4), range(5, 4), range(10, 1)] {
        client.submit(What::Op(Op::Write), at, Flags::empty());
    }
    client.send(usize::MAX);
    let sent = |client: &Client| {
        client.server.arrived.iter().map(|it| it.range.start.0).collect::<Vec<_>>()
    };
    assert_eq!(sent(&client), [0, 10], "the third would pass the second");
    client.answer(0);
    client.send(usize::MAX);
    assert_eq!(sent(&client), [10, 2]);
}

#[test]
fn a_full_memory_flushes_and_lets_writes_wait() {
    let mut client = Client::new(Care::Keep(12 * 4352));
    for at in 0..20 {
        client.run(&Step::Write { start: at, count: 1, fua: false });
    }
    client.send(usize::MAX);
    let sent = client.server.arrived.len();
    assert!((8..16).contains(&sent), "{sent}");
    client.settle();
    assert!(client.server.durable != [0; SECTORS], "it flushed by itself");
    assert!(client.open.is_empty());
}

#[test]
fn requests_fail_when_no_connection_comes_and_what_is_kept_stays() {
    let mut client = Client::new(Care::Keep(1 << 20));
    client.run(&Step::Write { start: 0, count: 4, fua: false });
    client.settle();
    client.run(&Step::Write { start: 2, count: 4, fua: false });
    client.send(usize::MAX);
    client.server.kill(0);
    let mut told = Vec::new();
    client.session.lost(&mut |it| told.push(it));
    client.session.give_up(IoError::IO, &mut |it| told.push(it));
    assert!(matches!(told.as_slice(), [Told::Ended(2, Err(IoError::IO), _)]));
    client.session.connected();
    client.settle();
    assert_eq!(client.server.content()[..6], [1, 1, 1, 1, 0, 0]);
}

#[test]
fn a_durable_write_is_not_made_older_while_others_are_sent_again() {
    let mut client = Client::new(Care::Keep(1 << 20));
    client.run(&Step::Write { start: 0, count: 8, fua: false });
    client.settle();
    client.run(&Step::Write { start: 2, count: 4, fua: true });
    client.settle();
    client.server.kill(0);
    client.cut();
    while client.session.has_next() {
        client.send(1);
        client.answer(0);
        assert_eq!(client.server.content()[2..6], [2; 4], "a client may be killed here");
    }
    assert_eq!(client.server.content()[..8], [1, 1, 2, 2, 2, 2, 1, 1]);
}

#[test]
fn parts_of_a_write_take_the_memory_of_the_whole_until_the_last_is_covered() {
    let mut client = Client::new(Care::Keep(1 << 20));
    client.run(&Step::Write { start: 0, count: 9, fua: false });
    client.settle();
    let whole = client.session.bytes;
    client.run(&Step::Write { start: 2, count: 4, fua: true });
    client.settle();
    assert_eq!((client.session.bytes, client.session.kept.len()), (whole, 2));
    client.run(&Step::Write { start: 0, count: 2, fua: true });
    client.run(&Step::Write { start: 5, count: 4, fua: true });
    client.settle();
    assert_eq!((client.session.bytes, client.session.kept.len()), (0, 0));
}

#[test]
fn a_session_begins_with_a_flush_and_sends_nothing_else_before_its_answer() {
    let mut session = Session::<u32, u32>::new(Care::Keep(1 << 20));
    let read = SectorRange::new(Sector(0), SectorCount(1));
    let (what, flags) = (What::Op(Op::Read), Flags::empty());
    session.submit(Ask { what, range: read, flags, data: 0, owner: 1 });
    for _ in 0..2 {
        session.connected();
        let wire = session.take_next().expect("the first flush");
        assert_eq!(wire.what, What::Op(Op::Flush));
        assert!(session.take_next().is_none());
        session.lost(&mut |_| panic!("nothing was told"));
    }
    session.connected();
    let cookie = session.take_next().expect("the first flush").cookie;
    let mut losses = 0;
    session.answered(cookie, Err(IoError::IO), &mut |told| {
        losses += u32::from(matches!(told, Told::Lost));
    });
    assert_eq!(losses, 1, "what was left may be lost");
    assert_eq!(session.take_next().map(|wire| wire.what), Some(What::Op(Op::Read)));
}

/// Each connection ends after so many answers.
#[test]
fn connections_that_are_always_lost_get_on_with_what_is_sent_again() {
    let mut client = Client::new(Care::Keep(1 << 20));
    for at in (0..SECTORS).step_by(2) {
        client.run(&Step::Write { start: at, count: 1, fua: false });
    }
    client.settle();
    client.server.kill(0);
    client.cut();
    let mut connections = 0;
    while client.session.kept_bytes() > 4 * 4352 {
        connections += 1;
        assert!(connections < 100, "it does not get on");
        client.send(usize::MAX);
        for _ in 0..4 {
            client.answer(0);
            client.send(usize::MAX);
        }
        client.server.kill(0);
        client.cut();
    }
    client.settle();
    assert_eq!(client.server.content(), client.answered);
    assert_eq!(client.losses, 0);
}

/// A loss of the connection puts a flush of the session's own back, which no owner waits for.
#[test]
fn a_flush_of_the_session_itself_is_waited_for_by_nobody() {
    let bytes = cost(What::Op(Op::Write), SectorRange::new(Sector(0), SectorCount(1)));
    let mut client = Client::new(Care::Keep(4 * bytes));
    client.settle();
    for start in 0..3 {
        client.run(&Step::Write { start, count: 1, fua: false });
        assert!(client.session.is_waited_for());
        client.send(usize::MAX);
        // The third write has a flush before it, which has no answer yet.
        client.answer(1);
    }
    assert!(client.session.is_busy() && !client.session.is_waited_for());
    client.run(&Step::Cut);
    assert!(client.session.is_busy() && !client.session.is_waited_for());
}

/// Each connection ends at its fourth request, or after three answers.
#[test]
fn connections_that_end_soon_get_on_with_what_waits() {
    let mut client = Client::new(Care::Tell);
    for start in 0..SECTORS {
        client.run(&Step::Write { start, count: 1, fua: false });
    }
    let mut connections = 0;
    while client.session.is_busy() {
        connections += 1;
        assert!(connections < 50, "{} requests have no answer", client.open.len());
        for _ in 0..3 {
            client.send(usize::MAX);
            if client.server.arrived.len() > 3 {
                break;
            }
            client.answer(0);
        }
        client.run(&Step::Cut);
    }
    assert_eq!(client.server.content(), client.answered);
}

#[test]
fn counts_tell_what_was_written_again_and_what_had_no_answer() {
    let mut client = Client::new(Care::Keep(1 << 20));
    client.run(&Step::Write { start: 0, count: 4, fua: false });
    client.settle();
    client.run(&Step::Write { start: 8, count: 4, fua: false });
    client.send(usize::MAX);
    client.server.kill(0);
    let held = client.session.held_bytes();
    assert_eq!(held, 2 * (256 + 4096));
    client.session.lost(&mut |_| {});
    assert_eq!(client.session.counts(), Counts { replayed_bytes: 0, unanswered: 1 });
    client.session.connected();
    client.settle();
    assert_eq!(client.session.counts(), Counts { replayed_bytes: 4 * 512, unanswered: 1 });
    assert_eq!(client.session.held_bytes(), held);
}
