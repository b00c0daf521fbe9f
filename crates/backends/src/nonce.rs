//! [`nonce`]: a random name, so that no two sessions, and no two markers, have the same one.

/// 128 random bits in hexadecimal.
///
/// # Panics
/// The system has no random bits.
pub fn nonce() -> String {
    let mut bytes = [0; 16];
    let flags = rustix::rand::GetRandomFlags::empty();
    rustix::rand::getrandom(&mut bytes, flags).expect("so few bytes are always there");
    format!("{:032x}", u128::from_le_bytes(bytes))
}
