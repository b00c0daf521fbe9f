//! Losses of acknowledged writes, by the names of volumes.

use cairn_block::Identity;

use super::World;

impl World {
    /// The names of volumes with lost writes that no client was told of.
    pub fn untold_losses(&self) -> Vec<String> {
        self.names.registry.untold_losses()
    }

    /// Makes the clients of a volume be told that acknowledged writes may be lost.
    pub fn tell_of_loss(&self, name: &str) {
        self.names.registry.failure_count(&Identity::Volume(name.to_owned())).raise();
    }

    /// Marks all losses of this name as told: another name has them, or its clients were told.
    pub fn forget_loss(&self, name: &str) {
        let losses = self.names.registry.failure_count(&Identity::Volume(name.to_owned()));
        losses.acknowledge(losses.count());
    }
}
