//! Goal: whatever bytes are in a table's file, nothing panics, no answer is wrong without an error, damage costs the
//! keys of its block only, and a check names them.
//! Method: every byte flipped, the file cut at every sector, pages lost, files exchanged, random bytes; then each
//! checksum comparison switched off in turn, which must be noticed.

mod kit;

use kit::{Model, all, area, drain, entries, entry_of, id, new_world, open, tables, write};
use std::cmp::Reverse;
use std::ops::Bound;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use tierdb_base::mutant;
use tierdb_base::sources::comparisons;
use tierdb_base::{Error, ErrorKind, Seqno};
use tierdb_device::{AlignedBuf, BlockFile, Cause, Dir, DirLock, OpenMode};
use tierdb_sim::{FaultKind, FaultPlan, Ops, SimFile, World};
use tierdb_table::Source as _;
use tierdb_table::block::Block;
use tierdb_table::{
    Direction, Entry, Filter, Footer, Index, ReadAhead, Salvage, Table, TableDir, TableId, VerifyReport,
    file_name,
};

/// A small table with blocks of every sort: of many entries, of one that crosses a page, of one that is long, and
/// some that continue a key.
fn sample() -> (World, Model) {
    let mut model = Model::new();
    let mut add = |key: &str, seqno, len: Option<usize>| {
        let byte = key.as_bytes()[key.len() - 1] ^ seqno as u8;
        model.insert((key.as_bytes().to_vec(), Reverse(seqno)), len.map(|len| vec![byte; len]));
    };
    for n in 0..24 {
        add(&format!("row{n:03}"), n + 5, (n % 5 > 0).then_some(30 + 11 * n as usize));
    }
    add("row012x", 3, Some(5000));
    for seqno in 1..8 {
        add("row015", 100 + seqno * 3, Some(900));
    }
    let world = new_world();
    let table = write(&tables(&world), 1, &model).expect("write");
    assert!(table.index().blocks() >= 6, "{}", table.index().blocks());
    (world, model)
}

fn keys_in(damage: &tierdb_table::Damage, key: &[u8]) -> bool {
    let Some((start, end)) = &damage.keys else { return false };
    let above = matches!(start, Bound::Included(start) if key >= start.as_slice());
    above
        && match end {
            Bound::Included(end) => key <= end.as_slice(),
            Bound::Excluded(end) => key < end.as_slice(),
            Bound::Unbounded => true,
        }
}

/// Entries whose lookup is refused, if no answer is wrong.
fn answers(table: &Arc<Table<SimFile>>, model: &Model) -> Result<Vec<Entry>, String> {
    let mut refused = Vec::new();
    let mut last: &[u8] = &[];
    for at in model {
        let entry = entry_of(at);
        match table.get(entry.key, entry.seqno, Cause::Foreground) {
            Ok(found) => {
                let found = found.map(|found| (found.seqno, found.value));
                if found != Some((entry.seqno, entry.value.map(<[u8]>::to_vec))) {
                    return Err(format!("get of {entry:?} is {found:?}"));
                }
            }
            Err(error) if error.kind() == ErrorKind::Corrupt => refused.push(entry.to_owned()),
            Err(error) => return Err(error.to_string()),
        }
        if last != entry.key {
            let absent = [entry.key, b"!"].concat();
            if !matches!(
                table.get(&absent, Seqno::MAX, Cause::Foreground),
                Ok(None) | Err(Error::Corrupt { .. })
            ) {
                return Err(format!("{absent:?} was never there"));
            }
            last = entry.key;
        }
    }
    for direction in [Direction::Forward, Direction::Backward] {
        let (found, error) = all(table, direction);
        let mut wanted = entries(model);
        if direction == Direction::Backward {
            wanted.reverse();
        }
        if !wanted.starts_with(&found) || error.is_none() && found.len() < wanted.len() {
            return Err(format!("a scan is wrong, {direction:?}"));
        }
        if error.is_none() != refused.is_empty() {
            return Err(format!("a scan gives {error:?}, lookups {refused:?}"));
        }
    }
    Ok(refused)
}

fn verify(table: &Table<SimFile>) -> VerifyReport {
    table.verify(Cause::Verify).expect("memory")
}

/// Every entry that salvage gives, and what it lost.
fn salvage(tables: &TableDir<tierdb_sim::SimDir>, number: u64) -> (Vec<Entry>, Salvage<SimFile>) {
    let mut salvage = tables.salvage(number, Cause::Verify).expect("the file is there");
    let (found, error) = drain(&mut salvage, usize::MAX);
    assert!(error.is_none());
    (found, salvage)
}

/// Whether damage that was just done is handled as it should be. What is wrong if not.
fn handled(world: &World, model: &Model, whole: &Footer) -> Result<&'static str, String> {
    let found = salvage(&tables(world), 1).0;
    if found.iter().any(|e| model.get(&(e.key.clone(), Reverse(e.seqno))) != Some(&e.value)) {
        return Err("salvage gives what never was".into());
    }
    let table = match open(world, 1) {
        Ok(table) => table,
        Err(error) => {
            let kind = error.kind();
            let expected = [ErrorKind::Corrupt, ErrorKind::Refused].contains(&kind);
            return if expected { Ok("refused") } else { Err(format!("{kind:?}: {error}")) };
        }
    };
    if table.footer() != whole {
        return Err("the footer is another".into());
    }
    let refused = answers(&table, model)?;
    let report = verify(&table);
    if report.damage.is_empty() {
        return Err("verify finds nothing".into());
    }
    if let Some(entry) = refused.iter().find(|entry| !report.damage.iter().any(|d| keys_in(d, &entry.key))) {
        return Err(format!("{:?} is refused, but not named: {:?}", entry.key, report.damage));
    }
    if refused.is_empty() != report.damage.iter().all(|damage| damage.keys.is_none()) {
        return Err(format!("{refused:?} is refused, but verify says {:?}", report.damage));
    }
    if found.len() + refused.len() != model.len() {
        return Err(format!("salvage gives {} of {}, {} refused", found.len(), model.len(), refused.len()));
    }
    if refused.len() * 2 > model.len() {
        return Err(format!("{} entries are refused for one flipped bit", refused.len()));
    }
    Ok(if refused.is_empty() { "harmless" } else { "contained" })
}

/// Flips a bit of every `step`-th byte; counts outcomes.
fn flip_all(step: usize, seed: u64) -> Result<std::collections::BTreeMap<&'static str, usize>, String> {
    let (world, model) = sample();
    let whole = open(&world, 1).map_err(|e| e.to_string())?.footer().clone();
    let mut rng = fastrand::Rng::with_seed(seed);
    let mut outcomes = std::collections::BTreeMap::new();
    for at in (0..whole.file_len).step_by(step) {
        let bit = rng.u32(..8);
        world.flip_bit(&area(1), at, bit);
        let outcome = handled(&world, &model, &whole).map_err(|e| format!("bit {bit} of byte {at}: {e}"))?;
        world.flip_bit(&area(1), at, bit);
        *outcomes.entry(outcome).or_insert(0) += 1;
    }
    Ok(outcomes)
}

#[test]
fn every_flipped_byte_is_noticed_and_none_gives_a_wrong_answer() {
    let outcomes = flip_all(1, 1).unwrap_or_else(|wrong| panic!("{wrong}"));
    println!("{outcomes:?}");
    assert!(
        outcomes["contained"] > 8000 && outcomes["refused"] > 4096 && outcomes["harmless"] > 500,
        "{outcomes:?}"
    );
}

/// A directory whose files give wrong bytes at every `every`-th read.
#[derive(Clone)]
struct Flaky {
    dir: tierdb_sim::SimDir,
    every: u64,
    reads: Arc<AtomicU64>,
}

struct FlakyFile(SimFile, Flaky);

impl Dir for Flaky {
    type File = FlakyFile;
    fn name(&self) -> Arc<str> {
        self.dir.name()
    }
    fn open(&self, name: &str, mode: OpenMode) -> tierdb_base::Result<FlakyFile> {
        Ok(FlakyFile(self.dir.open(name, mode)?, self.clone()))
    }
    fn list(&self) -> tierdb_base::Result<Vec<String>> {
        self.dir.list()
    }
    fn remove(&self, name: &str) -> tierdb_base::Result<()> {
        self.dir.remove(name)
    }
    fn rename(&self, from: &str, to: &str) -> tierdb_base::Result<()> {
        self.dir.rename(from, to)
    }
    fn sync(&self) -> tierdb_base::Result<()> {
        self.dir.sync()
    }
    fn lock(&self) -> tierdb_base::Result<Box<dyn DirLock>> {
        self.dir.lock()
    }
}

impl BlockFile for FlakyFile {
    fn name(&self) -> Arc<str> {
        self.0.name()
    }
    fn len(&self) -> tierdb_base::Result<u64> {
        self.0.len()
    }
    fn set_len(&self, len: u64) -> tierdb_base::Result<()> {
        self.0.set_len(len)
    }
    fn read(&self, at: u64, buf: &mut AlignedBuf) -> tierdb_base::Result<()> {
        self.0.read(at, buf)?;
        if self.1.reads.fetch_add(1, Relaxed).is_multiple_of(self.1.every) {
            buf.iter_mut().for_each(|byte| *byte ^= 4);
        }
        Ok(())
    }
    fn write(&self, at: u64, bytes: &AlignedBuf) -> tierdb_base::Result<()> {
        self.0.write(at, bytes)
    }
    fn write_durable(&self, at: u64, bytes: &AlignedBuf) -> tierdb_base::Result<()> {
        self.0.write_durable(at, bytes)
    }
    fn sync(&self) -> tierdb_base::Result<()> {
        self.0.sync()
    }
}

#[test]
fn bytes_that_are_wrong_once_are_read_again() {
    let (world, model) = sample();
    let parts = open(&world, 1).expect("whole").parts();
    for (every, heals) in [(2, true), (1, false)] {
        let flaky = Flaky { dir: world.dir("flash"), every, reads: Arc::default() };
        let tables = TableDir::new(flaky.clone(), kit::STORE, tierdb_device::Meter::new(), None);
        let table = Arc::new(tables.open_with(1, &parts).expect("open"));
        for entry in model.iter().map(entry_of) {
            flaky.reads.store(0, Relaxed);
            let found = table.get(entry.key, entry.seqno, Cause::Foreground);
            assert_eq!(found.is_ok(), heals, "{entry:?}");
            flaky.reads.store(0, Relaxed);
            let found = Table::get_many(&[(&table, entry.key, entry.seqno)], Cause::Foreground).remove(0);
            assert_eq!(found.is_ok_and(|found| found.is_some()), heals, "{entry:?}");
        }
        for direction in [Direction::Forward, Direction::Backward] {
            flaky.reads.store(0, Relaxed);
            let range = (Bound::Unbounded, Bound::Unbounded);
            let mut iter = table.iter(range, direction, ReadAhead::default(), Cause::Foreground);
            let (found, error) = drain(&mut iter, usize::MAX);
            assert!(if heals { found.len() == model.len() } else { error.is_some() }, "{direction:?}");
        }
    }
}

#[test]
fn a_table_cut_at_any_sector_is_refused_and_salvaged() {
    let (world, model) = sample();
    let whole = open(&world, 1).expect("whole").footer().clone();
    let in_order = entries(&model);
    let mut most = 0;
    for len in (0..whole.file_len).step_by(512) {
        let cut = world.copy();
        cut.truncate(&area(1), len);
        assert_eq!(open(&cut, 1).err().map(|e| e.kind()), Some(ErrorKind::Corrupt), "{len}");
        let (found, _) = salvage(&tables(&cut), 1);
        assert!(in_order.starts_with(&found), "{len}: the blocks before the cut are whole");
        most = most.max(found.len());
    }
    assert_eq!(most, model.len());
}

#[test]
fn a_salvage_ends_behind_a_long_value() {
    let world = new_world();
    let model: Model = [((b"long".to_vec(), Reverse(1)), Some(vec![7; 700_000]))].into();
    write(&tables(&world), 1, &model).expect("write");
    let mut found = tables(&world).salvage(1, Cause::Verify).expect("open");
    found.advance().expect("whole");
    assert_eq!(found.entry().and_then(|entry| entry.value.map(<[u8]>::len)), Some(700_000));
    found.advance().expect("whole");
    assert!(found.entry().is_none());
}

#[test]
fn a_lost_page_costs_the_keys_in_it_only() {
    let (world, model) = sample();
    let whole = open(&world, 1).expect("whole").footer().clone();
    for page in (0..whole.file_len).step_by(4096) {
        let lost = world.copy();
        lost.zero_page(&area(1), page);
        let (found, salvage) = salvage(&tables(&lost), 1);
        match open(&lost, 1) {
            Err(error) => assert!(page >= whole.blocks_len && error.kind() == ErrorKind::Corrupt, "{page}"),
            Ok(table) => {
                let refused = answers(&table, &model).unwrap_or_else(|wrong| panic!("page {page}: {wrong}"));
                let report = verify(&table);
                assert!(page < whole.blocks_len && !refused.is_empty());
                for entry in &refused {
                    assert!(report.damage.iter().any(|damage| keys_in(damage, &entry.key)), "{page}");
                }
                assert_eq!(found.len() + refused.len(), model.len());
                assert!(salvage.blocks() < u64::from(whole.blocks));
            }
        }
    }
}

#[test]
fn another_place_another_table_and_another_store_do_not_pass() {
    let (world, model) = sample();
    write(&tables(&world), 2, &model).expect("write");
    let swapped = world.copy();
    swapped.swap(&area(1), &area(2));
    assert_eq!(open(&swapped, 1).err().map(|e| e.kind()), Some(ErrorKind::Refused));
    assert!(salvage(&tables(&swapped), 1).0.is_empty());
    // Blocks of the one under the footer of the other.
    let whole = open(&world, 1).expect("whole").footer().clone();
    let mixed = world.copy();
    mixed.overwrite(&area(1), 0, &world.peek(&area(2), 0, whole.blocks_len as usize));
    let refused = answers(&open(&mixed, 1).expect("open"), &model).expect("no wrong answer");
    assert_eq!(refused.len(), model.len());
    // A block in the place of another.
    let misplaced = world.copy();
    misplaced.overwrite(&area(1), 0, &world.peek(&area(1), 4096, 4096));
    let refused = answers(&open(&misplaced, 1).expect("open"), &model).expect("no wrong answer");
    assert!(!refused.is_empty());
    let other = TableDir::new(world.dir("flash"), kit::STORE + 1, tierdb_device::Meter::new(), None);
    assert_eq!(other.open(1, Cause::Recovery).err().map(|e| e.kind()), Some(ErrorKind::Refused));
    assert!(salvage(&other, 1).0.is_empty());
}

#[test]
fn a_damaged_filter_is_left_out_and_reported() {
    let (world, model) = sample();
    let whole = open(&world, 1).expect("whole").footer().clone();
    world.flip_bit(&area(1), whole.blocks_len + whole.index_len + 60, 0);
    let table = open(&world, 1).expect("without its filter");
    assert!(table.filter().is_none() && table.filter_damage().is_some());
    assert_eq!(answers(&table, &model), Ok(vec![]));
    let report = verify(&table);
    assert!(report.damage.len() == 1 && report.damage[0].keys.is_none(), "{:?}", report.damage);
}

#[test]
fn parts_on_a_faster_tier_outlive_those_in_the_file() {
    let (world, model) = sample();
    let parts = open(&world, 1).expect("whole").parts();
    let at = parts.index.len() as u64;
    world.flip_bit(&area(1), open(&world, 1).expect("whole").footer().blocks_len + at / 2, 0);
    assert_eq!(open(&world, 1).err().map(|e| e.kind()), Some(ErrorKind::Corrupt));
    let table = Arc::new(tables(&world).open_with(1, &parts).expect("the parts are whole"));
    assert_eq!(answers(&table, &model), Ok(vec![]));
    let report = verify(&table);
    assert!(report.damage.len() == 1 && report.damage[0].what.contains("index"), "{:?}", report.damage);
}

/// A table of these keys, with the number 1 and values of one byte.
fn table_of(keys: &[&str]) -> (World, Arc<Table<SimFile>>) {
    let world = new_world();
    let model = keys.iter().map(|key| ((key.as_bytes().to_vec(), Reverse(7)), Some(vec![1]))).collect();
    let table = write(&tables(&world), 1, &model).expect("write");
    (world, Arc::new(table))
}

/// Tiers of two moments may meet: footer and index of one table, and the blocks of another one, of the same store, number and length.
#[test]
fn blocks_of_another_table_of_the_same_number_are_damage() {
    let (_, table) = table_of(&["b", "c", "d"]);
    for (keys, is_covered) in [(["b", "c", "d"], true), (["b", "c", "z"], false), (["a", "c", "d"], false)] {
        let (world, _) = table_of(&keys);
        let opened = Arc::new(tables(&world).open_with(1, &table.parts()).expect("it has the length"));
        for direction in [Direction::Forward, Direction::Backward] {
            let (found, error) = all(&opened, direction);
            assert_eq!(found.len(), if is_covered { 3 } else { 0 }, "{keys:?}, {direction:?}");
            assert_eq!(error.map(|error| error.kind()), (!is_covered).then_some(ErrorKind::Corrupt));
        }
    }
}

/// Two entries of a block change places, and its checksum is not compared.
#[test]
fn entries_that_are_out_of_order_are_damage() {
    let (world, table) = table_of(&["b", "c", "d", "e"]);
    let len = u64::from(u32::from_le_bytes(world.peek(&area(1), 16, 4).try_into().expect("four bytes")));
    let starts = world.peek(&area(1), len - 8, 8);
    world.overwrite(&area(1), len - 6, &[starts[4], starts[5], starts[2], starts[3]]);
    for direction in [Direction::Forward, Direction::Backward] {
        let sites = mutant::record(|| assert!(all(&table, direction).1.is_some(), "the checksum tells"));
        let mut noticed = 0;
        for site in sites.into_keys().filter(|site| site.what == "checksum") {
            mutant::without(site, || {
                let (found, error) = all(&table, direction);
                let error = error.expect("the order tells").to_string();
                let is_order = error.contains("out of order");
                assert_eq!(found.len(), if is_order { 2 } else { 0 }, "{error}");
                noticed += u32::from(is_order);
            });
        }
        assert_eq!(noticed, 1, "{direction:?}");
    }
}

#[test]
fn places_that_cannot_be_read_are_damage_and_not_the_end() {
    let (world, model) = sample();
    let table = open(&world, 1).expect("whole");
    for nth in 1.. {
        world.inject(FaultPlan::nth(nth, FaultKind::Eio).on(Ops::READ));
        let report = verify(&table);
        if world.heal().hit == 0 {
            assert_eq!(report.damage, []);
            break;
        }
        // A read of several blocks is repeated for each, and succeeds: only the rest is then damage.
        assert!(report.entries == model.len() as u64 || !report.damage.is_empty(), "{nth}");
    }
    world.inject(FaultPlan::from_nth(1, FaultKind::Eio).on(Ops::READ));
    let report = verify(&table);
    let (found, salvage) = salvage(&tables(&world), 1);
    world.heal();
    assert!(report.entries == 0 && report.damage.len() > table.index().blocks(), "{:?}", report.damage);
    assert!(found.is_empty() && salvage.lost() == std::slice::from_ref(&(0..table.footer().file_len)));
}

#[test]
fn random_bytes_are_no_table() {
    let mut rng = fastrand::Rng::with_seed(3);
    let (sample_world, model) = sample();
    let len = open(&sample_world, 1).expect("whole").footer().file_len as usize;
    for round in 0..300 {
        let world = new_world();
        let dir = world.dir("flash");
        let file = dir.open(&file_name(1), OpenMode::CreateNew).expect("create");
        let mut bytes = vec![0; rng.usize(1..6) * 4096];
        rng.fill(&mut bytes);
        if round % 2 == 0 {
            // Parts of a real table between.
            let whole = sample_world.peek(&area(1), 0, len);
            bytes =
                [&whole[..rng.usize(..5) * 4096], &bytes[..], &whole[len - rng.usize(..3) * 4096..]].concat();
        }
        file.set_len(bytes.len() as u64).expect("room");
        file.write(0, &AlignedBuf::from_bytes(&bytes).expect("memory")).expect("write");
        if let Ok(table) = open(&world, 1) {
            // Index and footer in the right place, and nothing else.
            assert!(round % 2 == 0 && answers(&table, &model).is_ok_and(|refused| !refused.is_empty()));
        }
        salvage(&tables(&world), 1);
    }
}

/// A salvage believes a length only under the header's own checksum, so that damaged lengths do not make it read
/// the file many times over.
fn salvage_of_wrong_lengths_reads_little() -> Result<(), String> {
    let world = new_world();
    let tables = tables(&world);
    let model: Model = (0..4000u64)
        .map(|n| ((format!("key{n:06}").into_bytes(), Reverse(n)), Some(vec![n as u8; 200])))
        .collect();
    let table = write(&tables, 1, &model).map_err(|e| e.to_string())?;
    for block in 0..table.index().blocks() {
        // The length says: almost as long as the file.
        world.overwrite(&area(1), table.index().place(block).start + 16, &(800_000u32).to_le_bytes());
    }
    let before = tables.meter().get(Cause::Verify).read_bytes;
    let (found, _) = salvage(&tables, 1);
    let read = tables.meter().get(Cause::Verify).read_bytes - before;
    let len = table.footer().file_len;
    if !found.is_empty() || read > 2 * len {
        return Err(format!("{} entries, {read} bytes read of {len}", found.len()));
    }
    Ok(())
}

#[test]
fn every_checksum_is_needed() {
    flip_all(97, 2).expect("as it should be");
    salvage_of_wrong_lengths_reads_little().expect("as it should be");
    // Block, its header, index, filter, footer, file.
    let comparisons = comparisons(env!("CARGO_MANIFEST_DIR"), &["tierdb-table"], &[]);
    assert_eq!(comparisons.len(), 6, "{comparisons:?}");
    let (noticed, idle): (Vec<_>, Vec<_>) = comparisons.into_iter().partition(|of| {
        mutant::without(of.site, || {
            let flips =
                (0..4).any(|seed| !matches!(std::panic::catch_unwind(|| flip_all(7, seed)), Ok(Ok(_))));
            flips || salvage_of_wrong_lengths_reads_little().is_err()
        })
    });
    noticed.iter().for_each(|of| println!("noticed: {of}"));
    assert!(idle.is_empty(), "nobody misses {idle:#?}");
}

/// Goal: the decoders do not rely on checksums: bytes that a checksum would have caught give errors or answers, and
/// never a panic, an endless loop or much memory.
/// Method: real blocks, indexes, filters and footers with random changes, decoded with the comparison off, and used.
#[test]
fn decoders_survive_bytes_that_pass_their_checksum() {
    let (world, _) = sample();
    let table = open(&world, 1).expect("whole");
    let parts = table.parts();
    let place = table.index().place(0);
    let block = world.peek(&area(1), place.start, (place.end - place.start) as usize);
    let location = tierdb_base::Location::new("t", 0);
    let decode = |which: usize, bytes: &[u8]| -> bool {
        let id: TableId = id(1);
        match which {
            0 => Block::decode(bytes, &id, 0).is_ok_and(|block| {
                let mut key = Vec::new();
                for entry in 0..block.count() {
                    let _ = block.entry(entry, &mut key);
                }
                for key in [&b""[..], b"row", b"row005", b"row\xff", &[0; 4096]] {
                    let _ = (block.get(key, 5), block.lower_bound(key, u64::MAX));
                }
                true
            }),
            1 => Index::decode(bytes, &id).is_ok_and(|index| {
                for key in [&b""[..], b"row", b"row005", b"row015", b"row\xff", &[0; 4096]] {
                    let _ = (index.find(key, 110), index.find(key, u64::MAX));
                }
                for block in 0..index.blocks() {
                    let _ = (index.separator(block), index.place(block));
                }
                !index.largest().is_empty()
            }),
            2 => Filter::decode(bytes, &id).is_ok_and(|filter| {
                let _ = (filter.may_contain(b"row005"), filter.keys());
                true
            }),
            _ => Footer::decode(bytes, &id, &location).is_ok_and(|footer| footer.covers(b"row005")),
        }
    };
    let whole = [&block, &parts.index, &parts.filter, &parts.footer];
    let sites = mutant::record(|| {
        assert!((0..4).all(|which| decode(which, whole[which])));
    });
    let mut rng = fastrand::Rng::with_seed(1);
    let (mut passed, mut tried) = ([0; 4], 0);
    for site in sites.into_keys().filter(|site| site.what == "checksum") {
        mutant::without(site, || {
            for _ in 0..6000 {
                let which = rng.usize(..4);
                let mut bytes = whole[which].clone();
                for _ in 0..rng.usize(1..4) {
                    let header = if which == 3 { bytes.len() - 144..bytes.len() } else { 0..48 };
                    let at = if rng.bool() { rng.usize(header) } else { rng.usize(..bytes.len()) };
                    bytes[at] = [0, 1, 0x7f, 0x80, 0xff, rng.u8(..)][rng.usize(..6)];
                }
                if rng.u8(..8) == 0 {
                    bytes.truncate(rng.usize(..bytes.len()));
                }
                passed[which] += usize::from(decode(which, &bytes));
                tried += 1;
            }
        });
    }
    println!("{passed:?} of {tried}");
    assert!(
        passed.iter().all(|passed| *passed > 50),
        "{passed:?}: the checks behind the checksum are reached"
    );
}

/// Goal: nor do those who use what was decoded: lookups, iterators, verify and salvage end without a panic.
/// Method: changes in blocks, index and filter of a file, with each comparison off in turn.
#[test]
fn readers_survive_bytes_that_pass_their_checksum() {
    let (world, model) = sample();
    let footer = open(&world, 1).expect("whole").footer().clone();
    let sites = mutant::record(|| {
        open(&world, 1).expect("whole").verify(Cause::Verify).expect("memory");
        salvage(&tables(&world), 1);
    });
    let mut rng = fastrand::Rng::with_seed(2);
    let (mut opened, mut tried) = (0, 0);
    for site in sites.into_keys().filter(|site| site.what == "checksum") {
        mutant::without(site, || {
            for _ in 0..150 {
                let changed = world.copy();
                for _ in 0..rng.usize(1..4) {
                    let end = footer.blocks_len + footer.index_len + footer.filter_len;
                    let at = if rng.bool() { rng.u64(..end) } else { footer.blocks_len + rng.u64(..60) };
                    let at = if rng.bool() { at } else { at / 64 * 64 + rng.u64(..32) };
                    changed.overwrite(&area(1), at, &[[0, 1, 0x7f, 0x80, 0xff, rng.u8(..)][rng.usize(..6)]]);
                }
                salvage(&tables(&changed), 1);
                tried += 1;
                let Ok(table) = open(&changed, 1) else { continue };
                opened += 1;
                let _ = (answers(&table, &model), verify(&table));
            }
        });
    }
    assert!(opened * 3 > tried, "{opened} of {tried}");
}
