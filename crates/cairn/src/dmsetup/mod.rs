//! `cairn-dmsetup`: the verbs of dmsetup for scripts and test suites that were written for it, over
//! the control socket of a server. A link of this name (or of the name `dmsetup`) to the program
//! runs it.
//!
//! A device is a volume. With root, each volume is a block device, too ([`nodes`]). Whether one is
//! in use is what the kernel and the server know together: mounts, holders and open files of the
//! node, other clients of the export, and volumes on top. A node ends only while this program holds
//! it exclusively, which the kernel refuses for one that is mounted or held in any way.
//!
//! One process at a time makes devices live or removes them: it holds a lock on the folder of the
//! nodes.
//!
//! As dmsetup does, every failure is a line about its cause, the line "Command failed." and exit
//! code 1.

mod args;
mod device;
mod lines;
mod nodes;
mod show;

use std::ffi::{OsStr, OsString};
use std::path::Path;
use std::process::ExitCode;
use std::time::Duration;

use cairn_block::{ConfigError, ConfigKind, TableLine};
use cairn_control::client::Client;
use cairn_control::report::{self, Info, ReportLine, VolumeLines};
use cairn_control::verbs::export::ExportList;
use cairn_control::verbs::server::ServerInfo;
use cairn_control::verbs::verb::{Done, Verb};
use cairn_control::verbs::volume::{
    VolumeClear, VolumeCreate, VolumeList, VolumeLoad, VolumeMessage, VolumeRemove, VolumeRename,
    VolumeResume, VolumeStatus, VolumeSuspend, VolumeTable, VolumeWait,
};
use cairn_outcome::failure::{Outcome, refused, wrong};
use cairn_outcome::stderr::{self, say};
use cairn_outcome::stdout::print;
use cairn_outcome::{exit, program};
use clap::{CommandFactory, Parser};

use self::args::{Chosen, Command, Dmsetup, Load, Removal};
use self::nodes::{MAPPER, Nodes};
use self::show::{Columns, Shown};
use crate::remote::{table_text, text, tree};

/// What this stands for, in the place of libdevmapper and the driver.
const VERSION: &str = concat!(
    "Library version:   1.02.185 (cairn ",
    env!("CARGO_PKG_VERSION"),
    ")\nDriver version:    4.47.0\n"
);

/// True if the program was called by a name of dmsetup.
pub fn is_name(name: &OsStr) -> bool {
    let name = Path::new(name).file_name().unwrap_or_default();
    name == "cairn-dmsetup" || name == "dmsetup"
}

/// The command line, for its manual page.
pub fn command() -> clap::Command {
    Dmsetup::command()
}

/// The program under this name.
pub fn main(args: impl Iterator<Item = OsString>) -> ExitCode {
    program::run(Dmsetup::try_parse_from(args), |args| {
        let _log = stderr::start_log(stderr::Log::Verb, args.verbose);
        run(&args).or_else(|error| {
            say(cairn_outcome::failure::one_line(&error));
            // Without a name in front, as scripts look for this line.
            eprintln!("Command failed.");
            Ok(exit::FAILURE)
        })
    })
}

fn run(args: &Dmsetup) -> Outcome<u8> {
    match &args.command {
        Command::Version => return print(VERSION),
        Command::Targets => return print(&text::targets(&report::targets())),
        _ => {}
    }
    let client = Client::new(args.control.as_deref())?;
    let server = Server::of(&client)?;
    server.settle_deferred();
    let is_verbose = args.verbose > 0;
    let show_state = |server: &Server<'_>, names: &[String]| match is_verbose {
        true => server.show_states(names),
        false => Ok(exit::OK),
    };
    match &args.command {
        Command::Create { load, notable, readonly } => server.create_as(load, *notable, *readonly),
        Command::Load { load, readonly } => server.load(load, *readonly),
        Command::Clear(devices) => {
            server.each(&devices.names, |name| server.tell(&VolumeClear { name: name.to_owned() }))
        }
        Command::Suspend { devices, noflush, nolockfs } => {
            server.each(&devices.names, |name| server.suspend(name, *noflush, *nolockfs))?;
            show_state(&server, &devices.names)
        }
        Command::Resume { devices, .. } => {
            server.settled(|| server.each(&devices.names, |name| server.resume(name)))?;
            show_state(&server, &devices.names)
        }
        Command::Remove { devices, how } => {
            server.settled(|| server.each(&devices.names, |name| server.remove(name, *how)))
        }
        Command::Rename { name, to } => server
            .settled(|| server.each(std::slice::from_ref(name), |name| server.rename(name, to))),
        Command::RemoveAll(how) => server.settled(|| server.remove_all(*how)),
        Command::Message { name, sector, words } => server.message(name, *sector, words),
        Command::Status { chosen, .. } => {
            let all = client.ask(&VolumeStatus::default())?;
            server
                .show_lines(chosen, all, is_verbose, |line| line.to_string().trim_end().to_owned())
        }
        Command::Table { chosen, inactive, .. } => {
            let verb = VolumeTable { inactive: *inactive, ..VolumeTable::default() };
            let (all, folder) = (client.ask(&verb)?, client.ask(&ServerInfo {})?.folder);
            server.show_lines(chosen, all, is_verbose, |line| {
                lines::printed(&server.nodes, &folder, line)
            })
        }
        Command::Info(info) => server.info(info),
        Command::Deps { chosen, options } => server.deps(chosen, options == "devno"),
        Command::Ls { target, tree } => server.list(target.as_deref(), *tree),
        Command::Wait { name, event_nr, .. } => {
            let name = server.name_of(name)?;
            client.ask(&VolumeWait { name: name.clone(), event_nr: *event_nr })?;
            show_state(&server, &[name])
        }
        Command::Mknodes { .. } => server.settled(|| Ok(exit::OK)),
        Command::Version | Command::Targets => unreachable!("they ask no server"),
    }
}

/// A server, and the nodes of its volumes.
struct Server<'a> {
    client: &'a Client,
    nodes: Nodes<'a>,
}

impl<'a> Server<'a> {
    fn of(client: &'a Client) -> Outcome<Server<'a>> {
        Ok(Server { client, nodes: Nodes::of(client)? })
    }

    fn volumes(&self) -> Outcome<Vec<String>> {
        Ok(self.client.ask(&VolumeList {})?.into_iter().map(|info| info.name).collect())
    }

    /// The volume that the command line names.
    fn name_of(&self, word: &str) -> Outcome<String> {
        let volumes = self.volumes()?;
        let named = volumes.iter().find(|volume| *volume == word).cloned();
        named.or_else(|| self.nodes.volume_at(word, &volumes)).ok_or_else(|| not_found(word))
    }

    fn names_of(&self, words: &[String]) -> Outcome<Vec<String>> {
        words.iter().map(|word| self.name_of(word)).collect()
    }

    /// Does something with each device, also after one has failed.
    ///
    /// # Errors
    /// Those of the last that failed; the others are printed.
    fn each(&self, words: &[String], act: impl Fn(&str) -> Outcome<u8>) -> Outcome<u8> {
        let mut failed = None;
        for word in words {
            if let Err(error) = self.name_of(word).and_then(|name| act(&name))
                && let Some(before) = failed.replace(error)
            {
                say(cairn_outcome::failure::one_line(&before));
            }
        }
        failed.map_or(Ok(exit::OK), Err)
    }

    /// Acts, and then gives each exported volume its node, after an error, too.
    fn settled(&self, act: impl FnOnce() -> Outcome<u8>) -> Outcome<u8> {
        let _lock = self.nodes.lock()?;
        let done = act();
        let settled = self.end_deferred().and_then(|()| self.nodes.settle());
        let code = done?;
        settled.map(|()| code)
    }

    /// Ends the nodes of marked volumes that are no longer in use, so that the server removes the
    /// volumes. Each call of this program begins with that, because no event tells that the last
    /// user of a node has gone. A failure is a warning: the verb does not depend on it.
    fn settle_deferred(&self) {
        let is_marked = self.deferred().map(|marked| marked.is_some_and(|all| !all.is_empty()));
        let settled = match is_marked {
            Ok(true) => self.settled(|| Ok(exit::OK)).map(drop),
            other => other.map(drop),
        };
        settled.unwrap_or_else(|error| {
            say(format_args!("deferred removals: {}", cairn_outcome::failure::one_line(&error)));
        });
    }

    /// The volumes that are to be removed once they are not in use. None without nodes: the server
    /// sees all that uses a volume then.
    fn deferred(&self) -> Outcome<Option<Vec<String>>> {
        if !self.nodes.are_made() {
            return Ok(None);
        }
        let marked = self.client.ask(&VolumeList {})?.into_iter().filter(|it| it.deferred_remove);
        Ok(Some(marked.map(|info| info.name).collect()))
    }

    /// Ends the nodes of the marked volumes that only these use, and waits until the server has
    /// removed the volumes, in rounds: one may stand on another. Only the server removes them: it
    /// looks at the mark again, and logs what is lost or stays on a cache.
    fn end_deferred(&self) -> Outcome<()> {
        let mut left = usize::MAX;
        while let Some(marked) = self.deferred()?.filter(|marked| marked.len() < left) {
            left = marked.len();
            let is_free = |name: &String| self.open_count(name).is_ok_and(|count| count == 0);
            let mut freed: Vec<String> = marked.into_iter().filter(is_free).collect();
            freed.retain(|name| self.nodes.detach(name).is_ok());
            self.await_removal(&freed)?;
        }
        Ok(())
    }

    /// Waits until none of these is a marked volume, but not long: a verb may be in the way.
    fn await_removal(&self, names: &[String]) -> Outcome<()> {
        const TRIES: u32 = 100;
        const PAUSE: Duration = Duration::from_millis(50);
        for _ in 0..TRIES {
            let marked = self.deferred()?.unwrap_or_default();
            if !marked.iter().any(|name| names.contains(name)) {
                break;
            }
            std::thread::sleep(PAUSE);
        }
        Ok(())
    }

    fn tell<V: Verb<Answer = Done>>(&self, verb: &V) -> Outcome<u8> {
        self.client.ask(verb)?.notes.iter().flatten().for_each(say);
        Ok(exit::OK)
    }

    /// Asks for a table to become live. A volume that the table claims has a node, which is a
    /// client of it: if that is in the way and not in use, it ends.
    fn begin<V: Verb<Answer = Done>>(&self, verb: &V, table: &str) -> Outcome<u8> {
        let refusal = match self.tell(verb) {
            Err(error) if error.kind == ConfigKind::Busy => error,
            done => return done,
        };
        let mut ended = false;
        for name in lines::volumes_in(table) {
            ended |= self.nodes.device_of(&name).is_some() && self.nodes.detach(&name).is_ok();
        }
        if ended { self.tell(verb) } else { Err(refusal) }
    }

    /// The table of the command line, for the server.
    fn table_of(&self, load: &Load) -> Outcome<String> {
        let text = table_text(load.table.as_slice(), load.file.as_deref())?;
        lines::to_server(&self.nodes, &self.volumes()?, &text)
    }

    /// Refuses to make a device read-only that is not there.
    fn refuse_without_nodes(&self, load: &Load, readonly: bool) -> Outcome<()> {
        if readonly && !self.nodes.are_made() {
            let (found, expected) = ("no block devices", "root and the kernel's module nbd");
            return Err(wrong(&load.name, "--readonly", found, expected));
        }
        Ok(())
    }

    fn create_as(&self, load: &Load, notable: bool, readonly: bool) -> Outcome<u8> {
        self.refuse_without_nodes(load, readonly)?;
        let code = self.settled(|| self.create(load, notable, readonly))?;
        if readonly {
            let device = self.nodes.device_of(node_name(&load.name)).ok_or_else(|| {
                wrong(&load.name, "--readonly", "no block device", "one for the volume")
            })?;
            device::set_read_only(&device, true)?;
        }
        Ok(code)
    }

    fn create(&self, load: &Load, notable: bool, read_only: bool) -> Outcome<u8> {
        let name = node_name(&load.name).to_owned();
        let table = if notable { String::new() } else { self.table_of(load)? };
        let create = VolumeCreate {
            name,
            table: table.clone(),
            notable,
            read_only,
            ..VolumeCreate::default()
        };
        self.begin(&create, &table)
    }

    fn load(&self, load: &Load, read_only: bool) -> Outcome<u8> {
        self.refuse_without_nodes(load, read_only)?;
        let (name, table) = (self.name_of(&load.name)?, self.table_of(load)?);
        self.tell(&VolumeLoad { name, table, read_only, ..VolumeLoad::default() })
    }

    fn suspend(&self, name: &str, noflush: bool, nolockfs: bool) -> Outcome<u8> {
        let device = self.nodes.device_of(name).filter(|_| !noflush && !nolockfs);
        let device = device.filter(|_| !self.info_of(name).is_ok_and(|info| info.suspended));
        device.iter().try_for_each(|device| device::freeze(device))?;
        let done = self.tell(&VolumeSuspend { name: name.to_owned(), noflush });
        if done.is_err() {
            self.thaw(name)?;
        }
        done
    }

    /// Lets the file systems on a device write again, unless the volume is suspended.
    fn thaw(&self, name: &str) -> Outcome<()> {
        if self.info_of(name)?.suspended {
            return Ok(());
        }
        self.nodes.device_of(name).iter().try_for_each(|device| device::thaw(device))
    }

    fn resume(&self, name: &str) -> Outcome<u8> {
        let verb = VolumeTable { name: Some(name.to_owned()), inactive: true, kernel: false };
        let loaded = self.client.ask(&verb)?.into_iter().flat_map(|volume| volume.lines);
        let table: Vec<String> = loaded.map(|line| line.to_string()).collect();
        let resume = VolumeResume { name: name.to_owned(), ..VolumeResume::default() };
        let mut resumed = self.begin(&resume, &table.join("\n"));
        if resumed.is_ok() && !table.is_empty() {
            resumed = self.follow_table(name).and(resumed);
        }
        // A resume that is refused may leave the volume live, too, on its former table.
        let thawed = self.thaw(name);
        let code = resumed?;
        thawed.map(|()| code)
    }

    fn rename(&self, name: &str, to: &str) -> Outcome<u8> {
        self.detach_unused(name, false)?;
        self.tell(&VolumeRename { name: name.to_owned(), to: node_name(to).to_owned() })
    }

    /// Ends the node of a volume that is not in use; `force` says nothing about other clients.
    fn detach_unused(&self, name: &str, force: bool) -> Outcome<()> {
        match self.open_count(name)? {
            count if count == 0 || force => self.nodes.detach(name),
            count => {
                let found = format!("an open count of {count}");
                Err(refused(ConfigKind::Busy, name, "device", found, "0"))
            }
        }
    }

    /// Makes a device read-only, or writable, as the load of its table said.
    fn follow_table(&self, name: &str) -> Outcome<()> {
        let exports = self.client.ask(&ExportList {})?;
        let mut own = exports.iter().filter(|export| export.name == name);
        let read_only = self.info_of(name)?.device_read_only || own.any(|export| export.read_only);
        let device = self.nodes.device_of(name);
        let device = device.filter(|device| device::is_read_only(device) != read_only);
        device.map_or(Ok(()), |device| device::set_read_only(&device, read_only))
    }

    fn remove(&self, name: &str, how: Removal) -> Outcome<u8> {
        const TRIES: u32 = 25;
        const PAUSE: Duration = Duration::from_millis(200);
        let mut attempt = 0;
        let is_detached = loop {
            attempt += 1;
            match self.detach_unused(name, how.force) {
                Err(_) if how.retry && attempt < TRIES => std::thread::sleep(PAUSE),
                Err(error) if how.deferred && error.kind == ConfigKind::Busy => break false,
                ended => break ended.map(|()| true)?,
            }
        };
        // A node in use is a client of the volume. The server would disconnect it, and cut off a
        // mounted file system.
        let force = how.force && is_detached;
        let (name, deferred) = (name.to_owned(), how.deferred);
        self.tell(&VolumeRemove { name, force, deferred })
    }

    /// In rounds, each of the volumes that no other one stands on, until none is left or all that
    /// are left are refused.
    fn remove_all(&self, how: Removal) -> Outcome<u8> {
        loop {
            let (before, mut refusal) = (self.volumes()?, None);
            for name in &before {
                if let Err(error) = self.remove(name, how) {
                    refusal = Some(error);
                }
            }
            let left = self.volumes()?.len();
            match refusal {
                None => return Ok(exit::OK),
                Some(error) if left == before.len() => return Err(error),
                Some(_) => {}
            }
        }
    }

    fn message(&self, name: &str, sector: u64, words: &[String]) -> Outcome<u8> {
        let name = self.name_of(name)?;
        // One argument may hold several words: the kernel gets a line, too.
        let words = words.iter().flat_map(|word| word.split_whitespace()).map(str::to_owned);
        let verb = VolumeMessage { name, sector, words: words.collect() };
        match self.client.ask(&verb)?.text {
            text if text.is_empty() => Ok(exit::OK),
            text => print(&format!("{text}\n")),
        }
    }

    fn info_of(&self, name: &str) -> Outcome<Info> {
        let infos = self.client.ask(&VolumeList {})?.into_iter();
        infos.into_iter().find(|info| info.name == name).ok_or_else(|| not_found(name))
    }

    /// Volumes on top, users of the node, and other clients of the export.
    fn open_count(&self, name: &str) -> Outcome<u64> {
        let tables = self.client.ask(&VolumeTable::default())?;
        let stands = |volume: &&VolumeLines| {
            let lines: Vec<String> = volume.lines.iter().map(ReportLine::to_string).collect();
            lines::volumes_in(&lines.join("\n")).iter().any(|lower| lower == name)
        };
        let above = tables.iter().filter(stands).count() as u64;
        let exports = self.client.ask(&ExportList {})?;
        let of_volume = exports.iter().filter(|export| export.volume == name);
        let clients: u64 = of_volume.map(|export| export.clients).sum();
        let own = u64::from(self.nodes.device_of(name).is_some());
        Ok(above + self.nodes.users_of(name) + clients.saturating_sub(own))
    }

    fn show_states(&self, names: &[String]) -> Outcome<u8> {
        let mut text = String::new();
        for word in names {
            text.push_str(&self.shown(&self.info_of(&self.name_of(word)?)?)?.block());
        }
        print(&text)
    }

    fn shown<'b>(&self, info: &'b Info) -> Outcome<Shown<'b>> {
        let device = self.nodes.device_of(&info.name);
        let numbers = device.as_deref().and_then(device::numbers_at);
        let read_only = info.read_only || device.is_some_and(|it| device::is_read_only(&it));
        let open_count = self.open_count(&info.name)?;
        Ok(Shown { info, numbers, read_only, open_count })
    }

    fn info(&self, asked: &args::Info) -> Outcome<u8> {
        let mut infos = self.client.ask(&VolumeList {})?;
        if !asked.names.is_empty() {
            let names = self.names_of(&asked.names)?;
            infos.retain(|info| names.contains(&info.name));
        }
        if infos.is_empty() {
            return print("No devices found\n");
        }
        let all: Outcome<Vec<Shown<'_>>> = infos.iter().map(|info| self.shown(info)).collect();
        let is_in_columns = asked.columns || !asked.fields.is_empty();
        if !is_in_columns {
            return print(&all?.iter().map(Shown::block).collect::<String>());
        }
        let field = |word: &String| {
            let expected = "name, major, minor, devno, attr, open, segments, events, uuid, \
                            suspended, readonly or tables_loaded";
            show::field_name(word).ok_or_else(|| wrong(word, "-o", "an unknown field", expected))
        };
        let fields: Outcome<Vec<_>> = asked.fields.iter().map(field).collect();
        let fields = if asked.fields.is_empty() { show::FIELDS.to_vec() } else { fields? };
        let (heads, prefixes) = (!asked.noheadings, asked.nameprefixes);
        let separator = asked.separator.as_deref();
        print(&show::columns(&all?, &Columns { fields, heads, separator, prefixes }))
    }

    /// Lines of the volumes that are asked for; without names each with its volume in front.
    fn show_lines(
        &self,
        chosen: &Chosen,
        all: Vec<VolumeLines>,
        is_verbose: bool,
        line: impl Fn(&ReportLine) -> String,
    ) -> Outcome<u8> {
        let names = self.names_of(&chosen.names)?;
        let mut text = String::new();
        for volume in all {
            if !names.is_empty() && !names.contains(&volume.name) {
                continue;
            }
            if is_verbose {
                text.push_str(&self.shown(&self.info_of(&volume.name)?)?.block());
            }
            let is_wanted = |line: &&ReportLine| {
                chosen.target.as_ref().is_none_or(|target| *target == line.target)
            };
            for of_volume in volume.lines.iter().filter(is_wanted) {
                if names.len() != 1 {
                    text.push_str(&format!("{}: ", volume.name));
                }
                text.push_str(&format!("{}\n", line(of_volume)));
            }
        }
        print(&text)
    }

    fn deps(&self, chosen: &Chosen, by_number: bool) -> Outcome<u8> {
        let all = self.client.ask(&VolumeTable::default())?;
        let folder = self.client.ask(&ServerInfo {})?.folder;
        let names = self.names_of(&chosen.names)?;
        let mut text = String::new();
        for volume in all.iter().filter(|it| names.is_empty() || names.contains(&it.name)) {
            let lines =
                volume.lines.iter().filter_map(|line| TableLine::parse(&line.to_string()).ok());
            let mut lowers: Vec<String> = Vec::new();
            for lower in lines.flat_map(|line| lines::lowers(&self.nodes, &folder, &line)) {
                let shown = match lower.numbers.filter(|_| by_number) {
                    Some((major, minor)) => format!("({major}, {minor})"),
                    None => {
                        format!("({})", lower.path.strip_prefix("/dev/").unwrap_or(&lower.path))
                    }
                };
                if !lowers.contains(&shown) {
                    lowers.push(shown);
                }
            }
            if names.len() != 1 {
                text.push_str(&format!("{}: ", volume.name));
            }
            text.push_str(&format!("{} dependencies\t: {}\n", lowers.len(), lowers.join(" ")));
        }
        print(&text)
    }

    fn list(&self, target: Option<&str>, tree: bool) -> Outcome<u8> {
        let tables = self.client.ask(&VolumeTable::default())?;
        if tree {
            return print(&tree::tree(&tables));
        }
        let is_wanted = |volume: &&VolumeLines| {
            target.is_none_or(|target| volume.lines.iter().any(|line| line.target == target))
        };
        let line = |volume: &VolumeLines| {
            let (major, minor) = self.nodes.numbers_of(&volume.name).unwrap_or_default();
            format!("{}\t({major}:{minor})\n", volume.name)
        };
        let lines: String = tables.iter().filter(is_wanted).map(line).collect();
        print(if lines.is_empty() { "No devices found\n" } else { &lines })
    }
}

/// The name in `NAME` or `/dev/mapper/NAME`.
fn node_name(word: &str) -> &str {
    word.strip_prefix(MAPPER).unwrap_or(word)
}

fn not_found(word: &str) -> ConfigError {
    ConfigError::new(ConfigKind::Argument, format!("Device {word}"), "not found")
}
