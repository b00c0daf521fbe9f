//! What kind of thing a device argument names, by its first characters. Nothing is opened.

use crate::remote::RemoteKind;
use crate::{nbd, objects, rbd};

/// True if an argument is the path of a file or block device.
pub fn is_path(argument: &str) -> bool {
    let is_other = ["mem:", "null:"].iter().any(|scheme| argument.starts_with(scheme));
    !is_other && !is_remote(argument) && !is_image(argument)
}

/// True if an argument names the content of an image.
pub fn is_image(argument: &str) -> bool {
    image_in(argument).is_some()
}

/// The path in an argument, and what stands before it: `qcow2:` or nothing. `None` if the argument
/// names no path.
pub fn path_in(argument: &str) -> Option<(&str, &str)> {
    let path = image_in(argument).unwrap_or(argument);
    let before = &argument[..argument.len() - path.len()];
    is_path(path).then_some((before, path))
}

/// True if an argument names what another process or machine keeps: an export of an NBD server, an
/// image of Ceph, or an object.
pub fn is_remote(argument: &str) -> bool {
    kind_of(argument).is_some()
}

/// Which kind of thing that is.
pub(crate) fn kind_of(argument: &str) -> Option<RemoteKind> {
    match argument {
        uri if nbd::is_uri(uri) => Some(RemoteKind::Nbd),
        uri if rbd::is_uri(uri) => Some(RemoteKind::Rbd),
        uri if objects::is_uri(uri) => Some(RemoteKind::Object),
        _ => None,
    }
}

/// What keeps the image whose content an argument names; `None` if it names no image.
pub(crate) fn image_in(argument: &str) -> Option<&str> {
    argument.strip_prefix("qcow2:")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_argument_is_a_path_or_names_something_else() {
        for path in ["a", "/a", "./mem:1M", "qcow3:a", "./qcow2:a"] {
            assert!(is_path(path) && !is_remote(path) && !is_image(path), "{path}");
            assert_eq!(path_in(path), Some(("", path)));
        }
        for remote in ["nbd://h/a", "rbd:p/a", "https://h/a"] {
            assert!(!is_path(remote) && is_remote(remote) && path_in(remote).is_none(), "{remote}");
        }
        assert!(is_image("qcow2:/a") && !is_path("qcow2:/a") && !is_remote("qcow2:/a"));
        assert_eq!(path_in("qcow2:/a"), Some(("qcow2:", "/a")));
        assert_eq!((path_in("qcow2:nbd://h/a"), path_in("mem:1M")), (None, None));
    }
}
