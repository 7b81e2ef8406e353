//! One thread of a phase: chooses an operation and a key, times the store, and checks what it gave.

use crate::failure::Failure;
use crate::keys::Chooser;
use crate::measure::thread_seconds;
use crate::order::Order;
use crate::pace::{Due, Pace};
use crate::phase::{Bed, Limit, Phase, Shared};
use crate::store::StoreError;
use crate::tally::Tally;
use crate::values::{self, Wrong};
use crate::workload::{AT_ONCE, Op};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

pub(crate) struct Worker<'a> {
    bed: &'a Bed<'a>,
    phase: &'a Phase,
    /// Of the keys that were stored when the phase began, where it scans.
    order: Option<&'a Order>,
    rng: fastrand::Rng,
    chooser: Chooser,
    key: Vec<u8>,
    value: Vec<u8>,
    /// Those of a read of several keys.
    keys: Vec<Vec<u8>>,
    numbers: Vec<u64>,
    tally: Tally,
}

impl<'a> Worker<'a> {
    pub(crate) fn new(
        bed: &'a Bed<'a>,
        phase: &'a Phase,
        order: Option<&'a Order>,
        index: u64,
        expected_inserts: u64,
    ) -> Self {
        Worker {
            bed,
            phase,
            order,
            rng: fastrand::Rng::with_seed(values::part_seed(phase.seed, index)),
            chooser: Chooser::new(phase.keys, bed.ledger.acknowledged(), expected_inserts),
            key: Vec::new(),
            value: Vec::new(),
            keys: vec![Vec::new(); AT_ONCE],
            numbers: Vec::new(),
            tally: Tally::new(),
        }
    }

    pub(crate) fn into_tally(self) -> Tally {
        self.tally
    }

    /// Performs operations until the phase is over. In an open loop those that were due by then still begin, for as long again;
    /// what has not begun then counts with the time that it has waited.
    pub(crate) fn work(
        &mut self,
        shared: &Shared,
        mut pace: Pace,
        deadline: Option<Instant>,
        done: &AtomicU64,
    ) -> Result<(), Failure> {
        let cpu = thread_seconds();
        let given_up = match self.phase.limit {
            Limit::Seconds(seconds) => deadline.map(|end| end + Duration::from_secs_f64(seconds)),
            Limit::Ops(_) => None,
        };
        'phase: loop {
            let taken = shared.take();
            if taken == 0 {
                break;
            }
            for _ in 0..taken {
                let op = self.phase.mix.pick(&mut self.rng);
                let due = pace.wait(&mut self.rng, deadline);
                if due == Due::Never {
                    break 'phase;
                }
                if let Due::Since(due) = due
                    && given_up.is_some_and(|end| Instant::now() >= end)
                {
                    self.tally.record_never_begun(op, due.elapsed());
                    continue;
                }
                let number = self.prepare(op);
                let counted_from = if let Due::Since(due) = due { due } else { Instant::now() };
                let ended = self.perform(op, number)?;
                self.tally.record(op, ended.duration_since(counted_from));
                done.store(done.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
                if due == Due::AtOnce && deadline.is_some_and(|deadline| ended >= deadline) {
                    break 'phase;
                }
            }
        }
        self.tally.cpu_seconds = thread_seconds() - cpu;
        self.tally.ended = Some(Instant::now());
        Ok(())
    }

    /// Chooses the key of `op`, and writes it and what it is to hold down. What is prepared must be performed.
    fn prepare(&mut self, op: Op) -> u64 {
        let Bed { ledger, sizes, .. } = self.bed;
        let number = match op {
            Op::Insert => ledger.next_insert(),
            _ => self.chooser.next(ledger, &mut self.rng),
        };
        self.bed.naming.write(number, &mut self.key);
        if matches!(op, Op::Update | Op::Insert | Op::ReadModifyWrite) {
            let version = ledger.begin_write(number);
            values::write(number, version, sizes.of(number, version), &mut self.value);
        }
        if op == Op::MultiRead {
            let (chooser, rng) = (&mut self.chooser, &mut self.rng);
            let others = std::iter::repeat_with(|| chooser.next(ledger, rng));
            self.numbers.clear();
            self.numbers.extend(std::iter::once(number).chain(others).take(AT_ONCE));
            for (number, key) in self.numbers.iter().zip(&mut self.keys) {
                self.bed.naming.write(*number, key);
            }
        }
        number
    }

    /// Performs `op` and returns when the store had answered.
    fn perform(&mut self, op: Op, number: u64) -> Result<Instant, Failure> {
        match op {
            Op::Read => self.read(op, number),
            Op::Update => self.write(op, number),
            Op::Insert => {
                let ended = self.write(op, number)?;
                self.bed.ledger.inserted(self.bed.naming.name(number));
                Ok(ended)
            }
            Op::Scan => self.scan(number),
            Op::ReadModifyWrite => {
                self.read(op, number)?;
                self.write(op, number)
            }
            Op::MultiRead => self.multi_read(op),
        }
    }

    fn read(&mut self, op: Op, number: u64) -> Result<Instant, Failure> {
        let Bed { store, ledger, .. } = self.bed;
        let oldest = ledger.floor(number);
        let mut seen = None;
        let mut see = |found: Option<&[u8]>| {
            let ended = Instant::now();
            seen = Some((ended, self.check(number, oldest, found)));
        };
        store.get(&self.key, &mut see).map_err(|source| self.failed(op, source))?;
        let (ended, checked) = seen.unwrap_or_else(|| (Instant::now(), Err(Wrong::Missing(oldest))));
        checked.map(|()| ended).map_err(|wrong| Failure::WrongValue { op, number, wrong })
    }

    /// Values are checked as they come, so the time of a read of several has that in it.
    fn multi_read(&mut self, op: Op) -> Result<Instant, Failure> {
        let Bed { store, ledger, .. } = self.bed;
        let oldest: Vec<u32> = self.numbers.iter().map(|number| ledger.floor(*number)).collect();
        let mut left = self.numbers.iter().copied().zip(oldest);
        let mut wrong = None;
        let mut see = |found: Option<&[u8]>| {
            let Some((number, oldest)) = left.next() else { return };
            if let Err(found) = self.check(number, oldest, found) {
                wrong.get_or_insert((number, found));
            }
        };
        store.multi_get(&self.keys, &mut see).map_err(|source| self.failed(op, source))?;
        let ended = Instant::now();
        let not_shown = left.next().map(|(number, oldest)| (number, Wrong::Missing(oldest)));
        match wrong.or(not_shown) {
            None => Ok(ended),
            Some((number, wrong)) => Err(Failure::WrongValue { op, number, wrong }),
        }
    }

    /// Whether a read may have found this of `number`, of which version `oldest` had been written when it began.
    fn check(&self, number: u64, oldest: u32, found: Option<&[u8]>) -> Result<(), Wrong> {
        let Bed { ledger, sizes, .. } = self.bed;
        let Some(value) = found else {
            return if oldest == 0 { Ok(()) } else { Err(Wrong::Missing(oldest)) };
        };
        let (own, version) = values::read(value, sizes)?;
        let newest = ledger.issued(number);
        if own != number {
            Err(Wrong::OtherKey(own))
        } else if (oldest..=newest).contains(&version) {
            Ok(())
        } else {
            Err(Wrong::Version { found: version, oldest, newest })
        }
    }

    fn write(&mut self, op: Op, number: u64) -> Result<Instant, Failure> {
        let Bed { store, ledger, .. } = self.bed;
        store.put(&self.key, &self.value, self.phase.durability).map_err(|source| self.failed(op, source))?;
        let ended = Instant::now();
        ledger.end_write(number);
        self.tally.user_bytes_written += (self.key.len() + self.value.len()) as u64;
        Ok(ended)
    }

    /// Reads from the key of `number` on. Values are checked as they come, so the time of a scan has that in it. Where
    /// nothing is overwritten meanwhile, no value may be older than the last one written. No key that was there before the phase may be left out.
    fn scan(&mut self, number: u64) -> Result<Instant, Failure> {
        let Bed { store, ledger, sizes, naming, .. } = self.bed;
        let count = self.phase.scans.next(&mut self.rng);
        let (greatest, overwrites) = (ledger.greatest(), self.phase.mix.overwrites());
        let (mut seen, mut wrong, mut last_name) = (0, None, 0);
        let mut ahead = self.order.map(|order| order.from(naming.name(number)));
        let (mut last, mut expected) = (std::mem::take(&mut self.value), Vec::new());
        store
            .scan(&self.key, count, &mut |key, value| {
                let checked = match values::read(value, sizes) {
                    Err(wrong) => Err((number, wrong)),
                    Ok((own, version)) => {
                        naming.write(own, &mut expected);
                        let newest = ledger.issued(own);
                        let oldest = if overwrites { 1 } else { ledger.floor(own) };
                        last_name = naming.name(own);
                        if expected != key {
                            Err((own, Wrong::Misplaced))
                        } else if !(oldest..=newest).contains(&version) {
                            Err((own, Wrong::Version { found: version, oldest, newest }))
                        } else if seen == 0 && key != self.key {
                            // Keys are never deleted, so a scan begins at the key it was asked for.
                            Err((number, Wrong::Missing(1)))
                        } else if seen > 0 && key <= last.as_slice() {
                            Err((own, Wrong::Unordered))
                        } else if ahead.as_mut().is_some_and(|ahead| !ahead.goes_on(last_name)) {
                            Err((own, Wrong::LeftOut))
                        } else {
                            Ok(())
                        }
                    }
                };
                if let Err(found) = checked {
                    wrong.get_or_insert(found);
                }
                last.clear();
                last.extend_from_slice(key);
                seen += 1;
            })
            .map_err(|source| self.failed(Op::Scan, source))?;
        let ended = Instant::now();
        self.value = last;
        self.tally.scanned += seen;
        // Too few are right only where there are no more.
        if wrong.is_none() && (seen == 0 || seen < count as u64 && last_name < greatest) {
            wrong = Some((number, Wrong::Missing(1)));
        }
        match wrong {
            None => Ok(ended),
            Some((number, wrong)) => Err(Failure::WrongValue { op: Op::Scan, number, wrong }),
        }
    }

    fn failed(&self, op: Op, source: StoreError) -> Failure {
        Failure::Store { system: self.bed.system.to_owned(), doing: op.name().to_owned(), source }
    }
}
