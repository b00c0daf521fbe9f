//! The request slots of one reactor: a slab that grows, recycles boxes, and tells a stale id
//! from a live one by its generation.
//!
//! A slot is free, out (the engine or a caller has its box) or parked (the box waits here until a
//! task completes it). Only this file moves a box between these states.

use std::cell::RefCell;

use crate::buf::Segs;
use crate::ids::{ReactorId, RequestId};
use crate::request::Request;

struct Slot {
    generation: u32,
    parked: Option<Box<Request>>,
}

#[derive(Default)]
struct Inner {
    slots: Vec<Slot>,
    #[expect(clippy::vec_box, reason = "the boxes themselves are recycled")]
    free: Vec<Box<Request>>,
    /// How many requests were given back.
    ended: u64,
}

/// The slots of one reactor.
pub(crate) struct Slots {
    reactor: ReactorId,
    inner: RefCell<Inner>,
}

impl Slots {
    pub fn new(reactor: ReactorId) -> Slots {
        Slots { reactor, inner: RefCell::default() }
    }

    /// Takes a request out of the pool, growing it if it is empty.
    pub fn alloc(&self) -> Box<Request> {
        let mut inner = self.inner.borrow_mut();
        if let Some(request) = inner.free.pop() {
            return request;
        }
        let slot = u32::try_from(inner.slots.len()).expect("fewer than 2^32 requests in flight");
        inner.slots.push(Slot { generation: 0, parked: None });
        let id = RequestId { reactor: self.reactor, slot, generation: 0 };
        Box::new(Request::new(id))
    }

    /// Gives a finished request back; its id is stale from now on.
    pub fn free(&self, mut request: Box<Request>) {
        let mut inner = self.inner.borrow_mut();
        let slot = &mut inner.slots[request.id.slot as usize];
        debug_assert!(slot.parked.is_none());
        slot.generation = slot.generation.wrapping_add(1);
        request.id.generation = slot.generation;
        inner.free.push(request);
        inner.ended += 1;
    }

    /// How many requests have ended.
    pub fn ended(&self) -> u64 {
        self.inner.borrow().ended
    }

    /// Leaves a request in its slot until it is completed by id.
    pub fn park(&self, request: Box<Request>) {
        let mut inner = self.inner.borrow_mut();
        let slot = &mut inner.slots[request.id.slot as usize];
        debug_assert!(slot.parked.is_none());
        slot.parked = Some(request);
    }

    /// Takes a parked request; none if the id is stale or the request is out.
    pub fn unpark(&self, id: RequestId) -> Option<Box<Request>> {
        debug_assert_eq!(id.reactor, self.reactor);
        let mut inner = self.inner.borrow_mut();
        let slot = inner.slots.get_mut(id.slot as usize)?;
        if slot.generation == id.generation { slot.parked.take() } else { None }
    }

    /// The data of a parked request; none if the id is stale or the request is out.
    pub fn parked_segs(&self, id: RequestId) -> Option<Segs> {
        debug_assert_eq!(id.reactor, self.reactor);
        let inner = self.inner.borrow();
        let slot = inner.slots.get(id.slot as usize)?;
        let parked = slot.parked.as_ref().filter(|_| slot.generation == id.generation)?;
        Some(parked.segs.clone())
    }

    /// How many requests are out or parked.
    pub fn in_use(&self) -> usize {
        let inner = self.inner.borrow();
        inner.slots.len() - inner.free.len()
    }
}
