//! The modules at the top of a crate import each other in one direction. Where the head of the
//! crate lists them in an order, it is that direction.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::{Path, PathBuf};

/// The modules at the top of a crate, each with those that it imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

/// The core of the engine (`ARCHITECTURE.md`): the only modules of `block` that may stand in a
/// circle. A disk may be a mapped device, whose table names targets over disks; the limit of a
/// world's background copies is part of its environment, by whose timers it waits.
const CORE: [&str; 12] = [
    "check", "claiming", "device", "disk", "engine", "env", "local", "request", "slots", "table",
    "target", "throttle",
];

/// Reads the files of a folder that is `inside` the modules of this path, below `src`.
fn read(folder: &Path, inside: &[String], imports: &mut Imports) {
    for entry in fs::read_dir(folder).unwrap().map(Result::unwrap) {
        let path = entry.path();
        let mut module = inside.to_vec();
        match path.file_stem().and_then(|stem| stem.to_str()).unwrap() {
            "tests" | "lib" | "main" => continue,
            "mod" => {}
            name => module.push(name.to_owned()),
        }
        if path.is_dir() {
            read(&path, &module, imports);
        } else if path.extension().is_some_and(|extension| extension == "rs") {
            let found = named(&fs::read_to_string(&path).unwrap(), module.len());
            imports.entry(module[0].clone()).or_default().extend(found);
        }
    }
}

/// The modules of a crate, below `crates`. What one imports through a re-export of the crate's root
/// is an import of the module that it comes from.
fn imports_of(package: &str) -> Imports {
    let source = source_of(package);
    let mut imports = Imports::new();
    read(&source, &[], &mut imports);
    let from = re_exports(&fs::read_to_string(root_of(&source)).unwrap());
    for on in imports.values_mut() {
        *on = on.iter().map(|name| from.get(name).unwrap_or(name).clone()).collect();
    }
    assert!(imports.values().flatten().count() >= 4, "{package}: {imports:?}");
    imports
}

fn source_of(package: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap().join(package).join("src")
}

fn root_of(source: &Path) -> PathBuf {
    let roots = ["lib.rs", "main.rs"].map(|name| source.join(name));
    roots.into_iter().find(|root| root.exists()).unwrap()
}

/// The names that a root brings in with `use`, each with the module that it comes from.
fn re_exports(root: &str) -> BTreeMap<String, String> {
    let mut from = BTreeMap::new();
    for (at, _) in root.match_indices("use ").filter(|(at, _)| {
        let line = root[..*at].rsplit('\n').next().unwrap();
        line.is_empty() || line == "pub "
    }) {
        let Some((module, names)) = root[at + 4..].split(';').next().unwrap().split_once("::")
        else {
            continue;
        };
        for name in names.split(|letter: char| !letter.is_alphanumeric() && letter != '_') {
            from.insert(name.to_owned(), module.to_owned());
        }
    }
    from
}

/// The modules that a root's head lists, in order: the lines of its list with the names on each.
fn listed(root: &str) -> Vec<Vec<String>> {
    let head = root.lines().map_while(|line| line.strip_prefix("//!"));
    let mut items: Vec<String> = Vec::new();
    for line in head {
        match (line.strip_prefix(" - "), line.strip_prefix("   "), items.last_mut()) {
            (Some(item), ..) => items.push(item.to_owned()),
            (_, Some(more), Some(item)) => item.push_str(more),
            _ => {}
        }
    }
    let names = |item: &String| {
        let links = item.split("[`").skip(1).filter_map(|link| link.split("`]").next());
        links.map(|link| link.trim_start_matches("mod@").to_owned()).collect()
    };
    items.iter().map(names).collect()
}

/// What stands behind `crate::`, or as many `super::` as lead there, outside comments and tests.
fn named(text: &str, depth: usize) -> BTreeSet<String> {
    let text = text.split("\nmod tests {").next().unwrap();
    let code: Vec<&str> = text.lines().map(|line| line.split("//").next().unwrap()).collect();
    let code = code.join("\n");
    let mut names = BTreeSet::new();
    for root in ["crate::".to_owned(), "super::".repeat(depth)] {
        for (at, _) in code.match_indices(&root).filter(|(at, _)| !code[..*at].ends_with(':')) {
            let rest = &code[at + root.len()..];
            let list = rest.strip_prefix('{').map(|list| list.split('}').next().unwrap());
            for path in list.map_or(vec![rest], |list| list.split(',').collect()) {
                let is_end = |letter: char| !letter.is_alphanumeric() && letter != '_';
                names.insert(path.trim().split(is_end).next().unwrap().to_owned());
            }
        }
    }
    names.remove("");
    names
}

/// The modules left when those that import none of the rest are taken away, again and again.
fn circles(mut imports: Imports) -> Imports {
    loop {
        let names: BTreeSet<String> = imports.keys().cloned().collect();
        imports.iter_mut().for_each(|(name, on)| on.retain(|on| on != name && names.contains(on)));
        imports.retain(|_, on| !on.is_empty());
        if imports.len() == names.len() {
            return imports;
        }
    }
}

/// True if a module's imports lead back to it.
fn leads_back(imports: &Imports, name: &str) -> bool {
    let mut reached = BTreeSet::new();
    let mut next: Vec<&String> = imports[name].iter().collect();
    while let Some(module) = next.pop() {
        if reached.insert(module) {
            next.extend(imports.get(module).into_iter().flatten());
        }
    }
    reached.iter().any(|module| *module == name)
}

#[test]
fn modules_import_each_other_in_one_direction() {
    for package in ["bench", "cairn", "control", "outcome", "tools"] {
        let left = circles(imports_of(package));
        assert!(left.is_empty(), "{package}: a circle among {left:#?}");
    }
}

#[test]
fn only_the_core_of_the_engine_imports_itself() {
    let imports = imports_of("block");
    let mut left = circles(imports.clone());
    left.retain(|name, _| leads_back(&imports, name));
    assert_eq!(left.into_keys().collect::<Vec<_>>(), CORE);
}

#[test]
fn heads_list_modules_in_the_order_of_their_imports() {
    for package in ["cairn", "control"] {
        let listed = listed(&fs::read_to_string(root_of(&source_of(package))).unwrap());
        let place = |name: &str| listed.iter().position(|item| item.iter().any(|one| one == name));
        for (name, on) in imports_of(package) {
            let own = place(&name).unwrap_or_else(|| panic!("{package}: {name} is not listed"));
            for on in on {
                let above = place(&on).is_none_or(|above| above <= own);
                assert!(above, "{package}: {name} imports {on}, which is listed below it");
            }
        }
    }
}

#[test]
fn a_circle_is_found_behind_crate_and_super() {
    let a = named("use crate::b::X; // crate::d\nmod tests;\n", 1);
    let b = named("use super::super::{\n    c,\n    e::Y,\n};\nuse super::f;", 2);
    let c = named("use super::a;\nmod tests {\n}\nuse crate::g;", 1);
    let set = |names: &[&str]| names.iter().map(|&name| name.to_owned()).collect::<BTreeSet<_>>();
    assert_eq!((&a, &b), (&set(&["b"]), &set(&["c", "e"])));
    let all = [("a", a), ("b", b), ("c", c), ("e", BTreeSet::new())];
    let left = circles(all.into_iter().map(|(name, on)| (name.to_owned(), on)).collect());
    assert_eq!(left.into_keys().collect::<Vec<_>>(), ["a", "b", "c"]);
}

#[test]
fn a_re_export_is_an_import_of_its_module() {
    let from = re_exports("pub use a::{X, y};\nuse b::Z;\npub use c;\n");
    let pairs = from.iter().filter(|(name, _)| !name.is_empty());
    let pairs: Vec<_> = pairs.map(|(name, module)| (name.as_str(), module.as_str())).collect();
    assert_eq!(pairs, [("X", "a"), ("Z", "b"), ("y", "a")]);
}

#[test]
fn a_head_lists_the_modules_of_each_line() {
    let listed = listed("//! A crate.\n//! - [`a`], [`mod@b`]: x\n//!   [`c`].\n//! - [`d`]: y\n");
    assert_eq!(listed, [vec!["a", "b", "c"], vec!["d"]]);
}
