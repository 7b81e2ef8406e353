//! All keys together: batches, snapshots and deletes included. Exact.
//!
//! The calls are taken in the order of their stamps. A *world* is a way in which the calls so far can have
//! happened: the value of each key now, and which of the calls in flight are done already. When a call
//! returns it must be done, so in each world where it is not, calls in flight are done, in every order, until
//! it is (Wing and Gong, "Testing and Verifying Concurrent Objects"; done as late as that by Lowe, "Testing for
//! linearizability"). If no world is left, the history is not linearizable.
//!
//! Two things keep the worlds few. Equal worlds are one. And a read in flight is done as soon as it fits the
//! values: it changes nothing, so doing it early excludes nothing, and only writes multiply the worlds.

use super::{ABSENT, Call, Effect, MAX_KEYS, NEVER};
use crate::conformance::{Checked, ensure, fail};
use std::collections::HashSet;
use std::fmt::Write;

/// Most worlds at a time: beyond, the history has more threads than this can check.
const MAX_WORLDS: usize = 1 << 20;

#[derive(Clone, PartialEq, Eq, Hash)]
struct World {
    values: [u64; MAX_KEYS],
    /// Bit per slot: the call in it is done.
    done: u64,
}

pub(super) fn check(calls: &[Call]) -> Checked {
    let mut events: Vec<(u64, usize)> = Vec::with_capacity(calls.len() * 2);
    for (at, call) in calls.iter().enumerate() {
        events.push((call.called, at));
        if call.returned != NEVER {
            events.push((call.returned, at));
        }
    }
    events.sort_unstable();
    let mut slots: Vec<Option<&Call>> = Vec::new();
    let mut slot_of = vec![usize::MAX; calls.len()];
    let mut worlds = HashSet::from([World { values: [ABSENT; MAX_KEYS], done: 0 }]);
    for (stamp, at) in events {
        let call = &calls[at];
        if stamp == call.called {
            let slot = slots.iter().position(Option::is_none).unwrap_or(slots.len());
            ensure!(slot < 64, "the history has more than 64 calls in flight at once");
            if slot == slots.len() {
                slots.push(None);
            }
            slots[slot] = Some(call);
            slot_of[at] = slot;
            if matches!(call.effect, Effect::Read(_)) {
                worlds = worlds.into_iter().map(|world| world.with_reads(&slots)).collect();
            }
        } else {
            let slot = slot_of[at];
            let next = worlds_after(&worlds, &slots, slot)?;
            if next.is_empty() {
                fail!("{}", explain(calls, call, &worlds));
            }
            slots[slot] = None;
            worlds = next;
        }
    }
    Ok(())
}

/// The worlds in which the call in `slot` is done, with its bit cleared.
fn worlds_after(worlds: &HashSet<World>, slots: &[Option<&Call>], slot: usize) -> Checked<HashSet<World>> {
    let mut after = HashSet::with_capacity(worlds.len());
    let mut seen: HashSet<World> = HashSet::new();
    let mut open: Vec<World> = worlds.iter().cloned().collect();
    while let Some(mut world) = open.pop() {
        if world.done & 1 << slot != 0 {
            world.done &= !(1 << slot);
            after.insert(world);
            continue;
        }
        for (other, call) in slots.iter().enumerate() {
            if let Some(Call { effect: Effect::Write(pairs), .. }) = call
                && world.done & 1 << other == 0
            {
                let mut next = world.clone();
                next.done |= 1 << other;
                for (key, value) in pairs {
                    next.values[*key] = *value;
                }
                let next = next.with_reads(slots);
                if seen.insert(next.clone()) {
                    open.push(next);
                }
            }
        }
        ensure!(seen.len() < MAX_WORLDS, "too many threads write at once: the history cannot be checked");
    }
    Ok(after)
}

impl World {
    /// Does the reads in flight that fit.
    fn with_reads(mut self, slots: &[Option<&Call>]) -> Self {
        for (slot, call) in slots.iter().enumerate() {
            if let Some(Call { effect: Effect::Read(pairs), .. }) = call
                && pairs.iter().all(|(key, value)| self.values[*key] == *value)
            {
                self.done |= 1 << slot;
            }
        }
        self
    }
}

fn explain(calls: &[Call], stuck: &Call, worlds: &HashSet<World>) -> String {
    let keys: Vec<usize> = stuck.effect.pairs().iter().map(|(key, _)| *key).collect();
    let touches = |call: &&Call| call.effect.pairs().iter().any(|(key, _)| keys.contains(key));
    let mut text = format!("no order of the calls explains that {stuck}. Before it returned, there could be");
    for world in worlds.iter().take(4) {
        text.push_str(" (");
        for key in &keys {
            match world.values[*key] {
                ABSENT => text.push_str(" absent"),
                value => drop(write!(text, " {value:x}")),
            }
        }
        text.push_str(" )");
    }
    text.push_str(". The calls on its keys before:");
    let mut around: Vec<&Call> =
        calls.iter().filter(|call| call.called < stuck.returned).filter(touches).collect();
    around.sort_unstable_by_key(|call| call.called);
    for call in around.iter().rev().take(16).rev() {
        let _ = write!(text, "\n  {call}");
    }
    text
}
