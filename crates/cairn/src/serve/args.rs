//! `serve` on the command line: its options, and tables and messages in the order they came.

use std::path::PathBuf;

use cairn_backends::rbd::TakeOver;
use cairn_control::state::Adopted;
use cairn_control::throttles::Limits;
use cairn_control::verbs::volume::VolumeMessage;
use cairn_outcome::failure::{Outcome, wrong};
use clap::parser::ValueSource;
use clap::{ArgMatches, Args, ValueEnum};

use cairn_reactor::RingKind;

use super::config::KEYS;
use super::limits::{CONNECTIONS, parse_crash_log, parse_memory};
use super::tls::TlsChoice;
use super::{throttle, vhost};

/// The longest time that an idle reactor may poll before it sleeps, in microseconds.
pub const SPIN_US_MAX: i64 = 10_000;

/// The volume of a table without a name.
pub const DEFAULT_VOLUME: &str = "default";

/// The syntax of tables, for `--help`.
pub const TABLE_HELP: &str = "\
Table lines: START LENGTH TARGET ARGS...
  START and LENGTH count sectors of 512 bytes. The lines of a volume begin at sector 0 and
  follow each other without gaps. A line that begins with # is a comment.
  TARGET: see `cairn targets`; docs/targets explains the arguments of each.
  A device is a path, @VOLUME, mem:SIZE or null:SIZE. A space in a path is written \\040.
  Optional arguments come last, after the number of their words: 2 high_watermark 60.
";

fn long_help() -> String {
    format!("{TABLE_HELP}\nFILE.toml, with every key:\n\n{KEYS}")
}

/// `serve`
#[derive(Args)]
#[command(after_long_help = long_help())]
pub struct ServeArgs {
    /// A table line for volume NAME (default: "default"); the same NAME again, or newlines,
    /// append lines
    #[arg(long, value_name = "[NAME=]START LENGTH TARGET ARGS")]
    pub table: Vec<String>,
    /// A message to a volume; tables and messages act in the order given, and a failed message
    /// stops the start
    #[arg(long, value_name = "NAME SECTOR MESSAGE")]
    pub message: Vec<String>,
    /// Volumes, exports, sockets and images to make; paths in it are relative to it
    #[arg(value_name = "FILE.toml")]
    pub file: Option<PathBuf>,
    /// The state file, for tables changed at run time (default: beside FILE.toml)
    #[arg(long, value_name = "FILE")]
    pub state: Option<PathBuf>,
    /// The volume for clients that name no export (default: the only one). Or a socket for virtual
    /// machines, which may be repeated: vhost-user-blk:PATH,num-queues=N,name=EXPORT and the rights
    /// of --listen, where PATH alone will do
    #[arg(long, value_name = "NAME")]
    export: Vec<String>,
    /// Limits of what the clients of an export may do together (default: those of --export's):
    /// iops-total, iops-read, iops-write, bps-total, bps-read, bps-write, each with -max and
    /// -max-length for a burst, and iops-size; may be repeated
    #[arg(long, value_name = "[EXPORT:]iops-total=1000,bps-write=100M")]
    pub throttle: Vec<String>,
    /// Limits of copies in the background, all volumes together: iops-total, bps-total, each with
    /// -max and -max-length for a burst, and iops-size
    #[arg(long, value_name = "bps-total=50M", value_parser = throttle::background)]
    pub background: Option<Limits>,
    /// Where clients connect: unix:PATH,mode=MODE,group=GROUP, where PATH alone will do, or
    /// tcp:HOST:PORT (tcp:PORT is loopback); may be repeated
    #[arg(long, value_name = "ADDRESS")]
    pub listen: Vec<String>,
    /// Whether NBD clients use TLS (default: require with --tls-certificates, else off)
    #[arg(long, value_enum)]
    pub tls: Option<TlsChoice>,
    /// The folder of server-cert.pem and server-key.pem, and of ca-cert.pem and ca-crl.pem for
    /// --tls-verify-peer
    #[arg(long, value_name = "DIR")]
    pub tls_certificates: Option<PathBuf>,
    /// Keys that NBD clients share with the server, in place of certificates: a file with a line
    /// NAME:HEX for each (needs a program with the feature tls-psk)
    #[arg(long, value_name = "FILE", conflicts_with_all = ["tls_certificates", "tls_verify_peer"])]
    pub tls_psk: Option<PathBuf>,
    /// Refuse NBD clients over TLS that have no certificate of ca-cert.pem
    #[arg(long)]
    pub tls_verify_peer: bool,
    /// The control socket for the other verbs; mode and group as for --listen
    #[arg(long, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// Answer monitoring over HTTP at unix:PATH or tcp:HOST:PORT, path /metrics
    #[arg(long, value_name = "ADDRESS")]
    pub metrics: Option<String>,
    /// Show people with a browser what volumes do, over HTTP at tcp:HOST:PORT or unix:PATH
    #[arg(long, value_name = "ADDRESS")]
    pub dashboard: Option<String>,
    /// Write no byte to any device
    #[arg(long)]
    pub read_only: bool,
    /// Serve bcache volumes from their backing devices alone, as if the cache were gone: reads of
    /// what it may have newer fail
    #[arg(long)]
    pub without_cache: bool,
    /// Let these reads have the older data of the backing device
    #[arg(long, requires = "without_cache")]
    pub stale_ok: bool,
    /// Also write to backing devices of bcache without their caches: it is the clients that run
    /// these sets
    #[arg(long)]
    pub guest_sets: bool,
    /// Fence this owner of the lock of a Ceph image, and serve the image in its place: as the
    /// refusal of the image shows it; may be repeated
    #[arg(long, value_name = "rbd:POOL/IMAGE=ADDRESS/COOKIE", value_parser = TakeOver::parse)]
    pub take_over: Vec<TakeOver>,
    /// The cache of this origin on another host, or one of before there were dirty markers, is this
    /// one's: the generation as the refusal shows it, or none; may be repeated
    #[arg(long, value_name = "DEVICE=GENERATION", value_parser = Adopted::parse)]
    pub adopt_marker: Vec<Adopted>,
    /// Serve nothing unless every volume can be brought up
    #[arg(long)]
    pub strict: bool,
    /// Serve on a private socket while CMD runs (sh -c, with $uri and $unixsocket), then shut
    /// down with its exit status
    #[arg(long, value_name = "CMD")]
    pub run: Option<String>,
    /// How many reactor threads (default: one per processor, at most 4)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(1..=256))]
    pub reactors: Option<u16>,
    /// How requests reach the system
    #[arg(long, value_enum)]
    pub ring: Option<RingChoice>,
    /// How long an idle reactor polls before it sleeps, in microseconds, while that finds
    /// something (default: 32 if it serves a virtual machine, otherwise 0, sleep at once)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(..=SPIN_US_MAX))]
    pub spin_us: Option<u32>,
    /// How many NBD connections are open at most; further ones are refused (default: 256)
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u16).range(CONNECTIONS))]
    pub connections: Option<u16>,
    /// Memory for the payloads of all connections, 64M or more (default: 1G)
    #[arg(long, value_name = "SIZE", value_parser = parse_memory)]
    pub memory: Option<u64>,
    /// Memory for the crash log of each cache and pool, 64K or more (default: 16M)
    #[arg(long, value_name = "SIZE", value_parser = parse_crash_log)]
    pub crash_log: Option<u64>,
    /// Give up what a killed server has left in crash logs: the writes that it acknowledged and had
    /// not committed are lost
    #[arg(long)]
    pub discard_crash_log: bool,
    /// At a stop, write the dirty data of caches back before the server ends; a second signal cuts
    /// that short
    #[arg(long)]
    pub drain_on_stop: bool,
    /// Take over from the server at the other end of standard input (see cairn upgrade)
    #[arg(long, hide = true, conflicts_with = "run")]
    pub successor: bool,
    /// Tables and messages in command-line order.
    #[arg(skip)]
    pub steps: Vec<Step>,
}

/// Which ring to use.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, ValueEnum, serde::Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum RingChoice {
    /// io_uring, or threads where it is forbidden
    #[default]
    Auto,
    /// io_uring or nothing
    Uring,
    /// Helper threads
    Threads,
}

impl RingChoice {
    /// The choice as the reactor's type.
    pub fn kind(self) -> RingKind {
        match self {
            RingChoice::Auto => RingKind::Auto,
            RingChoice::Uring => RingKind::Uring,
            RingChoice::Threads => RingKind::Threads,
        }
    }
}

/// One `--table` or `--message`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Step {
    /// Lines for a volume.
    Table(String),
    /// `NAME SECTOR MESSAGE`.
    Message(String),
}

impl ServeArgs {
    /// The export of clients that name none, and the sockets for virtual machines.
    ///
    /// # Errors
    /// A socket makes no sense, or two exports are named.
    pub fn exports(&self) -> Outcome<(Option<String>, Vec<vhost::Wanted>)> {
        let (mut default, mut sockets) = (None, Vec::new());
        for text in &self.export {
            match vhost::Wanted::parse(text) {
                Some(socket) => sockets.push(socket?),
                None if default.is_some() => {
                    let found = format!("'{text}' too");
                    return Err(wrong(
                        "",
                        "--export",
                        found,
                        "one export of clients that name none",
                    ));
                }
                None => default = Some(text.clone()),
            }
        }
        Ok((default, sockets))
    }

    /// Restores the order across `--table` and `--message`, which the parsed lists have lost.
    pub fn remember_order(&mut self, matches: &ArgMatches) {
        let mut steps: Vec<(usize, Step)> = Vec::new();
        let given = |id| matches.value_source(id) == Some(ValueSource::CommandLine);
        let places = |id| {
            let places = given(id).then(|| matches.indices_of(id)).flatten();
            places.into_iter().flatten()
        };
        steps.extend(places("table").zip(self.table.iter().cloned().map(Step::Table)));
        steps.extend(places("message").zip(self.message.iter().cloned().map(Step::Message)));
        steps.sort_by_key(|(place, _)| *place);
        self.steps = steps.into_iter().map(|(_, step)| step).collect();
    }
}

/// Splits `[NAME=]LINES`. An `=` counts only before the first space.
pub fn split_table(text: &str) -> (&str, &str) {
    let text = text.trim_start();
    match text.split_once('=') {
        Some((name, lines)) if !name.contains(char::is_whitespace) => (name, lines),
        _ => (DEFAULT_VOLUME, text),
    }
}

/// Parses `NAME SECTOR MESSAGE`.
///
/// # Errors
/// A part is missing or no number.
pub fn parse_message(text: &str) -> Outcome<VolumeMessage> {
    let mut words = text.split_whitespace().map(str::to_owned);
    let expected = "'NAME SECTOR MESSAGE'";
    let Some(name) = words.next() else {
        return Err(wrong("--message", "message", "nothing", expected));
    };
    let sector = words.next().unwrap_or_else(|| "nothing".to_owned());
    let Ok(sector) = sector.parse() else {
        return Err(wrong(name, "message sector", sector, expected));
    };
    let words: Vec<_> = words.collect();
    if words.is_empty() {
        return Err(wrong(name, "message", "no words", expected));
    }
    Ok(VolumeMessage { name, sector, words })
}

#[cfg(test)]
mod tests {
    use super::{KEYS, Step, TABLE_HELP, VolumeMessage, parse_message, split_table};
    use crate::cli::{Command, parse};

    #[test]
    fn long_help_has_the_keys_of_the_file_and_the_syntax_of_tables() {
        let help = parse(["cairn", "serve", "--help"].map(Into::into)).err().unwrap().to_string();
        assert!(help.contains(KEYS) && help.contains(TABLE_HELP), "{help}");
    }

    #[test]
    fn tables_and_messages_keep_the_order_of_the_command_line() {
        let args = "cairn serve --table A --message B --table C --message D";
        let cli = parse(args.split(' ').map(Into::into)).unwrap();
        let Command::Serve(serve) = cli.command else { panic!("expected serve") };
        let (table, message) = (|t: &str| Step::Table(t.into()), |t: &str| Step::Message(t.into()));
        assert_eq!(serve.steps, [table("A"), message("B"), table("C"), message("D")]);
    }

    #[test]
    fn an_equals_sign_after_a_space_names_no_volume() {
        assert_eq!(split_table("vm=0 8 zero"), ("vm", "0 8 zero"));
        assert_eq!(split_table("0 8 linear a=b 0"), ("default", "0 8 linear a=b 0"));
        assert_eq!(split_table("0 8 zero"), ("default", "0 8 zero"));
    }

    #[test]
    fn a_message_needs_a_volume_a_sector_and_words() {
        let flush = VolumeMessage { name: "v".into(), sector: 0, words: vec!["flush".into()] };
        assert_eq!(parse_message("v 0 flush").unwrap(), flush);
        for text in ["", "v", "v x flush", "v 0"] {
            let line = parse_message(text).unwrap_err().to_string();
            assert!(line.contains("expected 'NAME SECTOR MESSAGE'"), "{line}");
        }
    }
}
