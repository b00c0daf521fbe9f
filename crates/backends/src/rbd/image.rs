//! [`Image`]: a connection to a cluster and an open image of it.
//!
//! All of it blocks, so it runs on helper threads. Closing gives the lock back to the cluster; it
//! runs on a thread of its own, since the last user may be a reactor or a thread of librbd. The
//! process waits for these threads before it ends (`held`).

use std::ffi::{CStr, CString, c_char, c_int};
use std::io;

use cairn_block::{ConfigError, ConfigKind};

use super::class::LOCK;
use super::held::{Connected, Held};
use super::library::{Library, Pointer, SnapshotInfo, Watcher};
use super::uri::Target;

/// The feature bit of the exclusive lock.
const EXCLUSIVE_LOCK: u64 = 1 << 2;
/// That of the journal, from which a mirror learns of changes.
const JOURNALING: u64 = 1 << 6;
/// The longest id of an image (`RBD_MAX_IMAGE_ID_LENGTH` of librbd is less).
const ID_MAX: usize = 256;
/// `RBD_LOCK_MODE_EXCLUSIVE`.
const EXCLUSIVE: c_int = 0;

/// The text of an errno, positive or negative.
pub(super) fn text_of(errno: i32) -> io::Error {
    io::Error::from_raw_os_error(errno.abs())
}

pub(super) fn c_string(text: &str) -> CString {
    // A name with a zero byte was refused; a configuration value has none.
    CString::new(text).unwrap_or_default()
}

/// A connection to a cluster.
pub(super) struct Cluster {
    library: &'static Library,
    handle: Pointer,
    /// After the handle's end.
    #[expect(dead_code, reason = "it is for its drop")]
    connected: Connected,
}

// SAFETY: the functions of librados take a cluster handle from any thread, also at once.
unsafe impl Send for Cluster {}
// SAFETY: see above.
unsafe impl Sync for Cluster {}

impl Drop for Cluster {
    fn drop(&mut self) {
        // SAFETY: the handle is live, and its contexts have been destroyed: they own the cluster.
        unsafe { (self.library.shutdown)(self.handle) };
    }
}

impl Cluster {
    /// Connects to the cluster of an image.
    ///
    /// # Errors
    /// The libraries are missing, or the cluster refuses.
    pub fn connect(target: &Target) -> Result<Cluster, ConfigError> {
        let library =
            Library::get().map_err(|missing| target.refused(ConfigKind::Unsupported, missing))?;
        let mut handle = std::ptr::null_mut();
        let name = c_string(&format!("client.{}", target.user));
        // SAFETY: the arguments are strings that live until the call returns.
        let made = unsafe { (library.create)(&raw mut handle, c"ceph".as_ptr(), name.as_ptr(), 0) };
        check(target, "connect", made)?;
        let cluster = Cluster { library, handle, connected: Connected::begin() };
        cluster.configure(target)?;
        // SAFETY: the handle is live.
        check(target, "connect", unsafe { (library.connect)(handle) })?;
        Ok(cluster)
    }

    fn configure(&self, target: &Target) -> Result<(), ConfigError> {
        let conf = target.conf.as_deref().map(c_string);
        let path = conf.as_ref().map_or(std::ptr::null(), |path| path.as_ptr());
        // SAFETY: the handle is live; no path means the usual ones.
        let read = unsafe { (self.library.read_file)(self.handle, path) };
        check(target, "conf", read)?;
        // SAFETY: the handle is live; the variable is CEPH_ARGS.
        check(target, "CEPH_ARGS", unsafe {
            (self.library.parse_env)(self.handle, std::ptr::null())
        })?;
        let expiry = target.expiry.as_secs().to_string();
        // Without the second, librbd breaks the lock of a dead client, and takes a lock of its own
        // again, although nothing keeps the other one from writing; and it gives a lock back for
        // which it has no other cookie.
        for (option, value) in [("expire_seconds", &*expiry), ("on_break_lock", "true")] {
            // Older releases have the older word.
            let is_set = ["rbd_blocklist", "rbd_blacklist"]
                .iter()
                .any(|word| self.set(&format!("{word}_{option}"), value));
            if !is_set {
                let detail = format!("librbd: it has no option rbd_blocklist_{option}");
                return Err(target.refused(ConfigKind::Unsupported, detail));
            }
        }
        // Completed writes are on the OSDs, not in a cache of this process.
        self.set("rbd_cache", "false");
        // A client may change its memory while a write is on its way.
        self.set("rbd_disable_zero_copy_writes", "true");
        // It ends nothing but the connect.
        self.set("client_mount_timeout", &target.timeout.as_secs().to_string());
        Ok(())
    }

    /// Sets an option; false if librados does not know it.
    fn set(&self, option: &str, value: &str) -> bool {
        let (option, value) = (c_string(option), c_string(value));
        // SAFETY: the handle is live, and the strings live until the call returns.
        unsafe { (self.library.set)(self.handle, option.as_ptr(), value.as_ptr()) == 0 }
    }

    /// Fences a client: the cluster refuses what it sends. Returns once the monitors have
    /// acknowledged it and this client has the map that says so.
    pub fn fence(&self, target: &Target, address: &str) -> Result<(), ConfigError> {
        let address = c_string(address);
        let seconds = u32::try_from(target.expiry.as_secs()).unwrap_or(u32::MAX);
        // SAFETY: the handle is live. The function does not write to the address.
        let added =
            unsafe { (self.library.blocklist)(self.handle, address.as_ptr().cast_mut(), seconds) };
        check(target, "blocklist", added)
    }

    /// Runs a command of the monitors; the result is its errno and what they said.
    pub fn command(&self, json: &str) -> Result<(), (i32, String)> {
        let json = c_string(json);
        let list = [json.as_ptr()];
        let (mut out, mut said) = (std::ptr::null_mut::<c_char>(), std::ptr::null_mut::<c_char>());
        let (mut out_len, mut said_len) = (0, 0);
        // SAFETY: the handle is live, and every pointer is to a place of this function.
        let result = unsafe {
            let (input, outs) = (std::ptr::null(), (&raw mut out, &raw mut out_len));
            let command = self.library.command;
            let (said, said_len) = (&raw mut said, &raw mut said_len);
            command(self.handle, list.as_ptr(), 1, input, 0, outs.0, outs.1, said, said_len)
        };
        let text = if said.is_null() {
            String::new()
        } else {
            // SAFETY: the library made a buffer of that many bytes.
            let bytes = unsafe { std::slice::from_raw_parts(said.cast::<u8>(), said_len) };
            String::from_utf8_lossy(bytes).into_owned()
        };
        for buffer in [out, said] {
            if !buffer.is_null() {
                // SAFETY: the library made it, and it is used no more.
                unsafe { (self.library.free)(buffer) };
            }
        }
        if result < 0 { Err((result, text)) } else { Ok(()) }
    }
}

/// A pool of a cluster.
struct Pool {
    cluster: Cluster,
    context: Pointer,
}

// SAFETY: the functions of librbd take a context from any thread.
unsafe impl Send for Pool {}
// SAFETY: see above. Its namespace is set once, before it is shared.
unsafe impl Sync for Pool {}

impl Drop for Pool {
    fn drop(&mut self) {
        // SAFETY: the context is live, and its images have been closed: they own the pool.
        unsafe { (self.cluster.library.end_context)(self.context) };
    }
}

impl Pool {
    fn open(cluster: Cluster, target: &Target) -> Result<Pool, ConfigError> {
        let (library, mut context) = (cluster.library, std::ptr::null_mut());
        let name = c_string(&target.pool);
        // SAFETY: the handle is live, and the name lives until the call returns.
        let made = unsafe { (library.context)(cluster.handle, name.as_ptr(), &raw mut context) };
        check(target, "pool", made)?;
        let pool = Pool { cluster, context };
        if !target.namespace.is_empty() {
            let namespace = c_string(&target.namespace);
            // SAFETY: as above.
            unsafe { (library.set_namespace)(context, namespace.as_ptr()) };
        }
        Ok(pool)
    }
}

/// A client that has a lock of an image.
pub(super) struct Locker {
    pub client: String,
    pub cookie: String,
    pub address: String,
    /// Of all owners of the lock.
    pub tag: String,
    pub exclusive: bool,
}

/// A snapshot of an image.
pub(super) struct Snapshot {
    /// Above those of all earlier ones.
    pub id: u64,
    pub name: String,
}

/// An open image.
pub(super) struct Image {
    pool: Pool,
    handle: Pointer,
    /// [`Target::place`].
    place: String,
}

// SAFETY: the functions of librbd take an image from any thread, also at once.
unsafe impl Send for Image {}
// SAFETY: see above.
unsafe impl Sync for Image {}

impl Drop for Image {
    fn drop(&mut self) {
        // SAFETY: the image is live, and no operation of it is in flight: each holds the image.
        let closed = unsafe { (self.pool.cluster.library.close)(self.handle) };
        if closed < 0 {
            tracing::debug!("an image was not closed cleanly: {}", text_of(closed));
        }
    }
}

impl Image {
    /// Opens an image; sends nothing that changes it.
    ///
    /// # Errors
    /// There is no such image, or the cluster refuses.
    pub fn open(target: &Target, read_only: bool) -> Result<Image, ConfigError> {
        if target.snapshot.is_some() && !read_only {
            let detail = "access: found a snapshot, expected a writable image";
            return Err(target.refused(ConfigKind::Unsupported, detail));
        }
        let pool = Pool::open(Cluster::connect(target)?, target)?;
        let (library, mut handle) = (pool.cluster.library, std::ptr::null_mut());
        let name = c_string(&target.image);
        let snapshot = target.snapshot.as_deref().map(c_string);
        let snapshot = snapshot.as_ref().map_or(std::ptr::null(), |it| it.as_ptr());
        let open = if read_only { library.open_read_only } else { library.open };
        // SAFETY: the context is live, and the names live until the call returns.
        let opened = unsafe { open(pool.context, name.as_ptr(), &raw mut handle, snapshot) };
        check(target, "open", opened)?;
        Ok(Image { pool, handle, place: target.place() })
    }

    pub fn library(&self) -> &'static Library {
        self.pool.cluster.library
    }

    pub fn cluster(&self) -> &Cluster {
        &self.pool.cluster
    }

    pub fn handle(&self) -> Pointer {
        self.handle
    }

    /// Its pool, for librados.
    pub fn context(&self) -> Pointer {
        self.pool.context
    }

    /// The name of the object that has the image's header. Images with the exclusive lock are of
    /// format 2.
    pub fn header(&self) -> Result<CString, i32> {
        let mut id = vec![0_u8; ID_MAX];
        // SAFETY: the image is live, and the buffer has the length that is said.
        let result = unsafe { (self.library().id)(self.handle, id.as_mut_ptr().cast(), id.len()) };
        value(result)?;
        Ok(c_string(&format!("rbd_header.{}", first_of(&id))))
    }

    /// Its size in bytes, now.
    pub fn bytes(&self) -> Result<u64, i32> {
        let mut bytes = 0;
        // SAFETY: the image is live.
        let result = unsafe { (self.library().size)(self.handle, &raw mut bytes) };
        value(result).map(|_| bytes)
    }

    pub fn has_exclusive_lock(&self) -> Result<bool, i32> {
        self.has_feature(EXCLUSIVE_LOCK)
    }

    pub fn has_journal(&self) -> Result<bool, i32> {
        self.has_feature(JOURNALING)
    }

    pub fn has_feature(&self, feature: u64) -> Result<bool, i32> {
        let mut features = 0;
        // SAFETY: the image is live.
        let result = unsafe { (self.library().features)(self.handle, &raw mut features) };
        value(result).map(|_| features & feature != 0)
    }

    /// Takes the exclusive lock, and never gives it to a client that asks for it.
    pub fn lock(&self) -> Result<(), i32> {
        // SAFETY: the image is live.
        let result = unsafe { (self.library().lock)(self.handle, EXCLUSIVE) };
        value(result).map(drop)
    }

    /// Breaks the lock of exactly this owner. (`rbd_break_lock` makes an entry of the blocklist of
    /// its own, and then waits for watchers that do not answer.)
    pub fn break_lock(&self, client: &str, cookie: &str) -> Result<(), i32> {
        let (client, cookie) = (c_string(client), c_string(cookie));
        let header = self.header()?;
        // SAFETY: the context is live, and the names live until the call returns.
        let result = unsafe {
            let (header, lock) = (header.as_ptr(), LOCK.as_ptr());
            let (context, break_lock) = (self.pool.context, self.library().break_lock);
            break_lock(context, header, lock, client.as_ptr(), cookie.as_ptr())
        };
        value(result).map(drop)
    }

    /// The first owner of the lock, as this image knows it: librbd reads it again only when it was
    /// told of a change.
    pub fn locker(&self) -> Result<Option<Locker>, i32> {
        let mut room = 4096;
        loop {
            let (mut exclusive, mut tag) = (0, vec![0_u8; room]);
            let mut words = [vec![0_u8; room], vec![0_u8; room], vec![0_u8; room]];
            let mut lens = [room; 4];
            let [clients, cookies, addresses] = words.each_mut().map(|it| it.as_mut_ptr().cast());
            let [tag_len, clients_len, cookies_len, addresses_len] =
                lens.each_mut().map(std::ptr::from_mut);
            // SAFETY: the image is live, and each buffer has the length that is said.
            let count = unsafe {
                let (image, list) = (self.handle, self.library().lockers);
                list(
                    image,
                    &raw mut exclusive,
                    tag.as_mut_ptr().cast(),
                    tag_len,
                    clients,
                    clients_len,
                    cookies,
                    cookies_len,
                    addresses,
                    addresses_len,
                )
            };
            return match i32::try_from(count).unwrap_or(i32::MIN) {
                0 => Ok(None),
                1.. => {
                    let [client, cookie, address] = words.map(|list| first_of(&list));
                    let (tag, exclusive) = (first_of(&tag), exclusive != 0);
                    Ok(Some(Locker { client, cookie, address, tag, exclusive }))
                }
                error if -error == libc::ENOENT => Ok(None),
                error if -error == libc::ERANGE && room < 1 << 20 => {
                    room *= 4;
                    continue;
                }
                error => Err(error),
            };
        }
    }

    /// All of its snapshots.
    pub fn snapshots(&self) -> Result<Vec<Snapshot>, i32> {
        let mut room: c_int = 64;
        loop {
            let none = SnapshotInfo { id: 0, size: 0, name: std::ptr::null() };
            let mut list = vec![none; room as usize];
            let mut count = room;
            // SAFETY: the image is live, and the list has the length that is said.
            let result = unsafe {
                (self.library().snapshots)(self.handle, list.as_mut_ptr(), &raw mut count)
            };
            if -result == libc::ERANGE && room < 1 << 20 {
                room *= 4;
                continue;
            }
            let found = value(result)?.clamp(0, room) as usize;
            let named = |it: &SnapshotInfo| {
                // SAFETY: the library stored a string for each snapshot that it counted.
                let name = unsafe { CStr::from_ptr(it.name) }.to_string_lossy().into_owned();
                Snapshot { id: it.id, name }
            };
            let snapshots = list[..found].iter().map(named).collect();
            if found > 0 {
                // SAFETY: the library made the strings, and ended the list with a null.
                unsafe { (self.library().free_snapshots)(list.as_mut_ptr()) };
            }
            return Ok(snapshots);
        }
    }

    /// True if a client of this address watches the image, as each one does that has it open.
    pub fn is_watched_by(&self, address: &str) -> Result<bool, i32> {
        let mut room = 64;
        loop {
            let empty = || Watcher { address: std::ptr::null_mut(), id: 0, cookie: 0 };
            let mut list: Vec<Watcher> = (0..room).map(|_| empty()).collect();
            let mut count = room;
            // SAFETY: the image is live, and the list has the length that is said.
            let result = unsafe {
                (self.library().watchers)(self.handle, list.as_mut_ptr(), &raw mut count)
            };
            if -result == libc::ERANGE && room < 1 << 16 {
                room *= 4;
                continue;
            }
            if result < 0 {
                return Err(result);
            }
            let is_it = |watcher: &Watcher| {
                // SAFETY: the library stored a string for each watcher that it counted.
                unsafe { CStr::from_ptr(watcher.address) }.to_bytes() == address.as_bytes()
            };
            let found = list[..count.min(room)].iter().any(is_it);
            // SAFETY: the library made the strings of these watchers.
            unsafe { (self.library().free_watchers)(list.as_mut_ptr(), count.min(room)) };
            return Ok(found);
        }
    }
}

/// A result of librbd that is no errno.
pub(super) fn value(result: c_int) -> Result<c_int, i32> {
    if result < 0 { Err(result) } else { Ok(result) }
}

/// The first of a list of strings that each end with a zero byte.
pub(super) fn first_of(list: &[u8]) -> String {
    let first = list.split(|byte| *byte == 0).next().unwrap_or_default();
    String::from_utf8_lossy(first).into_owned()
}

/// The result of a call as an error of the device.
pub(super) fn check(target: &Target, what: &str, result: c_int) -> Result<(), ConfigError> {
    if result >= 0 {
        return Ok(());
    }
    let source = text_of(result);
    let kind = match -result {
        libc::EBUSY | libc::EROFS => ConfigKind::Busy,
        libc::ENOENT => ConfigKind::Argument,
        _ => ConfigKind::System,
    };
    let place = match what {
        "pool" => format!("pool '{}'", target.pool),
        "open" => format!("image '{}' of pool '{}'", target.image, target.pool),
        "conf" => "the configuration of Ceph".to_owned(),
        "blocklist" => "adding an entry to the blocklist".to_owned(),
        "connect" => format!("connecting to the cluster as client.{}", target.user),
        other => other.to_owned(),
    };
    Err(target.refused(kind, format!("{place}: {source}")))
}

/// Closes an image on a thread of its own.
pub(super) fn close(image: Image) {
    let held = Held::closing(&image.place);
    let closed = move || {
        drop(image);
        drop(held);
    };
    if let Err(error) = std::thread::Builder::new().name("rbd-close".to_owned()).spawn(closed) {
        // The image was dropped, that is closed, with the closure.
        tracing::debug!("an image was closed without a thread: {error}");
    }
}
