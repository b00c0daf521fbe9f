//! `cairn serve`: the start, the run and the stop of a server.
//!
//! The start makes images, brings up volumes in order, exports them and opens the sockets. Then the
//! main thread waits for a signal, or for the command of `--run`. The stop refuses verbs, ends
//! connections, suspends every volume (which commits), and reports what is still dirty. A start
//! that fails half way stops the same way, so no acknowledged write is lost; one that waits for a
//! device ends as `patience` says.
//!
//! If a volume cannot be brought up, the others are served. The server logs its name and the
//! reason, and its record stays. The start fails with `--strict`, with `--run`, if the volume is
//! the default export, and if no other volume is there.

mod activation;
pub mod args;
mod command;
pub mod config;
mod detached;
mod drain;
mod http;
mod image;
pub mod limits;
mod listen;
mod notify;
mod patience;
mod throttle;
mod tls;
mod upgrade;
mod vhost;

use std::collections::BTreeSet;
use std::io::Write;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::mpsc::{Receiver, Sender};
use std::time::Duration;

use cairn_backends::Handles;
use cairn_block::{ConfigError, ConfigKind};
use cairn_exports::nbd::{ListenAddress, Tls};
use cairn_exports::unix_socket::SocketRights;
use cairn_exports::vhost_user::qemu_arguments;
use cairn_outcome::exit;
use cairn_outcome::failure::{Outcome, system, wrong};
use cairn_outcome::signals::{self, Event};
use cairn_outcome::stderr::say;

use activation::Activated;
pub use args::{RingChoice, ServeArgs, TABLE_HELP};
use args::{Step, parse_message, split_table};
pub use config::KEYS;

use cairn_control::control::server::ControlServer;
use cairn_control::devices::with_absolute_paths;
use cairn_control::exports::{Exports, VhostSocket};
use cairn_control::handover::Estate;
use cairn_control::http::HttpServer;
use cairn_control::names::is_hidden;
use cairn_control::plan::{self, BroughtUp, Failure, Plan};
use cairn_control::sockets::{self, ControlSocket};
use cairn_control::state::{StateFile, ZoneFiles, keep_markers};
use cairn_control::verbs::Verbs;
use cairn_control::world::{Ended, World, WorldOptions, is_of};
use command::{PrivateFolder, Running};
use config::Config;
use http::Service;
use listen::Listen;
use patience::with_patience;
use tls::Proof;
use upgrade::Heir;

/// Runs the verb.
///
/// # Errors
/// The start failed; nothing is left running.
pub fn run(args: ServeArgs) -> Outcome<u8> {
    if !args.successor {
        // Before anything opens a descriptor.
        return serve(args, activation::take()?, None);
    }
    let signals = signals::watch()?;
    let heir = Heir::new()?;
    let inherited = prepare(&args, |path, _| StateFile::open_to_read(path))
        .and_then(|prepared| prepared.plan.check_words())
        .and_then(|()| heir.inherit());
    let served = match inherited {
        Ok(Some(estate)) => serve(args, Activated::default(), Some((&heir, estate, signals))),
        Ok(None) => {
            let detail = "upgrade: the server before this one goes on by itself";
            Err(ConfigError::new(ConfigKind::Busy, "", detail))
        }
        Err(error) => Err(error),
    };
    served.inspect_err(|error| heir.refuse(error))
}

/// The sender and the receiver of what ends a wait.
type Signals = (Sender<Event>, Receiver<Event>);

/// What is known before any device is touched.
struct Prepared {
    config: Config,
    state: Option<StateFile>,
    plan: Plan,
    /// Volumes made by verbs that the configuration exports.
    exported: BTreeSet<String>,
    tls: Option<(Tls, Proof)>,
    addresses: Addresses,
}

/// Reads the configuration and the state file. `open` opens that, read-only or not.
fn prepare(
    args: &ServeArgs,
    open: impl FnOnce(&Path, bool) -> Outcome<StateFile>,
) -> Outcome<Prepared> {
    let mut config = match &args.file {
        Some(file) => Config::read(file)?,
        None => Config::default(),
    };
    let read_only = args.read_only || config.read_only;
    let state = match (&args.state, &args.file) {
        (Some(path), _) => Some(open(path, read_only)?),
        (None, Some(_)) => Some(open(&config.state, read_only)?),
        (None, None) => None,
    };
    let addresses = Addresses::read(args, &config)?;
    let mut plan = plan_of(&config, &args.steps)?;
    config.tls_names.known = plan.names().map(str::to_owned).collect();
    if let Some(state) = &state {
        plan.restore(state);
    }
    if plan.records().is_empty() && args.state.is_none() {
        let expected = "--table, a TOML file with a volume, or --state for volumes to come";
        return Err(wrong("", "tables", "none", expected));
    }
    if args.without_cache {
        leave_caches_out(&mut plan, read_only, args.stale_ok)?;
    }
    let exported = plan::refuse_unknown(&config.exports, state.as_ref(), &plan)?;
    let tls = tls::load(args, &config)?;
    Ok(Prepared { config, state, plan, exported, tls, addresses })
}

/// Serves, perhaps what an earlier process left.
fn serve(
    args: ServeArgs,
    activated: Activated,
    inherited: Option<(&Heir, Estate, Signals)>,
) -> Outcome<u8> {
    let inherited = inherited.map(|(heir, estate, signals)| ((heir, signals), estate));
    let (before, mut estate) = inherited.unzip();
    let (heir, signals) = before.unzip();
    let lock = estate.as_mut().and_then(|estate| estate.state_lock.take());
    let prepared = prepare(&args, |path, read_only| match (lock, read_only) {
        (Some(lock), _) => StateFile::open_locked(path, lock),
        (None, true) => StateFile::open_to_read(path),
        (None, false) => StateFile::open_alone(path),
    })?;
    let Prepared { config, state, mut plan, exported, tls, addresses } = prepared;
    let read_only = args.read_only || config.read_only;
    let changes = state.as_ref().map(StateFile::exports).unwrap_or_default();
    if let Some(state) = state.as_ref().filter(|_| !read_only) {
        state.record_exported(exported)?;
    }
    let sockets = Sockets::choose(addresses, &args, &activated, heir.is_some())?;
    let (default, vhost) = args.exports()?;
    let of_none = export_of_none(default.as_deref(), &config, &plan);
    let limits = throttle::limits(config.limits.clone(), &args.throttle, of_none.as_deref())?;
    let vhost = vhost_sockets(vhost, of_none.as_deref(), &config)?;
    if !read_only {
        image::make_images(&config, &mut plan, state.as_ref())?;
    }
    let (events, happened) = signals.map_or_else(signals::watch, Ok)?;
    let handles = Arc::<Handles>::default();
    if let Some(estate) = &mut estate {
        handles.inherit(std::mem::take(&mut estate.devices));
        plan.forgive_messages();
    }
    let world = start_world(&args, &config, handles.clone(), state.as_ref())?;
    let nbd = limits::nbd_options(&args, &config);
    let drains = (args.drain_on_stop || config.drain_on_stop) && !world.read_only();
    let wanted = Wanted {
        asked_by: if default.is_some() { "--export" } else { "default_export" },
        default: default.or(config.default_export),
        strict: args.strict || args.run.is_some(),
    };
    let args = Arc::new(args);
    let (tls, proof) = tls.unzip();
    let exports = Exports::new(&world, config.exports, vhost, changes, nbd);
    let mut server = Server {
        args: args.clone(),
        exports: Arc::new(exports.with_tls(tls, config.tls_names).with_limits(limits)),
        proof,
        drains,
        world,
        handles,
        verbs: None,
        control: None,
        activated,
        http: Vec::new(),
    };
    let waits = (&events, &happened);
    let started = server.start(plan, &wanted, &sockets, state, estate.as_mut(), waits);
    if let (Some(heir), Some(estate)) = (heir, estate) {
        return server.go_on(started, heir, estate, &sockets, (events, &happened));
    }
    match started.and_then(|()| server.run(&sockets, events)) {
        Ok(command) => server.stay(&happened, command.as_ref()),
        // After a failed start only the line with the reason is printed.
        Err(error) => server.shut_down(None).and(Err(error)),
    }
}

/// Starts reactors, without a volume.
fn start_world(
    args: &ServeArgs,
    config: &Config,
    handles: Arc<Handles>,
    state: Option<&StateFile>,
) -> Outcome<Arc<World>> {
    let world = Arc::new(World::start(world_of(args, config, handles))?);
    if let Some(state) = state.filter(|_| !world.read_only()) {
        world.registry().set_zone_maps(ZoneFiles::open(state)?);
    }
    keep_markers(world.registry(), state, &args.adopt_marker)?;
    world.begin_start(
        args.crash_log.or(config.crash_log_bytes).unwrap_or(limits::CRASH_LOG_BYTES),
        args.discard_crash_log && !args.successor,
    );
    let background = args.background.as_ref().or(config.background.as_ref());
    if let Some(limits) = background {
        world.reactors().post().background().set(&limits.of_throttle());
    }
    if let Some(spin_us) = args.spin_us.or(config.spin_us) {
        world.reactors().set_spin(Duration::from_micros(spin_us.into()));
    }
    Ok(world)
}

/// The parameters of the world.
fn world_of(args: &ServeArgs, config: &Config, handles: Arc<Handles>) -> WorldOptions {
    WorldOptions {
        handles,
        reactors: args.reactors.or(config.reactors),
        ring: args.ring.or(config.ring).unwrap_or_default().kind(),
        base: args.file.is_some().then(|| config.base.clone()),
        read_only: args.read_only || config.read_only,
        guest_sets: args.guest_sets,
        take_overs: args.take_over.clone(),
    }
}

/// The export of options that name none.
fn export_of_none(default: Option<&str>, config: &Config, plan: &Plan) -> Option<String> {
    let mut names = plan.names();
    let only = names.next().filter(|_| names.next().is_none());
    default.or(config.default_export.as_deref()).or(only).map(str::to_owned)
}

/// The sockets for virtual machines: those of the command line and of the TOML file.
fn vhost_sockets(
    asked: Vec<vhost::Wanted>,
    default: Option<&str>,
    config: &Config,
) -> Outcome<Vec<VhostSocket>> {
    let mut sockets = config.vhost.clone();
    for wanted in asked {
        sockets.push(wanted.judge(default)?);
    }
    vhost::refuse_twice(&sockets)?;
    Ok(sockets)
}

/// A table of the command line: its paths are relative to the caller's folder, not to that of a
/// TOML file.
fn of_caller(config: &Config, lines: &str) -> Outcome<String> {
    let is_there = std::env::current_dir().is_ok_and(|folder| folder == config.base);
    match config.base.as_os_str().is_empty() || is_there {
        true => Ok(lines.to_owned()),
        false => with_absolute_paths(lines),
    }
}

/// The plan of a configuration and a command line.
///
/// # Errors
/// A message does not parse, or a name is that of a snapshot.
fn plan_of(config: &Config, steps: &[Step]) -> Outcome<Plan> {
    let mut plan = Plan::default();
    for config::Volume { name, table, messages } in &config.volumes {
        plan.add_table(name, table)?;
        messages.iter().cloned().for_each(|message| plan.add_message(message));
    }
    for step in steps {
        match step {
            Step::Table(text) => {
                let (name, lines) = split_table(text);
                plan.add_table(name, &of_caller(config, lines)?)?;
            }
            Step::Message(text) => plan.add_message(parse_message(text)?),
        }
    }
    Ok(plan)
}

/// Serves bcache volumes without their caches.
fn leave_caches_out(plan: &mut Plan, read_only: bool, stale_ok: bool) -> Outcome<()> {
    if !read_only {
        return Err(wrong("", "--without-cache", "a server that writes", "--read-only"));
    }
    match plan.leave_caches_out(stale_ok) {
        true => Ok(()),
        false => Err(wrong("", "--without-cache", "no line of bcache", "one in the tables")),
    }
}

/// Where to listen.
struct Sockets {
    listen: Vec<Listen>,
    control: PathBuf,
    control_rights: SocketRights,
    /// A failure to make the control socket ends the start only if an option named it.
    control_asked: bool,
    /// No option and no key says where to listen.
    is_default: bool,
    /// Other programs opened sockets for NBD clients: they know where.
    is_activated: bool,
    /// Where monitoring reads, and people with a browser.
    http: Vec<(Service, Listen)>,
    /// Removed when the server ends.
    _private: Option<PrivateFolder>,
}

/// The addresses that options name, or else the TOML file.
struct Addresses {
    listen: Vec<Listen>,
    control: Option<(PathBuf, SocketRights)>,
    http: Vec<(Service, Listen)>,
}

impl Addresses {
    fn read(args: &ServeArgs, config: &Config) -> Outcome<Addresses> {
        let (base, here) = (config.base.as_path(), Path::new(""));
        let (wanted, folder) = match args.listen.is_empty() {
            true => (&config.listen, base),
            false => (&args.listen, here),
        };
        let listen = wanted.iter().map(|address| listen::parse(address, folder));
        let control = match (&args.control, &config.control) {
            (Some(path), _) => Some(listen::control(path, here)?),
            (None, Some(path)) => Some(listen::control(path, base)?),
            (None, None) => None,
        };
        let mut http = Vec::new();
        for (service, option, key) in [
            (Service::Metrics, &args.metrics, &config.metrics),
            (Service::Dashboard, &args.dashboard, &config.dashboard),
        ] {
            match (option, key) {
                (Some(address), _) => http.push((service, listen::parse(address, here)?)),
                (None, Some(address)) => http.push((service, listen::parse(address, base)?)),
                (None, None) => {}
            }
        }
        Ok(Addresses { listen: listen.collect::<Outcome<_>>()?, control, http })
    }
}

impl Sockets {
    /// Of an heir, what it inherits is not chosen again: nothing may keep it from going on.
    fn choose(
        addresses: Addresses,
        args: &ServeArgs,
        activated: &Activated,
        is_heir: bool,
    ) -> Outcome<Sockets> {
        let Addresses { listen: mut asked, control, http } = addresses;
        let mut listen = Vec::new();
        let private = args.run.as_ref().map(|_| PrivateFolder::make()).transpose()?;
        if let Some(private) = &private {
            listen.push(Listen::beside(private.path()));
        }
        listen.append(&mut asked);
        let is_activated = !activated.nbd.is_empty();
        let is_default = listen.is_empty();
        if is_default && !is_activated && !is_heir {
            listen.push(Listen::beside(&sockets::runtime_folder()?));
        }
        let control_asked = control.is_some();
        let own = |folder: &Path| (folder.join(sockets::CONTROL_NAME), SocketRights::OWNER);
        let (control, control_rights) = match (control, &private, &activated.control) {
            (Some(asked), ..) => asked,
            (None, _, Some(activated)) => (activated.path.clone(), SocketRights::OWNER),
            (None, Some(private), None) => own(private.path()),
            (None, None, None) if is_heir => own(&sockets::runtime_folder().unwrap_or_default()),
            (None, None, None) => own(&sockets::runtime_folder()?),
        };
        if let Some(activated) = &activated.control {
            let shown = control.display().to_string();
            if activated.path != control {
                let found = format!("{} by socket activation, too", activated.path.display());
                return Err(wrong(shown, "control", found, "one socket"));
            }
            refuse_wider(&control, control_rights)?;
        }
        Ok(Sockets {
            listen,
            control,
            control_rights,
            control_asked,
            is_default,
            is_activated,
            http,
            _private: private,
        })
    }
}

/// Refuses a control socket that another program has opened for more users than were asked for: who
/// may use it may do all that this user may.
fn refuse_wider(path: &Path, rights: SocketRights) -> Outcome<()> {
    let Ok(file) = std::fs::metadata(path) else { return Ok(()) };
    let (mode, allowed) = (file.mode() & 0o777, rights.mode.unwrap_or(0o600));
    match mode & !allowed & 0o666 {
        0 => Ok(()),
        _ => {
            let expected = format!(
                "{allowed:04o} (SocketMode= of the unit; --control PATH,mode=MODE allows more)"
            );
            Err(wrong(path.display().to_string(), "control mode", format!("{mode:04o}"), expected))
        }
    }
}

/// Logs which volumes are missing, and why.
fn tell_missing<'a>(failed: impl IntoIterator<Item = &'a Failure>) {
    lines_of(failed).iter().for_each(|line| tracing::error!("{line}"));
}

/// One line for each reason, with the volumes that are missing by it.
fn lines_of<'a>(failed: impl IntoIterator<Item = &'a Failure>) -> Vec<String> {
    let mut reasons: Vec<(&str, Vec<&str>)> = Vec::new();
    for one in failed {
        match reasons.iter_mut().find(|(why, _)| *why == one.why()) {
            // A volume beneath one with snapshots is never exported.
            Some(_) if is_hidden(&one.name) => {}
            Some((_, names)) => names.push(&one.name),
            None => reasons.push((one.why(), vec![&one.name])),
        }
    }
    let line = |(why, names): (&str, Vec<&str>)| {
        let are = if names.len() == 1 { "is" } else { "are" };
        format!("{} {are} not served: {why}", names.join(", "))
    };
    reasons.into_iter().map(line).collect()
}

/// What a start must achieve.
struct Wanted {
    /// The volume or export of clients that name none.
    default: Option<String>,
    /// The option or key that says so.
    asked_by: &'static str,
    /// Every volume.
    strict: bool,
}

/// What runs.
struct Server {
    /// How it was started.
    args: Arc<ServeArgs>,
    world: Arc<World>,
    handles: Arc<Handles>,
    exports: Arc<Exports>,
    /// How the server and its clients prove who they are, over TLS.
    proof: Option<Proof>,
    /// Write back before the end.
    drains: bool,
    verbs: Option<Arc<Verbs>>,
    control: Option<(PathBuf, ControlServer)>,
    /// The sockets that other programs opened, until they are used.
    activated: Activated,
    /// What monitoring reads.
    http: Vec<HttpServer>,
}

impl Server {
    fn start(
        &mut self,
        mut plan: Plan,
        wanted: &Wanted,
        sockets: &Sockets,
        state: Option<StateFile>,
        estate: Option<&mut Estate>,
        waits: (&Sender<Event>, &Receiver<Event>),
    ) -> Outcome<()> {
        if let Some(estate) = &estate {
            self.exports.begin_paused(&estate.vhost);
        }
        // Before any table starts, so that the tables above do not count it as a new failure.
        let left = estate.iter().flat_map(|estate| estate.untold.clone());
        let untold: BTreeSet<_> = state.iter().flat_map(StateFile::untold).chain(left).collect();
        for name in untold {
            tracing::warn!("{name}: acknowledged writes may be lost; its clients are told");
            self.world.tell_of_loss(&name);
        }
        let (world, bring_up) = (&self.world, &mut plan);
        let up = with_patience(waits, move || bring_up.bring_up(world))?;
        self.world.end_start();
        self.handles.close_inherited();
        let BroughtUp { changed, failed } = up;
        if let Some(state) = state.as_ref().filter(|_| !self.world.read_only()) {
            state.record(changed)?;
        }
        for name in plan.names() {
            self.exports.add_volume(&self.world, name)?;
        }
        self.judge(&plan, &failed, wanted)?;
        for VhostSocket { export, path, .. } in self.exports.idle_sockets() {
            // A verb may bring it.
            tracing::warn!("{}: no socket yet: there is no export '{export}'", path.display());
        }
        for export in self.exports.idle_limits() {
            tracing::warn!(
                "--throttle {export}: limits nothing yet: there is no export '{export}'"
            );
        }
        if let Some(name) = &wanted.default {
            let chosen = self.exports.set_default(name, wanted.asked_by);
            match chosen {
                // Verbs may have renamed or removed it: that must not keep others from being
                // served.
                Err(error) if state.as_ref().is_some_and(StateFile::has_changes) => {
                    tracing::warn!(
                        "{error}: the empty export name means nothing until it is there"
                    );
                    self.exports.await_default(name);
                }
                chosen => chosen?,
            }
        }
        self.exports.fix_default();
        self.listen(sockets, estate)?;
        let reasons = failed.iter().map(|one| (one.name.clone(), one.why().to_owned()));
        self.world.note_not_served(reasons);
        let records = plan.records().to_vec();
        let verbs = Verbs::new(self.world.clone(), self.exports.clone(), state, records);
        self.verbs = Some(Arc::new(verbs));
        Ok(())
    }

    /// Takes verbs, perhaps at the control socket of an earlier process, and begins what is done
    /// without being asked for.
    fn take_verbs(&mut self, inherited: Option<ControlSocket>, sockets: &Sockets) -> Outcome<()> {
        let Some(verbs) = self.verbs.clone() else { return Ok(()) };
        if !self.world.read_only() {
            verbs.watch_over()?;
        }
        let (path, control) = match inherited {
            Some(socket) => (socket.path.clone(), ControlServer::start_on(socket, verbs)),
            None => {
                let path = sockets.control.clone();
                let control = ControlServer::start(&path, sockets.control_rights, verbs);
                (path, control)
            }
        };
        match control {
            Ok(server) => self.control = Some((path, server)),
            Err(error) if sockets.control_asked => return Err(error),
            Err(error) => tracing::warn!("serving without a control socket: {error}"),
        }
        self.world.begin_to_serve();
        Ok(())
    }

    fn serve_http(&mut self, sockets: &Sockets) -> Outcome<()> {
        for (service, listen) in &sockets.http {
            let (world, exports) = (self.world.clone(), self.exports.clone());
            self.http.push(http::start(*service, listen, world, exports)?);
        }
        Ok(())
    }

    /// Listens on the sockets that other programs opened or an earlier process left, and at the
    /// other addresses.
    fn listen(&mut self, sockets: &Sockets, estate: Option<&mut Estate>) -> Outcome<()> {
        let mut given = std::mem::take(&mut self.activated.nbd);
        let is_heir = estate.is_some();
        if let Some(estate) = estate {
            given.append(&mut estate.nbd.listeners);
        }
        let is_chosen_by_system =
            |address: &ListenAddress| matches!(address, ListenAddress::Tcp(tcp) if tcp.port() == 0);
        let mut wanted = sockets.listen.clone();
        if !given.is_empty() {
            wanted.retain(|Listen { address, .. }| {
                let is_given = given.iter().any(|given| given.address == *address);
                let is_inherited = is_heir && is_chosen_by_system(address);
                !(is_given || is_inherited || sockets.is_default)
            });
        }
        given.into_iter().try_for_each(|given| self.exports.listen_on(given))?;
        wanted.iter().try_for_each(|it| self.exports.listen(&it.address, it.rights))
    }

    /// Decides whether to serve without the missing volumes. If not, returns the first reason, and
    /// logs the others before.
    fn judge(&self, plan: &Plan, failed: &[Failure], wanted: &Wanted) -> Outcome<()> {
        let Some(first) = failed.first() else { return Ok(()) };
        let default = wanted.default.as_deref().map(|name| self.exports.volume_of(name));
        let missing = failed.iter().find(|one| default.as_deref() == Some(&one.name));
        if wanted.strict || missing.is_some() || plan.names().next().is_none() {
            let first = missing.unwrap_or(first);
            tell_missing(failed.iter().filter(|one| one.why() != first.why()));
            let same = || failed.iter().filter(|one| one.why() == first.why());
            let line = match (
                same().count() > 1 || !is_of(first.why(), &first.name),
                lines_of(same()).pop(),
            ) {
                (true, Some(line)) => line,
                _ => first.why().to_owned(),
            };
            // Of several reasons none decides the exit code, unless all are that something is in
            // use.
            let is_busy = failed.iter().all(|one| one.kind() == ConfigKind::Busy);
            let kind = if is_busy { ConfigKind::Busy } else { ConfigKind::System };
            return Err(ConfigError::new(kind, "", line));
        }
        tell_missing(failed);
        Ok(())
    }

    fn control_path(&self) -> Option<&Path> {
        self.control.as_ref().map(|(path, _)| path.as_path())
    }

    /// Prints the URIs and how to attach.
    fn announce(&self) -> Outcome<()> {
        let mut text = String::new();
        let volumes_may_come = self.verbs.as_ref().is_some_and(|verbs| verbs.keeps_changes());
        let served = self.exports.served();
        let Some(address) = self.exports.address() else { return Ok(()) };
        for export in &served {
            let sole = served.len() == 1 && self.exports.is_default(&export.name);
            let name = if sole { "" } else { export.name.as_str() };
            let uri = self.exports.uri(name).unwrap_or_default();
            let lines = listen::attach_lines(&address, &export.name, &uri, self.proof);
            let mut lines = lines.to_vec();
            if sole && volumes_may_come {
                // At the next start it may not be the only export.
                let by_name = self.exports.uri(&export.name).unwrap_or_default();
                lines.push(format!("by name: {by_name}"));
            }
            if let Some(socket) = self.exports.socket_of(&export.name) {
                lines.push(qemu_arguments(&socket.path, socket.queues));
            }
            text.push_str(&format!("{uri}\n  {}\n", lines.join("\n  ")));
        }
        if let Some(control) = self.control_path() {
            text.push_str(&format!("control socket: {}\n", control.display()));
        }
        let mut stdout = std::io::stdout().lock();
        let written = stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush());
        written.map_err(|error| system("stdout", "write", error))
    }

    /// Takes verbs, and starts the command of `--run` or says where the volumes are.
    fn run(&mut self, sockets: &Sockets, events: Sender<Event>) -> Outcome<Option<Running>> {
        let control = self.activated.control.take();
        self.take_verbs(control, sockets)?;
        self.serve_http(sockets)?;
        if let Some(command) = &self.args.run {
            return Running::start(command, &self.exports, self.control_path(), events).map(Some);
        }
        match sockets.is_activated {
            // Their owner knows the sockets, and may read stdout for answers of its own.
            true => self.exports.uris().iter().for_each(|uri| tracing::info!("serving {uri}")),
            false => self.announce()?,
        }
        self.ask_for_upgrades(events);
        Ok(None)
    }

    /// From now on clients may ask for an upgrade.
    fn ask_for_upgrades(&self, events: Sender<Event>) {
        if let Some(verbs) = &self.verbs {
            verbs.ask_for_upgrades(events);
        }
    }

    /// Serves until the end: a signal, the end of the command, or an upgrade.
    fn stay(mut self, happened: &Receiver<Event>, command: Option<&Running>) -> Outcome<u8> {
        notify::ready(&self.world);
        let code = loop {
            match (notify::next(&self.world, happened), command) {
                (Ok(Event::CommandEnded(status)), _) => break command::exit_code(status),
                (Ok(Event::Stop), Some(command)) => command.terminate(),
                (Ok(Event::Stop), None) | (Err(_), _) => break exit::OK,
                (Ok(Event::VolumesUp), _) => {}
                (Ok(Event::Upgrade { program, answer }), _) => {
                    if let Some(ended) = self.upgrade(program.as_deref(), &answer, happened) {
                        // The other process has the sockets and the devices.
                        std::mem::forget(self);
                        return ended;
                    }
                }
            }
        };
        self.shut_down(Some(happened)).map(|()| code)
    }

    /// Refuses verbs, ends connections, suspends every volume, reports what is dirty. Before it
    /// suspends, it may write back, until `happened` has a signal; without `happened` it does not,
    /// and reports only losses.
    ///
    /// # Errors
    /// A volume's last commit failed: acknowledged writes may be lost. Or the end of a snapshot is
    /// recorded nowhere. If a cluster does not answer, the process ends here.
    fn shut_down(self, happened: Option<&Receiver<Event>>) -> Outcome<()> {
        notify::stopping();
        let are_verbs_ended = self.verbs.as_ref().is_none_or(|verbs| verbs.close());
        drop((self.control, self.http));
        self.exports.stop(&self.world);
        if let Some(happened) = happened.filter(|_| self.drains) {
            // A volume on a suspended one is not drained: its requests fail.
            self.world.give_up_waiting();
            drain::drain(&self.world, happened);
        }
        let ended = notify::while_it_commits(|| self.world.suspend_all());
        let (ended, lost) = settle(ended, self.verbs.as_deref());
        self.world.end_crash_logs();
        for (volume, words) in ended.said.iter().filter(|_| happened.is_some()) {
            say(format_args!("{volume}: {words}"));
        }
        if !are_verbs_ended || !ended.given_up.is_empty() {
            leave_without(&self.world, &ended, &lost);
        }
        let mut lost = lost.into_iter();
        let first = lost.next();
        lost.for_each(say);
        first.map_or(Ok(()), Err)
    }
}

/// Ends the process although a remote disk does not answer. What is left of it may never end.
fn leave_without(world: &World, ended: &Ended, lost: &[ConfigError]) -> ! {
    lost.iter().for_each(say);
    world.close_others(ended);
    cairn_backends::rbd::finish_closing_others();
    let what = "a device does not answer: leaving; its lock was not given back";
    signals::leave(what, exit::FAILURE);
}

/// Every volume was suspended: keeps what the next start has to know. Answers how the volumes
/// ended, and what was lost or is recorded nowhere.
fn settle(mut ended: Ended, verbs: Option<&Verbs>) -> (Ended, Vec<ConfigError>) {
    // Before any output, which may wait for its reader.
    let mut not_kept = verbs.map_or_else(Vec::new, Verbs::keep_untold);
    if let Some(verbs) = verbs {
        verbs.keep_caches(&ended);
        verbs.keep_all_uncached();
    }
    // The tables of these have reported it.
    not_kept.retain(|error| !ended.has_lost(&error.device));
    let mut lost = std::mem::take(&mut ended.lost);
    lost.extend(not_kept);
    (ended, lost)
}
