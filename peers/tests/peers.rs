//! Every peer behind the benchmark's seam: what is put is got and scanned in order, also after a close.

use tierdb_bench::store::{Durability, Setup, System};

fn setup(dir: &std::path::Path) -> Setup {
    let make = |name: &str| {
        let path = dir.join(name);
        std::fs::create_dir_all(&path).expect("directory");
        path
    };
    Setup {
        fast_dir: make("fast"),
        fast_bytes: 64 << 20,
        flash_dir: make("flash"),
        memory: 32 << 20,
        durability: Durability::Grouped,
        emulate_fast: None,
        emulate_flash: None,
        keys: 500,
        data_bytes: 500 * 1040,
        knobs: tierdb_bench::knobs::Knobs::default(),
    }
}

fn exercise(system: &dyn System) {
    let dir = tempfile::tempdir().expect("temporary directory");
    let setup = setup(dir.path());
    let key = |number: u32| format!("{number:016}");
    let value = |number: u32| vec![number as u8; 1024];
    let store = system.open(&setup).expect("open");
    let mode = store.counts().mode;
    let version = mode.split([' ', ',']).nth(1).unwrap_or_default();
    assert!(version.split('.').count() == 3 && version.starts_with(|c: char| c.is_ascii_digit()), "{mode}");
    assert!(store.get(b"absent").expect("get").is_none());
    for number in 0..500 {
        let durability = if number % 50 == 0 { Durability::Durable } else { Durability::Grouped };
        store.put(key(number).as_bytes(), b"old", durability).expect("put");
        store.put(key(number).as_bytes(), &value(number), durability).expect("put again");
    }
    let io = store.counts().io;
    assert!(io.iter().all(|io| io.tier != "flash"), "the kernel counts what peers write to flash: {io:?}");
    if system.name().starts_with("rocksdb") {
        let log = io.iter().find(|io| io.cause == "log").expect("the log's");
        assert!(log.written_bytes > 500 * 1024 && log.syncs > 0, "{log:?}");
    }
    store.close().expect("close");
    let store = system.open(&setup).expect("open again");
    for number in 0..500 {
        let found = store.get(key(number).as_bytes()).expect("get").expect("it was put");
        assert!(found.as_ref() == value(number), "{} gave another value", system.name());
    }
    let mut seen = Vec::new();
    store
        .scan(key(100).as_bytes(), 50, &mut |own, found| seen.push((own.to_vec(), found.to_vec())))
        .expect("scan");
    let expected: Vec<_> = (100..150).map(|number| (key(number).into_bytes(), value(number))).collect();
    assert!(seen == expected, "{} scans otherwise", system.name());
    store.close().expect("close");
}

#[test]
fn every_peer_gives_back_what_was_put() {
    let peers = tierdb_peers::peers();
    assert!(peers.len() >= 3);
    for peer in peers {
        exercise(&*peer);
    }
}
