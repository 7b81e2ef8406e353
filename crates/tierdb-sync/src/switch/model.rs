//! Loom's primitives, with the names and methods of the everyday ones.

use loom::sync::atomic::{Ordering, fence};
use std::cell::Cell;

pub use loom::sync::MutexGuard;

/// What a load may give in a model.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Memory {
    /// The newest value, always: for finding every interleaving up to the bound. Loom alone does not, since
    /// it remembers one access of a word only: a thread that loads a word and then changes it hides the
    /// loads of all others.
    Interleaved,
    /// What the orderings of the accesses allow, stale values too: for finding orderings that are too weak.
    Weak,
    /// As `Weak`, and `SeqCst` is no more than acquire and release: for showing that these would not do.
    NoSeqCst,
}

thread_local! {
    // All threads of a model are one thread of the system.
    static MEMORY: Cell<Memory> = const { Cell::new(Memory::Interleaved) };
}

/// Runs `model` in every interleaving with up to three preemptions, first [`Memory::Interleaved`] and then
/// [`Memory::Weak`].
pub fn explore(model: impl Fn() + Copy + Send + Sync + 'static) {
    explore_in(Memory::Interleaved, 3, model);
    explore_in(Memory::Weak, 3, model);
}

/// Runs `model` in every interleaving with up to `preemptions`.
pub fn explore_in(memory: Memory, preemptions: usize, model: impl Fn() + Send + Sync + 'static) {
    MEMORY.set(memory);
    let mut builder = loom::model::Builder::new();
    builder.preemption_bound = Some(preemptions);
    builder.max_branches = 10_000;
    builder.check(model);
}

macro_rules! atomic {
    ($name:ident, $word:ty) => {
        /// As the standard one of the same name.
        #[derive(Debug)]
        pub struct $name {
            word: loom::sync::atomic::$name,
            /// Changed by every access of the word in [`Memory::Interleaved`].
            turn: loom::sync::atomic::AtomicUsize,
        }

        #[allow(missing_docs, reason = "they are those of the standard library")]
        impl $name {
            #[track_caller]
            pub fn new(value: $word) -> Self {
                $name {
                    word: loom::sync::atomic::$name::new(value),
                    turn: loom::sync::atomic::AtomicUsize::new(0),
                }
            }

            #[track_caller]
            fn access<T>(
                &self,
                ordering: Ordering,
                access: impl FnOnce(&loom::sync::atomic::$name) -> T,
            ) -> T {
                match MEMORY.get() {
                    Memory::Interleaved => {
                        // Other threads may go before this access, and then all is as if it were one step.
                        self.turn.fetch_add(1, Ordering::Relaxed);
                        loom::stop_exploring();
                        fence(Ordering::SeqCst);
                        let done = access(&self.word);
                        fence(Ordering::SeqCst);
                        loom::explore();
                        done
                    }
                    Memory::Weak => {
                        if ordering == Ordering::SeqCst {
                            // Loom takes the access itself for acquire and release. The fence stands where
                            // compilers for Power put it.
                            fence(Ordering::SeqCst);
                        }
                        access(&self.word)
                    }
                    Memory::NoSeqCst => access(&self.word),
                }
            }

            #[track_caller]
            pub fn load(&self, ordering: Ordering) -> $word {
                self.access(ordering, |word| word.load(ordering))
            }

            #[track_caller]
            pub fn store(&self, value: $word, ordering: Ordering) {
                self.access(ordering, |word| word.store(value, ordering));
            }

            #[track_caller]
            pub fn swap(&self, value: $word, ordering: Ordering) -> $word {
                self.access(ordering, |word| word.swap(value, ordering))
            }

            #[track_caller]
            pub fn fetch_add(&self, value: $word, ordering: Ordering) -> $word {
                self.access(ordering, |word| word.fetch_add(value, ordering))
            }

            #[track_caller]
            pub fn fetch_sub(&self, value: $word, ordering: Ordering) -> $word {
                self.access(ordering, |word| word.fetch_sub(value, ordering))
            }

            #[track_caller]
            pub fn fetch_max(&self, value: $word, ordering: Ordering) -> $word {
                self.access(ordering, |word| word.fetch_max(value, ordering))
            }

            #[track_caller]
            pub fn fetch_min(&self, value: $word, ordering: Ordering) -> $word {
                self.access(ordering, |word| word.fetch_min(value, ordering))
            }

            #[track_caller]
            pub fn compare_exchange(
                &self,
                current: $word,
                new: $word,
                success: Ordering,
                failure: Ordering,
            ) -> Result<$word, $word> {
                self.access(success, |word| word.compare_exchange(current, new, success, failure))
            }
        }
    };
}
atomic!(AtomicU64, u64);
atomic!(AtomicUsize, usize);

/// As the everyday one. No thread of a model panics while it holds it and lets others go on.
#[derive(Debug, Default)]
pub struct Mutex<T>(loom::sync::Mutex<T>);

#[allow(missing_docs, reason = "they are those of the everyday one")]
impl<T> Mutex<T> {
    #[track_caller]
    pub fn new(value: T) -> Self {
        Mutex(loom::sync::Mutex::new(value))
    }

    #[track_caller]
    pub fn lock(&self) -> MutexGuard<'_, T> {
        self.0.lock().unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    #[track_caller]
    pub fn try_lock(&self) -> Option<MutexGuard<'_, T>> {
        self.0.try_lock().ok()
    }
}

/// The mutex of a [`Condvar`].
pub type CondMutex<T> = Mutex<T>;

/// As the everyday one. Nobody wakes without having been woken.
#[derive(Debug, Default)]
pub struct Condvar(loom::sync::Condvar);

#[allow(missing_docs, reason = "they are those of the everyday one")]
impl Condvar {
    #[track_caller]
    pub fn new() -> Self {
        Condvar(loom::sync::Condvar::new())
    }

    #[track_caller]
    pub fn wait<'l, T>(&self, latched: MutexGuard<'l, T>) -> MutexGuard<'l, T> {
        self.0.wait(latched).unwrap_or_else(std::sync::PoisonError::into_inner)
    }

    #[track_caller]
    pub fn notify_one(&self) {
        self.0.notify_one();
    }

    #[track_caller]
    pub fn notify_all(&self) {
        self.0.notify_all();
    }
}

/// Lets another thread go on, at once: time has no meaning in a model.
#[derive(Debug, Default)]
pub struct Backoff(Cell<u32>);

#[allow(missing_docs, reason = "they are those of the everyday one")]
impl Backoff {
    pub fn new() -> Self {
        Backoff::default()
    }

    pub fn snooze(&self) {
        self.0.set(self.0.get() + 1);
        if self.0.get() > 2 {
            // Threads that look again and again and find nothing new show nothing new: whoever they wait
            // for goes on, and this interleaving is not varied any further.
            loom::skip_branch();
        }
        loom::thread::yield_now();
    }
}
