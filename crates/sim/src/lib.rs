//! A deterministic world: virtual time, drives that lose and tear, crash and fault injection.
