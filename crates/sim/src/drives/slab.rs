//! [`Slab`]: things by small numbers that are used again.

pub(crate) struct Slab<T> {
    items: Vec<Option<T>>,
    unused: Vec<usize>,
}

impl<T> Default for Slab<T> {
    fn default() -> Slab<T> {
        Slab { items: Vec::new(), unused: Vec::new() }
    }
}

impl<T> Slab<T> {
    pub fn insert(&mut self, item: T) -> usize {
        let index = self.unused.pop().unwrap_or(self.items.len());
        if index == self.items.len() {
            self.items.push(None);
        }
        self.items[index] = Some(item);
        index
    }

    pub fn get(&self, index: usize) -> &T {
        self.items[index].as_ref().expect("the number is in use")
    }

    pub fn get_mut(&mut self, index: usize) -> &mut T {
        self.items[index].as_mut().expect("the number is in use")
    }

    /// What has the number, if something has.
    pub fn find(&self, index: usize) -> Option<&T> {
        self.items[index].as_ref()
    }

    pub fn remove(&mut self, index: usize) -> T {
        self.unused.push(index);
        self.items[index].take().expect("the number is in use")
    }
}
