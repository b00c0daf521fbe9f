//! Opening an image and what it stands on, for a task of a reactor.
//!
//! For each image of the chain, in this order: its disk, its first bytes, the header, the name and
//! format of its backing image. The format must be stated. A guest can write what it likes to a raw
//! image: if its format were guessed from its content, the guest would choose what is read next.
//! The disk is refused while a cache has data that it lacks, as in a table.

use std::sync::Arc;

use cairn_block::{
    ConfigError, ConfigKind, Disk, Env, Identity, LocalFuture, SectorCount, refuse_marked,
};
use cairn_format::qcow2::{Backing, Header, PROLOGUE_BYTES, Prologue};

use super::Qcow2Disk;
use super::chain::{Chain, Layer};
use super::image::{Image, read_bytes};
use super::name::resolve;
use crate::argument::image_in;
use crate::shown::shown;

/// The longest chain.
const LAYERS_MAX: usize = 64;

/// How many bytes are read at first: more than any header that has no more than usual.
const FIRST_BYTES: u64 = 4096;

/// Opens the disks that keep images. All of them are opened for reading.
pub(crate) trait Lower {
    /// What makes two names one disk.
    fn identify(&self, argument: &str) -> Result<Identity, ConfigError>;

    /// Opens it.
    fn open<'a>(
        &'a self,
        env: &'a Env,
        argument: &'a str,
    ) -> LocalFuture<'a, Result<Arc<dyn Disk>, ConfigError>>;
}

/// Opens the image of this argument.
///
/// # Errors
/// One line: something of the chain is not there, damaged, in use by a writer, or has a feature
/// that is not read.
pub(crate) async fn open(
    env: &Env,
    lower: &dyn Lower,
    argument: &str,
) -> Result<Arc<dyn Disk>, ConfigError> {
    let mut layers = Vec::new();
    let mut seen = Vec::new();
    let mut next = Some((image_in(argument).unwrap_or(argument).to_owned(), true));
    while let Some((name, is_image)) = next.take() {
        let wrong = |field: &str, found: String, expected: &str| {
            ConfigError::argument(argument, field, found, expected)
        };
        let identity = lower.identify(&name).map_err(|error| beneath(argument, &name, error))?;
        if seen.contains(&identity) {
            let found = format!("{name} for the second time");
            return Err(wrong("backing file", found, "a chain without a loop"));
        }
        if layers.len() >= LAYERS_MAX {
            let found = format!("more than {LAYERS_MAX}");
            return Err(wrong("backing files", found, &format!("at most {LAYERS_MAX}")));
        }
        seen.push(identity);
        let disk = lower.open(env, &name).await;
        let disk = disk.map_err(|error| beneath(argument, &name, error))?;
        let marked = refuse_marked(env, disk.as_ref()).await;
        marked.map_err(|error| beneath(argument, &name, error))?;
        if !is_image {
            layers.push(Layer::Raw(disk));
            break;
        }
        let header = header(env, &name, &disk).await;
        let header = header.map_err(|error| beneath(argument, &name, error))?;
        if header.is_corrupt {
            tracing::warn!("{name}: the image is marked as corrupt; it is read as it is");
        }
        if let Some(backing) = &header.backing {
            let found = backing_of(&name, backing);
            next = Some(found.map_err(|error| beneath(argument, &name, error))?);
        }
        layers.push(Layer::Image(Box::new(Image::new(name, disk, header))));
    }
    let chain = Arc::new(Chain { layers });
    Ok(Arc::new(Qcow2Disk { argument: argument.to_owned(), chain }))
}

async fn header(env: &Env, name: &str, disk: &Arc<dyn Disk>) -> Result<Header, ConfigError> {
    let image_bytes = disk.sectors().to_bytes();
    let read = async |bytes: u64| {
        let bytes = bytes.min(image_bytes);
        let read = read_bytes(env, disk, 0..bytes).await;
        read.map_err(|error| {
            ConfigError::new(ConfigKind::System, name, "header: read").with_source(error)
        })
    };
    let wrong = |error: cairn_format::qcow2::Error| {
        let kind = match error.is_unsupported() {
            true => ConfigKind::Unsupported,
            false => ConfigKind::Damaged,
        };
        ConfigError::new(kind, name, error.to_string())
    };
    if disk.sectors() == SectorCount::ZERO {
        let expected = PROLOGUE_BYTES as u64;
        return Err(wrong(cairn_format::qcow2::Error::Truncated {
            field: "header",
            end: 0,
            expected,
        }));
    }
    let mut first = read(FIRST_BYTES).await?;
    let cluster_bytes = Prologue::parse(&first).map_err(wrong)?.cluster_bytes;
    if cluster_bytes > first.len() as u64 {
        first = read(cluster_bytes).await?;
    }
    Header::parse(&first, image_bytes).map_err(wrong)
}

/// The argument of a backing image, and true if it is one of qcow2.
fn backing_of(image: &str, backing: &Backing) -> Result<(String, bool), ConfigError> {
    let (name, shown) = (&backing.name, backing.name.escape_debug());
    let is_image = match backing.format.as_deref() {
        Some("qcow2") => true,
        Some("raw") => false,
        Some(other) => {
            let found = format!("{} for {shown}", other.escape_debug());
            return Err(ConfigError::argument("", "backing format", found, "raw or qcow2"));
        }
        None => {
            let detail = format!(
                "backing format: found none for {shown}, expected raw or qcow2; set it with \
                 `qemu-img rebase -u -b {shown} -F FORMAT IMAGE`"
            );
            return Err(ConfigError::new(ConfigKind::Argument, "", detail));
        }
    };
    Ok((resolve(image, name)?, is_image))
}

/// An error of something in the chain, as one of the whole: it names both.
fn beneath(argument: &str, name: &str, error: ConfigError) -> ConfigError {
    let of_top = image_in(argument) == Some(name);
    let detail = match of_top {
        true => error.detail,
        false => format!("{}: {}", shown(name), error.detail),
    };
    ConfigError { device: shown(argument).into_owned(), detail, ..error }
}
