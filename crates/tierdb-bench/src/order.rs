//! The order of the keys that are stored, by which it shows what a scan leaves out.

use crate::keys::Naming;

/// The names of stored keys, in their order: 8 bytes for each key.
pub(crate) struct Order {
    names: Vec<u64>,
}

impl Order {
    /// Of the keys `0..keys`.
    pub(crate) fn new(naming: &Naming, keys: u64) -> Self {
        let mut names: Vec<u64> = (0..keys).map(|number| naming.name(number)).collect();
        names.sort_unstable();
        Order { names }
    }

    /// What a scan from the key named `name` on has before it.
    pub(crate) fn from(&self, name: u64) -> Ahead<'_> {
        Ahead(&self.names[self.names.partition_point(|own| *own < name)..])
    }

    /// Bytes of memory it holds, which are no store's.
    pub(crate) fn memory_bytes(&self) -> u64 {
        self.names.capacity() as u64 * 8
    }
}

/// The keys that a scan has not come to.
#[derive(Clone, Copy)]
pub(crate) struct Ahead<'a>(&'a [u64]);

impl Ahead<'_> {
    /// The scan goes on with the key named `name`, which may have been stored later: whether it has left out none.
    pub(crate) fn goes_on(&mut self, name: u64) -> bool {
        match self.0.split_first() {
            Some((next, rest)) if *next == name => {
                self.0 = rest;
                true
            }
            Some((next, _)) => *next > name,
            None => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_key_that_lies_between_two_of_a_scan_is_missed() {
        let naming = Naming::placed(16, 100);
        let order = Order::new(&naming, 100);
        let scan = |names: &[u64]| {
            let mut ahead = order.from(names[0]);
            names.iter().all(|name| ahead.goes_on(*name))
        };
        assert!(scan(&[4, 5, 6]) && scan(&[98, 99, 100, 105]), "what was stored later may come");
        assert!(!scan(&[4, 6]) && !scan(&[4, 5, 100]));
    }
}
