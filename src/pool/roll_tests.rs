//! Rolls: each rule by itself, and a model of a fleet that goes through random changes.

use std::collections::BTreeMap;

use crawl_api::pool::{PoolLimits, PoolStrategy};
use jiff::Timestamp;
use k8s_openapi::apimachinery::pkg::util::intstr::IntOrString;
use proptest::prelude::*;

use super::limits::{self, Machines, Room};
use super::member::{Member, Outdated, Standing};
use super::observe::Observation;
use super::order::Leases;
use super::plan::{Action, Cause, plan};
use super::roll::{Roll, Stage};

/// How a member of the model does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Health {
    /// It boots.
    Starting,
    /// It gets no machine.
    Short,
    /// It is Ready, and available.
    Well,
    /// It was created, and fails.
    Failing,
}

#[derive(Clone, Debug)]
struct Model {
    id: usize,
    template: usize,
    health: Health,
    leases: i32,
}

/// A pool, and what goes on around it.
#[derive(Clone, Debug)]
struct World {
    replicas: usize,
    surge: i32,
    unavailable: i32,
    /// The present template, and whether members of it work.
    template: usize,
    works: bool,
    /// How many machines the provider gives.
    quota: usize,
    /// `limits.replicas`.
    limit: Option<u32>,
    members: Vec<Model>,
    going: Vec<usize>,
    deletes_first: bool,
    created: usize,
}

impl World {
    fn new(replicas: usize, surge: i32, unavailable: i32) -> Self {
        Self {
            replicas,
            surge,
            unavailable: if surge == 0 {
                unavailable.max(1)
            } else {
                unavailable
            },
            template: 0,
            works: true,
            quota: usize::MAX,
            limit: None,
            members: Vec::new(),
            going: Vec::new(),
            deletes_first: false,
            created: 0,
        }
    }

    fn observation(&self) -> Observation {
        Observation {
            replicas: self.replicas,
            members: self
                .members
                .iter()
                .map(|model| self.member(model))
                .collect(),
            unseen: 0,
            going: self.going.len(),
            places: Vec::new(),
            room: self.room(),
            unpriced: 0,
            strategy: PoolStrategy {
                max_surge: IntOrString::Int(self.surge),
                max_unavailable: IntOrString::Int(self.unavailable),
                min_ready_seconds: 0,
            },
            deletes_first: self.deletes_first,
            leases: Leases::NotAsked,
            newly_exhausted: Vec::new(),
            next: None,
        }
    }

    fn room(&self) -> Room {
        let limits = PoolLimits {
            replicas: self.limit,
            ..PoolLimits::default()
        };
        let machines = Machines {
            places: &vec![None; self.members.len() + self.going.len()],
            unseen: 0,
        };
        limits::room(Some(&limits), &[], machines)
    }

    fn member(&self, model: &Model) -> Member {
        let Model {
            id,
            template,
            health,
            leases: _,
        } = model;
        Member {
            name: format!("m{id:04}"),
            uid: id.to_string(),
            standing: match health {
                Health::Starting | Health::Short => Standing::NeverProvisioned,
                Health::Failing => Standing::Unhealthy,
                Health::Well => Standing::Ready,
            },
            available: *health == Health::Well,
            failing: (*health == Health::Failing).then(|| "ConnectionRefused: m".into()),
            outdated: (*template != self.template).then_some(Outdated::Template),
            update: None,
            created: Timestamp::from_second(i64::try_from(*id).unwrap()).unwrap(),
            place: None,
            stranded: *health == Health::Short,
            lacks_capacity: *health == Health::Short,
            next: None,
        }
    }

    fn available(&self) -> usize {
        let well = |model: &&Model| model.health == Health::Well;
        self.members.iter().filter(well).count()
    }

    fn leases(&self) -> BTreeMap<String, i32> {
        let of = |model: &Model| (model.id.to_string(), model.leases);
        self.members.iter().map(of).collect()
    }

    /// One pass. Says whether it did anything.
    fn pass(&mut self) -> bool {
        let mut observation = self.observation();
        let mut action = plan(&observation);
        if action == Action::CountLeases {
            observation.leases = Leases::Known(self.leases());
            action = plan(&observation);
        }
        let roll = Roll::of(&observation);
        self.deletes_first = roll.deletes_first;
        self.check(&action, &roll);
        match action {
            Action::Rest => false,
            Action::Create(count, _) => {
                for _ in 0..count {
                    self.members.push(Model {
                        id: self.created,
                        template: self.template,
                        health: Health::Starting,
                        leases: 0,
                    });
                    self.created += 1;
                }
                true
            },
            Action::Delete(_, gone) => {
                for member in gone {
                    let id: usize = member.uid.parse().unwrap();
                    self.members.retain(|model| model.id != id);
                    self.going.push(id);
                }
                true
            },
            other @ (Action::Update(_) | Action::CountLeases | Action::AwaitLeases) => {
                panic!("{other:?}")
            },
        }
    }

    /// What holds for every action.
    fn check(&self, action: &Action, roll: &Roll) {
        let present = self.members.len();
        let surge = usize::try_from(self.surge).unwrap();
        match action {
            Action::Create(count, _) => {
                assert!(*count > 0);
                let after = present + count;
                assert!(
                    after <= self.replicas + surge,
                    "more than replicas and surge"
                );
                if roll.deletes_first {
                    let machines = after + self.going.len();
                    assert!(machines <= self.replicas, "no room was known of");
                } else if roll.stage != Stage::Done {
                    let machines = after + self.going.len();
                    assert!(machines <= self.replicas + surge, "more machines than that");
                }
            },
            Action::Delete(cause, gone) => {
                assert!(!gone.is_empty());
                let well = gone.iter().filter(|member| member.available).count();
                if *cause == Cause::Outdated {
                    assert!(gone.iter().all(|member| member.outdated.is_some()));
                    let slack = usize::try_from(self.unavailable).unwrap();
                    let slack = if roll.deletes_first {
                        slack.max(1)
                    } else {
                        slack
                    };
                    let floor = roll.wanted.saturating_sub(slack);
                    let left = self.available() - well;
                    assert!(well == 0 || left >= floor, "fewer available than allowed");
                } else {
                    assert_eq!(*cause, Cause::TooMany);
                    assert!(present > self.replicas, "a scale-up deletes nothing");
                }
                self.check_order(*cause, gone);
            },
            Action::Rest | Action::Update(_) | Action::CountLeases | Action::AwaitLeases => {},
        }
    }

    /// No member goes before one that is of less use.
    fn check_order(&self, cause: Cause, gone: &[Member]) {
        let leases = self.leases();
        let rank = |member: &Member| match member.standing {
            Standing::Ready => (member.standing, leases[&member.uid]),
            // Of no use to whoever leases it.
            Standing::NeverProvisioned | Standing::Failed | Standing::Unhealthy => {
                (member.standing, 0)
            },
        };
        let worst = gone.iter().map(rank).max().unwrap();
        let stays = self
            .members
            .iter()
            .map(|model| self.member(model))
            .filter(|member| cause == Cause::TooMany || member.outdated.is_some())
            .filter(|member| !gone.iter().any(|other| other.uid == member.uid));
        for member in stays {
            assert!(
                rank(&member) >= worst,
                "{} should have gone first",
                member.name
            );
        }
    }

    /// As many passes as have something to do.
    fn settle(&mut self) {
        for _ in 0..200 {
            if !self.pass() {
                return;
            }
        }
        panic!("never at rest: {self:?}");
    }

    /// Time passes: machines boot, or do not, and those of deleted members go.
    fn tick(&mut self) {
        self.going.clear();
        let running = |model: &&Model| matches!(model.health, Health::Well | Health::Failing);
        let mut machines = self.members.iter().filter(running).count();
        for model in &mut self.members {
            let fails = model.template == self.template && !self.works;
            model.health = match model.health {
                Health::Starting | Health::Short if machines >= self.quota => Health::Short,
                Health::Starting | Health::Short => {
                    machines += 1;
                    if fails { Health::Failing } else { Health::Well }
                },
                Health::Failing if !fails => Health::Well,
                same @ (Health::Failing | Health::Well) => same,
            };
        }
    }

    /// A pool at rest, with every member as the template says.
    fn rested(replicas: usize, surge: i32, unavailable: i32) -> Self {
        let mut world = Self::new(replicas, surge, unavailable);
        for _ in 0..=replicas.div_ceil(50) {
            world.settle();
            world.tick();
        }
        assert_eq!(world.available(), replicas);
        world
    }

    fn change_template(&mut self, works: bool) {
        self.template = self.created + 1;
        self.works = works;
    }

    fn stage(&self) -> Stage {
        Roll::of(&self.observation()).stage
    }

    fn updated(&self) -> usize {
        let current = |model: &&Model| model.template == self.template;
        self.members.iter().filter(current).count()
    }
}

/// Case 52.
#[test]
fn the_first_new_member_is_waited_for_alone() {
    let mut world = World::rested(10, 3, 2);
    world.change_template(true);
    world.settle();
    assert_eq!((world.updated(), world.members.len()), (1, 11));
    assert_eq!(world.stage(), Stage::Waiting);
    world.tick();
    world.settle();
    assert_eq!(world.updated(), 3, "proven: the whole surge");
}

/// Case 52.
#[test]
fn a_roll_halts_when_the_new_member_fails_and_goes_on_when_the_template_is_corrected() {
    let mut world = World::rested(5, 2, 0);
    let good = world.template;
    world.change_template(false);
    for _ in 0..5 {
        world.settle();
        world.tick();
    }
    assert_eq!((world.updated(), world.available()), (1, 5));
    assert_eq!(world.stage(), Stage::Halted);

    // Taken back: those that were never replaced are as they should be.
    let mut back = world.clone();
    back.template = good;
    back.works = true;
    back.settle();
    assert_eq!((back.updated(), back.members.len()), (5, 5));
    assert_eq!(back.created, world.created, "nothing is created for that");

    world.change_template(true);
    for _ in 0..20 {
        world.settle();
        world.tick();
    }
    assert_eq!((world.updated(), world.members.len()), (5, 5));
}

/// Case 53.
#[test]
fn without_room_for_a_surge_members_are_deleted_first() {
    let mut world = World::rested(3, 1, 0);
    world.quota = 3;
    world.change_template(true);
    world.settle();
    assert_eq!(world.members.len(), 4, "a surge is tried");
    world.tick();
    assert!(world.pass(), "the member without a machine goes");
    assert!(world.deletes_first);
    assert_eq!((world.members.len(), world.available()), (3, 3));
    world.settle();
    assert_eq!((world.members.len(), world.available()), (2, 2));
    assert_eq!(
        world.going.len(),
        2,
        "another waits until the machine is gone"
    );
    let mut fewest = world.available();
    for _ in 0..20 {
        world.tick();
        world.settle();
        fewest = fewest.min(world.available());
    }
    assert_eq!((world.updated(), world.members.len()), (3, 3));
    assert_eq!(fewest, 2, "one at a time");
    assert!(!world.deletes_first, "forgotten with the roll");
}

#[test]
fn a_roll_in_a_pool_above_its_limit_deletes_nothing() {
    for limit in [0, 2] {
        let mut world = World::rested(5, 1, 0);
        world.limit = Some(limit);
        world.change_template(false);
        for _ in 0..20 {
            world.settle();
            world.tick();
        }
        assert_eq!(world.available(), 5);
        assert_eq!(world.stage(), Stage::Waiting);
    }
    // At the limit it deletes first, and the first new one is waited for.
    let mut world = World::rested(5, 1, 0);
    world.limit = Some(5);
    world.change_template(false);
    for _ in 0..20 {
        world.settle();
        world.tick();
    }
    assert_eq!((world.available(), world.stage()), (4, Stage::Halted));
}

#[test]
fn a_first_new_member_without_a_machine_gets_that_of_an_old_one() {
    let mut world = World::rested(10, 1, 2);
    world.quota = 9;
    world.members[0].health = Health::Short;
    world.change_template(true);
    let mut fewest = world.available();
    for _ in 0..40 {
        world.settle();
        fewest = fewest.min(world.available());
        world.tick();
    }
    assert_eq!((world.updated(), world.available()), (10, 9));
    assert_eq!(fewest, 8, "maxUnavailable is 2");
}

#[test]
fn a_leased_member_goes_after_an_idle_one() {
    let mut world = World::rested(3, 1, 0);
    world.members[0].leases = 2;
    world.members[1].leases = 1;
    world.change_template(true);
    let mut gone = Vec::new();
    for _ in 0..10 {
        world.settle();
        gone.extend(world.going.iter().copied());
        world.tick();
    }
    assert_eq!(gone, [2, 1, 0]);
}

#[test]
fn a_member_that_is_on_its_way_out_counts_against_the_surge() {
    let mut world = World::rested(3, 1, 0);
    world.change_template(true);
    world.settle();
    world.tick();
    world.settle();
    assert_eq!((world.members.len(), world.going.len()), (3, 1));
    world.settle();
    assert_eq!(world.updated(), 1, "the next waits for the machine to go");
    world.tick();
    world.settle();
    assert_eq!(world.updated(), 2);
}

#[test]
fn outdated_members_that_do_not_work_go_first() {
    let mut world = World::rested(4, 1, 0);
    world.members[2].health = Health::Failing;
    world.change_template(true);
    world.settle();
    world.members.last_mut().unwrap().health = Health::Well;
    world.settle();
    assert_eq!(world.going, [2]);
}

/// What happens to the model.
#[derive(Clone, Debug)]
enum Event {
    Scale(usize),
    Template { works: bool },
    Fail(usize),
    Lease(usize, i32),
    Quota(usize),
    Limit(Option<u32>),
    Tick,
}

fn event() -> impl Strategy<Value = Event> {
    prop_oneof![
        2 => (0..12_usize).prop_map(Event::Scale),
        2 => any::<bool>().prop_map(|works| Event::Template { works }),
        2 => (0..12_usize).prop_map(Event::Fail),
        3 => (0..12_usize, 0..4_i32).prop_map(|(index, leases)| Event::Lease(index, leases)),
        1 => (0..14_usize).prop_map(Event::Quota),
        1 => prop::option::of(1..14_u32).prop_map(Event::Limit),
        6 => Just(Event::Tick),
    ]
}

proptest! {
    /// Cases 54 and 55, and the bounds of a roll: see `World::check`.
    #[test]
    fn whatever_happens_bounds_are_kept_and_everything_is_updated_in_the_end(
        replicas in 0..10_usize,
        surge in 0..4_i32,
        unavailable in 0..3_i32,
        events in prop::collection::vec(event(), 0..40),
    ) {
        let mut world = World::new(replicas, surge, unavailable);
        for event in events {
            match event {
                Event::Scale(replicas) => world.replicas = replicas,
                Event::Template { works } => world.change_template(works),
                Event::Fail(index) => {
                    if let Some(model) = world.members.get_mut(index) {
                        model.health = Health::Failing;
                    }
                },
                Event::Lease(index, leases) => {
                    if let Some(model) = world.members.get_mut(index) {
                        model.leases = leases;
                    }
                },
                Event::Quota(quota) => world.quota = quota,
                Event::Limit(limit) => world.limit = limit,
                Event::Tick => world.tick(),
            }
            world.settle();
        }
        world.quota = usize::MAX;
        world.change_template(true);
        for _ in 0..100 {
            world.settle();
            world.tick();
        }
        world.settle();
        let present = world.members.len();
        // A limit deletes nothing, so there may be more than it allows.
        let least = world.limit.map_or(world.replicas, |limit| {
            world.replicas.min(usize::try_from(limit).unwrap())
        });
        prop_assert!((least..=world.replicas).contains(&present), "{present} members");
        // Nor does a roll: above it, what goes could not be replaced.
        if world.limit.is_none_or(|limit| present <= usize::try_from(limit).unwrap()) {
            prop_assert_eq!(world.updated(), present);
        }
        prop_assert_eq!(world.available(), present);
    }
}
