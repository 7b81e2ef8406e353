//! A checker that is too slow for real histories and too simple to be wrong: it tries every order.

use super::{ABSENT, Call, Effect, MAX_KEYS, NEVER};
use std::collections::HashSet;

/// Whether `calls`, at most 64, are linearizable (Wing and Gong, "Testing and Verifying Concurrent Objects").
pub(super) fn linearizable(calls: &[Call]) -> bool {
    assert!(calls.len() <= 64, "the set of done calls is one word");
    search(calls, 0, [ABSENT; MAX_KEYS], &mut HashSet::new())
}

fn search(
    calls: &[Call],
    done: u64,
    values: [u64; MAX_KEYS],
    tried: &mut HashSet<(u64, [u64; MAX_KEYS])>,
) -> bool {
    let left = || (0..calls.len()).filter(|at| done & 1 << at == 0);
    if left().all(|at| calls[at].returned == NEVER) {
        return true;
    }
    if !tried.insert((done, values)) {
        return false;
    }
    let first_return = left().map(|at| calls[at].returned).min().unwrap_or(NEVER);
    left().filter(|at| calls[*at].called < first_return).any(|at| {
        let mut after = values;
        match &calls[at].effect {
            Effect::Write(pairs) => pairs.iter().for_each(|(key, value)| after[*key] = *value),
            Effect::Read(pairs) if pairs.iter().any(|(key, value)| values[*key] != *value) => return false,
            Effect::Read(_) => {}
        }
        search(calls, done | 1 << at, after, tried)
    })
}
