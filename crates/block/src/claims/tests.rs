//! The rules, one test each; and the register against a reference model that keeps every use of
//! every sector.

use std::collections::BTreeMap;

use proptest::prelude::{ProptestConfig, Strategy, any, prop, prop_assert_eq, proptest};

use super::{ClaimKind, Entry, Holder, Place, Register, Use, clash_within};
use crate::units::{Sector, SectorCount, SectorRange};

const OWN: Use = Use::Claim(ClaimKind::Own, "cache device");
const HANDED: Use = Use::Claim(ClaimKind::Handed, "COW device");
const KIN: Use = Use::Claim(ClaimKind::Kin, "origin");
const READ: Use = Use::Claim(ClaimKind::Read, "external origin");
const USES: [Use; 5] = [OWN, HANDED, KIN, READ, Use::Writer];

fn holder(id: u32, family: &str) -> Holder {
    Holder { id, name: format!("v{id}"), family: family.to_owned() }
}

fn entry(how: Use, place: usize, start: u64, count: u64) -> Entry {
    let place = Place::Disk(place);
    let range = SectorRange::new(Sector(start), SectorCount(count));
    Entry { place, range, how, root: place, through: Vec::new(), name: "disk".to_owned() }
}

fn through(entry: Entry, root: usize, families: &[&str]) -> Entry {
    let through = families.iter().map(|&family| family.to_owned()).collect();
    Entry { root: Place::Disk(root), through, ..entry }
}

/// Whether b may come to a, which is there.
fn meet(a: Entry, b: Entry) -> bool {
    let mut register = Register::default();
    register.replace(&holder(1, "a"), vec![a], Vec::new()).unwrap();
    register.replace(&holder(2, "b"), vec![b], Vec::new()).is_ok()
}

#[test]
fn a_claim_has_its_range_alone_but_for_readers_and_kin() {
    let at = |how| entry(how, 0, 0, 8);
    for (a, b, peace) in [
        (OWN, OWN, false),
        (OWN, READ, false),
        (OWN, Use::Writer, false),
        (HANDED, HANDED, false),
        (KIN, KIN, true),
        (KIN, OWN, false),
        (KIN, Use::Writer, false),
        (READ, READ, true),
        (READ, Use::Writer, false),
        (Use::Writer, Use::Writer, true),
    ] {
        assert_eq!(meet(at(a), at(b)), peace, "{a:?}, {b:?}");
        assert_eq!(meet(at(b), at(a)), peace, "{b:?}, {a:?}");
    }
}

#[test]
fn disjoint_ranges_and_other_disks_do_not_meet() {
    assert!(meet(entry(OWN, 0, 0, 8), entry(OWN, 0, 8, 8)));
    assert!(meet(entry(OWN, 0, 0, 8), entry(OWN, 1, 0, 8)));
    assert!(!meet(entry(OWN, 0, 0, 9), entry(OWN, 0, 8, 8)));
}

#[test]
fn claims_of_one_role_on_different_devices_are_no_kin() {
    let (direct, by_volume) = (entry(KIN, 0, 0, 8), through(entry(KIN, 0, 0, 8), 7, &["c"]));
    assert!(!meet(direct, by_volume));
}

#[test]
fn a_volume_beneath_writes_for_the_one_above() {
    let claim = through(entry(OWN, 0, 0, 8), 7, &["a"]);
    assert!(meet(entry(Use::Writer, 0, 0, 8), claim.clone()));
    assert!(!meet(entry(Use::Writer, 0, 0, 8), through(claim, 7, &["c"])));
}

#[test]
fn a_suspended_owner_keeps_its_claim_and_a_suspended_writer_none() {
    let mut register = Register::default();
    register.replace(&holder(1, "a"), vec![entry(OWN, 0, 0, 8)], Vec::new()).unwrap();
    register.replace(&holder(2, "b"), vec![entry(Use::Writer, 1, 0, 8)], Vec::new()).unwrap();
    register.rest(1);
    register.rest(2);
    let wants = |place| vec![entry(OWN, place, 4, 8)];
    let clash = register.replace(&holder(3, "c"), wants(0), Vec::new()).unwrap_err();
    assert_eq!((clash.asker.id, clash.owner.id), (3, 1));
    register.replace(&holder(3, "c"), wants(1), Vec::new()).unwrap();
    let again = vec![entry(Use::Writer, 1, 0, 8)];
    assert!(register.replace(&holder(2, "b"), again, Vec::new()).is_err(), "it asks at its resume");
    register.release(1);
    register.replace(&holder(4, "d"), wants(0), Vec::new()).unwrap();
}

#[test]
fn a_suspended_part_hands_its_claim_to_another_part() {
    let mut register = Register::default();
    let claim = || vec![entry(OWN, 0, 0, 8)];
    register.replace(&holder(1, "v"), claim(), Vec::new()).unwrap();
    assert!(register.replace(&holder(2, "v"), claim(), Vec::new()).is_err(), "it is live");
    register.rest(1);
    register.replace(&holder(2, "v"), claim(), Vec::new()).unwrap();
    assert!(register.replace(&holder(1, "v"), claim(), Vec::new()).is_err(), "it was handed over");
    assert!(register.replace(&holder(3, "w"), claim(), Vec::new()).is_err());
}

#[test]
fn a_suspended_store_goes_to_the_next_who_serves_it() {
    let mut register = Register::default();
    let store = |how| vec![entry(how, 0, 0, 8)];
    register.replace(&holder(1, "a"), store(HANDED), Vec::new()).unwrap();
    register.rest(1);
    assert!(register.replace(&holder(2, "b"), store(OWN), Vec::new()).is_err());
    register.replace(&holder(2, "b"), store(HANDED), Vec::new()).unwrap();
    assert!(register.replace(&holder(1, "a"), store(HANDED), Vec::new()).is_err());
}

#[test]
fn claims_above_a_volume_follow_its_new_table_or_refuse_it() {
    let mut register = Register::default();
    let led = |place| through(entry(OWN, place, 0, 8), 7, &["lower"]);
    let lower = |place| vec![entry(Use::Writer, place, 0, 8)];
    register.replace(&holder(1, "lower"), lower(0), Vec::new()).unwrap();
    register.replace(&holder(2, "pool"), vec![led(0)], Vec::new()).unwrap();
    register.replace(&holder(3, "other"), vec![entry(OWN, 1, 0, 8)], Vec::new()).unwrap();
    let refused = register.replace(&holder(1, "lower"), lower(1), vec![(2, vec![led(1)])]);
    assert_eq!(refused.unwrap_err().owner.id, 3);
    assert_eq!(register.users(Place::Disk(0)).count(), 2, "L2");
    register.replace(&holder(1, "lower"), lower(2), vec![(2, vec![led(2)])]).unwrap();
    assert_eq!(register.users(Place::Disk(0)).count(), 0);
    assert!(register.replace(&holder(4, "d"), vec![entry(READ, 2, 0, 1)], Vec::new()).is_err());
}

#[test]
fn one_table_does_not_name_a_range_twice() {
    let me = holder(1, "a");
    let clash = clash_within(&me, &[entry(OWN, 0, 0, 8), entry(OWN, 0, 7, 8)]).unwrap();
    assert_eq!((clash.asker.id, clash.owner.id), (1, 1));
    assert!(clash_within(&me, &[entry(Use::Writer, 0, 0, 8), entry(OWN, 0, 7, 8)]).is_some());
    assert!(clash_within(&me, &[entry(KIN, 0, 0, 8), entry(KIN, 0, 7, 8)]).is_none());
    assert!(clash_within(&me, &[entry(OWN, 0, 0, 8), entry(OWN, 0, 8, 8)]).is_none());
}

const SECTORS: u64 = 10;

/// By holder and number of the entry.
type Uses = Vec<(u32, usize, Entry)>;

/// Every use of every sector of every disk.
#[derive(Default)]
struct Model {
    live: BTreeMap<u32, (String, bool)>,
    sectors: BTreeMap<(Place, u64), Uses>,
    next: usize,
}

impl Model {
    fn take(&mut self, me: &Holder, entries: &[Entry]) -> bool {
        let mut handed = Vec::new();
        for wanted in entries {
            for sector in wanted.range.start.0..wanted.range.end().0 {
                for (id, number, held) in self.sectors.entry((wanted.place, sector)).or_default() {
                    let (family, live) = &self.live[id];
                    let same_device = wanted.how == held.how && wanted.root == held.root;
                    let beneath =
                        held.through.contains(&me.family) || wanted.through.contains(family);
                    if *id == me.id || beneath {
                        continue;
                    }
                    match (held.how, wanted.how) {
                        (Use::Writer, Use::Writer) => (),
                        (Use::Claim(ClaimKind::Read, _), Use::Claim(ClaimKind::Read, _)) => (),
                        (Use::Claim(ClaimKind::Kin, _), _) if same_device => (),
                        _ if *live => return false,
                        (Use::Writer, _) => (),
                        _ if *family == me.family => handed.push(*number),
                        (Use::Claim(ClaimKind::Handed, _), _) if same_device => {
                            handed.push(*number);
                        }
                        _ => return false,
                    }
                }
            }
        }
        for users in self.sectors.values_mut() {
            users.retain(|(id, number, _)| *id != me.id && !handed.contains(number));
        }
        for entry in entries {
            self.next += 1;
            for sector in entry.range.start.0..entry.range.end().0 {
                let users = self.sectors.entry((entry.place, sector)).or_default();
                users.push((me.id, self.next, entry.clone()));
            }
        }
        self.live.insert(me.id, (me.family.clone(), true));
        true
    }

    fn release(&mut self, id: u32) {
        self.sectors.values_mut().for_each(|users| users.retain(|(user, ..)| *user != id));
        self.live.remove(&id);
    }

    fn uses(&self, place: Place, sector: u64) -> Vec<(u32, String)> {
        let users = self.sectors.get(&(place, sector)).into_iter().flatten();
        sorted(users.map(|(id, _, entry)| (*id, format!("{entry:?}"))).collect())
    }
}

fn sorted(mut uses: Vec<(u32, String)>) -> Vec<(u32, String)> {
    uses.sort();
    uses
}

#[derive(Clone, Debug)]
enum Step {
    Take(u32, Vec<Entry>),
    Rest(u32),
    Release(u32),
}

const FAMILIES: [&str; 3] = ["a", "b", "c"];

/// Holders 0 and 3 are one family, and so on.
fn of_family(id: u32) -> Holder {
    holder(id, FAMILIES[id as usize % FAMILIES.len()])
}

fn entries() -> impl Strategy<Value = Entry> {
    let places = (0..2usize, 0..2usize);
    (0..USES.len(), places, 0..SECTORS - 1, 1..4u64, any::<[bool; 3]>()).prop_map(
        |(how, (place, root), start, count, on_way)| {
            let ways = FAMILIES.iter().zip(on_way).filter(|(_, on)| *on).map(|(family, _)| *family);
            let ways: Vec<&str> = if root == place { Vec::new() } else { ways.collect() };
            through(entry(USES[how], place, start, count.min(SECTORS - start)), root, &ways)
        },
    )
}

fn steps() -> impl Strategy<Value = Step> {
    (0..6u32, 0..6u8, prop::collection::vec(entries(), 1..3)).prop_map(|(id, act, entries)| {
        match act {
            0 => Step::Release(id),
            1 | 2 => Step::Rest(id),
            _ => Step::Take(id, entries),
        }
    })
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(400))]

    #[test]
    fn the_register_decides_as_its_reference_model(steps in prop::collection::vec(steps(), 1..40)) {
        let (mut register, mut model) = (Register::default(), Model::default());
        for step in steps {
            match step {
                Step::Take(id, entries) => {
                    let me = of_family(id);
                    let checked = register.check_all(&me, &entries, &[]).is_ok();
                    let taken = register.replace(&me, entries.clone(), Vec::new()).is_ok();
                    prop_assert_eq!(checked, taken);
                    prop_assert_eq!(taken, model.take(&me, &entries), "{:?}", entries);
                }
                Step::Rest(id) => {
                    register.rest(id);
                    model.live.entry(id).and_modify(|(_, live)| *live = false);
                }
                Step::Release(id) => {
                    register.release(id);
                    model.release(id);
                }
            }
            for place in [Place::Disk(0), Place::Disk(1)] {
                for sector in 0..SECTORS {
                    let here = register.users(place);
                    let here = here.filter(|(_, entry)| entry.range.contains(Sector(sector)));
                    let uses = here.map(|(user, entry)| (user.id, format!("{entry:?}"))).collect();
                    prop_assert_eq!(sorted(uses), model.uses(place, sector));
                }
            }
        }
    }
}
