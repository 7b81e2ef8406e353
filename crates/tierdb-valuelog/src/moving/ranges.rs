//! Scan ranges rewritten in key order (PRISM §4.4).

use crate::cache::Member;
use crate::core::{Core, Moving};
use crate::record::stored_len;
use crate::storage::{Appender, is_beside};
use crate::word::{Place, Word};
use tierdb_base::{Error, Result};
use tierdb_device::{BLOCK, Dir};
use tierdb_pmem::Pool;

/// Records side by side that are not worth moving to where their neighbours in key order are.
pub const LONG_RUN: usize = 8;

impl<P: Pool, D: Dir> Core<P, D> {
    /// Writes the records of each scan range together in key order, as far as they lie scattered: then a later scan
    /// reads fewer blocks. The ranges share chunks, and wait until they fill one: a sync for each of them would take the device
    /// from those who scan. What still waits when the store is closed stays where it is.
    pub fn rewrite_ranges(&self, ranges: &[Vec<Member>]) -> Result<()> {
        if ranges.is_empty() {
            return Ok(());
        }
        let mut appender = self.rewrite.lock();
        match ranges.iter().try_for_each(|range| self.rewrite_range(range, &mut appender)) {
            // They stay where they are, and can be read there.
            Err(Error::NoSpace { .. }) => Ok(()),
            done => done,
        }
    }

    fn rewrite_range(&self, members: &[Member], appender: &mut Appender<D, Moving>) -> Result<()> {
        let members = scattered(members);
        // Where chunks are short, what is rewritten would have to be made room for by collecting.
        let short = || self.storage.devices().iter().any(|device| device.is_short(self.options.gc_free_pct));
        if !are_worth_moving(&members) || self.storage.room() == 0 || short() {
            return Ok(());
        }
        let mut padded = Vec::new();
        for member in members {
            let word = Word(member.word);
            if self.hsit.word(member.entry).clean() != word {
                continue;
            }
            padded.clear();
            padded.extend_from_slice(&member.record);
            padded.resize(stored_len(member.record.len()) as usize, 0);
            let moving = Moving { entry: member.entry, from: word.place(), filling: member.filling };
            self.copy(appender, &padded, word, moving)?;
        }
        self.counters.rewritten_ranges.add(1);
        Ok(())
    }
}

/// Whether fewer blocks are read of these when they lie together. Few of them would be as scattered as before, and be moved again.
fn are_worth_moving(members: &[&Member]) -> bool {
    let bytes: u64 = members.iter().map(|m| stored_len(m.record.len())).sum();
    members.len() >= LONG_RUN && blocks_of(members) >= 2 * bytes.div_ceil(BLOCK)
}

/// The members that are not part of a longer run of records that lie side by side.
fn scattered(members: &[Member]) -> Vec<&Member> {
    let place = |member: &Member| match Word(member.word).place() {
        Place::Flash(device, at) => Some((device, at, at + stored_len(member.record.len()))),
        _ => None,
    };
    let beside = |one: &Member, next: &Member| match (place(one), place(next)) {
        (Some((device, _, end)), Some((other, at, _))) => device == other && is_beside(end, at),
        _ => false,
    };
    members.chunk_by(beside).filter(|run| run.len() < LONG_RUN).flatten().collect()
}

/// How many blocks the records begin in.
fn blocks_of(members: &[&Member]) -> u64 {
    let block = |member: &&Member| match Word(member.word).place() {
        Place::Flash(device, at) => Some((device, at / BLOCK)),
        _ => None,
    };
    let mut blocks: Vec<(u8, u64)> = members.iter().filter_map(block).collect();
    blocks.sort_unstable();
    blocks.dedup();
    blocks.len() as u64
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cache::Copied;
    use crate::moving::collect::tests::{key_of, nearly_full};
    use tierdb_device::Cause;

    /// To bring a range together is for speed alone: where there turns out to be no room, it stays where it is.
    #[test]
    fn a_range_that_finds_no_room_stays_where_it_is() {
        let (core, count) = nearly_full();
        let member = |number: u32| {
            let key = key_of(number);
            let entry = core.index.get(&key).expect("whole").expect("it was put");
            let word = core.hsit.word(entry).clean();
            let (_, record) = core.read_flash(word, entry, Cause::Gc).expect("no faults").expect("whole");
            let filling = core.storage.filling(word.place());
            Member { entry, word: word.0, filling, record: Copied::new(&record, 0, None) }
        };
        let mut numbers: Vec<u32> = (0..count).collect();
        numbers.sort_unstable_by_key(|number| key_of(*number));
        let range: Vec<Member> = numbers.into_iter().step_by(7).map(member).collect();
        let bytes: usize = range.iter().map(|member| member.record.len()).sum();
        assert!(core.storage.room() > 0 && bytes as u64 > core.storage.room() * core.layout.chunk_bytes);
        core.rewrite_ranges(&[range]).expect("nothing has failed");
        assert!(core.counters.rewritten_ranges.get() == 0, "it was tried");
    }

    #[test]
    fn what_lies_in_a_long_run_is_not_scattered() {
        let member = |entry: u64, at: u64| Member {
            entry,
            word: Word::new(Place::Flash(0, at), 1, 1000, false).0,
            filling: 0,
            record: Copied::new(&[0; 1000], 0, None),
        };
        // Keys 10 to 29 lie side by side, and so do 40 to 44; the others do not.
        let at = |entry: u64| match entry {
            10..30 => (1 << 20) + entry * 1024,
            40..45 => (2 << 20) + entry * 1024,
            _ => (entry * 7919 % 100) << 22,
        };
        let members: Vec<Member> = (0..50).map(|entry| member(entry, at(entry))).collect();
        let few: Vec<&Member> = members.iter().take(LONG_RUN).collect();
        assert!(are_worth_moving(&few) && !are_worth_moving(&few[1..]));
        let side_by_side: Vec<&Member> = members[10..30].iter().collect();
        assert!(!are_worth_moving(&side_by_side));
        let found: Vec<u64> = scattered(&members).iter().map(|member| member.entry).collect();
        assert_eq!(found, (0..10).chain(30..50).collect::<Vec<_>>());
    }
}
