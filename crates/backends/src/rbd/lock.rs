//! The exclusive lock of an image, and the fence of an owner that is taken over.
//!
//! L1. A disk that may write has the lock before its first read: what it reads then, no other
//!     client changes.
//! L2. The lock of an owner that still watches the image is taken only if the user named that
//!     owner by address and cookie. A host that has restarted has another address and cookie, so a
//!     stale name fences nothing. An owner whose watch has timed out is taken for dead.
//! L3. An owner, dead or not, is fenced before its lock is broken: at no moment may two clients
//!     write. The entry in the blocklist does not expire in practice, so it does not matter for how
//!     long the owner is stopped.
//!
//! L4. A lock that librbd has not taken by itself is an administrator's (`rbd lock add`). It says
//!     nothing about a client that is alive: its owner is never fenced, and it is never broken.
//!
//! A kill between the steps of L3 leaves an owner that is fenced and has the lock. The cluster
//! drops its watch; then the next start takes the lock as that of a dead one.

use cairn_block::{ConfigError, ConfigKind};

use super::image::{Image, Locker, text_of};
use super::uri::Target;
use super::within::Care;

/// An owner of a lock.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Owner {
    client: String,
    cookie: String,
    pub address: String,
    /// L4.
    is_manual: bool,
}

impl From<Locker> for Owner {
    fn from(locker: Locker) -> Owner {
        let Locker { client, cookie, address, tag, exclusive } = locker;
        let is_manual = !(exclusive && tag == "internal" && cookie.starts_with("auto "));
        Owner { client, cookie, address, is_manual }
    }
}

/// What the user allows: the lock of this image is taken from this owner.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TakeOver {
    target: Target,
    address: String,
    cookie: String,
}

impl TakeOver {
    /// Parses `DEVICE=ADDRESS/COOKIE`, as a refusal shows it.
    ///
    /// # Errors
    /// It has another form.
    pub fn parse(argument: &str) -> Result<TakeOver, String> {
        let shape = || format!("found '{argument}', expected rbd:POOL/IMAGE=ADDRESS/COOKIE");
        let (device, owner) = argument.rsplit_once('=').ok_or_else(shape)?;
        // An address ends with a slash and a number.
        let (address, cookie) = owner.rsplit_once('/').ok_or_else(shape)?;
        if !address.contains('/') || cookie.is_empty() || !super::is_uri(device) {
            return Err(shape());
        }
        let target = Target::parse(device).map_err(|error| error.to_string())?;
        Ok(TakeOver { target, address: address.to_owned(), cookie: cookie.to_owned() })
    }

    fn names(&self, target: &Target, owner: &Owner) -> bool {
        self.target.is_image_of(target)
            && self.address == owner.address
            && self.cookie == owner.cookie
    }
}

/// The owner of an image's lock, over a connection of its own: an image that is open may know an
/// old one, and a client that is fenced is refused. Blocks the thread.
///
/// # Errors
/// The cluster refuses.
pub(super) fn owner_now(target: &Target) -> Result<Option<Owner>, ConfigError> {
    let image = Image::open(target, true)?;
    owner(&image)
        .map_err(|errno| target.refused(ConfigKind::System, format!("lock: {}", text_of(errno))))
}

/// The owner of an image's lock, as this image knows it.
pub(super) fn owner(image: &Image) -> Result<Option<Owner>, i32> {
    Ok(image.locker()?.map(Owner::from))
}

/// Takes the lock, or says which client has it.
pub(super) fn acquire(
    image: &Image,
    target: &Target,
    take_overs: &[TakeOver],
    care: &Care,
) -> Result<(), ConfigError> {
    let failed = |what: &'static str| {
        move |errno: i32| target.refused(ConfigKind::System, format!("{what}: {}", text_of(errno)))
    };
    if !image.has_exclusive_lock().map_err(failed("features"))? {
        let detail = format!(
            "features: exclusive-lock is off; 'rbd feature enable {}/{} exclusive-lock' enables it",
            target.pool, target.image
        );
        return Err(target.refused(ConfigKind::Unsupported, detail));
    }
    if let Some(owner) = owner(image).map_err(failed("lock"))? {
        if owner.is_manual {
            return Err(held(target, &owner));
        }
        let is_named = take_overs.iter().any(|named| named.names(target, &owner));
        if !is_named && image.is_watched_by(&owner.address).map_err(failed("watchers"))? {
            return Err(held(target, &owner));
        }
        fence(image, target, &owner, care)?;
    }
    care.check(target)?;
    match image.lock() {
        Ok(()) => Ok(()),
        // Another client was faster. This image may know the owner that it has fenced.
        Err(error) => Err(match owner_now(target) {
            Ok(Some(owner)) => held(target, &owner),
            _ => failed("lock")(error),
        }),
    }
}

fn held(target: &Target, owner: &Owner) -> ConfigError {
    let Owner { client, cookie, address, is_manual } = owner;
    if *is_manual {
        let image = target.spec();
        let detail = format!(
            "lock: found '{cookie}' of {client}, an administrator's; if it is not needed any more: \
             rbd lock rm {image} '{cookie}' {client}"
        );
        return target.refused(ConfigKind::Busy, detail);
    }
    let detail = format!(
        "lock: {client} at {address} has it and is alive; if its host must not write any more: \
         --take-over '{}={address}/{cookie}'",
        target.uri
    );
    target.refused(ConfigKind::Busy, detail)
}

/// L3.
fn fence(image: &Image, target: &Target, owner: &Owner, care: &Care) -> Result<(), ConfigError> {
    let Owner { client, cookie, address, .. } = owner;
    care.check(target)?;
    image.cluster().fence(target, address)?;
    tracing::warn!(
        "{}: {client} at {address} is fenced; once its host has restarted, \
         'cairn unfence {} {address}' removes the entry",
        target.uri,
        target.uri
    );
    care.check(target)?;
    match image.break_lock(client, cookie) {
        Err(error) if -error != libc::ENOENT => {
            Err(target.refused(ConfigKind::System, format!("lock: {}", text_of(error))))
        }
        _ => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_take_over_names_one_owner_of_one_image() {
        let uri = "rbd:vms/a?user=x";
        let target = Target::parse(uri).expect("a URI");
        let owner = Owner {
            client: "client.41".to_owned(),
            cookie: "auto 94".to_owned(),
            address: "[::1]:0/3210".to_owned(),
            is_manual: false,
        };
        let refusal = held(&target, &owner).to_string();
        let (_, shown) = refusal.split_once("--take-over '").expect("the refusal says how");
        let shown = shown.strip_suffix('\'').expect("a quoted word");
        let named = TakeOver::parse(shown).expect("what is shown can be given");
        assert!(named.names(&target, &owner));
        let others = [
            Owner { cookie: "auto 95".to_owned(), ..owner.clone() },
            Owner { address: "[::1]:0/3211".to_owned(), ..owner.clone() },
        ];
        assert!(!others.iter().any(|other| named.names(&target, other)));
        assert!(!named.names(&Target::parse("rbd:vms/b").expect("a URI"), &owner));
    }

    #[test]
    fn a_lock_of_an_administrator_is_told_from_one_of_librbd() {
        let target = Target::parse("rbd:vms/n/a").expect("a URI");
        for (exclusive, tag, cookie, is_manual) in [
            (true, "internal", "auto 94", false),
            (false, "internal", "auto 94", true),
            (true, "", "auto 94", true),
            (true, "internal", "backup", true),
        ] {
            let owner = Owner::from(Locker {
                client: "client.41".to_owned(),
                cookie: cookie.to_owned(),
                address: "[::1]:0/3210".to_owned(),
                tag: tag.to_owned(),
                exclusive,
            });
            assert_eq!(owner.is_manual, is_manual, "{tag} {cookie}");
            let line = held(&target, &owner).to_string();
            let manual = format!("rbd lock rm vms/n/a '{cookie}' client.41");
            assert_eq!(line.contains(&manual), is_manual, "{line}");
        }
    }

    #[test]
    fn a_wrong_take_over_is_refused_with_the_form_that_is_expected() {
        for wrong in ["", "rbd:vms/a", "rbd:vms/a=", "rbd:vms/a=1.2.3.4:0/5", "vm=1.2.3.4:0/5/a 6"]
        {
            let error = TakeOver::parse(wrong).expect_err(wrong);
            assert!(error.contains("ADDRESS/COOKIE"), "{error}");
        }
    }
}
