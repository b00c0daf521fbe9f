//! [`Run`]: one world, from its beginning to its end.

use std::cell::Cell;
use std::iter::Peekable;
use std::rc::Rc;
use std::sync::Arc;
use std::time::Duration;

use cairn_block::{
    ConfigError, ConfigKind, Disk, Env, Flags, Io, MappedDevice, Registry, Sector, SectorCount,
    SectorRange, Table, TableContext, TableLine, TargetTypes, Time,
};
use cairn_format::bcache::DATA_OFFSET;
use cairn_outcome::failure::{Outcome, wrong};
use cairn_sim::drives::Lengths;
use cairn_sim::{Contents, Image, Prices, SimDrive, SimWorld, TimedOptions};

use super::census;
use super::client::{Load, Tally};
use super::form::{Experiment, Fill, FillKind, Volume};
use super::phases;
use super::record::{Hits, Record, Sample, number};
use super::words::Words;
use crate::fill::bcache::{BackingSpec, CacheSpec, Plan};
use crate::fill::{ImageSink, writecache};

/// The smallest write.
const BLOCK: SectorCount = SectorCount(8);

/// Dirty data that goes home after all is sent.
struct Drain {
    began: Time,
    /// When, or that it failed.
    ended: Rc<Cell<Option<Result<Time, Undrained>>>>,
}

/// A drain failed.
#[derive(Clone, Copy)]
struct Undrained;

/// How long a future of a run may take in virtual time.
const PATIENCE: Duration = Duration::from_secs(100 * 86_400);

/// One run of an experiment.
pub struct Run<'a> {
    experiment: &'a Experiment,
    world: SimWorld,
    drives: Vec<Arc<SimDrive>>,
    registry: Arc<Registry>,
    volumes: Vec<Arc<MappedDevice>>,
    /// Of each kind of clients.
    tallies: Vec<Rc<Tally>>,
    began: Time,
}

impl<'a> Run<'a> {
    /// Makes the drives of a run and opens its volumes.
    ///
    /// # Errors
    /// A table or a message is refused.
    pub fn start(
        experiment: &'a Experiment,
        variant: &str,
        seed: u64,
        prices: Prices,
    ) -> Outcome<Run<'a>> {
        let world = SimWorld::of_events(seed, prices);
        world.set_patience(PATIENCE);
        let drives = experiment.drives.iter().enumerate().map(|(index, (name, drive))| {
            let image = Image::new(SectorCount::of_bytes(drive.bytes));
            let options = TimedOptions {
                name: name.clone(),
                logical_block: 4096,
                contents: Contents::Metadata,
            };
            let seed = seed.wrapping_add(index as u64);
            let model = drive.model.drive(drive.bytes, &drive.changes, seed);
            world.add_timed_drive(options, image, model)
        });
        let drives: Vec<Arc<SimDrive>> = drives.collect();
        let opener = world.opener();
        let registry = Arc::new(Registry::new(Box::new(opener.clone())));
        let mut run = Run {
            experiment,
            world,
            drives,
            registry,
            volumes: Vec::new(),
            tallies: Vec::new(),
            began: Time(0),
        };
        let mut fill = experiment.fill.as_ref();
        let mut words = experiment.words(variant, seed);
        for volume in &experiment.volumes {
            let table = words.put(&volume.table);
            if let Some(fill) = fill.take_if(|fill| experiment.uses(&table, fill)) {
                run.fill(fill, seed)?;
            }
            let opened = run.open(volume, table, &words)?;
            words.add(&volume.name, opened.sectors().0);
            // It is a device for the volumes behind it, as an array of the kernel is for `serve`.
            opener.put(&volume.name, opened.clone());
            run.volumes.push(opened);
        }
        if let Some(fill) = fill {
            let (name, _) = &experiment.drives[fill.cache];
            let found = format!("'{name}', which no volume uses");
            return Err(wrong(&experiment.file, "fill cache", found, "a cache of a volume"));
        }
        run.expect_caches()?;
        run.expect_counts()?;
        run.began = run.world.now();
        run.start_clients(seed)?;
        Ok(run)
    }

    /// Refuses to wait until a volume is clean that cannot be dirty.
    fn expect_caches(&self) -> Outcome<()> {
        let caches = |word: &str| ["bcache", "writecache"].contains(&word);
        for name in &self.experiment.end.clean {
            let table = self.registry.volume(name)?.live_table().expect("it was opened");
            if !table.lines().iter().any(|line| caches(&line.name)) {
                let expected = "a volume with a cache";
                return Err(wrong(
                    &self.experiment.file,
                    "end clean",
                    format!("'{name}'"),
                    expected,
                ));
            }
        }
        Ok(())
    }

    /// Refuses names of numbers that no volume has.
    fn expect_counts(&self) -> Outcome<()> {
        for name in &self.experiment.counts {
            let mut values = self.volumes.iter().map(|volume| count_of(volume, name));
            if !values.any(|value| value.is_some()) {
                let expected = "a number of the status or the attributes of a volume";
                let found = format!("'{name}'");
                return Err(wrong(&self.experiment.file, "record counts", found, expected));
            }
        }
        Ok(())
    }

    fn start_clients(&mut self, seed: u64) -> Outcome<()> {
        let mut seeds = fastrand::Rng::with_seed(seed);
        let env = self.world.env(0);
        env.set_now(self.began);
        for kind in &self.experiment.clients {
            let tally = Rc::new(Tally::new(kind.flush()));
            let disk: Arc<dyn Disk> = self.registry.volume(&kind.volume)?;
            let moment = |moment: Duration| self.began + self.experiment.unscaled(moment);
            let from = kind.from.map_or(self.began, moment);
            let active = from..kind.until.map_or(Time(u64::MAX), moment);
            kind.expect_blocks_of(&self.experiment.file, disk.limits().logical_sectors())?;
            let operations = kind.operations(&disk, seeds.u64(..)).map_err(|error| {
                let (file, name) = (&self.experiment.file, &kind.name);
                ConfigError::new(error.kind, file, format!("client '{name}': {error}"))
            })?;
            for operations in operations {
                let (active, tally) = (active.clone(), tally.clone());
                Load::start(env, disk.clone(), operations, kind.depth, active, tally);
            }
            self.tallies.push(tally);
        }
        Ok(())
    }

    /// Makes a cache that has data.
    fn fill(&self, fill: &Fill, seed: u64) -> Outcome<()> {
        let backings = fill.backings.iter().map(|name| self.registry.open(name, false));
        let backings: Vec<Arc<dyn Disk>> = backings.collect::<Result<_, _>>()?;
        let cache = &self.drives[fill.cache];
        let filled = match fill.kind {
            FillKind::Bcache { bucket_sectors } => {
                self.fill_set(fill, bucket_sectors, cache, backings, seed)
            }
            FillKind::Writecache { block_bytes } => match &backings[..] {
                [origin] => fill_writecache(fill, block_bytes, cache, origin.sectors(), seed),
                _ => Err(format!("backing: found {}, expected one", backings.len())),
            },
        };
        filled.map_err(|what| {
            let file = &self.experiment.file;
            ConfigError::new(ConfigKind::Argument, file, format!("fill: {what}"))
        })
    }

    /// Makes a set of bcache. An error says what is refused.
    fn fill_set(
        &self,
        fill: &Fill,
        bucket_sectors: u64,
        cache: &SimDrive,
        backings: Vec<Arc<dyn Disk>>,
        seed: u64,
    ) -> Result<(), String> {
        let spec =
            |disk: &Arc<dyn Disk>| BackingSpec { device_sectors: disk.sectors().0, weight: 1 };
        let plan = Plan {
            cache: CacheSpec { device_sectors: cache.sectors().0, bucket_sectors },
            backings: backings.iter().map(spec).collect(),
            dirty_percent: fill.dirty_percent,
            clean_percent: fill.clean_percent,
            block_sectors: fill.block_sectors,
            pattern: fill.pattern,
            seed,
        };
        let layout = plan.lay_out().map_err(|error| error.to_string())?;
        let mut image = Image::new(cache.sectors());
        let mut superblocks: Vec<Image> =
            backings.iter().map(|disk| Image::new(disk.sectors())).collect();
        let mut sinks: Vec<ImageSink<'_>> = superblocks.iter_mut().map(ImageSink).collect();
        let written = layout.write(ImageSink(&mut image), &mut sinks);
        written.map_err(|error| error.to_string())?;
        cache.load(image);
        for (disk, superblock) in backings.into_iter().zip(superblocks) {
            let range = SectorRange::new(Sector(0), SectorCount(DATA_OFFSET));
            let mut bytes = vec![0; range.to_bytes() as usize];
            superblock.read(range.start, &mut bytes);
            let written = self.world.block_on(0, move |env| async move {
                let segs = env.segs(range.count);
                segs.copy_in(0, &bytes);
                env.io(&disk, Io::write(range, segs).with(Flags::META)).await
            });
            written.map_err(|error| error.to_string())?;
        }
        Ok(())
    }

    fn open(
        &self,
        volume: &Volume,
        table: String,
        words: &Words<'_>,
    ) -> Outcome<Arc<MappedDevice>> {
        let messages: Vec<String> = volume.messages.iter().map(|text| words.put(text)).collect();
        let (registry, name) = (self.registry.clone(), volume.name.clone());
        let file = self.experiment.file.clone();
        self.world.block_on(0, move |env| async move {
            let opened = async {
                let device = open(&env, &registry, &name, &table, &messages).await?;
                write_first(&env, &device).await.map(|()| device)
            };
            opened.await.map_err(|error: ConfigError| {
                ConfigError::new(error.kind, file, format!("volume '{name}': {error}"))
            })
        })
    }

    /// Goes on until the end of the experiment. `look` sees each sample.
    ///
    /// # Errors
    /// A trace cannot be read.
    pub fn finish(self, every: Duration, mut look: impl FnMut(&Sample)) -> Outcome<Record> {
        let mut samples = vec![self.sample()];
        look(&samples[0]);
        let end = &self.experiment.end;
        let last = self.began + self.experiment.unscaled(end.at_most);
        let volumes = self.experiment.volumes.iter().enumerate();
        let waits_for = volumes.filter(|(_, volume)| end.clean.contains(&volume.name));
        let clean: Vec<usize> = waits_for.map(|(index, _)| index).collect();
        let (mut now, mut sent) = (self.began, None);
        let mut drain: Option<Drain> = None;
        let (mut phases, mut dirty_runs) = (self.phases(), Vec::new());
        let is_done = loop {
            // The last sample before a phase, as its other figures.
            while phases.next_if(|start| *start < now + every).is_some() {
                dirty_runs.push(self.dirty_runs()?);
            }
            // A turn may go beyond a sample's time: samples of all runs are at the same places.
            now = (now + every).min(last);
            self.world.run_for(now.since(self.world.now()));
            let sample = Sample { at: Time(now.0 - self.began.0), ..self.sample() };
            look(&sample);
            if let Some(error) = self.tallies.iter().find_map(|tally| tally.take_error()) {
                return Err(error);
            }
            if end.when_sent && sent.is_none() && self.tallies.iter().all(|it| it.is_over()) {
                sent = Some(samples.len());
                drain = end.drain.as_ref().map(|name| self.drain(name)).transpose()?;
            }
            let is_clean = !clean.is_empty() && clean.iter().all(|index| sample.dirty[*index] == 0);
            let is_done = is_clean || sent.is_some() && self.is_drained(drain.as_ref())?;
            samples.push(sample);
            if is_done || now >= last {
                break is_done || clean.is_empty() && !end.when_sent;
            }
        };
        if !dirty_runs.is_empty() {
            dirty_runs.push(self.dirty_runs()?);
        }
        let clients = self.tallies.iter().map(|tally| tally.whole()).collect();
        let drained = drain.and_then(|drain| Some(drain.ended.get()?.ok()?.since(drain.began)));
        Ok(Record { samples, clients, is_done, sent, drained, dirty_runs })
    }

    /// When the phases begin, if there are several.
    fn phases(&self) -> Peekable<impl Iterator<Item = Time> + use<>> {
        let starts = phases::starts(self.experiment);
        let starts = if starts.len() > 1 { starts } else { Vec::new() };
        let times: Vec<Time> =
            starts.into_iter().map(|start| self.began + self.experiment.unscaled(start)).collect();
        times.into_iter().peekable()
    }

    /// The runs of dirty data in all caches.
    fn dirty_runs(&self) -> Outcome<Lengths> {
        let mut all = Lengths::default();
        for (drive, (name, _)) in self.drives.iter().zip(&self.experiment.drives) {
            let found = census::dirty_runs(&drive.visible()).map_err(|fault| {
                ConfigError::new(ConfigKind::System, name, format!("its metadata: {fault}"))
            })?;
            all = all + found.unwrap_or_default();
        }
        Ok(all)
    }

    /// Begins to write the dirty data of a volume back.
    fn drain(&self, name: &str) -> Outcome<Drain> {
        let volume = self.registry.volume(name)?;
        let drain = Drain { began: self.world.now(), ended: Rc::new(Cell::new(None)) };
        let (env, ended) = (self.world.env(0).clone(), drain.ended.clone());
        env.set_now(drain.began);
        self.world.env(0).spawn(async move {
            let drained = volume.drain_caches(&env).await;
            ended.set(Some(drained.map(|()| env.now()).map_err(|_| Undrained)));
        });
        Ok(drain)
    }

    /// True if nothing is left to be written back.
    fn is_drained(&self, drain: Option<&Drain>) -> Outcome<bool> {
        match drain.map(|drain| drain.ended.get()) {
            None | Some(Some(Ok(_))) => Ok(true),
            Some(None) => Ok(false),
            Some(Some(Err(Undrained))) => {
                let expected = "none, as no drive fails";
                Err(wrong(&self.experiment.file, "end drain", "an error", expected))
            }
        }
    }

    fn sample(&self) -> Sample {
        let tables: Vec<_> = self.volumes.iter().map(|volume| volume.live_table()).collect();
        let targets = || {
            tables.iter().map(|table| {
                let lines = table.iter().flat_map(|table| table.lines());
                lines.map(|line| &line.target)
            })
        };
        let dirty = targets().map(|targets| {
            targets.filter_map(|target| target.dirty()).map(|dirty| dirty.sectors.0).sum()
        });
        let number_of = |name: &'static str| {
            targets().map(move |mut targets| {
                targets.find_map(|target| {
                    let attributes = target.attributes();
                    number(&attributes.iter().find(|it| it.name == name)?.value)
                })
            })
        };
        let available = number_of("cache_available_percent");
        let hits =
            targets().map(|mut targets| targets.find_map(|target| Hits::of(&target.report())));
        let counts = self.experiment.counts.iter().map(|name| {
            let values = self.volumes.iter().filter_map(|volume| count_of(volume, name));
            values.sum()
        });
        Sample {
            at: Time(self.world.now().0 - self.began.0),
            dirty: dirty.collect(),
            rate: number_of("writeback_rate").collect(),
            in_use: available.map(|it| it.map(|percent| 100 - percent.min(100))).collect(),
            hits: hits.collect(),
            counts: counts.collect(),
            drives: self.drives.iter().map(|drive| self.world.used(drive)).collect(),
            clients: self.tallies.iter().map(|tally| tally.sample()).collect(),
            busy: self.world.busy(),
        }
    }
}

/// A number of a volume's status or attributes, of all its targets that have it.
fn count_of(volume: &MappedDevice, name: &str) -> Option<u64> {
    let table = volume.live_table()?;
    let values = table.lines().iter().filter_map(|line| {
        let attributes = line.target.attributes();
        let attribute = attributes.iter().find(|it| it.name == name);
        let report = line.target.report();
        number(attribute.map(|it| &it.value).or_else(|| report.value(name))?)
    });
    values.reduce(|sum, value| sum + value)
}

/// Makes a writecache. An error says what is refused.
fn fill_writecache(
    fill: &Fill,
    cache_block_bytes: u32,
    cache: &SimDrive,
    origin: SectorCount,
    seed: u64,
) -> Result<(), String> {
    let plan = writecache::Plan {
        cache_sectors: cache.sectors().0,
        cache_block_bytes,
        origin_sectors: origin.0,
        dirty_percent: fill.dirty_percent,
        block_sectors: fill.block_sectors,
        pattern: fill.pattern,
        seed,
    };
    let layout = plan.lay_out().map_err(|error| error.to_string())?;
    let mut image = Image::new(cache.sectors());
    layout.write(ImageSink(&mut image)).map_err(|error| error.to_string())?;
    cache.load(image);
    Ok(())
}

/// Writes the last block: a target begins its work in the background with the first write.
async fn write_first(env: &Env, device: &Arc<MappedDevice>) -> Outcome<()> {
    let disk: Arc<dyn Disk> = device.clone();
    let end = Sector(disk.sectors().0 / BLOCK.0 * BLOCK.0);
    if end.0 == 0 {
        let detail = format!("length: found {} sectors, expected 8 at least", disk.sectors());
        return Err(ConfigError::new(ConfigKind::Argument, "table", detail));
    }
    let range = SectorRange::between(Sector(end.0 - BLOCK.0), end);
    let written = env.io(&disk, Io::write(range, env.segs(BLOCK))).await;
    written.map_err(|error| {
        ConfigError::new(ConfigKind::System, "write", format!("the first one: {error}"))
    })
}

/// Gives the last line the length that `N` stands for.
async fn give_length(env: &Env, registry: &Registry, lines: &mut [TableLine]) -> Outcome<()> {
    let Some(last) = lines.last_mut().filter(|last| last.len == TableLine::WHOLE) else {
        return Ok(());
    };
    // An unknown target is refused when the table is built.
    if let Some(spec) = cairn_targets::lab_spec(&last.target) {
        last.len = match spec.measure {
            Some(measure) => measure(env, registry, &last.args, false).await?,
            None => {
                let words = last.args.iter().map(String::as_str);
                spec.length(words, |device| Ok(registry.open(device, false)?.sectors()))?
            }
        };
    }
    Ok(())
}

/// Creates a volume and makes it live.
///
/// # Errors
/// Its table or a message is refused.
pub async fn open(
    env: &Env,
    registry: &Arc<Registry>,
    name: &str,
    table: &str,
    messages: &[String],
) -> Outcome<Arc<MappedDevice>> {
    let types = TargetTypes::new(cairn_targets::lab_types());
    let device = registry.create_volume(name)?;
    let mut lines = TableLine::parse_all(table)?;
    give_length(env, registry, &mut lines).await?;
    let context = TableContext { types: &types, registry, read_only: false };
    let table = Table::build(env, &device, &lines, context).await?;
    device.load(table).await;
    device.resume(env).await?.whole()?;
    for message in messages {
        let words: Vec<&str> = message.split_whitespace().collect();
        let sent = device.message(env, Sector(0), &words).await;
        sent.map_err(|error| {
            ConfigError::new(ConfigKind::Argument, "message", format!("'{message}': {error}"))
        })?;
    }
    Ok(device)
}
