//! What is left of a store, for salvage: tiers may be missing, and their identities damaged.

use super::{Place, lock};
use crate::identity::{self, Identity, Shape, State, tier_name};
use std::path::{Path, PathBuf};
use tierdb_base::{Error, ErrorKind, Result, TierRole, Uuid};
use tierdb_device::{Dir, DirLock};

/// A tier that should be there.
pub(crate) struct Remain<D> {
    /// Its directory, if that is there.
    pub dir: Option<D>,
    /// Where it is or was, as far as is known.
    pub path: PathBuf,
    /// The capacity it was created with, if that is known.
    pub capacity: Option<u64>,
}

/// What is left of a store, locked. Nothing of it was changed.
pub(crate) struct Remains<D> {
    /// The store.
    pub uuid: Uuid,
    /// What was fixed when it was created.
    pub shape: Shape,
    /// The fast tiers by number, if it had any.
    pub fast: Vec<Remain<D>>,
    /// The flash tiers by number.
    pub flash: Vec<Remain<D>>,
    /// What is missing or damaged, in words.
    pub notes: Vec<String>,
    /// It was being filled by a restore, a repair or a checkpoint that did not end: there were more keys to come.
    pub is_unfinished: bool,
    /// Released when dropped.
    pub _locks: Vec<Box<dyn DirLock>>,
}

impl<D: Dir> Remains<D> {
    /// Finds what is left at `places`.
    ///
    /// # Errors
    /// `NotFound` if no directory holds a tier; `Corrupt` if none says which store it is of; `ForeignTier` if they
    /// are of several; `NewerFormat`; `Locked`.
    pub(crate) fn find(places: Vec<Place<D>>) -> Result<Self> {
        let mut is_tier = Vec::with_capacity(places.len());
        for place in &places {
            let names = place.dir.as_ref().map_or(Ok(Vec::new()), Dir::list)?;
            is_tier.push(names.iter().any(|name| name == identity::NAME));
        }
        let mut tiers = is_tier.iter();
        let locks = lock(&places, |_| tiers.next() == Some(&true))?;
        let mut notes = Vec::new();
        let mut known: Vec<Option<Identity>> = Vec::with_capacity(places.len());
        let mut why = None;
        for (place, is_tier) in places.iter().zip(&is_tier) {
            let (Some(dir), true) = (&place.dir, is_tier) else {
                known.push(None);
                continue;
            };
            known.push(match identity::read_remains(dir, place.role) {
                Ok((identity, damaged)) => {
                    if damaged {
                        notes.push(format!("{}: the tier's identity is damaged", place.path.display()));
                    }
                    Some(identity)
                }
                Err(error) if error.kind() == ErrorKind::Refused || error.is_of_the_process() => {
                    return Err(error);
                }
                Err(error) => {
                    notes.push(format!("{}: {error}", place.path.display()));
                    why = why.or(Some(error));
                    None
                }
            });
        }
        let ready = known.iter().flatten().find(|identity| identity.state == State::Ready);
        let is_unfinished = ready.is_none() && known.iter().flatten().any(|one| one.state == State::Filling);
        let Some(store) = ready.or(known.iter().flatten().next()).cloned() else {
            let path = places.last().map(|place| place.path.clone()).unwrap_or_default();
            return Err(why.unwrap_or(Error::NotFound { path, hint: "no directory holds a tier of a store" }));
        };
        if is_unfinished {
            notes.push("a restore, repair or checkpoint into it did not end: what had not been copied yet is missing".to_owned());
        }
        for (place, found) in places.iter().zip(&known) {
            let Some(found) = found else { continue };
            if found.uuid != store.uuid || found.role != place.role {
                return Err(Error::ForeignTier {
                    path: place.path.clone(),
                    expected: format!("a {} of store {}", place.role, store.uuid),
                    found: found.describe(),
                });
            }
        }
        let unaccounted = |role, tiers: u8| {
            let is_known =
                |number: &u8| known.iter().flatten().any(|one| one.role == role && one.number == *number);
            (0..tiers).filter(|number| !is_known(number)).count()
        };
        let unaccounted = [(TierRole::Fast, store.fast_tiers), (TierRole::Flash, store.flash_tiers)]
            .map(|(role, tiers)| (role, unaccounted(role, tiers)));
        let mut places: Vec<_> = places.into_iter().zip(known).zip(is_tier).collect();
        let mut take = |role, number| {
            let by_number = places.iter().position(|((place, found), _)| {
                place.role == role && found.as_ref().is_some_and(|found| found.number == number)
            });
            // A directory whose identity is gone is the one that was there last, or can only be the one that is not accounted for.
            let unknown = |((place, found), is_tier): &((Place<D>, Option<Identity>), bool)| {
                place.role == role && found.is_none() && *is_tier
            };
            let last_path = store.last_path(role, number);
            let by_path = || {
                let was_there =
                    |place: &Place<D>| last_path.is_some_and(|last| place.path == Path::new(last));
                places.iter().position(|place| unknown(place) && was_there(&place.0.0))
            };
            let by_exclusion = || {
                let mut unknown = places.iter().enumerate().filter(|(_, place)| unknown(place));
                let first = unknown.next().map(|(at, _)| at);
                first.filter(|_| unknown.next().is_none() && unaccounted.contains(&(role, 1)))
            };
            match by_number.or_else(by_path).or_else(by_exclusion) {
                Some(at) => {
                    let ((place, found), _) = places.remove(at);
                    let capacity = found.map(|identity| identity.capacity);
                    Remain { dir: place.dir, path: place.path, capacity }
                }
                None => {
                    let path = last_path.unwrap_or_default();
                    notes.push(format!("{} is missing; it was last at {path:?}", tier_name(role, number)));
                    Remain { dir: None, path: path.into(), capacity: None }
                }
            }
        };
        let fast = (0..store.fast_tiers).map(|number| take(TierRole::Fast, number)).collect();
        let flash = (0..store.flash_tiers).map(|number| take(TierRole::Flash, number)).collect();
        Ok(Remains { uuid: store.uuid, shape: store.shape, fast, flash, notes, is_unfinished, _locks: locks })
    }
}
