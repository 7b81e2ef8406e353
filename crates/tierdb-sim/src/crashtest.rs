//! The enumerator: runs a script, crashes it at every persist event, and checks every image.
//!
//! The checker must know what was acknowledged and what was in flight when the crash came. So the script
//! keeps that in an [`Oracle`], which is captured together with the devices: before an operation it notes
//! what it is about to do, afterwards that it was done. A crash point holds media and oracle of one
//! moment, also when other threads work on.
//!
//! [`explore`] stops at the first violation and says how to meet it again. With a `depth` over 1 it
//! also crashes the recovery of sampled images, and the recovery of those, and checks what that leaves
//! against the same oracle.

use crate::crash::{Budget, CrashModel, CrashPoint, Image, mix};
use crate::world::{Event, World};
use parking_lot::{Mutex, ReentrantMutex};
use std::cell::RefCell;
use std::fmt;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tierdb_base::mutant;

/// What a script knows of its operations, seen by the checker as it was at the crash.
pub struct Oracle<S>(Arc<ReentrantMutex<RefCell<S>>>);

impl<S> Clone for Oracle<S> {
    fn clone(&self) -> Self {
        Oracle(self.0.clone())
    }
}

impl<S: Clone + Send + 'static> Oracle<S> {
    /// Starts with what is known before the script.
    pub fn new(start: S) -> Self {
        Oracle(Arc::new(ReentrantMutex::new(RefCell::new(start))))
    }

    /// Notes what is about to be done, or was acknowledged. Do not use the world in `change`: no crash
    /// point may fall in it.
    pub fn update<T>(&self, change: impl FnOnce(&mut S) -> T) -> T {
        change(&mut self.0.lock().borrow_mut())
    }

    /// What is known now.
    pub fn get(&self) -> S {
        self.0.lock().borrow().clone()
    }

    /// The oracle and the world of one moment: no update falls between the two.
    fn capture(&self, world: &World) -> (S, CrashPoint) {
        let state = self.0.lock();
        let state = state.try_borrow().expect("a world was used inside of Oracle::update");
        (state.clone(), world.capture())
    }
}

/// How far to explore.
#[derive(Clone, Debug)]
pub struct Options {
    /// Chooses the images, and the recoveries that crash.
    pub seed: u64,
    /// Every point is explored in each of these.
    pub models: Vec<CrashModel>,
    /// Images of a point of the script.
    pub budget: Budget,
    /// Take every this many-th event as a crash point; the end of the script is always one.
    pub every: u64,
    /// 1 crashes the script; 2 also recovery; 3 also the recovery from that.
    pub depth: u32,
    /// Of the images, one in this many has its recovery crashed, chosen by the seed.
    pub recover_every: u64,
    /// At most this many crash points of one recovery, spread over it.
    pub recovery_points: usize,
    /// Images of a point of a recovery.
    pub recovery_budget: Budget,
    /// Stop after this many images. Points are then taken in random order.
    pub max_images: Option<u64>,
    /// Stop after this time. Points are then taken in random order.
    pub max_time: Option<Duration>,
    /// Of the events, only those that come at most this many after a call that was left out on purpose
    /// ([`tierdb_base::mutant`]). All events if none.
    pub after_left_out: Option<u64>,
    /// A thread that has left out a call waits so long before its next event, so that others run ahead of it.
    pub pause: Duration,
    /// Only the image that a failure names.
    pub replay: Option<Replay>,
}

impl Default for Options {
    /// Every event in both models, no crash in recovery, no limit, seed 1.
    fn default() -> Self {
        Options {
            seed: 1,
            models: CrashModel::BOTH.to_vec(),
            budget: Budget::default(),
            every: 1,
            depth: 1,
            recover_every: 16,
            recovery_points: 8,
            recovery_budget: Budget::SMALL,
            max_images: None,
            max_time: None,
            after_left_out: None,
            pause: Duration::ZERO,
            replay: None,
        }
    }
}

impl Options {
    /// These options with another seed.
    #[must_use]
    pub fn seed(self, seed: u64) -> Self {
        Options { seed, ..self }
    }

    /// These options with another depth.
    #[must_use]
    pub fn depth(self, depth: u32) -> Self {
        Options { depth, ..self }
    }
}

/// Stands for the end of a run in the place of an event's number.
const END: u64 = u64::MAX;

/// Where a violation was found: event and image, for the script and then for each recovery. The end of a
/// run has the number `u64::MAX`, and is written `end`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Replay(pub Vec<(u64, usize)>);

impl fmt::Display for Replay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (i, (event, image)) in self.0.iter().enumerate() {
            let between = if i == 0 { "" } else { "/" };
            match *event {
                END => write!(f, "{between}end.{image}")?,
                event => write!(f, "{between}{event}.{image}")?,
            }
        }
        Ok(())
    }
}

impl std::str::FromStr for Replay {
    type Err = String;

    fn from_str(text: &str) -> Result<Self, String> {
        let step = |step: &str| {
            let (event, image) = step.split_once('.')?;
            let event = if event == "end" { END } else { event.parse().ok()? };
            Some((event, image.parse().ok()?))
        };
        let steps: Option<Vec<_>> = text.split('/').map(step).collect();
        steps.map(Replay).ok_or_else(|| format!("{text:?} is not a replay: write event.image/event.image"))
    }
}

/// What was explored.
#[derive(Clone, Copy, Debug, Default)]
pub struct CrashRun {
    /// Crash points, in scripts and recoveries.
    pub points: u64,
    /// Distinct images that were checked, those of crashes in recovery included.
    pub images: u64,
    /// Those of crashes in recovery.
    pub in_recovery: u64,
    /// Whether a limit ended it early.
    pub truncated: bool,
    /// How long the checks took.
    pub elapsed: Duration,
}

impl CrashRun {
    /// Adds the counts of `other`.
    pub fn add(&mut self, other: &CrashRun) {
        self.points += other.points;
        self.images += other.images;
        self.in_recovery += other.in_recovery;
        self.truncated |= other.truncated;
        self.elapsed += other.elapsed;
    }
}

impl fmt::Display for CrashRun {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let rate = self.images as f64 / self.elapsed.as_secs_f64().max(1e-9);
        write!(
            f,
            "{} images ({} of crashes in recovery) of {} points in {:.1?}, {rate:.0} images/s{}",
            self.images,
            self.in_recovery,
            self.points,
            self.elapsed,
            if self.truncated { ", cut short" } else { "" }
        )
    }
}

/// A violation, and how to meet it again.
#[derive(Clone, Debug)]
pub struct CrashFailure {
    /// The seed of the exploration.
    pub seed: u64,
    /// Where it is: give it to [`Options::replay`].
    pub replay: Replay,
    /// The events and images, in words.
    pub path: Vec<String>,
    /// What the checker said, or the message of a panic.
    pub message: String,
}

impl fmt::Display for CrashFailure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "{}", self.message)?;
        for step in &self.path {
            writeln!(f, "  after a crash before {step}")?;
        }
        write!(f, "  to replay: seed {}, replay \"{}\"", self.seed, self.replay)
    }
}

impl std::error::Error for CrashFailure {}

/// A crash point of a run, with what the oracle knew.
struct Point<S> {
    state: S,
    before: Option<Event>,
    crash: CrashPoint,
}

impl<S> Point<S> {
    /// The number of its event; the end of the run comes after the last.
    fn number(&self) -> u64 {
        self.before.map_or(END, |event| event.number)
    }
}

/// Tells which events are to be crash points.
struct Chosen {
    every: u64,
    after_left_out: Option<u64>,
    pause: Duration,
    /// Calls that were left out so far, and the event that came first after the last of them.
    left_out: u64,
    last: Option<u64>,
}

impl Chosen {
    fn new(options: &Options, every: u64) -> Self {
        let Options { after_left_out, pause, .. } = *options;
        Chosen { every: every.max(1), after_left_out, pause, left_out: mutant::left_out(), last: None }
    }

    /// Whether `event` is one, and how long its thread is to wait before it.
    fn look(&mut self, event: u64) -> (bool, Duration) {
        let Some(window) = self.after_left_out else {
            return (event.is_multiple_of(self.every), Duration::ZERO);
        };
        let left_out = mutant::left_out();
        let mut pause = Duration::ZERO;
        if left_out != self.left_out {
            (self.left_out, self.last) = (left_out, Some(event));
            pause = self.pause;
        }
        (self.last.is_some_and(|last| event.saturating_sub(last) <= window), pause)
    }
}

/// Runs `work` and captures a point before every chosen event, and one at the end.
fn record<S: Clone + Send + 'static>(
    world: &World,
    oracle: &Oracle<S>,
    chosen: Chosen,
    work: impl FnOnce(),
) -> Vec<Point<S>> {
    struct Unhook<'a>(&'a World);
    impl Drop for Unhook<'_> {
        fn drop(&mut self) {
            self.0.on_event(None);
        }
    }
    let points: Arc<Mutex<Vec<Point<S>>>> = Arc::default();
    let (sink, seen, chosen) = (points.clone(), oracle.clone(), Mutex::new(chosen));
    world.on_event(Some(Arc::new(move |world, event| {
        let (is_chosen, pause) = chosen.lock().look(event.number);
        if !pause.is_zero() {
            std::thread::sleep(pause);
        }
        if is_chosen {
            let (state, crash) = seen.capture(world);
            sink.lock().push(Point { state, before: Some(*event), crash });
        }
    })));
    let unhook = Unhook(world);
    work();
    drop(unhook);
    let (state, crash) = oracle.capture(world);
    let mut points = std::mem::take(&mut *points.lock());
    points.push(Point { state, before: None, crash });
    points
}

struct Explorer<'a, S, R, C> {
    options: &'a Options,
    recover: &'a R,
    check: &'a C,
    /// The depth of the first step of a replay.
    first: u32,
    run: CrashRun,
    start: Instant,
    path: Vec<String>,
    replay: Vec<(u64, usize)>,
    _state: std::marker::PhantomData<fn(&S)>,
}

/// Runs `script` on `world`, then checks the images of a crash at each of its persist events.
///
/// `check` gets the oracle as it was at the crash and the image, opens it, and says what is wrong.
/// `recover` only opens an image; it is what crashes where [`Options::depth`] is over 1. Neither is to
/// panic: a panic counts as a violation. All runs on this thread, so switched-off sites
/// ([`tierdb_base::mutant`]) stay off in script, recovery and check.
///
/// # Errors
/// The first violation.
pub fn explore<S: Clone + Send + 'static>(
    world: &World,
    options: &Options,
    oracle: &Oracle<S>,
    script: impl FnOnce(&World, &Oracle<S>),
    recover: impl Fn(&World) -> Result<(), String>,
    check: impl Fn(&S, &World) -> Result<(), String>,
) -> Result<CrashRun, Box<CrashFailure>> {
    let chosen = Chosen::new(options, options.every);
    let points = record(world, oracle, chosen, || script(world, oracle));
    Explorer::new(options, &recover, &check, 1).all(points)
}

/// Crashes the recovery of `image` at its persist events and checks what that leaves against `state`,
/// down to [`Options::depth`] (at least once).
///
/// # Errors
/// The first violation.
pub fn explore_recovery<S: Clone + Send + 'static>(
    image: &World,
    options: &Options,
    state: &S,
    recover: impl Fn(&World) -> Result<(), String>,
    check: impl Fn(&S, &World) -> Result<(), String>,
) -> Result<CrashRun, Box<CrashFailure>> {
    let mut explorer = Explorer::new(options, &recover, &check, 2);
    let done = explorer.recovery(state, image, 2, options.seed);
    explorer.finish(done)
}

impl<'a, S, R, C> Explorer<'a, S, R, C>
where
    S: Clone + Send + 'static,
    R: Fn(&World) -> Result<(), String>,
    C: Fn(&S, &World) -> Result<(), String>,
{
    fn new(options: &'a Options, recover: &'a R, check: &'a C, first: u32) -> Self {
        Explorer {
            options,
            recover,
            check,
            first,
            run: CrashRun::default(),
            start: Instant::now(),
            path: Vec::new(),
            replay: Vec::new(),
            _state: std::marker::PhantomData,
        }
    }

    fn all(mut self, mut points: Vec<Point<S>>) -> Result<CrashRun, Box<CrashFailure>> {
        if self.options.max_images.is_some() || self.options.max_time.is_some() {
            fastrand::Rng::with_seed(self.options.seed).shuffle(&mut points);
        }
        let mut done = Ok(());
        for point in points {
            done = self.point(&point, 1, self.options.seed);
            if done.is_err() || self.run.truncated {
                break;
            }
        }
        self.finish(done)
    }

    fn finish(mut self, done: Result<(), String>) -> Result<CrashRun, Box<CrashFailure>> {
        self.run.elapsed = self.start.elapsed();
        let (seed, replay, path) = (self.options.seed, Replay(self.replay), self.path);
        let message = match done {
            Ok(()) if self.options.replay.is_some() && self.run.images == 0 => {
                "no crash is the one to replay: the run is another one now".into()
            }
            Ok(()) => return Ok(self.run),
            Err(message) => message,
        };
        Err(Box::new(CrashFailure { seed, replay, path, message }))
    }

    /// Whether the replay, if there is one, goes through `event` and `image` at this depth.
    fn wanted(&self, depth: u32, event: u64, image: Option<usize>) -> bool {
        let Some(Replay(steps)) = &self.options.replay else { return true };
        let step = steps.get((depth - self.first) as usize);
        step.is_some_and(|step| step.0 == event && image.is_none_or(|image| image == step.1))
    }

    fn exhausted(&mut self) -> bool {
        let images = self.options.max_images.is_some_and(|most| self.run.images >= most);
        let time = self.options.max_time.is_some_and(|most| self.start.elapsed() >= most);
        self.run.truncated |= images || time;
        self.run.truncated
    }

    fn point(&mut self, point: &Point<S>, depth: u32, seed: u64) -> Result<(), String> {
        let event = point.number();
        if !self.wanted(depth, event, None) {
            return Ok(());
        }
        self.run.points += 1;
        let seed = mix(seed, event);
        let budget = if depth == 1 { &self.options.budget } else { &self.options.recovery_budget };
        for image in point.crash.images(&self.options.models, seed, budget) {
            if self.exhausted() {
                break;
            }
            if !self.wanted(depth, event, Some(image.index)) {
                continue;
            }
            if let Err(message) = self.image(&point.state, &image, depth, seed) {
                // The innermost crash comes here first.
                let before = point.before.map_or_else(|| "the end".into(), |event| event.to_string());
                self.path.insert(0, format!("{before}, {image:?}"));
                self.replay.insert(0, (event, image.index));
                return Err(message);
            }
        }
        Ok(())
    }

    fn image(&mut self, state: &S, image: &Image, depth: u32, seed: u64) -> Result<(), String> {
        let seed = mix(seed, image.index as u64);
        let deeper = (depth - self.first) as usize + 1;
        let on_the_way = self.options.replay.as_ref().is_some_and(|replay| replay.0.len() > deeper);
        if !on_the_way {
            self.run.images += 1;
            self.run.in_recovery += u64::from(depth > 1);
        }
        let sampled = seed.is_multiple_of(self.options.recover_every.max(1));
        if depth < self.options.depth && sampled || on_the_way {
            // The check below may change the image, so its recovery crashes on a copy.
            self.recovery(state, &image.world, depth + 1, seed)?;
        }
        if on_the_way { Ok(()) } else { caught(|| (self.check)(state, &image.world)) }
    }

    fn recovery(&mut self, state: &S, image: &World, depth: u32, seed: u64) -> Result<(), String> {
        let (world, oracle) = (image.copy(), Oracle::new(state.clone()));
        let mut opened = Ok(());
        let mut points = record(&world, &oracle, Chosen::new(self.options, 1), || {
            opened = caught(|| (self.recover)(&world));
        });
        opened?;
        if points[0].crash.is_settled() {
            // Recovery has not begun to change anything: this is the image itself.
            points.remove(0);
        }
        let most = self.options.recovery_points.max(1);
        if points.len() > most && self.options.replay.is_none() {
            // Spread over the recovery, each as likely as the others over many recoveries.
            let step = points.len() as f64 / most as f64;
            let offset = (seed >> 40) as f64 / (1u64 << 24) as f64 * step;
            let mut number = 0;
            let chosen: Vec<usize> = (0..most).map(|i| (offset + i as f64 * step) as usize).collect();
            points.retain(|_| {
                number += 1;
                chosen.contains(&(number - 1))
            });
        }
        for point in points {
            self.point(&point, depth, seed)?;
        }
        Ok(())
    }
}

/// Runs `work` with a panic as its error.
fn caught(work: impl FnOnce() -> Result<(), String>) -> Result<(), String> {
    catch_unwind(AssertUnwindSafe(work)).unwrap_or_else(|panic| {
        let text = panic.downcast_ref::<String>().map(String::as_str);
        let text = text.or_else(|| panic.downcast_ref::<&str>().copied());
        Err(format!("panic: {}", text.unwrap_or("of an unknown kind")))
    })
}
