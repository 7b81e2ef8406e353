//! The checkers are checked: with histories known to be good and bad, and against each other.

use super::search::linearizable;
use super::{ABSENT, Call, Effect, NEVER, check, frontier, registers};
use fastrand::Rng;

fn w(called: u64, returned: u64, pairs: &[(usize, u64)]) -> Call {
    Call { called, returned, effect: Effect::Write(pairs.to_vec()) }
}

fn r(called: u64, returned: u64, pairs: &[(usize, u64)]) -> Call {
    Call { called, returned, effect: Effect::Read(pairs.to_vec()) }
}

#[test]
fn good_histories_are_accepted() {
    let good: &[&[Call]] = &[
        &[],
        &[r(1, 2, &[(0, ABSENT)])],
        // A read beside a write may see it or not.
        &[w(1, 4, &[(0, 1)]), r(2, 3, &[(0, 1)])],
        &[w(1, 4, &[(0, 1)]), r(2, 3, &[(0, ABSENT)])],
        // Two writes at once: readers settle the order.
        &[w(1, 5, &[(0, 1)]), w(2, 6, &[(0, 2)]), r(7, 8, &[(0, 1)]), r(9, 10, &[(0, 1)])],
        // A write that never returned may have happened, late.
        &[w(1, NEVER, &[(0, 1)]), r(2, 3, &[(0, ABSENT)]), r(4, 5, &[(0, 1)])],
        &[w(1, NEVER, &[(0, 1)]), r(2, 3, &[(0, ABSENT)])],
        // Deletes.
        &[w(1, 2, &[(0, 1)]), w(3, 4, &[(0, ABSENT)]), r(5, 6, &[(0, ABSENT)])],
        &[w(1, 2, &[(0, 1)]), w(3, 6, &[(0, ABSENT)]), r(4, 5, &[(0, 1)]), r(7, 8, &[(0, ABSENT)])],
        // A snapshot taken beside a batch sees all of it or nothing.
        &[w(1, 4, &[(0, 1), (1, 2)]), r(2, 3, &[(0, 1), (1, 2)])],
        &[w(1, 4, &[(0, 1), (1, 2)]), r(2, 3, &[(0, ABSENT), (1, ABSENT)])],
    ];
    for calls in good {
        assert!(linearizable(calls), "{calls:?}");
        check(calls).expect("accepted");
    }
}

#[test]
fn bad_histories_are_rejected() {
    let bad: &[(&str, &[Call])] = &[
        ("stale read", &[w(1, 2, &[(0, 1)]), w(3, 4, &[(0, 2)]), r(5, 6, &[(0, 1)])]),
        ("lost write", &[w(1, 2, &[(0, 1)]), r(3, 4, &[(0, ABSENT)])]),
        (
            "lost write beside a delete of long ago",
            &[w(1, 2, &[(0, ABSENT)]), w(3, 4, &[(0, 1)]), r(5, 6, &[(0, ABSENT)])],
        ),
        ("future read", &[r(1, 2, &[(0, 1)]), w(3, 4, &[(0, 1)])]),
        ("invented value", &[w(1, 2, &[(0, 1)]), r(3, 4, &[(0, 9)])]),
        ("resurrected", &[w(1, 2, &[(0, 1)]), w(3, 4, &[(0, ABSENT)]), r(5, 6, &[(0, 1)])]),
        (
            "back in time, within a write",
            &[w(1, 2, &[(0, 1)]), w(3, 8, &[(0, 2)]), r(4, 5, &[(0, 2)]), r(6, 7, &[(0, 1)])],
        ),
        (
            "readers disagree on two writes",
            &[
                w(1, 3, &[(0, 1)]),
                w(2, 4, &[(0, 2)]),
                r(5, 6, &[(0, 1)]),
                r(7, 8, &[(0, 2)]),
                r(9, 10, &[(0, 1)]),
            ],
        ),
        (
            "lost for a moment",
            &[w(1, 2, &[(0, 1)]), w(3, 4, &[(0, 2)]), r(5, 6, &[(0, 2)]), r(7, 8, &[(0, ABSENT)])],
        ),
        (
            "a write that never returned is seen and gone",
            &[w(1, NEVER, &[(0, 1)]), r(2, 3, &[(0, 1)]), r(4, 5, &[(0, ABSENT)])],
        ),
        ("torn batch in a snapshot", &[w(1, 4, &[(0, 1), (1, 2)]), r(2, 3, &[(0, 1), (1, ABSENT)])]),
        ("torn batch by gets", &[w(1, 6, &[(0, 1), (1, 2)]), r(2, 3, &[(0, 1)]), r(4, 5, &[(1, ABSENT)])]),
        (
            "torn delete in a batch",
            &[
                w(1, 2, &[(0, 1), (1, 2)]),
                w(3, 8, &[(0, ABSENT), (1, 3)]),
                r(4, 5, &[(1, 3)]),
                r(6, 7, &[(0, 1)]),
            ],
        ),
        (
            "snapshots see two writes in two orders",
            &[
                w(1, 7, &[(0, 1)]),
                w(2, 8, &[(1, 2)]),
                r(3, 5, &[(0, 1), (1, ABSENT)]),
                r(4, 6, &[(0, ABSENT), (1, 2)]),
            ],
        ),
    ];
    for (name, calls) in bad {
        assert!(!linearizable(calls), "{name}: the search accepts it");
        assert!(check(calls).is_err(), "{name}: accepted");
        assert!(frontier::check(calls).is_err(), "{name}: accepted by the frontier alone");
    }
}

/// A random history that a store with the given faults could give. Without faults it is linearizable.
fn random(rng: &mut Rng, threads: usize, keys: usize, deletes: bool, faulty: bool) -> Vec<Call> {
    let mut values = vec![ABSENT; keys];
    let mut before = values.clone();
    let mut next_value = 1;
    let mut clock = 0;
    // Per thread: the call in flight, and whether it is done.
    let mut flying: Vec<Option<(Call, bool)>> = vec![None; threads];
    let mut calls = Vec::new();
    let mut todo = rng.usize(4..12);
    while todo > 0 || flying.iter().any(Option::is_some) {
        clock += 1;
        let thread = rng.usize(..threads);
        match &mut flying[thread] {
            None if todo > 0 => {
                todo -= 1;
                let mut chosen: Vec<usize> = (0..keys).collect();
                rng.shuffle(&mut chosen);
                chosen.truncate(if rng.bool() { 1 } else { rng.usize(1..=keys) });
                let write = rng.bool();
                let pairs = chosen.into_iter().map(|key| {
                    next_value += 1;
                    (key, if write && !(deletes && rng.u8(..3) == 0) { next_value } else { ABSENT })
                });
                let pairs = pairs.collect();
                let effect = if write { Effect::Write(pairs) } else { Effect::Read(pairs) };
                flying[thread] = Some((Call { called: clock, returned: NEVER, effect }, false));
            }
            None => {}
            Some((call, done)) if !*done => {
                let faulty = faulty && rng.u8(..4) == 0;
                match &mut call.effect {
                    Effect::Write(pairs) => {
                        before.clone_from(&values);
                        // The fault: a key of the write is lost.
                        let lost = if faulty { rng.usize(..pairs.len()) } else { usize::MAX };
                        for (i, (key, value)) in pairs.iter().enumerate() {
                            if i != lost {
                                values[*key] = *value;
                            }
                        }
                    }
                    // The fault: a read of what was before.
                    Effect::Read(pairs) => {
                        let from = if faulty { &before } else { &values };
                        pairs.iter_mut().for_each(|(key, value)| *value = from[*key]);
                    }
                }
                *done = true;
            }
            Some((call, _)) => {
                call.returned = clock;
                calls.push(call.clone());
                flying[thread] = None;
            }
        }
        if todo == 0 && rng.u8(..40) == 0 {
            // The rest never returns.
            for (call, _) in flying.iter_mut().filter_map(Option::take) {
                calls.extend(matches!(call.effect, Effect::Write(_)).then_some(call));
            }
        }
    }
    calls
}

#[test]
fn the_checkers_agree_with_the_search() {
    let mut rng = Rng::with_seed(1);
    let (mut rejected, mut by_registers) = (0, 0);
    for round in 0..30_000 {
        let (threads, keys) = (rng.usize(1..=4), rng.usize(1..=3));
        let faulty = round % 3 != 0;
        let deletes = rng.bool();
        let calls = random(&mut rng, threads, keys, deletes, faulty);
        let truth = linearizable(&calls);
        assert!(truth || faulty, "without a fault it is linearizable: {calls:?}");
        assert_eq!(frontier::check(&calls).is_ok(), truth, "{calls:?}");
        let fast = registers::check(&calls).is_ok();
        assert!(fast || !truth, "a rejection is always right: {calls:?}");
        if keys == 1 && !deletes {
            assert_eq!(fast, truth, "exact for one key that is not deleted: {calls:?}");
        }
        rejected += usize::from(!truth);
        by_registers += usize::from(!fast);
    }
    assert!(rejected > 5000 && by_registers > 3000, "the faults show: {rejected}, {by_registers}");
}
