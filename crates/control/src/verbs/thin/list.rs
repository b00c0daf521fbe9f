//! `thin list`: the volumes of pools, with a name or without, and how much of each is exclusive.

use std::collections::HashMap;

use cairn_outcome::failure::Outcome;
use serde::{Deserialize, Serialize};

use super::names::{Spot, is_nameless, nameless};
use crate::live_pool::LivePool;
use crate::names::parent_of;
use crate::thin_line::ThinLine;
use crate::verbs::Verbs;
use crate::verbs::verb::declare;

/// A volume of a pool, as `thin list` shows it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct ThinInfo {
    /// Its name, or `thin-ID`.
    pub name: String,
    /// The pool.
    pub pool: String,
    /// Its number.
    pub id: u32,
    /// Its size; none if it is not served.
    pub size_bytes: Option<u64>,
    /// How much of it is mapped.
    pub mapped_bytes: u64,
    /// How much of that no other volume maps: what a removal frees. None if the metadata can't be
    /// read now.
    pub exclusive_bytes: Option<u64>,
    /// How much of it others map, too.
    pub shared_bytes: Option<u64>,
    /// The pool's transaction id when it was created.
    pub transaction_id: u64,
    /// How many snapshots the pool had made then, itself included.
    pub creation_time: u32,
    /// When it was created, in seconds since 1970, if these verbs did it.
    pub created_s: Option<u64>,
}

declare! {
    /// `thin list`
    ThinList = "thin_list" -> Vec<ThinInfo> {
        /// The pool or volume (default: all)
        name: Option<String>,
    }
    |verb, verbs, _| verbs.thin_list(verb.name.as_deref())
}

impl Verbs {
    /// `thin list`: of one pool, of one volume with its snapshots, or all; by pool, name and age.
    ///
    /// # Errors
    /// There is no such pool or volume.
    pub fn thin_list(&self, name: Option<&str>) -> Outcome<Vec<ThinInfo>> {
        let names = self.world.names();
        let all = LivePool::all(&names);
        let Some(name) = name else {
            return self.infos_of(&all);
        };
        if let Some(pool) = all.iter().find(|pool| pool.name == name) {
            return self.infos_of(std::slice::from_ref(pool));
        }
        let (said, name) = Spot::parse(name)?.named()?;
        let line = self.thin_line(&name)?;
        let pool = self.pool_of_line(&name, &line, said.as_deref())?;
        let mut infos = self.infos_of(&[pool])?;
        infos.retain(|info| info.name == name || parent_of(&info.name) == Some(&name));
        Ok(infos)
    }

    fn infos_of(&self, pools: &[LivePool]) -> Outcome<Vec<ThinInfo>> {
        let mut infos = Vec::new();
        for pool in pools {
            infos.extend(self.infos_of_pool(pool)?);
        }
        infos.sort_by(|a, b| {
            let age = |info: &ThinInfo| (info.creation_time, info.id);
            let family = |info: &ThinInfo| {
                let parent = parent_of(&info.name).unwrap_or(&info.name);
                let last = is_nameless(&info.name);
                (info.pool.clone(), last, parent.to_owned(), info.name.contains('@'))
            };
            family(a).cmp(&family(b)).then(age(a).cmp(&age(b)))
        });
        Ok(infos)
    }

    fn infos_of_pool(&self, pool: &LivePool) -> Outcome<Vec<ThinInfo>> {
        let names = self.names_in(&pool.name);
        // A pool that can't commit still tells what was durable.
        let settled = pool.ask(&self.world, async |env, pool| pool.settle(env).await);
        if let Err(error) = settled {
            tracing::info!("{}: {error}", pool.name);
        }
        let block_bytes = pool.figures()?.block.to_bytes();
        let mut infos = Vec::new();
        for device in pool.devices()? {
            let id = device.id;
            let own = pool.ask(&self.world, async move |env, pool| pool.own_blocks(env, id).await);
            let own = own.inspect_err(|error| tracing::warn!("{}: {error}", pool.name)).ok();
            let bytes = |blocks: u64| blocks.saturating_mul(block_bytes);
            let shared = own.map(|own| device.mapped_blocks.saturating_sub(own));
            let name = names.get(&id);
            infos.push(ThinInfo {
                name: name.map_or_else(|| nameless(id), |known| known.name.clone()),
                pool: pool.name.clone(),
                id,
                size_bytes: name.and_then(|known| known.sectors).map(|sectors| sectors * 512),
                mapped_bytes: bytes(device.mapped_blocks),
                exclusive_bytes: own.map(bytes),
                shared_bytes: shared.map(bytes),
                transaction_id: device.transaction_id,
                creation_time: device.creation_time,
                created_s: name.and_then(|known| known.created_s),
            });
        }
        Ok(infos)
    }

    /// The names of a pool's volumes by number: those of these verbs, and of whatever serves one.
    pub(super) fn names_in(&self, pool: &str) -> HashMap<u32, Known> {
        let mut names = HashMap::new();
        for volume in self.world.volumes() {
            let line = ThinLine::of_volume(&volume).filter(|line| line.pool == pool);
            if let Some(line) = line {
                let (name, sectors) = (volume.volume().to_owned(), Some(line.sectors));
                names.insert(line.id, Known { name, sectors, created_s: None });
            }
        }
        for record in self.told().values().filter(|record| record.table.is_some()) {
            let Some(thin) = record.thin.as_ref().filter(|thin| thin.pool == pool) else {
                continue;
            };
            let (name, created_s) = (record.name.clone(), thin.created_s);
            let sectors = names.get(&thin.id).and_then(|known| known.sectors);
            names.insert(thin.id, Known { name, sectors, created_s });
        }
        names
    }
}

/// A volume with a name.
pub(super) struct Known {
    pub name: String,
    pub sectors: Option<u64>,
    pub created_s: Option<u64>,
}
