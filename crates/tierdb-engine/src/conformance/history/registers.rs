//! Each key by itself: a register whose written values are all different.
//!
//! Since a value is written once, one knows for each read which write it saw. The calls of one value (its
//! write and the reads that saw it) are a *cluster*. Let `f` be the first return in a cluster and `s` the last
//! invocation. If `f < s`, the register certainly had the value from `f` to `s`: some call of the cluster was
//! done by `f`, another only began at `s`, and the value was written once. That is the cluster's *forward zone*.
//! Otherwise all its calls overlap in `s..f`, and can be done at one moment in it: its *backward zone*. A history
//! is linearizable exactly if
//!
//! 1. no read returned before the write of its value was called,
//! 2. no two forward zones overlap, and
//! 3. no backward zone lies within a forward zone
//!
//! (Gibbons and Korach, "Testing Shared Memories", SIAM J. Comput. 26(4), on unique writes). So it suffices to sort.
//!
//! Deletes all write the same: that a key is absent. For a key that is never deleted the absence is a
//! cluster like others, written before all calls. For a key that is deleted, each delete and each read of
//! the absence has a backward zone of its own, and each such read needs a delete (or the beginning) that no
//! put certainly came after. This is necessary, not sufficient; [`frontier`](super::frontier) decides the rest.

use super::{ABSENT, Call, Effect, MAX_KEYS, NEVER};
use crate::conformance::{Checked, ensure, fail};
use std::collections::BTreeMap;

/// When one call on one key was called and had returned.
type Span = (u64, u64);

/// The calls on one key.
#[derive(Default)]
struct Register {
    puts: BTreeMap<u64, Span>,
    deletes: Vec<Span>,
    reads: Vec<(u64, Span)>,
}

/// From when to when a value certainly was, or may just have been, the key's.
struct Zone {
    from: u64,
    to: u64,
    value: u64,
}

pub(super) fn check(calls: &[Call]) -> Checked {
    let mut registers: [Register; MAX_KEYS] = Default::default();
    for call in calls {
        let span = (call.called, call.returned);
        for &(key, value) in call.effect.pairs() {
            let register = &mut registers[key];
            match &call.effect {
                Effect::Read(_) => register.reads.push((value, span)),
                Effect::Write(_) if value == ABSENT => register.deletes.push(span),
                Effect::Write(_) => {
                    let before = register.puts.insert(value, span);
                    ensure!(before.is_none(), "the history is malformed: k{key}={value:x} is written twice");
                }
            }
        }
    }
    for (key, register) in registers.iter().enumerate() {
        register.check().map_err(|failure| failure.during(format!("k{key}")))?;
    }
    Ok(())
}

impl Register {
    fn check(&self) -> Checked {
        let mut clusters: BTreeMap<u64, (u64, u64)> =
            self.puts.iter().map(|(value, (called, returned))| (*value, (*returned, *called))).collect();
        let deleted = !self.deletes.is_empty();
        if !deleted {
            clusters.insert(ABSENT, (0, 0));
        }
        for (value, (called, returned)) in &self.reads {
            if *value == ABSENT && deleted {
                continue;
            }
            let Some((first_return, last_call)) = clusters.get_mut(value) else {
                fail!("a read in [{called}, {returned}] gives {value:x}, which was never written");
            };
            if let Some((written, _)) = self.puts.get(value) {
                ensure!(
                    written < returned,
                    "a read in [{called}, {returned}] gives {value:x}, whose write was called only at {written}"
                );
            }
            *first_return = (*first_return).min(*returned);
            *last_call = (*last_call).max(*called);
        }
        let mut forward = Vec::new();
        let mut backward = Vec::new();
        for (value, (first_return, last_call)) in clusters {
            if first_return < last_call {
                forward.push(Zone { from: first_return, to: last_call, value });
            } else {
                backward.push(Zone { from: last_call, to: first_return, value });
            }
        }
        forward.sort_unstable_by_key(|zone| zone.from);
        for pair in forward.windows(2) {
            let (one, two) = (&pair[0], &pair[1]);
            ensure!(
                one.to < two.from,
                "the value certainly was {:x} from {} to {}, and also {:x} from {} to {}: a read is stale",
                one.value,
                one.from,
                one.to,
                two.value,
                two.from,
                two.to
            );
        }
        if deleted {
            let absent = self.reads.iter().filter(|(value, _)| *value == ABSENT).map(|(_, span)| span);
            for (called, returned) in self.deletes.iter().chain(absent) {
                backward.push(Zone { from: *called, to: *returned, value: ABSENT });
            }
            self.check_sources()?;
        }
        for zone in &backward {
            let at = forward.partition_point(|other| other.from < zone.from);
            if let Some(around) = at.checked_sub(1).map(|before| &forward[before])
                && zone.to < around.to
            {
                fail!(
                    "the value certainly was {:x} from {} to {}, and yet {:x} at a moment from {} to {}",
                    around.value,
                    around.from,
                    around.to,
                    zone.value,
                    zone.from,
                    zone.to
                );
            }
        }
        Ok(())
    }

    /// Each read of the absence needs a source: a delete that was called before the read returned, and
    /// that no put followed which in turn had returned before the read was called.
    fn check_sources(&self) -> Checked {
        let mut puts: Vec<Span> =
            self.puts.values().copied().filter(|(_, returned)| *returned != NEVER).collect();
        puts.sort_unstable_by_key(|(_, returned)| *returned);
        let mut deletes = self.deletes.clone();
        deletes.sort_unstable();
        // For each prefix: the latest invocation of a put, the latest return of a delete.
        let last_put: Vec<u64> = running_max(puts.iter().map(|(called, _)| *called));
        let last_delete: Vec<u64> = running_max(deletes.iter().map(|(_, returned)| *returned));
        for (_, (called, returned)) in self.reads.iter().filter(|(value, _)| *value == ABSENT) {
            let before = puts.partition_point(|(_, put_returned)| put_returned < called);
            let Some(put) = before.checked_sub(1).map(|at| last_put[at]) else { continue };
            let before = deletes.partition_point(|(delete_called, _)| delete_called < returned);
            let delete = before.checked_sub(1).map(|at| last_delete[at]);
            ensure!(
                delete.is_some_and(|delete| delete > put),
                "a read in [{called}, {returned}] gives nothing, but a put was called at {put}, had returned, and was \
                 not deleted since: a lost write"
            );
        }
        Ok(())
    }
}

fn running_max(values: impl Iterator<Item = u64>) -> Vec<u64> {
    let mut max = 0;
    values
        .map(|value| {
            max = max.max(value);
            max
        })
        .collect()
}
