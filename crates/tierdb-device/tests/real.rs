//! Real directories: what is written is read, whichever way reads go to the device.

use std::io::{BufRead, BufReader, ErrorKind};
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tierdb_base::Error;
use tierdb_device::{
    AlignedBuf, BLOCK, BlockFile, Dir, FileRead, OpenMode, Piece, ReadBatching, RealDir, RealFile,
    RealOptions,
};

const WAYS: [RealOptions; 6] = [
    RealOptions { batching: ReadBatching::Combining, io_uring: true, rings: 1, batch: 3 },
    RealOptions { batching: ReadBatching::Combining, io_uring: true, rings: 3, batch: 64 },
    RealOptions {
        batching: ReadBatching::Timeout(Duration::from_micros(100)),
        io_uring: true,
        rings: 2,
        batch: 64,
    },
    RealOptions { batching: ReadBatching::Direct, io_uring: true, rings: 2, batch: 64 },
    RealOptions { batching: ReadBatching::Combining, io_uring: false, rings: 2, batch: 64 },
    RealOptions { batching: ReadBatching::Direct, io_uring: false, rings: 0, batch: 64 },
];

fn zeroed(len: usize) -> AlignedBuf {
    AlignedBuf::zeroed(len).expect("memory")
}

fn random(random: &mut fastrand::Rng, blocks: usize) -> AlignedBuf {
    let mut buf = zeroed(blocks * BLOCK as usize);
    random.fill(&mut buf);
    buf
}

fn read(file: &RealFile, at: u64, len: usize) -> Vec<u8> {
    let mut buf = zeroed(len);
    file.read(at, &mut buf).expect("read");
    buf.to_vec()
}

fn io_kind<T: std::fmt::Debug>(result: Result<T, Error>) -> ErrorKind {
    match result {
        Err(Error::Io { source, .. }) => source.kind(),
        other => panic!("expected an error of the system, not {other:?}"),
    }
}

/// Goal: threads that read and write at once, in their own parts of a file, always see what they wrote.
/// Method: each keeps its part in memory as the model, and does random writes, reads and sets of reads, half of which are of
/// a file of another directory.
#[test]
fn threads_read_what_they_wrote() {
    const BLOCKS: u64 = 200;
    const THREADS: u64 = 8;
    for options in WAYS {
        let temp = TempDir::new().expect("directory");
        let dir = RealDir::open_with(temp.path(), &options).expect("open");
        let file = dir.open("data", OpenMode::CreateNew).expect("create");
        let len = THREADS * BLOCKS * BLOCK;
        file.set_len(len).and_then(|()| file.write(0, &zeroed(len as usize))).expect("write");
        dir.sync().expect("sync");
        let beside = TempDir::new().expect("directory");
        let beside = RealDir::open_with(beside.path(), &options).expect("open");
        let other = beside.open("other", OpenMode::CreateNew).expect("create");
        let in_other = random(&mut fastrand::Rng::with_seed(9), BLOCKS as usize);
        other.set_len(BLOCKS * BLOCK).and_then(|()| other.write(0, &in_other)).expect("write");
        let work = |thread: u64| {
            let (file, first) = (&file, thread * BLOCKS);
            let mut rng = fastrand::Rng::with_seed(thread);
            let mut model = vec![0; (BLOCKS * BLOCK) as usize];
            let range = |rng: &mut fastrand::Rng| {
                let block = rng.u64(..BLOCKS);
                (block, rng.u64(1..=(BLOCKS - block).min(5)))
            };
            let place = |block: u64, count: u64| (block * BLOCK) as usize..((block + count) * BLOCK) as usize;
            for step in 0..120 {
                let (block, count) = range(&mut rng);
                match step % 4 {
                    0 => {
                        let bytes = random(&mut rng, count as usize);
                        model[place(block, count)].copy_from_slice(&bytes);
                        let at = (first + block) * BLOCK;
                        match step % 40 {
                            0 => file.write_durable(at, &bytes).expect("write"),
                            // In blocks, the last ones first.
                            1..=9 => {
                                let blocks: Vec<_> = bytes.chunks(BLOCK as usize).rev().collect();
                                let piece = |number| Piece { at: at + number * BLOCK, len: BLOCK as usize };
                                let pieces: Vec<_> = (0..count).rev().map(piece).collect();
                                let bytes = AlignedBuf::from_bytes(&blocks.concat()).expect("memory");
                                file.write_pieces(&bytes, &pieces).expect("write");
                            }
                            _ => file.write(at, &bytes).expect("write"),
                        }
                    }
                    1 => {
                        let ranges: Vec<_> = (0..rng.usize(0..80)).map(|_| range(&mut rng)).collect();
                        let own = |read: &(usize, (u64, u64))| read.0.is_multiple_of(2);
                        let ranges: Vec<_> = ranges.into_iter().enumerate().collect();
                        let mut reads: Vec<_> = ranges
                            .iter()
                            .map(|read| {
                                let (_, (block, count)) = *read;
                                let (file, first) = if own(read) { (file, first) } else { (&other, 0) };
                                let buf = zeroed((count * BLOCK) as usize);
                                FileRead { file, at: (first + block) * BLOCK, buf }
                            })
                            .collect();
                        let results = BlockFile::read_many(&mut reads);
                        assert_eq!(results.len(), ranges.len());
                        for ((range, read), result) in ranges.into_iter().zip(&reads).zip(results) {
                            result.expect("read");
                            let bytes = if own(&range) { &model[..] } else { &in_other[..] };
                            let (_, (block, count)) = range;
                            assert!(read.buf[..] == bytes[place(block, count)], "{options:?} block {block}");
                        }
                    }
                    _ => {
                        let found = read(file, (first + block) * BLOCK, (count * BLOCK) as usize);
                        assert!(found == model[place(block, count)], "{options:?} block {block}");
                    }
                }
            }
            model
        };
        let models = std::thread::scope(|scope| {
            let work = &work;
            let threads: Vec<_> = (0..THREADS).map(|thread| scope.spawn(move || work(thread))).collect();
            threads.into_iter().map(|thread| thread.join().expect("thread")).collect::<Vec<_>>()
        });
        file.sync().expect("sync");
        drop(file);
        let file = dir.open("data", OpenMode::Existing).expect("open");
        assert!(read(&file, 0, len as usize) == models.concat(), "{options:?}");
    }
}

#[test]
fn pieces_of_more_than_a_batch_are_written_each_to_its_place() {
    for options in WAYS {
        let temp = TempDir::new().expect("directory");
        let dir = RealDir::open_with(temp.path(), &options).expect("open");
        let file = dir.open("data", OpenMode::CreateNew).expect("create");
        let mut rng = fastrand::Rng::with_seed(1);
        let mut expected = vec![0; 600 * BLOCK as usize];
        file.set_len(expected.len() as u64).expect("length");
        // Of one block and of two, with as much between them.
        let mut pieces: Vec<_> = (0..150)
            .flat_map(|group| {
                let at = group * 4 * BLOCK;
                [(0, 1), (2, 1 + group % 2)].map(|(block, count)| (at + block * BLOCK, count * BLOCK))
            })
            .collect();
        rng.shuffle(&mut pieces);
        let bytes = random(&mut rng, pieces.iter().map(|(_, len)| len / BLOCK).sum::<u64>() as usize);
        let mut rest = &bytes[..];
        for (at, len) in &pieces {
            let own;
            (own, rest) = rest.split_at(*len as usize);
            expected[*at as usize..][..own.len()].copy_from_slice(own);
        }
        let pieces: Vec<_> = pieces.into_iter().map(|(at, len)| Piece { at, len: len as usize }).collect();
        file.write_pieces(&bytes, &pieces).expect("write");
        assert!(read(&file, 0, expected.len()) == expected, "{options:?}");
    }
}

#[test]
fn reads_are_combined_when_more_threads_read_than_there_are_rings() {
    let temp = TempDir::new().expect("directory");
    let dir = RealDir::open_with(temp.path(), &WAYS[0]).expect("open");
    if !dir.medium().contains("io_uring") || dir.medium().contains("pread") {
        return;
    }
    let file = dir.open("data", OpenMode::CreateNew).expect("create");
    let bytes = random(&mut fastrand::Rng::with_seed(1), 256);
    file.set_len(bytes.len() as u64).and_then(|()| file.write(0, &bytes)).expect("write");
    // Sooner or later, depending on the machine, one thread asks while another reads.
    let end = Instant::now() + Duration::from_secs(60);
    let reader = |first: u64| {
        let mut reads = 0;
        while Instant::now() < end && dir.combined().batches == dir.combined().requests {
            read(&file, (first + reads) % 256 * BLOCK, BLOCK as usize);
            reads += 1;
        }
        reads
    };
    let reads: u64 = std::thread::scope(|scope| {
        let reader = &reader;
        let threads: Vec<_> = (0..16).map(|thread| scope.spawn(move || reader(thread * 16))).collect();
        threads.into_iter().map(|thread| thread.join().expect("thread")).sum()
    });
    let combined = dir.combined();
    assert_eq!(combined.requests, reads);
    assert!(combined.batches < reads, "{combined:?}");
}

#[test]
fn the_end_of_a_file_is_an_error_with_its_place() {
    for options in WAYS {
        let temp = TempDir::new().expect("directory");
        let dir = RealDir::open_with(temp.path(), &options).expect("open");
        let file = dir.open("data", OpenMode::CreateNew).expect("create");
        file.set_len(3 * BLOCK).expect("length");
        // Cut inside the second block, as nothing but damage does.
        let path = temp.path().join("data");
        std::fs::File::options().write(true).open(&path).and_then(|cut| cut.set_len(5000)).expect("cut");
        for at in [BLOCK, 2 * BLOCK, 1 << 40] {
            let result = file.read(at, &mut zeroed(4096));
            let text = result.as_ref().expect_err("the end").to_string();
            assert!(text.starts_with(&format!("read of {} at byte {at} failed", path.display())), "{text}");
            assert_eq!(io_kind(result), ErrorKind::UnexpectedEof, "{options:?}");
        }
        let wanted = |at| FileRead { file: &file, at, buf: zeroed(4096) };
        let results = BlockFile::read_many(&mut [0, BLOCK, 0, 1 << 40].map(wanted));
        assert_eq!(results.iter().map(Result::is_ok).collect::<Vec<_>>(), [true, false, true, false]);
        assert_eq!(io_kind(file.read(0, &mut zeroed(8192))), ErrorKind::UnexpectedEof);
        assert!(matches!(file.read(100, &mut zeroed(4096)), Err(Error::Invalid { .. })));
        assert!(matches!(file.write(100, &zeroed(4096)), Err(Error::Invalid { .. })));
        for wrong in [Piece { at: 100, len: 4096 }, Piece { at: 4096, len: 100 }] {
            let pieces = [Piece { at: 0, len: 4096 }, wrong];
            assert!(matches!(file.write_pieces(&zeroed(8192), &pieces), Err(Error::Invalid { .. })));
        }
        assert!(matches!(file.set_len(100), Err(Error::Invalid { .. })));
        let results = BlockFile::read_many(&mut [0, 100].map(wanted));
        assert!(results.iter().all(|result| matches!(result, Err(Error::Invalid { .. }))));
    }
}

#[test]
fn lengths_change_and_what_is_added_is_zeros() {
    let temp = TempDir::new().expect("directory");
    let dir = RealDir::create(temp.path().join("a/b")).expect("create");
    let file = dir.open("data", OpenMode::CreateNew).expect("create");
    assert!(file.is_empty().expect("length"));
    file.set_len(4 * BLOCK).expect("grow");
    let bytes = AlignedBuf::from_bytes(&[7; 4 * BLOCK as usize]).expect("memory");
    file.write(0, &bytes).expect("write");
    file.sync().expect("sync");
    file.set_len(BLOCK).expect("shrink");
    file.set_len(2 * BLOCK).expect("grow");
    file.sync().expect("sync");
    assert_eq!(file.len().expect("length"), 2 * BLOCK);
    let found = read(&file, 0, 2 * BLOCK as usize);
    assert!(found[..4096].iter().all(|byte| *byte == 7) && found[4096..].iter().all(|byte| *byte == 0));
}

#[test]
fn a_file_that_does_not_fit_keeps_its_length() {
    let Ok(temp) = TempDir::new_in("/dev/shm") else { return };
    let dir = RealDir::open(temp.path()).expect("open");
    if !dir.medium().contains("tmpfs") {
        return;
    }
    let file = dir.open("data", OpenMode::CreateNew).expect("create");
    file.set_len(BLOCK).expect("grow");
    assert_eq!(io_kind(file.set_len(1 << 60)), ErrorKind::StorageFull);
    assert_eq!(file.len().expect("length"), BLOCK);
}

#[test]
fn names_are_created_listed_renamed_and_removed() {
    let temp = TempDir::new().expect("directory");
    let dir = RealDir::open(temp.path()).expect("open");
    let _lock = dir.lock().expect("lock");
    std::fs::create_dir(temp.path().join("directory")).expect("directory");
    for name in ["b", "a"] {
        dir.open(name, OpenMode::CreateNew).expect("create");
    }
    assert_eq!(dir.list().expect("list"), ["a", "b"]);
    assert_eq!(io_kind(dir.open("a", OpenMode::CreateNew).map(drop)), ErrorKind::AlreadyExists);
    assert_eq!(io_kind(dir.open("c", OpenMode::Existing).map(drop)), ErrorKind::NotFound);
    dir.open("a", OpenMode::Existing).expect("open").set_len(BLOCK).expect("grow");
    dir.rename("a", "b").expect("rename");
    assert_eq!(dir.list().expect("list"), ["b"]);
    assert_eq!(dir.open("b", OpenMode::Existing).expect("open").len().expect("length"), BLOCK);
    dir.remove("b").expect("remove");
    dir.sync().expect("sync");
    assert_eq!(dir.list().expect("list"), [""; 0]);
    assert_eq!(io_kind(dir.remove("b")), ErrorKind::NotFound);
    for name in ["", ".", "..", "a/b", "/a", "a\0", "LOCK"] {
        assert!(matches!(dir.open(name, OpenMode::CreateNew), Err(Error::Invalid { .. })), "{name:?}");
        assert!(matches!(dir.rename("b", name), Err(Error::Invalid { .. })), "{name:?}");
    }
}

#[test]
fn what_is_no_directory_is_refused() {
    let temp = TempDir::new().expect("directory");
    assert!(matches!(RealDir::open(temp.path().join("missing")), Err(Error::NotFound { .. })));
    let file = temp.path().join("file");
    std::fs::write(&file, "").expect("write");
    assert!(matches!(RealDir::open(&file), Err(Error::NotAStore { .. })));
    assert!(RealDir::create(&file).is_err());
}

#[test]
fn the_medium_is_told_in_words() {
    let temp = TempDir::new().expect("directory");
    let without = RealDir::open_with(temp.path(), &WAYS[5]).expect("open");
    let start = if without.direct_io() { "direct I/O, pread" } else { "buffered (file system refuses" };
    assert!(without.medium().starts_with(start), "{}", without.medium());
    assert!(!without.medium().contains("io_uring"));
    // Nothing is left behind by finding out.
    assert_eq!(without.list().expect("list"), [""; 0]);
}

#[test]
fn a_directory_through_the_page_cache_has_the_same_files() {
    let temp = TempDir::new().expect("directory");
    let direct = RealDir::open(temp.path()).expect("open");
    let cached = direct.through_page_cache().expect("open");
    assert!(!cached.direct_io());
    let way = if direct.direct_io() {
        "through the page cache, "
    } else {
        "buffered (file system refuses direct I/O), "
    };
    assert!(cached.medium().starts_with(way), "{}", cached.medium());
    let written = random(&mut fastrand::Rng::with_seed(1), 3);
    let file = cached.open("data", OpenMode::CreateNew).expect("create");
    file.set_len(3 * BLOCK).expect("length");
    file.write(0, &written).expect("write");
    let file = direct.open("data", OpenMode::Existing).expect("open");
    assert_eq!(read(&file, 0, written.len()), *written);
    let other = random(&mut fastrand::Rng::with_seed(2), 1);
    file.write_durable(BLOCK, &other).expect("write");
    let file = cached.open("data", OpenMode::Existing).expect("open");
    assert_eq!(read(&file, BLOCK, other.len()), *other);
}

/// Not a test of its own: run by the next one in another process, it locks a directory until its input
/// ends.
#[test]
fn lock_in_a_child() {
    let Ok(path) = std::env::var("TIERDB_TEST_LOCK") else { return };
    let _lock = RealDir::open(path).and_then(|dir| dir.lock()).expect("lock");
    println!("locked");
    let _ = std::io::stdin().read_line(&mut String::new());
}

#[test]
fn a_lock_excludes_this_process_and_others() {
    let temp = TempDir::new().expect("directory");
    let holder = |dir: &RealDir| match dir.lock() {
        Err(Error::Locked { path, holder }) => {
            assert_eq!(path, temp.path().join("LOCK"));
            Some(holder)
        }
        other => other.map(|_| None).expect("lock"),
    };
    let dir = RealDir::open(temp.path()).expect("open");
    let lock = dir.lock().expect("lock");
    let other = RealDir::open(temp.path()).expect("open");
    for dir in [&dir, &other] {
        assert_eq!(holder(dir), Some(format!("process {}", std::process::id())));
    }
    drop(lock);
    assert_eq!(holder(&other), None);

    let mut child = Command::new(std::env::current_exe().expect("own path"))
        .args(["--exact", "lock_in_a_child", "--nocapture"])
        .env("TIERDB_TEST_LOCK", temp.path())
        .stdin(Stdio::piped())
        .stdout(Stdio::piped())
        .spawn()
        .expect("child");
    let mut lines = BufReader::new(child.stdout.take().expect("output")).lines();
    assert!(lines.any(|line| line.expect("output").contains("locked")));
    assert_eq!(holder(&dir), Some(format!("process {}", child.id())));
    // However the child ends, its lock does.
    child.kill().expect("kill");
    child.wait().expect("wait");
    assert_eq!(holder(&dir), None);
}
