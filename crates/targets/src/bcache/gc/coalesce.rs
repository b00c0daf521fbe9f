//! Coalescing the tree, level by level from the leaves up (`btree::coalesce`). A round is one plan,
//! written like each other.

use cairn_block::sync::atomic::Ordering;
use cairn_block::{Env, yield_once};

use crate::bcache::btree::{FIRST, Fill, Position, Searched};
use crate::bcache::coverage::{self, Path};
use crate::bcache::set::{Core, Session, Set, WriteError};

impl Core {
    /// Repacks all sparse nodes for which there are buckets.
    ///
    /// # Errors
    /// The set cannot be written.
    pub(super) async fn coalesce(&self, env: &Env) -> Result<(), WriteError> {
        let mut requests = self.users().requests();
        let mut level = 0;
        while level < self.with(|set| set.tree.levels_beneath_root()) {
            let mut from = Some(FIRST);
            while let Some(at) = from {
                let round = async |session: &Session<'_>| session.coalesce_some(level, at).await;
                let next = self.change(env, round).await?;
                // Without progress the plan lacks buckets.
                from = next.filter(|next| *next > at);
                requests = self.give_way(env, requests, true).await;
            }
            level += 1;
        }
        Ok(())
    }
}

impl Session<'_> {
    /// One plan for nodes of a level, from a position on. Answers where to go on.
    async fn coalesce_some(
        &self,
        level: usize,
        mut from: Position,
    ) -> Result<Option<Position>, WriteError> {
        let mut next_seq = || 1 + self.env.random_below(u64::MAX - 1);
        if self.core.rests() || level >= self.with(|set| set.tree.levels_beneath_root()) {
            return Ok(None);
        }
        // No checkpoint may come between a plan and its writes.
        self.keep_room().await?;
        self.refill().await;
        let count = |set: &mut Set| set.tree.count_nodes();
        let before = self.with(count);
        let mut planning = self.with(|set| set.tree.begin_plan(level, Fill::Roomy));
        let next = loop {
            let searched = self.with(|set| {
                let Set { tree, buckets, .. } = set;
                tree.coalesce_some(&mut planning, from, buckets, &mut next_seq)
            });
            match searched {
                Searched::To(at) => from = at,
                Searched::Full(at) => break Some(at),
                // They stay so: only the holder of the turn has leaves leave.
                Searched::Absent(leaves) => self.core.enter(self.env, &leaves).await?,
                Searched::All => break None,
            }
            yield_once().await;
        };
        let is_empty = planning.is_empty();
        let mut plan = self.with(|set| {
            let Set { tree, buckets, .. } = set;
            tree.end_plan(planning, buckets, &mut next_seq)
        });
        if !is_empty {
            coverage::take(Path::Coalesce);
            plan.is_coalescing = true;
            let fewer = before.saturating_sub(self.with(count)) as u64;
            self.carry_out_alone(plan).await?;
            self.core.gc.coalesced_nodes.fetch_add(fewer, Ordering::Relaxed);
        }
        Ok(next)
    }
}
