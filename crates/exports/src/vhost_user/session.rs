//! [`Session`]: one driver, from its first message until its socket closes.
//!
//! The driver's side negotiates features, shares its memory, describes its rings and starts them.
//! The session answers, and keeps the state; [`super::queue`] does the work of a ring that runs.
//!
//! - S1. A ring that runs uses the memory, addresses and features that were in force when it was
//!   started. A message that changes any of them stops the rings that use it first. So no request
//!   that was taken under the old ones is left.
//! - S2. The session ends only when all of its rings have stopped. So what a driver that has gone
//!   had submitted is done, and its memory no longer used, before another driver is heard.
//! - S3. A loss that one ring's driver was not told of is owed to the ring that takes its place,
//!   also in the next session.
//! - S4. Writes are durable when they end unless the driver may and does flush: it accepted
//!   `FLUSH`, and did not choose otherwise if it accepted `CONFIG_WCE`. The choice outlives the
//!   session, and with memory for what is in flight this process.
//! - S5. In a pause the session takes no message, and leaves from it only: what it leaves with is
//!   all that is known of it (see [`super::known`]).

use std::os::fd::{AsFd, OwnedFd};
use std::sync::Arc;

use cairn_block::sync::atomic::{AtomicBool, Ordering};
use cairn_block::{Env, Mail, ReactorId, yield_once};
use rustix::fs::{MemfdFlags, SealFlags, fcntl_add_seals, ftruncate, memfd_create};
use zerocopy::IntoBytes;

use crate::front::{First, Level, Phase, Shutdown, first};

use super::blk::{Features, WRITEBACK_AT};
use super::channel::{Channel, Descriptors, Ended, Half};
use super::export::Export;
use super::inflight;
use super::known::{InflightMemory, Known, Ring, Running, inflight_bytes};
use super::memory::{GuestMemory, REGIONS_MAX};
use super::notifier::Notifier;
use super::queue::{self, Setup};
use super::ring::{AnyRing, Layout};
use super::wire::{Breach, Header, InflightFacts, Message, ProtocolFeatures, config_changed};

/// What a session hears.
enum Heard {
    Message(Header, Message, Descriptors),
    /// The disk has another size.
    Resized(u64),
    /// The server pauses.
    Paused,
    /// The export ends.
    Stopped,
}

/// See the module's description.
pub(super) struct Session {
    env: Env,
    export: Arc<Export>,
    channel: Channel,
    /// To the driver's side, for messages of this side.
    backend: Option<Channel>,
    features: Features,
    protocol: ProtocolFeatures,
    memory: GuestMemory,
    /// Which requests are in flight.
    inflight: Option<InflightMemory>,
    rings: Vec<Ring>,
    write_through: Arc<AtomicBool>,
    /// The driver was told to read the configuration space since rings run: it may have another
    /// size than in the driver's last session.
    is_announced: bool,
    /// Is raised by a ring that found memory missing.
    broken: Arc<Shutdown>,
    /// The reactor of the first ring; the others follow.
    reactor: ReactorId,
}

/// Serves a driver from what is known of it, until it leaves or the export is stopped; or until the
/// session leaves for another process, with what that needs.
pub(super) async fn serve(
    env: Env,
    export: Arc<Export>,
    known: Known,
    reactor: ReactorId,
) -> Option<Known> {
    let owes = export.owes.swap(false, Ordering::SeqCst);
    let mut session = Session::new(env, export.clone(), known, reactor);
    session.rings.iter_mut().for_each(|ring| ring.owes |= owes);
    let ended = session.hear().await;
    if let Ok(true) = ended {
        return Some(session.leave().await);
    }
    session.stop_all().await;
    // A driver was told if one of the rings that it used was.
    let mut used = session.rings.iter().filter(|ring| ring.was_started).peekable();
    let still_owes = match used.peek() {
        Some(_) => used.all(|ring| ring.owes),
        None => session.rings.iter().any(|ring| ring.owes),
    };
    export.owes.fetch_or(still_owes, Ordering::SeqCst);
    match ended {
        Ok(_) | Err(Ended::Closed) => {}
        Err(Ended::Failed(error)) => {
            tracing::debug!("export '{}': the driver's socket: {error}", export.name);
        }
        Err(Ended::Broken(breach)) => {
            let key = format!("export '{}': session with a driver ended", export.name);
            session.env.warn(&key, || format!("{key}: {breach}"));
        }
    }
    None
}

impl Session {
    fn new(env: Env, export: Arc<Export>, known: Known, reactor: ReactorId) -> Session {
        let Known { socket, half, backend, features, protocol, memory, inflight, rings } = known;
        let channel = |socket, half| Channel::new(&env, socket, half, export.shutdown.clone());
        let session = Session {
            channel: channel(socket, half),
            backend: backend.map(|socket| channel(socket, Half::default())),
            features,
            protocol,
            memory,
            inflight,
            rings,
            is_announced: false,
            write_through: Arc::default(),
            broken: Arc::default(),
            reactor,
            export,
            env,
        };
        session.choose_durability();
        session
    }

    /// Handles messages until the socket closes or the export is stopped. True if the session
    /// leaves for another process.
    async fn hear(&mut self) -> Result<bool, Ended> {
        let mut sizes = self.export.sizes();
        self.start_inherited()?;
        loop {
            if !self.is_announced && self.rings.iter().any(|ring| ring.running.is_some()) {
                self.is_announced = true;
                self.tell_of_config().await?;
            }
            match self.next(sizes).await? {
                Heard::Message(header, message, descriptors) => {
                    self.handle(header, message, descriptors).await?;
                }
                Heard::Resized(now) => {
                    sizes = now;
                    self.tell_of_config().await?;
                }
                Heard::Paused => match self.export.wait_for_end_of_pause().await {
                    Phase::Leaving => return Ok(true),
                    _ => continue,
                },
                Heard::Stopped => return Ok(false),
            }
            // A driver that sends without a pause leaves the reactor to others, too.
            yield_once().await;
        }
    }

    /// Waits for what comes next; a message comes last.
    async fn next(&mut self, sizes: u64) -> Result<Heard, Ended> {
        let export = &self.export;
        let stopped = export.shutdown.above(Level::Serving);
        let broken = self.broken.above(Level::Serving);
        let paused = export.pauses.sessions.pause.phase_that(|phase| phase != Phase::Going);
        let told = first(first(stopped, broken), first(paused, export.resized_since(sizes)));
        match first(told, self.channel.message()).await {
            First::Left(First::Left(First::Left(_))) => Ok(Heard::Stopped),
            First::Left(First::Left(First::Right(_))) => {
                let expected = "the file as it was mapped";
                Err(Breach::field("memory", "a shorter file", expected).into())
            }
            First::Left(First::Right(First::Left(_))) => Ok(Heard::Paused),
            First::Left(First::Right(First::Right(now))) => Ok(Heard::Resized(now)),
            First::Right(message) => {
                message.map(|(header, message, passed)| Heard::Message(header, message, passed))
            }
        }
    }

    /// Starts the rings that ran in another process.
    fn start_inherited(&mut self) -> Result<(), Breach> {
        for index in 0..self.rings.len() {
            let ring = &mut self.rings[index];
            if !std::mem::take(&mut ring.goes_on) {
                continue;
            }
            match ring.has_failed {
                true => ring.running = Some(Running::failed(ring.base, ring.owes)),
                false => self.start(index)?,
            }
        }
        Ok(())
    }

    /// Ends the session here: what another process needs to go on.
    async fn leave(mut self) -> Known {
        self.rings.iter_mut().for_each(|ring| ring.goes_on = ring.running.is_some());
        self.stop_all().await;
        let Session { channel, backend, features, protocol, memory, inflight, rings, .. } = self;
        let (socket, half) = (channel.socket, channel.half);
        let backend = backend.map(|channel| channel.socket);
        Known { socket, half, backend, features, protocol, memory, inflight, rings }
    }

    /// Tells the driver to read the configuration space again.
    async fn tell_of_config(&self) -> Result<(), Ended> {
        match &self.backend {
            Some(backend) if self.protocol.contains(ProtocolFeatures::CONFIG) => {
                backend.send(&config_changed()).await
            }
            _ => Ok(()),
        }
    }

    async fn handle(
        &mut self,
        header: Header,
        message: Message,
        mut descriptors: Descriptors,
    ) -> Result<(), Ended> {
        let reply = match message {
            Message::GetFeatures => header.reply_word(self.offered().bits()),
            Message::GetProtocolFeatures => header.reply_word(ProtocolFeatures::all().bits()),
            Message::GetQueueNum => header.reply_word(u64::from(self.export.queues)),
            Message::GetMaxMemSlots => header.reply_word(REGIONS_MAX as u64),
            Message::GetConfig { offset, bytes } => {
                header.reply_config(offset, &self.config(offset, bytes))
            }
            Message::GetVringBase { ring } => {
                let index = self.index(ring)?;
                self.stop(index).await;
                // The next start waits for the next description of the ring.
                self.rings[index].kick = None;
                header.reply_base(ring, self.rings[index].base)
            }
            Message::GetInflightFd(facts) => return self.give_inflight(header, facts).await,
            Message::SetConfig { offset, data } => {
                let is_refused = !self.set_config(offset, &data);
                return self.acknowledge(header, is_refused.into()).await;
            }
            message => {
                self.change(message, &mut descriptors).await?;
                return self.acknowledge(header, 0).await;
            }
        };
        self.channel.send(&reply).await
    }

    /// Answers a message that has no answer of its own, if the driver asked for one: 0 for success.
    async fn acknowledge(&self, header: Header, result: u64) -> Result<(), Ended> {
        match header.needs_reply && self.protocol.contains(ProtocolFeatures::REPLY_ACK) {
            true => self.channel.send(&header.reply_word(result)).await,
            false => Ok(()),
        }
    }

    /// Carries out a message that has no answer of its own.
    async fn change(
        &mut self,
        message: Message,
        descriptors: &mut Descriptors,
    ) -> Result<(), Breach> {
        match message {
            Message::SetFeatures(bits) => self.set_features(bits).await?,
            Message::SetProtocolFeatures(bits) => {
                self.protocol = ProtocolFeatures::from_bits_truncate(bits);
            }
            Message::ResetOwner => {
                self.stop_all().await;
                self.rings.iter_mut().for_each(|ring| ring.kick = None);
            }
            Message::SetMemTable(regions) => {
                let mut memory = GuestMemory::default();
                for (facts, file) in regions.into_iter().zip(descriptors.drain(..)) {
                    memory.add(facts, file)?;
                }
                self.set_memory(memory).await?;
            }
            Message::AddMemReg(facts) => {
                let mut memory = self.memory.clone();
                memory.add(facts, descriptors.remove(0))?;
                self.set_memory(memory).await?;
            }
            Message::RemMemReg(facts) => {
                let mut memory = self.memory.clone();
                memory.remove(facts)?;
                self.set_memory(memory).await?;
            }
            Message::SetBackendReqFd => {
                let socket = descriptors.remove(0);
                let closing = self.export.shutdown.clone();
                self.backend = Some(Channel::new(&self.env, socket, Half::default(), closing));
            }
            Message::SetInflightFd(facts) => {
                self.set_inflight(facts, descriptors.remove(0)).await?
            }
            message => self.change_ring(message, descriptors).await?,
        }
        Ok(())
    }

    /// Carries out a message about one ring.
    async fn change_ring(
        &mut self,
        message: Message,
        descriptors: &mut Descriptors,
    ) -> Result<(), Breach> {
        let passed = descriptors.pop().map(Notifier::new).transpose()?;
        match message {
            Message::SetVringNum { ring, entries } => {
                let index = self.index(ring)?;
                self.stop(index).await;
                self.rings[index].entries = entries;
            }
            Message::SetVringBase { ring, base } => {
                let index = self.index(ring)?;
                self.layout().check_base(base)?;
                self.stop(index).await;
                self.rings[index].base = base;
            }
            Message::SetVringAddr { ring, addresses } => {
                let index = self.index(ring)?;
                self.stop(index).await;
                self.rings[index].addresses = Some(addresses);
                self.start(index)?;
            }
            Message::SetVringKick { ring } => {
                let index = self.index(ring)?;
                let kick = passed.ok_or_else(|| {
                    Breach::field("kick of a ring", "none", "a descriptor: polling is not offered")
                })?;
                self.stop(index).await;
                self.rings[index].kick = Some(kick);
                self.start(index)?;
            }
            Message::SetVringCall { ring } => {
                let index = self.index(ring)?;
                let call = &self.rings[index].call;
                *call.lock() = passed;
                // What was published before went to another descriptor, or to none.
                queue::notify(call);
            }
            Message::SetVringErr { ring } => {
                let index = self.index(ring)?;
                *self.rings[index].error.lock() = passed;
            }
            Message::SetVringEnable { ring, enabled } => {
                let index = self.index(ring)?;
                self.rings[index].enabled = enabled;
                match enabled {
                    true => self.start(index)?,
                    false => self.stop(index).await,
                }
            }
            _ => {}
        }
        Ok(())
    }

    fn index(&self, ring: u32) -> Result<usize, Breach> {
        let index = ring as usize;
        let known = (index < self.rings.len()).then_some(index);
        known.ok_or_else(|| Breach::field("ring", ring, "one that was offered"))
    }

    // Features and configuration.

    fn offered(&self) -> Features {
        Features::offered(self.export.is_read_only())
    }

    async fn set_features(&mut self, bits: u64) -> Result<(), Breach> {
        // An export may have become read-only, or writable, since a driver was told. Requests are
        // judged by what the export is now, not by what the driver accepted.
        let unknown = bits & !Features::all().bits();
        if unknown != 0 {
            let found = format!("{unknown:#x}");
            return Err(Breach::field("features", found, "some of those that were offered"));
        }
        self.stop_all().await;
        self.features = Features::from_bits_truncate(bits);
        self.choose_durability();
        self.start_all()
    }

    /// S4.
    fn choose_durability(&self) {
        let is_chosen = self.features.contains(Features::CONFIG_WCE);
        let flushes = self.features.contains(Features::FLUSH);
        let is_volatile = flushes && (!is_chosen || self.export.writeback.load(Ordering::SeqCst));
        self.write_through.store(!is_volatile, Ordering::SeqCst);
    }

    fn config(&self, offset: u32, bytes: u32) -> Vec<u8> {
        let config = self.export.config();
        let rest = config.as_bytes().get(offset as usize..).unwrap_or_default();
        let zeros = std::iter::repeat(&0);
        rest.iter().chain(zeros).take(bytes as usize).copied().collect()
    }

    /// The driver may set one field: whether there is a volatile cache. False if it wrote another.
    fn set_config(&mut self, offset: u32, data: &[u8]) -> bool {
        let (WRITEBACK_AT, [writeback]) = (offset, data) else { return false };
        self.export.writeback.store(*writeback != 0, Ordering::SeqCst);
        if let Some(InflightMemory { window, .. }) = &self.inflight {
            inflight::keep_writeback(window, *writeback != 0);
        }
        self.choose_durability();
        true
    }

    // Rings.

    async fn set_memory(&mut self, memory: GuestMemory) -> Result<(), Breach> {
        self.stop_all().await; // S1
        self.memory = memory;
        // A ring whose memory is not there waits for it: a region that changes goes, and comes
        // again.
        let started = (0..self.rings.len()).map(|index| self.start(index));
        for breach in started.filter_map(Result::err).collect::<Vec<_>>() {
            tracing::debug!("export '{}': a ring waits: {breach}", self.export.name);
        }
        Ok(())
    }

    /// Makes memory for what is in flight; the driver's side keeps it, and passes it back.
    async fn give_inflight(&self, header: Header, facts: InflightFacts) -> Result<(), Ended> {
        let bytes = inflight_bytes(self.layout(), facts, self.export.queues)?;
        let flags = MemfdFlags::CLOEXEC | MemfdFlags::ALLOW_SEALING;
        let file = memfd_create("cairn-inflight", flags).map_err(Ended::Failed)?;
        ftruncate(&file, bytes).map_err(Ended::Failed)?;
        fcntl_add_seals(&file, SealFlags::SHRINK | SealFlags::GROW).map_err(Ended::Failed)?;
        let facts = InflightFacts { bytes, offset: 0, ..facts };
        self.channel.send_with(&header.reply_inflight(facts), Some(file.as_fd())).await
    }

    async fn set_inflight(
        &mut self,
        facts: InflightFacts,
        file: Arc<OwnedFd>,
    ) -> Result<(), Breach> {
        if facts.bytes < inflight_bytes(self.layout(), facts, self.export.queues)? {
            return Err(Breach::field("inflight: memory", facts.bytes, "room for all rings"));
        }
        let memory = InflightMemory::new(facts, file)?;
        self.stop_all().await;
        match inflight::kept_writeback(&memory.window) {
            Some(writeback) => self.export.writeback.store(writeback, Ordering::SeqCst),
            None => {
                let writeback = self.export.writeback.load(Ordering::SeqCst);
                inflight::keep_writeback(&memory.window, writeback);
            }
        }
        self.choose_durability();
        self.inflight = Some(memory);
        self.start_all()
    }

    fn layout(&self) -> Layout {
        self.features.layout()
    }

    async fn stop_all(&mut self) {
        for ring in self.rings.iter().filter_map(|ring| ring.running.as_ref()) {
            ring.stop.raise(Level::Draining);
        }
        for index in 0..self.rings.len() {
            self.stop(index).await;
        }
    }

    fn start_all(&mut self) -> Result<(), Breach> {
        (0..self.rings.len()).try_for_each(|index| self.start(index))
    }

    /// Stops a ring: on return all that it took is done.
    async fn stop(&mut self, index: usize) {
        let ring = &mut self.rings[index];
        let Some(running) = ring.running.take() else { return };
        running.stop.raise(Level::Draining);
        running.stop.empty().await;
        let ended = *running.ended.lock();
        ring.base = ended.base;
        ring.owes |= ended.owes; // S3
        ring.has_failed = ended.has_failed;
    }

    /// Starts a ring that is described, enabled, and does not run.
    fn start(&mut self, index: usize) -> Result<(), Breach> {
        let layout = self.layout();
        let ring = &mut self.rings[index];
        // Without the feature, rings are enabled from the beginning.
        let is_enabled = ring.enabled || !self.features.contains(Features::PROTOCOL_FEATURES);
        let Some(kick) = &ring.kick else { return Ok(()) };
        if ring.running.is_some() || !is_enabled || ring.entries == 0 {
            return Ok(());
        }
        let Some(facts) = ring.facts(self.features) else { return Ok(()) };
        let mut described = AnyRing::new(&self.memory, facts)?;
        if let Some(inflight) = &self.inflight {
            let region = inflight.region(layout, index, ring.entries)?;
            described.track(region, inflight.facts.entries)?;
        }
        let setup = Setup {
            export: self.export.clone(),
            ring: described,
            kick: kick.clone(),
            call: ring.call.clone(),
            error: ring.error.clone(),
            broken: self.broken.clone(),
            write_through: self.write_through.clone(),
            owes: std::mem::take(&mut ring.owes),
            counted: self.export.pauses.rings.tasks.join(),
        };
        ring.was_started = true;
        let (stop, ended) = (Arc::<Shutdown>::default(), Arc::default());
        ring.running = Some(Running { stop: stop.clone(), ended: Arc::clone(&ended) });
        let (member, memory) = (stop.join(), self.memory.clone());
        let post = self.env.post();
        let turn = self.reactor.0.wrapping_add(index as u16);
        let job =
            move |env: &Env| queue::start(env, setup, memory.buffers(), (stop, member), ended);
        post.post(ReactorId(turn % post.reactors()), Mail::Call(Box::new(job)));
        Ok(())
    }
}
