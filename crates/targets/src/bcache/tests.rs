//! Tests of the target as a whole.
