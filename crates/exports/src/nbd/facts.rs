//! What a server tells clients about its exports, checked before any client gets it.
//!
//! Owns: names, sizes, flags, block sizes and metadata contexts of the exports of one server, and
//! the lookup by name, where the empty name may stand for a default export.
//!
//! Promises: every string in an [`Exports`] fits the protocol's limits, names are unique, block
//! sizes obey the protocol and divide the size.

use std::collections::HashSet;

use thiserror::Error;

use super::wire::{MessageForm, STRING_BYTES_MAX, TransmissionFlags};

/// Largest minimum block size the protocol allows, in bytes.
const MINIMUM_BLOCK_MAX: u32 = 64 << 10;

/// Block sizes of an export, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct BlockSizes {
    /// Offsets and lengths are multiples of this; a power of two up to 64 KiB.
    pub minimum: u32,
    /// Requests aligned to this are fastest; a power of two, at least `minimum`.
    pub preferred: u32,
    /// Longest payload of one read or write; a multiple of `minimum`, at least `preferred`.
    pub maximum: u32,
}

/// What clients may know about one export.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ExportFacts {
    /// The name clients ask for; not empty.
    pub name: String,
    /// A line for a person; may be empty.
    pub description: String,
    /// Size in bytes; a multiple of the minimum block size.
    pub size_bytes: u64,
    /// What the export offers. `HAS_FLAGS` is implied and `SEND_DF` follows the negotiation.
    pub flags: TransmissionFlags,
    /// Block sizes told to clients that ask.
    pub block_sizes: BlockSizes,
    /// Names of the metadata contexts that block status can report, as `namespace:leaf`.
    pub contexts: Vec<String>,
    /// Names in certificates: clients that have none of them do not find the export. Empty: every
    /// client finds it.
    pub clients: Vec<String>,
}

/// Why a set of exports cannot be served.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum FactsError {
    /// A string breaks the protocol's limits.
    #[error("export `{export}`: {what} is {found}, expected 1 to 4096 bytes without NUL")]
    BadString {
        /// The export's name.
        export: String,
        /// Which string.
        what: &'static str,
        /// What is wrong with it.
        found: String,
    },
    /// A metadata context is not of the form `namespace:leaf`.
    #[error("export `{export}`: metadata context `{context}`, expected namespace:leaf")]
    BadContext {
        /// The export's name.
        export: String,
        /// The context's name.
        context: String,
    },
    /// Two exports have one name.
    #[error("export `{0}` is named twice")]
    NameTwice(String),
    /// Block sizes break the protocol's rules.
    #[error("export `{export}`: block sizes {sizes:?}, expected {expected}")]
    BadBlockSizes {
        /// The export's name.
        export: String,
        /// The sizes found.
        sizes: BlockSizes,
        /// The rule they break.
        expected: &'static str,
    },
    /// The size is not a whole number of blocks.
    #[error("export `{export}`: size {size_bytes} bytes, expected a multiple of {minimum}")]
    UnalignedSize {
        /// The export's name.
        export: String,
        /// The size found.
        size_bytes: u64,
        /// The minimum block size.
        minimum: u32,
    },
    /// The default export does not exist.
    #[error("default export `{0}` is not among the exports")]
    DefaultUnknown(String),
}

/// The exports of one server, checked.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exports {
    facts: Vec<ExportFacts>,
    default: Option<usize>,
}

impl Exports {
    /// Checks `facts`; the empty name will mean the export called `default`, if one is given.
    pub fn new(facts: Vec<ExportFacts>, default: Option<&str>) -> Result<Self, FactsError> {
        let mut names = HashSet::new();
        for fact in &facts {
            fact.check()?;
            if !names.insert(fact.name.as_str()) {
                return Err(FactsError::NameTwice(fact.name.clone()));
            }
        }
        let default = match default {
            None => None,
            Some(name) => Some(
                facts
                    .iter()
                    .position(|fact| fact.name == name)
                    .ok_or_else(|| FactsError::DefaultUnknown(name.to_owned()))?,
            ),
        };
        Ok(Self { facts, default })
    }

    /// All exports, in the order given.
    pub fn all(&self) -> &[ExportFacts] {
        &self.facts
    }

    /// The index and facts of the export that a client means by `name`.
    pub fn find(&self, name: &str) -> Option<(usize, &ExportFacts)> {
        let index = match name {
            "" => self.default?,
            _ => self.facts.iter().position(|fact| fact.name == name)?,
        };
        Some((index, &self.facts[index]))
    }
}

impl ExportFacts {
    /// True if a client whose certificate has these names may find the export.
    pub fn admits(&self, names: &[String]) -> bool {
        self.clients.is_empty() || self.clients.iter().any(|name| names.contains(name))
    }

    /// The flags told to a client, which depend on the form of messages that it negotiated.
    pub fn offered_flags(&self, form: MessageForm) -> TransmissionFlags {
        let mut flags = self.flags | TransmissionFlags::HAS_FLAGS;
        flags.set(TransmissionFlags::SEND_DF, form.has_chunks());
        flags
    }

    fn check(&self) -> Result<(), FactsError> {
        self.check_string("the name", &self.name)?;
        if !self.description.is_empty() {
            self.check_string("the description", &self.description)?;
        }
        for context in &self.contexts {
            self.check_string("a metadata context", context)?;
            let parts = context.split_once(':');
            if !parts.is_some_and(|(space, leaf)| !space.is_empty() && !leaf.is_empty()) {
                let (export, context) = (self.name.clone(), context.clone());
                return Err(FactsError::BadContext { export, context });
            }
        }
        self.check_sizes()
    }

    fn check_string(&self, what: &'static str, string: &str) -> Result<(), FactsError> {
        let found = match string {
            "" => "empty".to_owned(),
            _ if string.contains('\0') => "a string with NUL".to_owned(),
            _ if string.len() > STRING_BYTES_MAX => format!("{} bytes long", string.len()),
            _ => return Ok(()),
        };
        Err(FactsError::BadString { export: self.name.clone(), what, found })
    }

    fn check_sizes(&self) -> Result<(), FactsError> {
        let sizes = self.block_sizes;
        let expected = if !sizes.minimum.is_power_of_two() || sizes.minimum > MINIMUM_BLOCK_MAX {
            "a minimum that is a power of two up to 65536"
        } else if !sizes.preferred.is_power_of_two() || sizes.preferred < sizes.minimum {
            "a preferred size that is a power of two, at least the minimum"
        } else if sizes.maximum < sizes.preferred || !sizes.maximum.is_multiple_of(sizes.minimum) {
            "a maximum that is a multiple of the minimum, at least the preferred size"
        } else {
            return self.check_whole_blocks();
        };
        Err(FactsError::BadBlockSizes { export: self.name.clone(), sizes, expected })
    }

    fn check_whole_blocks(&self) -> Result<(), FactsError> {
        let minimum = self.block_sizes.minimum;
        if self.size_bytes.is_multiple_of(u64::from(minimum)) {
            return Ok(());
        }
        let (export, size_bytes) = (self.name.clone(), self.size_bytes);
        Err(FactsError::UnalignedSize { export, size_bytes, minimum })
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use super::{BlockSizes, ExportFacts, Exports, FactsError};
    use crate::nbd::wire::{BASE_ALLOCATION, MessageForm, TransmissionFlags};

    /// An export with everything on: 1 MiB, 512-byte blocks, `base:allocation`.
    pub(crate) fn sample(name: &str) -> ExportFacts {
        ExportFacts {
            name: name.to_owned(),
            description: format!("the {name} volume"),
            size_bytes: 1 << 20,
            flags: TransmissionFlags::all() - TransmissionFlags::READ_ONLY,
            block_sizes: BlockSizes { minimum: 512, preferred: 4096, maximum: 1 << 20 },
            contexts: vec![BASE_ALLOCATION.to_owned(), "x-cairn:dirty".to_owned()],
            clients: Vec::new(),
        }
    }

    #[test]
    fn the_empty_name_means_the_default_export_and_nothing_without_one() {
        let both = vec![sample("a"), sample("b")];
        let exports = Exports::new(both.clone(), Some("b")).unwrap();
        assert_eq!(exports.find("").unwrap().0, 1);
        assert_eq!(exports.find("a").unwrap().0, 0);
        assert!(exports.find("c").is_none());
        assert!(Exports::new(both, None).unwrap().find("").is_none());
    }

    #[test]
    fn a_default_that_is_not_exported_is_refused() {
        let error = Exports::new(vec![sample("a")], Some("z")).unwrap_err();
        assert_eq!(error, FactsError::DefaultUnknown("z".to_owned()));
    }

    #[test]
    fn two_exports_of_one_name_are_refused() {
        let error = Exports::new(vec![sample("a"), sample("a")], None).unwrap_err();
        assert_eq!(error, FactsError::NameTwice("a".to_owned()));
    }

    #[test]
    fn strings_outside_the_protocols_limits_are_refused() {
        let empty = ExportFacts { name: String::new(), ..sample("a") };
        let long = ExportFacts { description: "x".repeat(4097), ..sample("a") };
        let nul = ExportFacts { name: "a\0b".to_owned(), ..sample("a") };
        for bad in [empty, long, nul] {
            let error = Exports::new(vec![bad], None).unwrap_err();
            assert!(matches!(error, FactsError::BadString { .. }), "{error}");
        }
    }

    #[test]
    fn a_context_without_a_leaf_is_refused() {
        for context in ["base", "base:", ":leaf"] {
            let bad = ExportFacts { contexts: vec![context.to_owned()], ..sample("a") };
            let error = Exports::new(vec![bad], None).unwrap_err();
            assert!(matches!(error, FactsError::BadContext { .. }), "{error}");
        }
    }

    #[test]
    fn block_sizes_that_break_the_rules_are_refused() {
        for (minimum, preferred, maximum) in [
            (0, 512, 512),
            (3, 4, 8),
            (1 << 17, 1 << 17, 1 << 17),
            (512, 256, 512),
            (512, 512, 700),
        ] {
            let block_sizes = BlockSizes { minimum, preferred, maximum };
            let error = Exports::new(vec![ExportFacts { block_sizes, ..sample("a") }], None);
            assert!(matches!(error, Err(FactsError::BadBlockSizes { .. })), "{block_sizes:?}");
        }
    }

    #[test]
    fn a_size_that_is_no_whole_number_of_blocks_is_refused() {
        let bad = ExportFacts { size_bytes: (1 << 20) + 1, ..sample("a") };
        let error = Exports::new(vec![bad], None).unwrap_err();
        assert!(matches!(error, FactsError::UnalignedSize { .. }));
    }

    #[test]
    fn the_do_not_fragment_flag_is_offered_only_if_replies_have_chunks() {
        let facts = sample("a");
        for form in [MessageForm::Structured, MessageForm::Extended] {
            assert!(facts.offered_flags(form).contains(TransmissionFlags::SEND_DF));
        }
        let simple = facts.offered_flags(MessageForm::Simple);
        assert!(!simple.contains(TransmissionFlags::SEND_DF));
        assert!(simple.contains(TransmissionFlags::HAS_FLAGS));
    }
}
