//! A few threads that read side by side, where there is no io_uring to overlap reads.

use super::file::{Handle, RealFile};
use crate::buf::AlignedBuf;
use crate::file::FileRead;
use std::io;
use std::mem;
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::{Builder, JoinHandle};
use tierdb_base::{Error, Result};

/// Reads in flight at once, with the caller's own.
const THREADS: usize = 8;

struct Job {
    file: Arc<Handle>,
    at: u64,
    buf: AlignedBuf,
    index: usize,
    reply: Sender<(usize, AlignedBuf, Result<()>)>,
}

/// Threads that wait for reads to do. They end with it.
pub struct Pool {
    jobs: Option<Sender<Job>>,
    threads: Vec<JoinHandle<()>>,
}

impl Pool {
    pub fn new() -> Self {
        let (jobs, queue) = channel();
        let queue = Arc::new(Mutex::new(queue));
        let threads = (1..THREADS)
            .map_while(|_| {
                let queue = queue.clone();
                Builder::new().name("tierdb-read".into()).spawn(move || work(&queue)).ok()
            })
            .collect();
        Pool { jobs: Some(jobs), threads }
    }

    pub fn read_many(&self, reads: &mut [FileRead<'_, RealFile>]) -> Vec<Result<()>> {
        let gone = || io::Error::other("the thread that was to do it has ended");
        let lost = |read: &FileRead<'_, RealFile>| {
            Err(Error::io("read", read.file.handle().name().clone(), read.at, gone()))
        };
        let mut results: Vec<_> = reads.iter().map(lost).collect();
        let (reply, replies) = channel();
        // The caller reads its share too.
        let mut own = Vec::new();
        for (index, read) in reads.iter_mut().enumerate() {
            if index % (self.threads.len() + 1) == 0 {
                own.push(index);
                continue;
            }
            let (file, at, buf) = (read.file.handle().clone(), read.at, mem::take(&mut read.buf));
            if let Some(jobs) = &self.jobs {
                let _ = jobs.send(Job { file, at, buf, index, reply: reply.clone() });
            }
        }
        drop(reply);
        for index in own {
            let read = &mut reads[index];
            results[index] = read.file.handle().finish_read(read.at, &mut read.buf, None);
        }
        for (index, buf, result) in replies {
            reads[index].buf = buf;
            results[index] = result;
        }
        results
    }
}

fn work(queue: &Mutex<Receiver<Job>>) {
    loop {
        let job = queue.lock().unwrap_or_else(PoisonError::into_inner).recv();
        let Ok(Job { file, at, mut buf, index, reply }) = job else { return };
        let result = file.finish_read(at, &mut buf, None);
        drop(file);
        let _ = reply.send((index, buf, result));
    }
}

impl Drop for Pool {
    fn drop(&mut self) {
        self.jobs = None;
        for thread in self.threads.drain(..) {
            let _ = thread.join();
        }
    }
}
