//! Thin metadata: the images of a real kernel, decoded; then checked, dumped, built and damaged.

#![allow(clippy::unwrap_used, reason = "a test fails by panicking")]

mod checker;
mod golden;
mod images;
mod repair;
mod tools;
