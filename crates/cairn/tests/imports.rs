//! The modules at the top of the program's crates import each other in one direction.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::path::Path;

/// The modules at the top of a crate, each with those that it imports.
type Imports = BTreeMap<String, BTreeSet<String>>;

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

#[test]
fn modules_import_each_other_in_one_direction() {
    for package in ["cairn", "control", "outcome", "tools"] {
        let mut imports = Imports::new();
        let crates = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
        read(&crates.join(package).join("src"), &[], &mut imports);
        assert!(imports.values().flatten().count() >= 4, "{package}: {imports:?}");
        let left = circles(imports);
        assert!(left.is_empty(), "{package}: a circle among {left:#?}");
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
