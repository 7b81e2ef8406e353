//! How a key becomes a value: its word in the HSIT says where the record is, and what is read there is checked against
//! the word.

use crate::cache::Reader;
use crate::core::Core;
use crate::record::{HEADER, Header, Kind, encode};
use crate::second_level::{Frame, LONGEST, Source, Use};
use crate::storage::{Found, Record, read_records};
use crate::word::{Aux, Place, UNIT, Word};
use std::sync::Arc;
use std::sync::atomic::{Ordering::SeqCst, fence};
use tierdb_base::Result;
use tierdb_device::{Cause, Dir};
use tierdb_engine::Value;
use tierdb_pmem::Pool;

/// Values that come with so many others in one read are not worth caching one by one.
const CHEAP_AT_ONCE: usize = 4;

/// Records in the write buffer of more bytes than this, or few more, are read when they are asked for.
const SHORT: u64 = 4 << 10;

/// A record to read together with others.
struct Ahead {
    number: usize,
    entry: u64,
    word: Word,
    device: u8,
    /// Byte of its device.
    at: u64,
    filling: u32,
}

/// A record that a word points at.
#[derive(Clone, Copy)]
pub struct Pointed {
    pub entry: u64,
    pub word: Word,
    /// The filling of its chunk.
    pub filling: u32,
}

/// A value that was read ahead.
pub enum Ready {
    /// It was cached, or is in the write buffer.
    Cached(Value),
    /// It was read together with few others, or none, and is cached now.
    Scattered(Value),
    /// It came with many others, and is to be [checked](Core::check).
    Raw(Raw),
    /// It is to be read by itself.
    Alone,
}

/// The bytes of a record that was read ahead, unchecked.
pub struct Raw {
    found: Found,
    entry: u64,
    word: Word,
    /// The filling of its chunk.
    filling: u32,
    /// It is to be cached.
    admit: bool,
}

/// `len` bytes from byte `at` of the pool.
pub fn read_shared<P: Pool>(pool: &P, at: u64, len: usize) -> Result<Arc<[u8]>> {
    let mut bytes: Arc<[u8]> = std::iter::repeat_n(0, len).collect();
    if let Some(bytes) = Arc::get_mut(&mut bytes) {
        pool.read(at, bytes)?;
    }
    Ok(bytes)
}

impl<P: Pool, D: Dir> Core<P, D> {
    /// The value of `key` as of now.
    pub fn get(&self, key: &[u8]) -> Result<Option<Value>> {
        loop {
            let guard = crossbeam_epoch::pin();
            let Some(entry) = self.index.get(key)? else { return Ok(None) };
            let word = self.hsit.settled(entry)?;
            if let Place::Ring(_) = word.place() {
                self.want_cached(entry);
            }
            if let Some(found) =
                self.fetch(entry, word, key, guard, || self.hsit.word(entry).clean() == word)?
            {
                return Ok(found);
            }
            // A store that was closed while flash was read may be another process's by now.
            self.gate.check_open()?;
        }
    }

    /// The value of `entry` is wanted in the cache as it leaves the write buffer.
    pub fn want_cached(&self, entry: u64) {
        if !self.hsit.aux(entry).is_wanted()
            && let Some(_changing) = self.gate.try_change()
        {
            self.hsit.update_aux(entry, Aux::wanted);
        }
    }

    /// Whether `key` has a value now. Its index alone is asked.
    pub fn contains(&self, key: &[u8]) -> Result<bool> {
        // While this is pinned, the entry is the key's, or free.
        let _guard = crossbeam_epoch::pin();
        let Some(entry) = self.index.get(key)? else { return Ok(false) };
        match self.hsit.settled(entry)?.place() {
            Place::None | Place::Free => Ok(false),
            Place::Ring(_) | Place::Flash(..) => Ok(true),
            Place::Damaged => Err(self.damaged_entry(entry).with_key(key)),
        }
    }

    /// The value of `key` as a snapshot at `seqno` sees it.
    pub fn get_at(&self, key: &[u8], seqno: u64) -> Result<Option<Value>> {
        let guard = crossbeam_epoch::pin();
        match self.index.get(key)? {
            None => Ok(None),
            Some(entry) => {
                drop(guard);
                self.entry_at(entry, key, seqno)
            }
        }
    }

    /// The value of `key`, whose entry is `entry`, as a snapshot at `seqno` sees it. The snapshot is open, so the entry stays
    /// the key's if the snapshot sees a value. If not, the entry may be another key's by now, and the snapshot sees none there
    /// either.
    pub fn entry_at(&self, entry: u64, key: &[u8], seqno: u64) -> Result<Option<Value>> {
        loop {
            let guard = crossbeam_epoch::pin();
            let word = self.word_at(entry, seqno)?;
            let still = || {
                let now = self.hsit.word(entry).clean();
                self.as_of(entry, now, seqno) == word
            };
            if let Some(found) = self.fetch(entry, word, key, guard, still)? {
                return Ok(found);
            }
            self.gate.check_open()?;
        }
    }

    /// The word of `entry` that a snapshot at `seqno` sees.
    pub fn word_at(&self, entry: u64, seqno: u64) -> Result<Word> {
        Ok(self.as_of(entry, self.hsit.settled(entry)?, seqno))
    }

    /// The word of `entry` that a snapshot at `seqno` sees, where it is `now` since a moment ago, and settled.
    pub fn as_of(&self, entry: u64, now: Word, seqno: u64) -> Word {
        // A replaced word that was not durable has left its mark to what replaced it.
        self.versions.find(entry, seqno).map_or(now, Word::clean)
    }

    /// The value that `word` of `entry` points at, or `None` if it was moved or replaced meanwhile, as
    /// `still` (whether the word is current) tells.
    fn fetch(
        &self,
        entry: u64,
        word: Word,
        key: &[u8],
        guard: crossbeam_epoch::Guard,
        still: impl Fn() -> bool,
    ) -> Result<Option<Option<Value>>> {
        match word.place() {
            Place::None | Place::Free => Ok(Some(None)),
            Place::Damaged => Err(self.damaged_entry(entry).with_key(key)),
            Place::Ring(at) => {
                let read = self.read_ring(at, word, entry)?;
                drop(guard);
                match read {
                    Some((header, bytes)) if header.key(&bytes) == key => {
                        self.counters.ring_hits.add(1);
                        match self.value_of(header, bytes)? {
                            Some(value) => Ok(Some(Some(value))),
                            None if !still() => Ok(None),
                            None => Err(self.corrupt(word, "a part of the value is damaged").with_key(key)),
                        }
                    }
                    _ if !still() => Ok(None),
                    _ => Err(self.corrupt(word, "the record in the write buffer is damaged").with_key(key)),
                }
            }
            Place::Flash(..) => {
                let slot = self.hsit.aux(entry).slot();
                if let Some(value) = self.cache.get(slot, entry, word.0) {
                    return Ok(Some(Some(value)));
                }
                // Nobody is pinned while flash is read, so that a slow read holds nothing back. Meanwhile the record
                // may go, its chunk be filled anew, and a newer record of the key come to the same place with the
                // same tag. Then the word is the same again, and the filling is not.
                let filling = self.storage.filling(word.place());
                drop(guard);
                if let Some(value) = self.in_second_level(Source { entry, word: word.0, filling }, key) {
                    return Ok(Some(Some(value)));
                }
                self.counters.flash_reads.add(1);
                // Once more before it is called damaged: a flip on the way is not one on the medium.
                for _ in 0..2 {
                    let all = |start, blocks: &[u8]| self.admit_all(blocks, start, (word, filling));
                    let read = self.read_flash_among(word, entry, Cause::Foreground, all)?;
                    if self.storage.filling(word.place()) != filling {
                        return Ok(None);
                    }
                    match read {
                        Some((header, bytes)) if header.key(&bytes) == key => {
                            if let Some(value) =
                                self.admit_and_share((header, bytes), entry, (word, filling))?
                            {
                                return Ok(Some(Some(value)));
                            }
                            if !still() {
                                return Ok(None);
                            }
                        }
                        _ if !still() => return Ok(None),
                        _ => {}
                    }
                }
                Err(self.corrupt(word, "the record is damaged").with_key(key))
            }
        }
    }

    /// The values of `keys` as of some moment each; reads of flash overlap.
    pub fn multi_get(&self, keys: &[&[u8]]) -> Vec<Result<Option<Value>>> {
        let guard = crossbeam_epoch::pin();
        let word_of = |key: &&[u8]| {
            let entry = self.index.get(key).ok()??;
            let word = self.hsit.settled(entry).ok()?;
            if let Place::Ring(_) = word.place() {
                self.want_cached(entry);
            }
            Some(self.pointed(entry, word))
        };
        let wanted: Vec<_> = keys.iter().map(word_of).collect();
        let read = self.read_ahead(&wanted, guard, &mut self.cache.reader(), |number| keys[number]);
        keys.iter()
            .zip(read)
            .map(|(key, ready)| match ready {
                Ready::Cached(value) | Ready::Scattered(value) => Ok(Some(value)),
                Ready::Raw(raw) => {
                    self.check(raw, key).map_or_else(|| self.get(key), |value| Ok(Some(value)))
                }
                Ready::Alone => self.get(key),
            })
            .collect()
    }

    /// What `word` of `entry` points at. The caller was pinned when it found the word, and still is.
    pub fn pointed(&self, entry: u64, word: Word) -> Pointed {
        Pointed { entry, word, filling: self.storage.filling(word.place()) }
    }

    /// The values that are cached, in the write buffer, or on flash, whose reads overlap. What one read brings together is cached if it was read
    /// that way before, as `reader` tells: to have some of it would not spare the read. `guard` is the one under which the words were
    /// found: until the cache was asked for them, none may come to stand for a newer value. It is not held while flash is read.
    pub fn read_ahead<'k>(
        &self,
        wanted: &[Option<Pointed>],
        guard: crossbeam_epoch::Guard,
        reader: &mut Reader<'_>,
        key: impl Fn(usize) -> &'k [u8],
    ) -> Vec<Ready> {
        let devices = self.storage.devices();
        let mut by_device: Vec<_> = devices.iter().map(|_| Vec::with_capacity(wanted.len())).collect();
        let in_ring = |(number, wanted): (usize, &Option<Pointed>)| {
            let Pointed { entry, word, .. } = (*wanted)?;
            let Place::Ring(at) = word.place() else { return None };
            if word.min_len() > SHORT {
                return None;
            }
            let (header, bytes) = self.read_ring(at, word, entry).ok()??;
            let is_it = header.kind == Kind::Value && header.key(&bytes) == key(number);
            is_it.then(|| Value::shared(bytes, header.body_range()))
        };
        let ready = wanted.iter().enumerate().map(|of| in_ring(of).map_or(Ready::Alone, Ready::Cached));
        let mut ready: Vec<_> = ready.collect();
        let in_rings = ready.iter().filter(|ready| matches!(ready, Ready::Cached(_))).count();
        self.counters.ring_hits.add(in_rings as u64);
        let on_flash = |(number, wanted): (usize, &Option<Pointed>)| {
            let Pointed { entry, word, filling } = (*wanted)?;
            let Place::Flash(device, at) = word.place() else { return None };
            (!word.is_large()).then_some(Ahead { number, entry, word, device, at, filling })
        };
        let mut ahead = Vec::with_capacity(wanted.len());
        ahead.extend(wanted.iter().enumerate().filter_map(on_flash));
        let copy = |ahead: &Ahead| (self.hsit.aux(ahead.entry).slot(), ahead.entry, ahead.word.0);
        let copies = self.cache.get_many(&ahead.iter().map(copy).collect::<Vec<_>>(), &guard);
        let mut missing = Vec::new();
        for (ahead, copy) in ahead.into_iter().zip(copies) {
            match copy {
                Some(value) => ready[ahead.number] = Ready::Cached(value),
                None => missing.push(ahead),
            }
        }
        let source = |of: &Ahead| Source { entry: of.entry, word: of.word.0, filling: of.filling };
        let changing = self.gate.try_change();
        let frames = changing.as_ref().map(|_| self.second_level.get_many(missing.iter().map(source)));
        let mut frames = frames.into_iter().flatten();
        for ahead in missing {
            if let Some(frame) = frames.next().flatten() {
                ready[ahead.number] = Ready::Cached(self.found(frame, key(ahead.number)));
            } else if let Some(list) = by_device.get_mut(usize::from(ahead.device)) {
                list.push(ahead);
            }
        }
        drop((changing, guard));
        let place = |ahead: &Ahead| (ahead.at, ahead.word);
        let of_device = |(device, list): (_, &Vec<Ahead>)| (device, list.iter().map(place).collect());
        let places: Vec<(_, Vec<_>)> =
            devices.iter().map(|device| &**device).zip(&by_device).map(of_device).collect();
        let found = read_records(&places, Cause::Foreground);
        for ((device, list), found) in devices.iter().zip(by_device).zip(found) {
            for (Ahead { number, entry, word, at, filling, .. }, found) in list.into_iter().zip(found) {
                // As in `fetch`: what is there now may be another record of the key.
                let Some(found) = found.filter(|_| self.storage.filling(word.place()) == filling) else {
                    continue;
                };
                let alone = found.at_once < CHEAP_AT_ONCE;
                let admit = !alone && reader.is_read_again(device.number(), at);
                let raw = Raw { found, entry, word, filling, admit };
                if !alone {
                    ready[number] = Ready::Raw(raw);
                } else if let Some((header, bytes)) = self.checked(raw, key(number))
                    && let Ok(Some(value)) = self.admit_and_share((header, bytes), entry, (word, filling))
                {
                    ready[number] = Ready::Scattered(value);
                }
            }
        }
        ready
    }

    /// The value of `key` in what was read ahead, if it checks.
    pub fn check(&self, raw: Raw, key: &[u8]) -> Option<Value> {
        let (entry, at, admit) = (raw.entry, (raw.word, raw.filling), raw.admit);
        let (header, bytes) = self.checked(raw, key)?;
        if admit {
            self.admit((&header, &bytes), entry, at, true);
        } else if self.second_level.is_open() {
            self.offer((&header, &bytes), entry, at);
        }
        self.value_of(header, bytes).ok()?
    }

    fn checked(&self, raw: Raw, key: &[u8]) -> Option<Record> {
        let (header, bytes) = raw.found.record(raw.word.max_len(self.layout.chunk_bytes))?;
        let right = header.is_coupled(raw.entry, raw.word.tag())
            && header.is_whole(bytes, self.seed)
            && header.key(bytes) == key;
        right.then(|| {
            self.counters.flash_reads.add(1);
            (header, bytes.into())
        })
    }

    /// The value of `key`, whose record is `source`, if the cache's second level has a copy.
    fn in_second_level(&self, source: Source, key: &[u8]) -> Option<Value> {
        let _changing = self.gate.try_change()?;
        self.second_level.get(source).map(|frame| self.found(frame, key))
    }

    /// The value of `key`, in the `frame` that the cache's second level has of its record. By who may change the store.
    fn found(&self, frame: Frame, key: &[u8]) -> Value {
        self.counters.second_level_hits.add(1);
        // What is read here again and again.
        let is_cached = frame.is_for_dram() && {
            let Source { entry, word, filling } = frame.source;
            let mut record = Vec::new();
            let len = encode(&mut record, self.seed, Kind::Value, entry, frame.seqno, key, &frame.value);
            Header::parse(&record).is_some_and(|header| {
                self.admit((&header, &record[..len]), entry, (Word(word), filling), true)
            })
        };
        self.second_level.used(&frame, if is_cached { Use::Cached } else { Use::Read });
        frame.value
    }

    /// The record at pool offset `at`, if it is whole and coupled with `word` of `entry`.
    pub fn read_ring(&self, at: u64, word: Word, entry: u64) -> Result<Option<Record>> {
        let (first, end) = (self.layout.rings_at(), self.layout.first_page() * crate::pages::PAGE);
        if at < first || at + HEADER as u64 > end {
            return Ok(None);
        }
        let room = self.layout.ring_bytes - (at - first) % self.layout.ring_bytes;
        let mut head = [0u8; HEADER];
        self.pool.read(at, &mut head)?;
        let Some(header) = Header::parse(&head) else { return Ok(None) };
        if header.len() as u64 > room || !header.is_coupled(entry, word.tag()) {
            return Ok(None);
        }
        let bytes = read_shared(&*self.pool, at, header.len())?;
        // The record may have been overwritten between the two reads: the header is that of the bytes.
        let whole = bytes[..head.len()] == head && header.is_whole(&bytes, self.seed);
        Ok(whole.then_some((header, bytes)))
    }

    /// The record in Value Storage where `word` points, if it is whole and coupled with it.
    pub fn read_flash(&self, word: Word, entry: u64, cause: Cause) -> Result<Option<Record>> {
        self.read_flash_among(word, entry, cause, |_, _| {})
    }

    /// The same; shows the whole blocks that were read for it, and where on the device they begin.
    fn read_flash_among(
        &self,
        word: Word,
        entry: u64,
        cause: Cause,
        show: impl FnOnce(u64, &[u8]),
    ) -> Result<Option<Record>> {
        let Place::Flash(number, at) = word.place() else { return Ok(None) };
        let Some(device) = self.storage.device(number) else { return Ok(None) };
        let read = device.read_record(at, word, cause, show)?;
        Ok(read.filter(|(header, bytes)| {
            header.is_coupled(entry, word.tag()) && header.is_whole(bytes, self.seed)
        }))
    }

    /// As long as the cache, or its second level, has room for what nobody asked for, it gets what is live in the `blocks` from byte `start` of a device on
    /// that were read for a record, but for this one: small values come by the dozen so. The word of the record was found in a `filling` of its chunk.
    fn admit_all(&self, blocks: &[u8], start: u64, (word, filling): (Word, u32)) {
        let Place::Flash(number, _) = word.place() else { return };
        let is_roomy = self.cache.is_roomy();
        if !is_roomy && !self.second_level.is_open() {
            return;
        }
        let mut from = 0;
        while let Some(rest) = blocks.get(from as usize..).filter(|rest| rest.len() >= HEADER) {
            let place = Place::Flash(number, start + from);
            let live = Header::parse(rest).and_then(|header| {
                let record = rest.get(..header.len())?;
                Some((header, record, self.live_word(&header, place)?))
            });
            let Some((header, record, live)) = live else {
                from += UNIT;
                continue;
            };
            let source = Source { entry: header.entry, word: live.0, filling };
            let is_cached = place == word.place()
                || self.hsit.aux(header.entry).slot().is_some()
                || !is_roomy && self.second_level.may_have(source);
            if !is_cached && header.is_whole(record, self.seed) {
                let (record, at) = ((&header, record), (live, filling));
                if is_roomy {
                    self.admit(record, header.entry, at, false);
                } else {
                    self.offer(record, header.entry, at);
                }
            }
            from += header.stored_len();
        }
    }

    /// The record where `word` points, wherever that is.
    pub fn read_record(&self, word: Word, entry: u64, cause: Cause) -> Result<Option<Record>> {
        match word.place() {
            Place::Ring(at) => self.read_ring(at, word, entry),
            Place::Flash(..) => self.read_flash(word, entry, cause),
            Place::None | Place::Free | Place::Damaged => Ok(None),
        }
    }

    /// The value in a record that was just read, put together from its parts where it is long; `None` if a
    /// part does not check.
    pub fn value_of(&self, header: Header, bytes: Arc<[u8]>) -> Result<Option<Value>> {
        if header.kind == Kind::Parts {
            return Ok(self.read_long(&header, &bytes, Cause::Foreground)?.map(Value::from));
        }
        Ok(Some(Value::shared(bytes, header.body_range())))
    }

    /// Which filling of its chunk `word` points into, if it is the word of `entry` now.
    pub fn sight(&self, entry: u64, word: Word) -> Option<u32> {
        // In this order: the words of a chunk's next filling are published after that began, so the word that is found is of
        // the filling that is found after it, or there is no such word any more.
        (self.hsit.word(entry).clean() == word).then(|| self.storage.filling(word.place()))
    }

    /// The value in a record just read from flash. The cache gets a copy if it takes one, and if the word is that of the entry, in
    /// the filling that it was before the read.
    pub fn admit_and_share(
        &self,
        (header, record): Record,
        entry: u64,
        at: (Word, u32),
    ) -> Result<Option<Value>> {
        self.admit((&header, &record), entry, at, false);
        self.value_of(header, record)
    }

    /// Caches the record of `entry`, if the cache takes it, and if the word has been that of the entry, in that filling of its
    /// chunk, since before it was read. It is `known` if it was read before. Says whether the cache took it.
    fn admit(
        &self,
        (header, record): (&Header, &[u8]),
        entry: u64,
        (word, filling): (Word, u32),
        known: bool,
    ) -> bool {
        let Some(_changing) = self.gate.try_change() else { return false };
        // What is freed from now on is not filled anew before both looks are done.
        let _guard = crossbeam_epoch::pin();
        if header.kind == Kind::Parts || self.sight(entry, word) != Some(filling) {
            return false;
        }
        let (origin, value) = ((word.0, filling), header.body_range().start);
        let Some(slot) = self.cache.insert(entry, origin, record, value, known) else { return false };
        // A slot that is there already holds a copy that was evicted, or that another reader has just made. The evicted one's
        // may be the same that this one was given.
        let before = self.hsit.update_aux(entry, |aux| aux.with_slot(Some(slot)));
        if let Some(other) = before.slot().filter(|other| *other != slot) {
            self.cache.remove(other, entry);
        }
        fence(SeqCst);
        if self.sight(entry, word) != Some(filling) {
            // Whoever replaced the word may have looked before the slot was there.
            self.uncache(entry);
            self.cache.remove(slot, entry);
        }
        if self.cache.pressure() {
            self.work.want_upkeep();
        }
        true
    }

    /// Offers the record of `entry` to the second level of the cache, if the word has been that of the entry, in that filling of its chunk, since before it
    /// was read.
    fn offer(&self, record: (&Header, &[u8]), entry: u64, (word, filling): (Word, u32)) {
        let Some(_changing) = self.gate.try_change() else { return };
        let _guard = crossbeam_epoch::pin();
        if record.0.kind == Kind::Value && self.sight(entry, word) == Some(filling) {
            self.second_level.offer(record, (word.0, filling));
        }
    }

    /// Caches the record of `entry` that was copied from the write buffer, where it still is, to where `word` points, if somebody `wants` it, and
    /// says whether the cache took it. Otherwise its second level may have it.
    pub fn admit_moved(&self, entry: u64, from: Place, word: Word, wants: bool) -> bool {
        let Place::Ring(at) = from else { return false };
        let is_offered = self.second_level.is_open() && word.min_len() <= LONGEST as u64;
        if word.is_large() || !wants && !is_offered {
            return false;
        }
        let Some(filling) = self.sight(entry, word) else { return false };
        let Ok(Some((header, record))) = self.read_ring(at, word, entry) else { return false };
        if wants {
            return self.admit((&header, &record), entry, (word, filling), true);
        }
        self.offer((&header, &record), entry, (word, filling));
        false
    }

    /// Takes the entry's value out of the cache. If it was there, says whether it was read lately.
    pub fn uncache(&self, entry: u64) -> Option<bool> {
        let slot = self.hsit.update_aux(entry, |aux| aux.with_slot(None)).slot();
        self.cache.remove(slot?, entry)
    }
}
