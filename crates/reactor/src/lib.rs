//! One thread's world: ring, executor, timers, mailbox.
