//! Calls of the OSD's classes on the header of an image, by librados: what librbd does not offer,
//! or offers with a wait for every watcher of the image.
//!
//! Of the class `lock` there are the methods for the lock of librbd: `assert_locked`, `get_info`,
//! and `lock` with the flag by which it replaces what a lock says, and takes none. Inputs and
//! answers are encoded as Ceph does it: integers little-endian; a string is its length in 32 bits
//! and its bytes; a structure begins with its version, the oldest version that can read it, and its
//! length in 32 bits.

use std::ffi::CStr;
use std::ptr::null_mut;

use super::image::{Image, value};

/// The name and the tag of the lock that librbd takes.
pub(super) const LOCK: &CStr = c"rbd_lock";
const TAG: &[u8] = b"internal";
/// `ClsLockType::EXCLUSIVE`.
const EXCLUSIVE: u8 = 1;
/// `LOCK_FLAG_MUST_RENEW`: refused with `ENOENT` if this client does not have the lock.
const MUST_RENEW: u8 = 1 << 1;

/// A string, or a buffer.
pub(super) fn encode(bytes: &[u8], to: &mut Vec<u8>) {
    let len = u32::try_from(bytes.len()).expect("texts of calls are short");
    to.extend_from_slice(&len.to_le_bytes());
    to.extend_from_slice(bytes);
}

/// A structure of version 1, which every later one reads.
fn structure(fields: &[u8]) -> Vec<u8> {
    let mut input = vec![1, 1];
    encode(fields, &mut input);
    input
}

/// A class, a method of it, and its input.
pub(super) struct Call {
    class: &'static CStr,
    method: &'static CStr,
    input: Vec<u8>,
}

impl Call {
    pub fn of_rbd(method: &'static CStr, input: Vec<u8>) -> Call {
        Call { class: c"rbd", method, input }
    }

    fn of_lock(method: &'static CStr, fields: &[u8]) -> Call {
        Call { class: c"lock", method, input: structure(fields) }
    }

    /// What names a lock that a client has: name, type, cookie, tag.
    fn lock_of(cookie: &str) -> Vec<u8> {
        let mut fields = Vec::new();
        encode(LOCK.to_bytes(), &mut fields);
        fields.push(EXCLUSIVE);
        encode(cookie.as_bytes(), &mut fields);
        encode(TAG, &mut fields);
        fields
    }

    /// Fails unless this client has the lock under this cookie.
    pub fn assert_locked(cookie: &str) -> Call {
        Call::of_lock(c"assert_locked", &Call::lock_of(cookie))
    }

    /// Replaces the description of the lock that this client has under this cookie. After what
    /// names the lock: the description; seconds and nanoseconds until it ends, or never; flags.
    pub fn describe(cookie: &str, description: &str) -> Call {
        let mut fields = Call::lock_of(cookie);
        encode(description.as_bytes(), &mut fields);
        fields.extend_from_slice(&[0; 8]);
        fields.push(MUST_RENEW);
        Call::of_lock(c"lock", &fields)
    }

    /// Asks who has the lock: see [`Holder`]. Name.
    fn get_info() -> Call {
        let mut fields = Vec::new();
        encode(LOCK.to_bytes(), &mut fields);
        Call::of_lock(c"get_info", &fields)
    }
}

/// A client that has the lock.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Holder {
    pub cookie: String,
    /// The fields of `locker_info_t`: when it ends, the client's address, the description.
    info: Vec<u8>,
}

impl Holder {
    /// True if the lock has this description, which is no end of another one.
    pub fn says(&self, description: &str) -> bool {
        let mut last = Vec::new();
        encode(description.as_bytes(), &mut last);
        self.info.ends_with(&last)
    }
}

/// What is left to decode of an answer.
struct Answer<'a>(&'a [u8]);

impl<'a> Answer<'a> {
    fn take(&mut self, len: usize) -> Option<&'a [u8]> {
        let (taken, rest) = self.0.split_at_checked(len)?;
        self.0 = rest;
        Some(taken)
    }

    fn number(&mut self) -> Option<usize> {
        let bytes = self.take(4)?.try_into().ok()?;
        usize::try_from(u32::from_le_bytes(bytes)).ok()
    }

    fn buffer(&mut self) -> Option<&'a [u8]> {
        let len = self.number()?;
        self.take(len)
    }

    /// The fields of a structure, of any version.
    fn structure(&mut self) -> Option<Answer<'a>> {
        self.take(2)?;
        self.buffer().map(Answer)
    }
}

/// The holders that an answer to `get_info` names: a map from `locker_id_t` (type and number of the
/// client, cookie) to `locker_info_t`.
fn holders(answer: &[u8]) -> Option<Vec<Holder>> {
    const CLIENT: usize = 1 + 8;
    let mut fields = Answer(answer).structure()?;
    let mut holders = Vec::new();
    for _ in 0..fields.number()? {
        let mut id = fields.structure()?;
        id.take(CLIENT)?;
        let cookie = String::from_utf8_lossy(id.buffer()?).into_owned();
        let info = fields.structure()?.0.to_vec();
        holders.push(Holder { cookie, info });
    }
    Some(holders)
}

impl Image {
    /// Runs these calls as one operation on the image's header: all of them, or none.
    pub fn execute(&self, calls: &[Call]) -> Result<(), i32> {
        let (library, header) = (self.library(), self.header()?);
        // SAFETY: the operation is ended here. Names and inputs live longer, and no result of a
        // single call is asked for.
        let result = unsafe {
            let op = (library.write_op)();
            for Call { class, method, input } in calls {
                let (class, method, len) = (class.as_ptr(), method.as_ptr(), input.len());
                (library.write_op_exec)(op, class, method, input.as_ptr().cast(), len, null_mut());
            }
            let context = self.context();
            let result = (library.write_op_operate)(op, context, header.as_ptr(), null_mut(), 0);
            (library.end_write_op)(op);
            result
        };
        value(result).map(drop)
    }

    /// Runs a call that changes nothing; the result is its answer.
    fn ask(&self, Call { class, method, input }: &Call) -> Result<Vec<u8>, i32> {
        let (library, header) = (self.library(), self.header()?);
        let mut room = 4096;
        loop {
            let mut answer = vec![0_u8; room];
            // SAFETY: the context is live. Names, input and buffer live until the call returns, and
            // the buffer has the length that is said.
            let result = unsafe {
                let (class, method, header) = (class.as_ptr(), method.as_ptr(), header.as_ptr());
                let (input, len) = (input.as_ptr().cast(), input.len());
                let to = answer.as_mut_ptr().cast();
                (library.exec)(self.context(), header, class, method, input, len, to, room)
            };
            match value(result) {
                Err(error) if -error == libc::ERANGE && room < 1 << 20 => room *= 4,
                result => {
                    answer.truncate(usize::try_from(result?).unwrap_or(0));
                    return Ok(answer);
                }
            }
        }
    }

    /// The client that has the lock. The OSD says it.
    pub fn holder(&self) -> Result<Option<Holder>, i32> {
        let answer = match self.ask(&Call::get_info()) {
            // It has never been taken.
            Err(error) if -error == libc::ENOENT => return Ok(None),
            answer => answer?,
        };
        holders(&answer).map(|mut holders| holders.pop()).ok_or(-libc::EBADMSG)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_of_the_lock_are_encoded_as_ceph_reads_them() {
        let name = b"\x08\0\0\0rbd_lock";
        let owner = b"\x01\x06\0\0\0auto 7\x08\0\0\0internal";
        let expected = [b"\x01\x01\x23\0\0\0".as_slice(), name, owner].concat();
        let call = Call::assert_locked("auto 7");
        assert_eq!((call.class, call.method), (c"lock", c"assert_locked"));
        assert_eq!(call.input, expected);
        let rest = b"\x02\0\0\0ab\0\0\0\0\0\0\0\0\x02";
        let expected = [b"\x01\x01\x32\0\0\0".as_slice(), name, owner, rest].concat();
        let call = Call::describe("auto 7", "ab");
        assert_eq!((call.class, call.method), (c"lock", c"lock"));
        assert_eq!(call.input, expected);
        assert_eq!(Call::get_info().input, [b"\x01\x01\x0c\0\0\0".as_slice(), name].concat());
    }

    #[test]
    fn the_holder_of_a_lock_is_found_in_an_answer() {
        let id = b"\x01\x01\x13\0\0\0\x08\x29\0\0\0\0\0\0\0\x06\0\0\0auto 7";
        let address = b"\x01\x01\x01\x04\0\0\0\x02\0\0\0";
        let info = [b"\0\0\0\0\0\0\0\0".as_slice(), address, b"\x02\0\0\0ab"].concat();
        let info = structure(&info);
        let fields = [b"\x01\0\0\0".as_slice(), id, &info, b"\x01\x08\0\0\0internal"].concat();
        let answer = structure(&fields);
        let found = holders(&answer).expect("an answer");
        assert_eq!(found.len(), 1);
        assert_eq!(found[0].cookie, "auto 7");
        assert!(found[0].says("ab"));
        assert!(!found[0].says("b") && !found[0].says("") && !found[0].says("xab"));
        assert_eq!(holders(&structure(b"\0\0\0\0\x00\0\0\0\0")), Some(Vec::new()));
        for len in 0..answer.len() - 13 {
            assert_eq!(holders(&answer[..len]), None, "{len} bytes");
        }
    }
}
