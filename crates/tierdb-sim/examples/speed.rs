//! Images per second on this machine, one thread: a pool of 256 KiB and a file of 1 MiB.
//!
//! `cargo run --release -p tierdb-sim --example speed`

use std::time::Instant;
use tierdb_device::{AlignedBuf, BlockFile, Dir, OpenMode};
use tierdb_pmem::{Pool, Stage};
use tierdb_sim::crashtest::{Options, Oracle, explore};
use tierdb_sim::{CrashModel, World};

const POOL: u64 = 256 << 10;

type Check = fn(&World) -> u64;

fn script(world: &World, steps: u64) {
    let pool = world.pool("fast");
    let file = world.dir("flash").open("values", OpenMode::Existing).expect("made before");
    for step in 0..steps {
        let at = 4096 + step * 192 % (POOL - 8192);
        let mut stage = Stage::new(&pool);
        stage.write(at, &[step as u8; 192]);
        stage.drain().publish(step % 64 * 64, at);
        pool.fence();
        if step % 16 == 15 {
            let bytes = AlignedBuf::from_bytes(&[step as u8; 16384]).expect("memory");
            file.write(step / 16 * 16384 % (1 << 20), &bytes).expect("write");
            file.sync().expect("sync");
        }
    }
}

fn world() -> World {
    let world = World::new();
    let pool = world.add_pool("fast", POOL);
    pool.write(0, &vec![1; POOL as usize]);
    let dir = world.add_dir("flash");
    dir.open("values", OpenMode::CreateNew).expect("new").set_len(1 << 20).expect("room");
    world.copy()
}

fn main() {
    let checks: [(&str, u64, Check); 3] = [
        ("one word read", 400_000, |image| image.pool("fast").load(0)),
        ("whole pool read", 200_000, |image| {
            let mut bytes = vec![0; POOL as usize];
            image.pool("fast").read(0, &mut bytes).expect("no poison");
            u64::from(bytes[POOL as usize - 1])
        }),
        ("whole pool rewritten", 2_000, |image| {
            let pool = image.pool("fast");
            pool.write(0, &vec![9; POOL as usize]);
            pool.load(0)
        }),
    ];
    for (name, images, check) in checks {
        let options =
            Options { max_images: Some(images), models: CrashModel::BOTH.into(), ..Options::default() };
        let check = |(): &(), image: &World| {
            std::hint::black_box(check(image));
            Ok(())
        };
        let work = |world: &World, _: &Oracle<()>| script(world, 4_000);
        let run = explore(&world(), &options, &Oracle::new(()), work, |_| Ok(()), check);
        println!("{name}: {}", run.unwrap_or_else(|failure| panic!("{failure}")));
    }
    let (world, start, steps) = (world(), Instant::now(), 4_000);
    script(&world, steps);
    let each = start.elapsed() / world.events() as u32;
    println!("a script without crashes: {each:?} for a persist event");
}
