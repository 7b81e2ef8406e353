//! Which directories are which tiers of which store: found, checked and locked, or created.
//!
//! Opening, in this order:
//! 1. Look at every directory, without changing anything: absent, empty, a tier, or something else (refused).
//! 2. Lock every directory that is there, and look again: what is read from now on stays as it is. If a store is
//!    to be created, make and lock those that are absent, and look again at all: another process may have come first.
//! 3. If any tier says *ready*, the store is complete: all its tiers must be there, of the right role and
//!    number, and of one store. If none does, nothing was ever acknowledged in any of them, and the store is
//!    created: afresh, or again where an earlier creation was interrupted. What a copy was to fill is only created for a copy.
//!
//! Creation: every directory gets a `TIER` that says *creating*, and whether a copy is to fill it; then the engine creates its files; then every
//! `TIER` says *ready*. A crash before the first *ready* leaves a creation to do again, a crash after it one to
//! finish, which is to mark the rest.
//!
//! A directory that holds anything else is never written to: not even its lock file.

mod remains;

use crate::identity::{self, Found, Identity, Shape, State};
use std::ffi::OsStr;
use std::path::{Path, PathBuf};
use tierdb_base::{Error, Result, TierRole, Uuid};
use tierdb_device::{Dir, DirLock};

pub(crate) use remains::{Remain, Remains};

/// What may be done about a store that is not there, or is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Intent {
    /// Open it, or create it where all tiers are absent or empty.
    OpenOrCreate,
    /// Open it; it must be there.
    OpenExisting,
    /// Create it, to be filled with a copy; it must not be there.
    CreateNew,
}

/// A directory that the configuration names as a tier.
pub(crate) struct Place<D> {
    /// The directory, or `None` if there is none.
    pub dir: Option<D>,
    /// Where the configuration says it is.
    pub path: PathBuf,
    /// What the configuration says it is for.
    pub role: TierRole,
    /// Most bytes to use in it; `u64::MAX` is that of the file system.
    pub capacity: u64,
}

/// One tier of an open store.
pub(crate) struct Tier<D> {
    /// Its directory.
    pub dir: D,
    /// Where it is.
    pub path: PathBuf,
    /// Its place in the configuration's list of its role.
    pub configured: usize,
    found: Option<Found>,
    identity: Identity,
}

/// All tiers of a store, locked.
pub(crate) struct Tiers<D> {
    /// The store.
    pub uuid: Uuid,
    /// What was fixed when it was created.
    pub shape: Shape,
    /// The fast tiers by number, if it has any.
    pub fast: Vec<Tier<D>>,
    /// The flash tiers by number.
    pub flash: Vec<Tier<D>>,
    /// Whether the engine has yet to create its files.
    pub fresh: bool,
    /// Released when dropped, after the engine was closed.
    pub locks: Vec<Box<dyn DirLock>>,
}

/// Names that do not make a directory foreign: those of a lock, of a creation that was cut short, of a
/// probe, and what a file system puts into its root.
const INDIFFERENT: [&str; 4] = ["LOCK", identity::NEW_NAME, PROBE_NAME, "lost+found"];
pub(crate) fn is_indifferent(name: &str) -> bool {
    INDIFFERENT.contains(&name) || name.starts_with("PROBE.")
}

/// A file by which the facade finds out whether a directory can be mapped.
pub(crate) const PROBE_NAME: &str = "probe.tmp";

/// What to do about a directory that a copy was to fill.
const FILLING: &str = "a restore, repair or checkpoint into it has not ended: if it was interrupted, do it again, or remove the \
                       directory";

/// What is in a directory.
enum Content {
    Nothing,
    Tier(Found),
}

impl Content {
    fn found(&self) -> Option<&Found> {
        match self {
            Content::Tier(found) => Some(found),
            Content::Nothing => None,
        }
    }

    fn ready(&self) -> Option<&Identity> {
        self.found().map(|found| &found.identity).filter(|identity| identity.state == State::Ready)
    }

    fn is_filling(&self) -> bool {
        self.found().is_some_and(|found| found.identity.state == State::Filling)
    }
}

fn look<D: Dir>(place: &Place<D>) -> Result<Content> {
    let Some(dir) = &place.dir else { return Ok(Content::Nothing) };
    let names = dir.list()?;
    if names.iter().any(|name| name == identity::NAME) {
        return identity::read(dir, place.role).map(Content::Tier);
    }
    match names.iter().find(|name| !is_indifferent(name)) {
        None => Ok(Content::Nothing),
        Some(other) => Err(not_a_store(&place.path, other.as_ref())),
    }
}

/// The refusal of a directory that holds `other` and is no tier.
pub(crate) fn not_a_store(path: &Path, other: &OsStr) -> Error {
    let why = format!(
        "it holds {other:?} but no {} file; name an empty or absent directory to create a store in it",
        identity::NAME
    );
    Error::NotAStore { path: path.into(), why }
}

impl<D: Dir> Tiers<D> {
    /// Finds, checks and locks the store whose tiers are at `places`, or begins to create it.
    ///
    /// `make` creates an absent directory. `shape` decides what is fixed for a new store, once it is certain
    /// that one will be created and the directories are there. `own_file` knows the names of the engine's files.
    ///
    /// # Errors
    /// `NotFound` (also for `OpenOrCreate`, where a copy was to be), `NotAStore`, `ForeignTier`, `TierMissing`, `NewerFormat`, `Corrupt`, `Locked`, `Invalid`
    /// (tiers added, or `CreateNew` where a store is). Nothing was changed then, except that locks were tried
    /// and absent directories may have been made.
    pub(crate) fn open(
        mut places: Vec<Place<D>>,
        intent: Intent,
        now: u64,
        mut make: impl FnMut(&Path) -> Result<D>,
        shape: impl FnOnce(&[Place<D>]) -> Result<Shape>,
        own_file: impl Fn(&str) -> bool,
    ) -> Result<Self> {
        let look_at_all = |places: &[Place<D>]| places.iter().map(look).collect::<Result<Vec<_>>>();
        check(&places, &look_at_all(&places)?, intent)?;
        let mut locks = lock(&places, |_| true)?;
        // A second time where directories were absent: before they were there and locked, another process may have
        // made a store in them.
        let contents = loop {
            let contents = look_at_all(&places)?;
            if check(&places, &contents, intent)? {
                return Self::adopt(places, contents, locks);
            }
            for (place, content) in places.iter().zip(&contents) {
                if content.is_filling() && intent != Intent::CreateNew {
                    return Err(Error::NotFound { path: place.path.clone(), hint: FILLING });
                }
            }
            for (path, dir) in cut_short(&places, &contents) {
                leftovers(path, dir, &own_file)?;
            }
            if places.iter().all(|place| place.dir.is_some()) {
                break contents;
            }
            for place in places.iter_mut().filter(|place| place.dir.is_none()) {
                let dir = make(&place.path)?;
                locks.push(dir.lock()?);
                place.dir = Some(dir);
            }
        };
        for (path, dir) in cut_short(&places, &contents) {
            clear(path, dir, &own_file)?;
        }
        let shape = shape(&places)?;
        let state = if intent == Intent::CreateNew { State::Filling } else { State::Creating };
        Self::create(places, shape, state, now, locks)
    }

    /// The tiers of a store that is complete.
    fn adopt(places: Vec<Place<D>>, contents: Vec<Content>, locks: Vec<Box<dyn DirLock>>) -> Result<Self> {
        let (mut fast, mut flash, mut store) = (Vec::new(), Vec::new(), None);
        for (place, content) in places.into_iter().zip(contents) {
            let (Some(dir), Content::Tier(found)) = (place.dir, content) else { continue };
            let list = if place.role == TierRole::Fast { &mut fast } else { &mut flash };
            let identity = found.identity.clone();
            if store.is_none() || identity.state == State::Ready {
                store = Some((identity.uuid, identity.shape));
            }
            let configured = list.len();
            list.push(Tier { dir, path: place.path, configured, found: Some(found), identity });
        }
        let Some((uuid, shape)) = store else { return Err(Error::invalid("a store has at least one tier")) };
        for list in [&mut fast, &mut flash] {
            list.sort_by_key(|tier| tier.identity.number);
        }
        Ok(Tiers { uuid, shape, fast, flash, fresh: false, locks })
    }

    /// Marks all directories as tiers of a store that is being created.
    fn create(
        places: Vec<Place<D>>,
        shape: Shape,
        state: State,
        now: u64,
        locks: Vec<Box<dyn DirLock>>,
    ) -> Result<Self> {
        let uuid = Uuid::new_v4();
        let count = |role| places.iter().filter(|place| place.role == role).count() as u8;
        let (fast_tiers, flash_tiers) = (count(TierRole::Fast), count(TierRole::Flash));
        let in_order = |role| places.iter().filter(move |place| place.role == role);
        let paths: Vec<String> = in_order(TierRole::Fast)
            .chain(in_order(TierRole::Flash))
            .map(|place| place.path.display().to_string())
            .collect();
        let (mut fast, mut flash) = (Vec::new(), Vec::new());
        for place in places {
            let Some(dir) = place.dir else { continue };
            let list = if place.role == TierRole::Fast { &mut fast } else { &mut flash };
            let identity = Identity {
                uuid,
                generation: 1,
                created: now,
                capacity: place.capacity,
                shape,
                role: place.role,
                state,
                number: list.len() as u8,
                fast_tiers,
                flash_tiers,
                paths: paths.clone(),
            };
            identity::create(&dir, &identity)?;
            let found = identity::read(&dir, place.role)?;
            list.push(Tier { dir, path: place.path, configured: list.len(), found: Some(found), identity });
        }
        Ok(Tiers { uuid, shape, fast, flash, fresh: true, locks })
    }

    /// Marks every tier as ready, in its present place, and repairs damaged copies of its identity. To be called
    /// when the engine has created or opened its files, and before anybody uses the store.
    pub(crate) fn finish(&mut self) -> Result<()> {
        let paths: Vec<String> =
            self.fast.iter().chain(&self.flash).map(|tier| tier.path.display().to_string()).collect();
        for tier in self.fast.iter_mut().chain(&mut self.flash) {
            let Some(found) = tier.found.take() else { continue };
            let ready = Identity { state: State::Ready, paths: paths.clone(), ..tier.identity.clone() };
            tier.identity = if ready == found.identity {
                identity::heal(&tier.dir, &found)?
            } else {
                identity::update(&tier.dir, &found, &ready)?
            };
        }
        Ok(())
    }

    /// The same tiers, to be looked at and not changed.
    pub(crate) fn into_remains(self) -> Remains<D> {
        let remain = |tier: Tier<D>| {
            let capacity = Some(tier.identity.capacity);
            Remain { dir: Some(tier.dir), path: tier.path, capacity }
        };
        Remains {
            uuid: self.uuid,
            shape: self.shape,
            fast: self.fast.into_iter().map(remain).collect(),
            flash: self.flash.into_iter().map(remain).collect(),
            notes: Vec::new(),
            is_unfinished: false,
            _locks: self.locks,
        }
    }

    /// Declares that nobody relies on the store, after which its directories count as those of a copy that
    /// was cut short.
    pub(crate) fn abandon(&mut self) -> Result<()> {
        for tier in self.fast.iter_mut().chain(&mut self.flash) {
            let found = identity::read(&tier.dir, tier.identity.role)?;
            // What says so already is not written again: there may be no room even for that.
            if found.identity.state != State::Filling {
                let filling = Identity { state: State::Filling, ..tier.identity.clone() };
                tier.identity = identity::update(&tier.dir, &found, &filling)?;
            }
        }
        Ok(())
    }

    /// Removes the store, which is abandoned first. Locks stay, and so does all where there are files of others. A crash leaves
    /// what counts as a copy that was cut short, or nothing.
    pub(crate) fn remove(&mut self, own_file: impl Fn(&str) -> bool) -> Result<()> {
        self.abandon()?;
        for tier in self.fast.iter().chain(&self.flash) {
            clear(&tier.path, &tier.dir, &own_file)?;
            // Without `TIER`, a file that came back would be one of others.
            tier.dir.sync()?;
            tier.dir.remove(identity::NAME)?;
        }
        Ok(())
    }
}

impl<D> Tier<D> {
    /// What its `TIER` says.
    pub(crate) fn identity(&self) -> &Identity {
        &self.identity
    }
}

/// Locks the directories that are there and that `which` chooses.
fn lock<D: Dir>(
    places: &[Place<D>],
    mut which: impl FnMut(&Place<D>) -> bool,
) -> Result<Vec<Box<dyn DirLock>>> {
    let mut locks = Vec::new();
    for place in places {
        if which(place)
            && let Some(dir) = &place.dir
        {
            locks.push(dir.lock()?);
        }
    }
    Ok(locks)
}

/// The directories in which the creation of a store was interrupted, with their paths.
fn cut_short<'a, D>(
    places: &'a [Place<D>],
    contents: &'a [Content],
) -> impl Iterator<Item = (&'a Path, &'a D)> + 'a {
    let both = places.iter().zip(contents).filter(|(_, content)| content.found().is_some());
    both.filter_map(|(place, _)| Some((place.path.as_path(), place.dir.as_ref()?)))
}

/// Removes what [`leftovers`] finds in `dir`.
fn clear<D: Dir>(path: &Path, dir: &D, own_file: &impl Fn(&str) -> bool) -> Result<()> {
    leftovers(path, dir, own_file)?.iter().try_for_each(|name| dir.remove(name))
}

/// What the creation of a store that nobody relies on left in `dir`, but for the `TIER` that says so: a crash while the rest is
/// removed leaves it recognisable.
fn leftovers<D: Dir>(path: &Path, dir: &D, own_file: &impl Fn(&str) -> bool) -> Result<Vec<String>> {
    let mut names = dir.list()?;
    names.retain(|name| name != identity::NAME && !is_indifferent(name));
    match names.iter().find(|name| !own_file(name)) {
        None => Ok(names),
        Some(other) => Err(Error::NotAStore {
            path: path.into(),
            why: format!(
                "the creation of a store in it was interrupted, and it holds {other:?}; remove that first"
            ),
        }),
    }
}

/// Whether the places hold a complete store (`true`) or one is to be created (`false`).
fn check<D>(places: &[Place<D>], contents: &[Content], intent: Intent) -> Result<bool> {
    let Some(store) = contents.iter().find_map(Content::ready) else {
        let what = places.iter().find(|place| place.role == TierRole::Flash).or(places.first());
        return match (intent, what) {
            (Intent::OpenExisting, Some(place)) => Err(Error::NotFound {
                path: place.path.clone(),
                hint: if contents.iter().any(Content::is_filling) {
                    FILLING
                } else if contents.iter().any(|content| content.found().is_some()) {
                    "its creation was interrupted before it held anything: create it again"
                } else {
                    "create it first, or correct the path"
                },
            }),
            _ => Ok(false),
        };
    };
    if intent == Intent::CreateNew {
        return Err(Error::invalid(format!(
            "the target already holds {}; name an absent or empty directory",
            store.describe()
        )));
    }
    let mut present: Vec<(TierRole, u8)> = Vec::new();
    for (place, content) in places.iter().zip(contents) {
        let Some(found) = content.found() else { continue };
        let found = &found.identity;
        let foreign = |expected: String| Error::ForeignTier {
            path: place.path.clone(),
            expected,
            found: found.describe(),
        };
        if found.uuid != store.uuid {
            return Err(foreign(format!("a {} of store {}", place.role, store.uuid)));
        }
        if found.role != place.role {
            return Err(foreign(format!("a {} of store {}", place.role, store.uuid)));
        }
        if present.contains(&(found.role, found.number)) {
            return Err(foreign(format!(
                "another {} of store {} (this is a second copy)",
                place.role, store.uuid
            )));
        }
        present.push((found.role, found.number));
    }
    let all = [(TierRole::Fast, store.fast_tiers), (TierRole::Flash, store.flash_tiers)];
    for (role, number) in all.into_iter().flat_map(|(role, count)| (0..count).map(move |n| (role, n))) {
        if present.contains(&(role, number)) {
            continue;
        }
        // An empty or absent directory that the configuration has for this role is where it was expected.
        let configured = places
            .iter()
            .zip(contents)
            .find(|(place, content)| place.role == role && content.found().is_none())
            .map(|(place, _)| place.path.clone());
        let last = store.last_path(role, number).map(PathBuf::from);
        return Err(Error::TierMissing {
            role,
            uuid: format!("{number} of store {}", store.uuid),
            path: configured.or(last).unwrap_or_default(),
        });
    }
    if let Some((place, _)) = places.iter().zip(contents).find(|(_, content)| content.found().is_none()) {
        return Err(Error::invalid(format!(
            "{} is configured as a {}, but store {} was created without it; to change tiers, make a checkpoint and \
             restore it into the new ones",
            place.path.display(),
            place.role,
            store.uuid
        )));
    }
    Ok(true)
}

#[cfg(test)]
mod crash;
#[cfg(test)]
mod tests;
