//! Opening and closing of a disk that takes its time for both, as one over a network does.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};
use std::time::Duration;

use cairn_block::{
    ConfigError, ConfigKind, Disk, Env, FailureCount, Flow, Identity, LocalFuture, Mail, Opener,
    Post, ReactorId, Registry, Request, SectorCount, until,
};
use cairn_sim::SimWorld;
use event_listener::Event;

const STEP: Duration = Duration::from_secs(1);

/// A server that takes one client at a time.
#[derive(Default)]
struct Server {
    connects: AtomicU32,
    refuses: AtomicBool,
    has_client: AtomicBool,
    client_left: Event,
}

struct Remote {
    server: Arc<Server>,
    post: Arc<dyn Post>,
}

impl Disk for Remote {
    fn name(&self) -> String {
        "remote".to_owned()
    }

    fn sectors(&self) -> SectorCount {
        SectorCount(8)
    }

    fn submit(&self, _env: &Env, _request: &mut Request) -> Flow {
        Flow::Done
    }
}

impl Drop for Remote {
    fn drop(&mut self) {
        let server = self.server.clone();
        let goodbye = move |env: &Env| {
            let task = env.clone();
            env.spawn(async move {
                task.sleep(STEP).await;
                server.has_client.store(false, Ordering::SeqCst);
                server.client_left.notify(usize::MAX);
            });
        };
        self.post.post(ReactorId(1), Mail::Call(Box::new(goodbye)));
    }
}

struct Network(Arc<Server>);

impl Opener for Network {
    fn identify(&self, _argument: &str) -> Result<Identity, ConfigError> {
        Ok(Identity::Block { number: 1, sequence: 0 })
    }

    fn open(
        &self,
        argument: &str,
        _read_only: bool,
        _failures: Arc<FailureCount>,
    ) -> Result<Arc<dyn Disk>, ConfigError> {
        Err(ConfigError::new(ConfigKind::System, argument, "it is opened on a reactor only"))
    }

    fn open_on<'a>(
        &'a self,
        env: &'a Env,
        argument: &'a str,
        _read_only: bool,
        _failures: Arc<FailureCount>,
    ) -> LocalFuture<'a, Result<Arc<dyn Disk>, ConfigError>> {
        Box::pin(async move {
            let server = &self.0;
            until(&server.client_left, || !server.has_client.load(Ordering::SeqCst)).await;
            env.sleep(STEP).await;
            server.connects.fetch_add(1, Ordering::SeqCst);
            if server.refuses.swap(false, Ordering::SeqCst) {
                return Err(ConfigError::new(ConfigKind::System, argument, "connection refused"));
            }
            server.has_client.store(true, Ordering::SeqCst);
            Ok(Arc::new(Remote { server: server.clone(), post: env.post().clone() }) as _)
        })
    }
}

fn world() -> (SimWorld, Arc<Server>, Arc<Registry>) {
    let server = Arc::new(Server::default());
    let registry = Arc::new(Registry::new(Box::new(Network(server.clone()))));
    (SimWorld::new(1, SimWorld::REACTORS), server, registry)
}

/// Opens the device twice on one reactor, while another task ticks there.
fn open_twice(
    world: &SimWorld,
    registry: &Arc<Registry>,
) -> [Result<Arc<dyn Disk>, ConfigError>; 2] {
    let registry = registry.clone();
    world.block_on(0, |env| async move {
        let ticks = Arc::new(AtomicU32::new(0));
        let (task, ticked) = (env.clone(), ticks.clone());
        env.spawn(async move {
            for _ in 0..10 {
                task.sleep(STEP / 20).await;
                ticked.fetch_add(1, Ordering::SeqCst);
            }
        });
        let open = || registry.open_on(&env, "remote", false);
        let (first, second) = futures_util::future::join(open(), open()).await;
        assert_eq!(ticks.load(Ordering::SeqCst), 10, "the reactor went on");
        [first, second]
    })
}

#[test]
fn two_users_of_a_disk_that_connects_get_one_disk() {
    let (world, server, registry) = world();
    let [first, second] = open_twice(&world, &registry).map(Result::unwrap);
    assert!(Arc::ptr_eq(&first, &second), "R1");
    assert_eq!(server.connects.load(Ordering::SeqCst), 1);
    assert!(Arc::ptr_eq(&first, &registry.open("remote", false).unwrap()), "it is open");
}

#[test]
fn refused_open_leaves_the_turn_to_the_next_user() {
    let (world, server, registry) = world();
    server.refuses.store(true, Ordering::SeqCst);
    let [first, second] = open_twice(&world, &registry);
    assert!(first.err().unwrap().to_string().contains("connection refused"));
    second.unwrap();
    assert_eq!(server.connects.load(Ordering::SeqCst), 2);
}

#[test]
fn disk_is_opened_again_once_its_close_has_ended() {
    let (world, server, registry) = world();
    let [first, second] = open_twice(&world, &registry).map(Result::unwrap);
    drop((first, second));
    assert!(server.has_client.load(Ordering::SeqCst), "the goodbye takes its time");
    let closed = world.now();
    let [first, _second] = open_twice(&world, &registry).map(Result::unwrap);
    assert!(world.now().since(closed) >= 2 * STEP, "a goodbye and a connect");
    assert_eq!((first.name().as_str(), server.connects.load(Ordering::SeqCst)), ("remote", 2));
}

#[test]
fn opening_while_another_user_opens_is_refused_without_waiting() {
    let (world, _server, registry) = world();
    let (task, opened) = (registry.clone(), Arc::new(AtomicBool::new(false)));
    let done = opened.clone();
    world.block_on(0, |env| async move {
        let own = env.clone();
        env.spawn(async move {
            done.store(task.open_on(&own, "remote", false).await.is_ok(), Ordering::SeqCst);
        });
        env.sleep(STEP / 2).await;
    });
    let error = registry.open("remote", false).err().unwrap();
    assert_eq!(error.kind, ConfigKind::Busy, "{error}");
    world.run_for(STEP);
    assert!(opened.load(Ordering::SeqCst));
}
