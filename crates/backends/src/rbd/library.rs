//! [`Library`]: the functions of librados and librbd, loaded at run time.
//!
//! The program links neither: it starts on a machine without them, and the first device `rbd:` says
//! what is missing. Loaded libraries stay until the process ends, since they have threads.
//!
//! The declarations are those of `rados/librados.h` and `rbd/librbd.h` of Ceph 16 and later. An
//! older name of a function is tried where Ceph renamed it.

use std::ffi::{c_char, c_int, c_void};
use std::sync::OnceLock;

use libloading::os::unix::{Library as Shared, RTLD_GLOBAL, RTLD_NOW};

/// A cluster handle, an I/O context, an image, a completion: pointers of the libraries.
pub(super) type Pointer = *mut c_void;

/// Called on a thread of librbd when an operation has ended.
pub(super) type Callback = unsafe extern "C" fn(Pointer, *mut c_void);

/// Called with each run of bytes of a difference, and whether it is there.
pub(super) type Found = unsafe extern "C" fn(u64, usize, c_int, *mut c_void) -> c_int;

/// An iovec of the system.
#[repr(C)]
#[derive(Clone, Copy)]
pub(super) struct Piece {
    pub base: *mut c_void,
    pub len: usize,
}

// SAFETY: an address and a length; only librbd follows the address.
unsafe impl Send for Piece {}

/// `rbd_image_watcher_t`.
#[repr(C)]
pub(super) struct Watcher {
    pub address: *mut c_char,
    pub id: i64,
    pub cookie: u64,
}

/// `rbd_snap_info_t`.
#[repr(C)]
#[derive(Clone)]
pub(super) struct SnapshotInfo {
    pub id: u64,
    pub size: u64,
    pub name: *const c_char,
}

macro_rules! library {
    ($($field:ident: $($name:literal)|+ ($($argument:ty),*) $(-> $result:ty)?;)+) => {
        /// See the module's description.
        pub(super) struct Library {
            $(pub $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)+
        }

        impl Library {
            fn load(libraries: &[Shared]) -> Result<Library, String> {
                Ok(Library {
                    // SAFETY: the type is that of the function's declaration in the headers.
                    $($field: unsafe { find(libraries, &[$($name),+])? },)+
                })
            }
        }
    };
}

library! {
    create: "rados_create2" (*mut Pointer, *const c_char, *const c_char, u64) -> c_int;
    read_file: "rados_conf_read_file" (Pointer, *const c_char) -> c_int;
    parse_env: "rados_conf_parse_env" (Pointer, *const c_char) -> c_int;
    set: "rados_conf_set" (Pointer, *const c_char, *const c_char) -> c_int;
    connect: "rados_connect" (Pointer) -> c_int;
    shutdown: "rados_shutdown" (Pointer);
    blocklist: "rados_blocklist_add" | "rados_blacklist_add" (Pointer, *mut c_char, u32) -> c_int;
    command: "rados_mon_command"
        (Pointer, *const *const c_char, usize, *const c_char, usize, *mut *mut c_char,
         *mut usize, *mut *mut c_char, *mut usize) -> c_int;
    free: "rados_buffer_free" (*mut c_char);
    context: "rados_ioctx_create" (Pointer, *const c_char, *mut Pointer) -> c_int;
    set_namespace: "rados_ioctx_set_namespace" (Pointer, *const c_char);
    end_context: "rados_ioctx_destroy" (Pointer);
    write_op: "rados_create_write_op" () -> Pointer;
    end_write_op: "rados_release_write_op" (Pointer);
    write_op_exec: "rados_write_op_exec"
        (Pointer, *const c_char, *const c_char, *const c_char, usize, *mut c_int);
    write_op_operate: "rados_write_op_operate"
        (Pointer, Pointer, *const c_char, *mut libc::time_t, c_int) -> c_int;
    exec: "rados_exec"
        (Pointer, *const c_char, *const c_char, *const c_char, *const c_char, usize,
         *mut c_char, usize) -> c_int;
    open: "rbd_open" (Pointer, *const c_char, *mut Pointer, *const c_char) -> c_int;
    open_read_only: "rbd_open_read_only"
        (Pointer, *const c_char, *mut Pointer, *const c_char) -> c_int;
    close: "rbd_close" (Pointer) -> c_int;
    id: "rbd_get_id" (Pointer, *mut c_char, usize) -> c_int;
    size: "rbd_get_size" (Pointer, *mut u64) -> c_int;
    features: "rbd_get_features" (Pointer, *mut u64) -> c_int;
    completion: "rbd_aio_create_completion" (*mut c_void, Callback, *mut Pointer) -> c_int;
    end_completion: "rbd_aio_release" (Pointer);
    result: "rbd_aio_get_return_value" (Pointer) -> isize;
    read: "rbd_aio_readv" (Pointer, *const Piece, c_int, u64, Pointer) -> c_int;
    write: "rbd_aio_writev" (Pointer, *const Piece, c_int, u64, Pointer) -> c_int;
    flush: "rbd_aio_flush" (Pointer, Pointer) -> c_int;
    discard: "rbd_aio_discard" (Pointer, u64, u64, Pointer) -> c_int;
    write_same: "rbd_aio_writesame"
        (Pointer, u64, usize, *const c_char, usize, Pointer, c_int) -> c_int;
    lock: "rbd_lock_acquire" (Pointer, c_int) -> c_int;
    break_lock: "rados_break_lock"
        (Pointer, *const c_char, *const c_char, *const c_char, *const c_char) -> c_int;
    lockers: "rbd_list_lockers"
        (Pointer, *mut c_int, *mut c_char, *mut usize, *mut c_char, *mut usize, *mut c_char,
         *mut usize, *mut c_char, *mut usize) -> isize;
    watchers: "rbd_watchers_list" (Pointer, *mut Watcher, *mut usize) -> c_int;
    get_metadata: "rbd_metadata_get"
        (Pointer, *const c_char, *mut c_char, *mut usize) -> c_int;
    set_metadata: "rbd_metadata_set" (Pointer, *const c_char, *const c_char) -> c_int;
    remove_metadata: "rbd_metadata_remove" (Pointer, *const c_char) -> c_int;
    diff: "rbd_diff_iterate2"
        (Pointer, *const c_char, u64, u64, u8, u8, Found, *mut c_void) -> c_int;
    snapshots: "rbd_snap_list" (Pointer, *mut SnapshotInfo, *mut c_int) -> c_int;
    free_snapshots: "rbd_snap_list_end" (*mut SnapshotInfo);
    free_watchers: "rbd_watchers_list_cleanup" (*mut Watcher, usize);
}

/// A function by one of its names.
///
/// # Safety
/// `F` is the type of that function.
unsafe fn find<F: Copy>(libraries: &[Shared], names: &[&str]) -> Result<F, String> {
    for name in names {
        for library in libraries {
            // SAFETY: the caller knows the function's type.
            if let Ok(found) = unsafe { library.get::<F>(name.as_bytes()) } {
                return Ok(*found);
            }
        }
    }
    Err(format!("librados and librbd have no function {}", names[0]))
}

fn load() -> Result<Library, String> {
    let open = |name: &str| {
        // SAFETY: the libraries of Ceph run nothing at their start but constructors of their own.
        unsafe { Shared::open(Some(name), RTLD_NOW | RTLD_GLOBAL) }
            .map_err(|error| format!("{name} is missing (package librbd1): {error}"))
    };
    let libraries = [open("librados.so.2")?, open("librbd.so.1")?];
    let library = Library::load(&libraries)?;
    // Their threads end with the process.
    std::mem::forget(libraries);
    Ok(library)
}

impl Library {
    /// The functions, or why there are none. Loads the libraries at the first call.
    pub fn get() -> Result<&'static Library, &'static str> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        LIBRARY.get_or_init(load).as_ref().map_err(String::as_str)
    }
}
