//! Holds the manuals in `docs/targets` to the parser. Each kind of target has one, with these
//! sections in this order:
//!
//! - SYNOPSIS: the table line in a code block, as the target declares it.
//! - PICTURE: how ranges or requests pass, in characters.
//! - EXAMPLES: three sessions (`console` blocks, which a test of the program runs), then table
//!   lines in code blocks; the real parser reads these, over devices that hold zeros. Every
//!   optional argument stands in one.
//! - ARGUMENTS: a bullet per argument (``- `<device>`: ...``) and per optional argument
//!   (``- `keyword <value>`: ...``).
//! - STATUS: a numbered item per status field (``1. `field`: ...``).
//! - MESSAGES: a bullet per message (``- `word <value>`: ...``).
//! - NOTES: where cairn differs from the kernel.

use std::collections::BTreeSet;
use std::path::PathBuf;
use std::sync::Arc;

use cairn_block::{
    ConfigError, Disk, Env, FailureCount, Flow, Identity, Op, Opener, Registry, Request,
    SectorCount, Table, TableContext, TableLine, TargetTypes,
};
use cairn_format::bcache::{
    BackingState, BackingSuperblock, CacheMode, CacheSuperblock, NewBacking, NewCache, Replacement,
    Uuid,
};
use cairn_format::qcow2::write::Blank;
use cairn_sim::SimWorld;
use cairn_targets::spec::Spec;

const SECTIONS: [&str; 7] =
    ["SYNOPSIS", "PICTURE", "EXAMPLES", "ARGUMENTS", "STATUS", "MESSAGES", "NOTES"];

struct Manual {
    name: &'static str,
    spec: &'static Spec,
    text: String,
}

fn manuals() -> Vec<Manual> {
    let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../../docs/targets");
    let read = |name: &str| {
        let path = folder.join(format!("{name}.md"));
        std::fs::read_to_string(&path).unwrap_or_else(|error| panic!("{}: {error}", path.display()))
    };
    let specs = cairn_targets::KINDS.iter().map(|kind| kind.spec);
    specs.map(|spec| Manual { name: spec.name, spec, text: read(spec.name) }).collect()
}

impl Manual {
    fn section(&self, title: &str) -> &str {
        let heading = format!("\n## {title}\n");
        let (_, rest) = self
            .text
            .split_once(&heading)
            .unwrap_or_else(|| panic!("{}: no section {title}", self.name));
        rest.split_once("\n## ").map_or(rest, |(section, _)| section)
    }

    /// What stands between the first backticks of each list item.
    fn items(&self, title: &str) -> Vec<&str> {
        self.section(title)
            .lines()
            .filter_map(|line| {
                line.trim_start_matches(|c: char| c.is_ascii_digit()).split_once('`')
            })
            .filter(|(bullet, _)| ["- ", ". "].contains(bullet))
            .map(|(_, rest)| rest.split_once('`').expect("a closing backtick").0)
            .collect()
    }

    /// The code blocks, each from the name of its language on.
    fn blocks(&self, title: &str) -> impl Iterator<Item = &str> {
        self.section(title).split("```").skip(1).step_by(2)
    }

    /// The lines inside code blocks without a language.
    fn code(&self, title: &str) -> Vec<&str> {
        let plain = self.blocks(title).filter(|block| block.starts_with('\n'));
        plain.flat_map(|block| block.lines().skip(1)).collect()
    }

    /// The documented optional arguments, as `keyword <value>...`.
    fn options(&self) -> BTreeSet<String> {
        let items = self.items("ARGUMENTS");
        items.into_iter().filter(|item| !item.starts_with('<')).map(str::to_owned).collect()
    }

    fn examples(&self) -> Vec<TableLine> {
        let code = self.code("EXAMPLES");
        let lines = code.into_iter().filter(|line| line.starts_with(|c: char| c.is_ascii_digit()));
        lines.map(|line| TableLine::parse(line).expect(line)).collect()
    }
}

/// A huge device of zeros, but for what it begins with.
struct Mostly {
    name: String,
    begins: Vec<u8>,
}

impl Disk for Mostly {
    fn name(&self) -> String {
        self.name.clone()
    }

    fn sectors(&self) -> SectorCount {
        SectorCount(1 << 32)
    }

    fn submit(&self, _env: &Env, request: &mut Request) -> Flow {
        assert_eq!(request.op, Op::Read, "a constructor writes nothing");
        let (start, len) = (request.range.start.to_bytes(), request.range.to_bytes() as usize);
        request.segs.zero(0, len);
        let there = self.begins.get(start as usize..).unwrap_or_default();
        request.segs.copy_in(0, &there[..there.len().min(len)]);
        Flow::Done
    }
}

/// The metadata of a pool with data blocks of 128 sectors.
fn formatted_pool() -> Vec<u8> {
    cairn_testkit::image("thin", "fresh.meta")
}

/// The superblock of a device of a bcache set, where it lies.
fn bcache(superblock: &[u8]) -> Vec<u8> {
    [&[0; 4096], superblock].concat()
}

/// The set of the examples.
fn set_uuid() -> Uuid {
    "7d8f1e5c-6a0e-4b0c-9a4e-0f7e6c1c2b3a".parse().expect("a UUID")
}

fn bcache_cache() -> Vec<u8> {
    let fresh = CacheSuperblock::fresh(&NewCache {
        uuid: Uuid([1; 16]),
        set_uuid: set_uuid(),
        block_sectors: 1,
        bucket_sectors: 1024,
        device_sectors: 1 << 17,
        replacement: Replacement::Lru,
        discard: false,
    });
    bcache(&fresh.expect("legal").in_use_with_journal(2).encode())
}

fn bcache_backing() -> Vec<u8> {
    let fresh = BackingSuperblock::fresh(&NewBacking {
        uuid: Uuid([2; 16]),
        set_uuid: set_uuid(),
        block_sectors: 1,
        data_offset: 16,
        mode: CacheMode::Writeback,
        state: BackingState::Dirty,
        label: [0; 32],
    });
    bcache(&fresh.expect("legal").encode())
}

/// Of 1 GiB.
fn qcow2_image(backing: Option<(&str, &str)>) -> Vec<u8> {
    let blank = Blank { size: 1 << 30, cluster_bits: 16, refcount_order: 4, backing };
    blank.bytes().expect("legal")
}

struct AnyDevice;

impl Opener for AnyDevice {
    fn identify(&self, argument: &str) -> Result<Identity, ConfigError> {
        Ok(Identity::Volume(format!("device {argument}")))
    }

    fn open(
        &self,
        argument: &str,
        _read_only: bool,
        _failures: Arc<FailureCount>,
    ) -> Result<Arc<dyn Disk>, ConfigError> {
        // The pool and the set of the examples that are there already.
        let begins = match argument {
            "pool.meta" => formatted_pool(),
            "cache.img" => bcache_cache(),
            "backing.img" => bcache_backing(),
            "vm.qcow2" => qcow2_image(None),
            "overlay.qcow2" => qcow2_image(Some(("base.img", "raw"))),
            _ => Vec::new(),
        };
        Ok(Arc::new(Mostly { name: argument.to_owned(), begins }))
    }
}

/// Builds a table of one line from the start, and hands its target to `look`.
fn with_target<R: 'static>(
    mut line: TableLine,
    look: impl FnOnce(&dyn cairn_block::Target) -> R + 'static,
) -> Result<R, ConfigError> {
    line.start = cairn_block::Sector(0);
    let world = SimWorld::new(1, 1);
    world.block_on(0, |env| async move {
        let registry = Registry::new(Box::new(AnyDevice));
        let types = TargetTypes::new(cairn_targets::types());
        let context = TableContext { types: &types, registry: &registry, read_only: false };
        // Volumes that examples stand on.
        registry.create_volume("pool")?;
        let volume = registry.create_volume("example")?;
        let table = Table::build(&env, &volume, &[line], context).await?;
        Ok(look(table.lines()[0].target.as_ref()))
    })
}

#[test]
fn every_target_has_a_manual_with_the_same_sections() {
    for manual in manuals() {
        assert!(manual.text.starts_with(&format!("# {}\n", manual.name)), "{}", manual.name);
        let titles: Vec<_> =
            manual.text.lines().filter_map(|line| line.strip_prefix("## ")).collect();
        assert_eq!(titles, SECTIONS, "{}", manual.name);
    }
}

#[test]
fn every_manual_has_a_picture_and_three_sessions() {
    for manual in manuals() {
        let of = |title, language: &str| {
            manual.blocks(title).filter(|block| block.starts_with(language)).count()
        };
        assert_eq!(of("PICTURE", "text\n"), 1, "{}", manual.name);
        assert_eq!(of("EXAMPLES", "console\n"), 3, "{}", manual.name);
    }
}

#[test]
fn the_synopsis_is_the_parsers() {
    for manual in manuals() {
        let synopsis = manual.code("SYNOPSIS").join(" ");
        let words: Vec<_> = synopsis.split_whitespace().collect();
        assert_eq!(words.join(" "), manual.spec.synopsis(), "{}", manual.name);
    }
}

#[test]
fn arguments_of_the_synopsis_are_explained_and_no_others() {
    for manual in manuals() {
        let explained: BTreeSet<_> =
            manual.items("ARGUMENTS").into_iter().filter(|item| item.starts_with('<')).collect();
        let synopsis = manual.spec.synopsis();
        let used: BTreeSet<_> = synopsis
            .split_inclusive('>')
            .filter_map(|piece| piece.rfind('<').map(|at| &piece[at..]))
            .filter(|piece| piece.ends_with('>'))
            .collect();
        assert_eq!(explained, used, "{}", manual.name);
    }
}

#[test]
fn the_parsers_options_are_the_manuals() {
    for manual in manuals() {
        let known: BTreeSet<_> = manual.spec.options().map(ToString::to_string).collect();
        assert_eq!(manual.options(), known, "{}", manual.name);
    }
}

#[test]
fn every_option_stands_in_an_example() {
    for manual in manuals() {
        let examples = manual.examples();
        for option in manual.spec.options() {
            let stands = |line: &TableLine| line.args.iter().any(|word| word == option.word);
            assert!(examples.iter().any(stands), "{}: {}", manual.name, option.word);
        }
    }
}

#[test]
fn examples_are_tables_and_print_as_tables() {
    for manual in manuals() {
        let examples = manual.examples();
        assert!(examples.iter().any(|line| line.target == manual.name), "{}", manual.name);
        for line in examples {
            let text = format!("{} {}", line.target, line.args.join(" "));
            let printed = with_target(line.clone(), |target| target.table())
                .unwrap_or_else(|error| panic!("{}: {text}: {error}", manual.name));
            let args = printed.split_whitespace().map(str::to_owned).collect();
            let again = with_target(TableLine { args, ..line }, |target| target.table());
            assert_eq!(again.expect(&text), printed, "{text}");
        }
    }
}

#[test]
fn status_fields_are_the_manuals_in_order() {
    for manual in manuals() {
        let names: Vec<_> = manual.spec.status_fields.iter().map(|field| field.name).collect();
        assert_eq!(manual.items("STATUS"), names, "{}", manual.name);
        let own = manual.examples().into_iter().find(|line| line.target == manual.name);
        let told = with_target(own.expect("an example"), |target| {
            target.report().fields().map(|(field, _)| field.name).collect::<Vec<_>>()
        });
        assert_eq!(told.expect("parses"), names, "{}", manual.name);
    }
}

#[test]
fn messages_are_the_manuals() {
    for manual in manuals() {
        let documented: Vec<_> = manual
            .items("MESSAGES")
            .into_iter()
            .map(|item| item.split_whitespace().next().expect("a word"))
            .collect();
        assert_eq!(documented, manual.spec.messages, "{}", manual.name);
    }
}
