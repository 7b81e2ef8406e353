//! What a crash may leave of a pool.

use super::{Choice, Fate, Words, density};
use crate::lines::{LINE, Line};
use crate::pool::{Poison, PoolState};
use crate::space::Space;
use std::sync::Arc;

/// A pool at a crash point.
pub(crate) struct PoolPoint {
    name: Arc<str>,
    len: u64,
    persisted: Space,
    lines: Vec<(u32, Arc<Line>)>,
    poison: Arc<Poison>,
}

/// For each line its units, by number, newest first: one for the line, or one for each dirty word.
pub(crate) struct PoolUnits {
    of_line: Vec<[usize; 8]>,
    count: usize,
}

impl PoolUnits {
    pub fn len(&self) -> usize {
        self.count
    }
}

impl PoolPoint {
    pub fn new(pool: &PoolState) -> Self {
        PoolPoint {
            name: pool.name.clone(),
            len: pool.len,
            persisted: pool.persisted.clone(),
            lines: pool.lines.share(),
            poison: pool.poison.clone(),
        }
    }

    pub fn is_settled(&self) -> bool {
        self.lines.is_empty()
    }

    pub fn units(&self, words: Words) -> PoolUnits {
        // (newest store, line, words of the line)
        let mut units: Vec<(u64, usize, u8)> = Vec::new();
        for (i, (_, line)) in self.lines.iter().enumerate() {
            match words {
                Words::X86 => units.push((line.stores.last().map_or(0, |store| store.seq), i, 0xff)),
                Words::Weak => {
                    let mut newest = [0; 8];
                    line.stores.iter().for_each(|store| newest[store.word as usize] = store.seq);
                    let dirty = (0..8).filter(|word| newest[*word] > 0);
                    units.extend(dirty.map(|word| (newest[word], i, 1 << word)));
                }
            }
        }
        units.sort_unstable_by_key(|unit| std::cmp::Reverse(unit.0));
        let mut of_line = vec![[0; 8]; self.lines.len()];
        for (number, (_, line, mask)) in units.iter().enumerate() {
            for word in (0..8).filter(|word| mask & (1 << word) != 0) {
                of_line[*line][word] = number;
            }
        }
        PoolUnits { of_line, count: units.len() }
    }

    /// The words that differ from what is certain.
    pub fn outcome(
        &self,
        units: &PoolUnits,
        words: Words,
        choice: Choice,
        rng: &mut fastrand::Rng,
    ) -> Vec<(u64, u64)> {
        let mut changed = Vec::new();
        if choice == Choice::None {
            return changed;
        }
        let density = density(rng);
        for ((number, line), units) in self.lines.iter().zip(&units.of_line) {
            let mut last = [None; 8];
            match words {
                Words::X86 => x86(line, choice.fate(units[0], density, rng), rng, &mut last),
                Words::Weak => weak(line, |word, rng| choice.fate(units[word], density, rng), rng, &mut last),
            }
            for (word, value) in last.iter().enumerate() {
                let at = u64::from(*number) * LINE + word as u64 * 8;
                if let Some(value) = *value
                    && value != self.persisted.word(at)
                {
                    changed.push((at, value));
                }
            }
        }
        changed
    }

    pub fn image(&self, words: &[(u64, u64)]) -> PoolState {
        let mut content = self.persisted.clone();
        for (at, word) in words {
            content.set_word(*at, *word);
        }
        PoolState::with_content(self.name.clone(), self.len, content, self.poison.copy())
    }
}

/// A prefix of the line's steps, in program order.
fn x86(line: &Line, fate: Fate, rng: &mut fastrand::Rng, last: &mut [Option<u64>; 8]) {
    let taken = match fate {
        Fate::Lost => 0,
        Fate::Kept => line.stores.len(),
        Fate::Part => {
            let mut taken = rng.usize(0..=line.stores.len());
            // A step is taken whole.
            while taken > 0
                && taken < line.stores.len()
                && line.stores[taken].seq == line.stores[taken - 1].seq
            {
                taken += 1;
            }
            taken
        }
    };
    for store in &line.stores[..taken] {
        last[store.word as usize] = Some(store.value);
    }
}

/// For every word one of its values, whatever became of the others.
fn weak(
    line: &Line,
    mut fate: impl FnMut(usize, &mut fastrand::Rng) -> Fate,
    rng: &mut fastrand::Rng,
    last: &mut [Option<u64>; 8],
) {
    let mut fates = [None; 8];
    let mut values = [1; 8];
    for store in &line.stores {
        let word = store.word as usize;
        let take = match *fates[word].get_or_insert_with(|| fate(word, rng)) {
            Fate::Lost => false,
            Fate::Kept => true,
            Fate::Part => {
                // Each value, the one on media included, is as likely.
                values[word] += 1;
                rng.usize(0..values[word]) == 0
            }
        };
        if take {
            last[word] = Some(store.value);
        }
    }
}
