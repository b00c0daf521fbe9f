//! The command line of dmsetup: its verbs and the options that scripts use.

use std::path::PathBuf;

use clap::{Args, Parser, Subcommand};

/// The verbs of dmsetup, for the volumes of a server.
#[derive(Parser)]
#[command(name = "cairn-dmsetup", version, about, disable_help_subcommand = true)]
pub struct Dmsetup {
    /// Show more: with status, wait, suspend and resume what info shows
    #[arg(short, long, global = true, action = clap::ArgAction::Count)]
    pub verbose: u8,
    /// The control socket of the server (default: $CAIRN_CONTROL, then the default of serve)
    #[arg(long, global = true, value_name = "PATH")]
    pub control: Option<PathBuf>,
    /// What concerns udev, which is not waited for
    #[command(flatten)]
    pub udev: Udev,
    /// What to do
    #[command(subcommand)]
    pub command: Command,
}

/// Options about udev and nodes: accepted, and without effect.
#[derive(Args)]
#[expect(clippy::struct_excessive_bools, reason = "they are flags of a command line")]
pub struct Udev {
    #[arg(long, global = true, hide = true)]
    noudevrules: bool,
    #[arg(long, global = true, hide = true)]
    noudevsync: bool,
    #[arg(long, global = true, hide = true)]
    verifyudev: bool,
    #[arg(long, global = true, hide = true)]
    addnodeoncreate: bool,
    #[arg(long, global = true, hide = true)]
    addnodeonresume: bool,
    #[arg(long, global = true, hide = true, value_name = "COOKIE")]
    udevcookie: Option<String>,
    #[arg(long, global = true, hide = true, value_name = "SECTORS")]
    readahead: Option<String>,
    #[arg(short, long, global = true, hide = true)]
    yes: bool,
}

/// The verbs.
#[derive(Subcommand)]
pub enum Command {
    /// Make a device, with a table that becomes live
    Create {
        /// Which
        #[command(flatten)]
        load: Load,
        /// Make it without a table
        #[arg(short, long, conflicts_with_all = ["table", "file"])]
        notable: bool,
        /// Make the block device read-only
        #[arg(short, long, conflicts_with = "notable")]
        readonly: bool,
    },
    /// Load a table, which the next resume makes live
    #[command(visible_alias = "reload")]
    Load {
        /// Which
        #[command(flatten)]
        load: Load,
        /// Make the block device read-only once the table is live; without it, writable
        #[arg(short, long)]
        readonly: bool,
    },
    /// Drop the loaded table
    Clear(Devices),
    /// Admit no more requests
    Suspend {
        /// Which
        #[command(flatten)]
        devices: Devices,
        /// Hold requests back that are not finished
        #[arg(long)]
        noflush: bool,
        /// Do not freeze the file systems on the device
        #[arg(long)]
        nolockfs: bool,
    },
    /// Make the loaded table live, and admit requests
    Resume {
        /// Which
        #[command(flatten)]
        devices: Devices,
        #[arg(long, hide = true)]
        noflush: bool,
        #[arg(long, hide = true)]
        nolockfs: bool,
    },
    /// Remove devices
    Remove {
        /// Which
        #[command(flatten)]
        devices: Devices,
        /// How
        #[command(flatten)]
        how: Removal,
    },
    /// Give a device that is not in use another name
    Rename {
        /// The device
        name: String,
        /// Its new name
        to: String,
    },
    /// Remove all devices, those first that stand on others
    #[command(name = "remove_all")]
    RemoveAll(Removal),
    /// Send a message to the target at a sector
    Message {
        /// The device
        name: String,
        /// A sector of its line
        sector: u64,
        /// The message
        #[arg(required = true, trailing_var_arg = true, allow_hyphen_values = true)]
        words: Vec<String>,
    },
    /// Show the status line of each target
    Status {
        /// Which
        #[command(flatten)]
        chosen: Chosen,
        #[arg(long, hide = true)]
        noflush: bool,
    },
    /// Show the table lines
    Table {
        /// Which
        #[command(flatten)]
        chosen: Chosen,
        /// The table that waits for a resume
        #[arg(long)]
        inactive: bool,
        #[arg(long, hide = true)]
        showkeys: bool,
    },
    /// Show the states of devices
    Info(Info),
    /// Show the devices that tables name
    Deps {
        /// Which
        #[command(flatten)]
        chosen: Chosen,
        /// How: devno, blkdevname or devname
        #[arg(short, long, default_value = "devno",
            value_parser = ["devno", "blkdevname", "devname"])]
        options: String,
    },
    /// List the devices
    Ls {
        /// Those with a target of this kind
        #[arg(long, value_name = "TARGET")]
        target: Option<String>,
        /// Each over its lower devices
        #[arg(long)]
        tree: bool,
    },
    /// Wait for an event of a device
    Wait {
        /// The device
        name: String,
        /// Return once there were more events than this (default: the number now)
        event_nr: Option<u64>,
        #[arg(long, hide = true)]
        noflush: bool,
    },
    /// List the kinds of target
    Targets,
    /// Show the versions of the library and the driver that this program stands for
    Version,
    /// Make the nodes in /dev/mapper those of the exports
    Mknodes {
        #[arg(hide = true)]
        names: Vec<String>,
    },
}

/// A device and its table.
#[derive(Args)]
#[group(skip)]
pub struct Load {
    /// The device
    pub name: String,
    /// A file with the table (default: standard input)
    #[arg(conflicts_with = "table")]
    pub file: Option<PathBuf>,
    /// The table
    #[arg(long)]
    pub table: Option<String>,
}

/// One or several devices.
#[derive(Args)]
pub struct Devices {
    /// The devices
    #[arg(required = true, value_name = "NAME")]
    pub names: Vec<String>,
}

/// How a device is removed.
#[derive(Args, Clone, Copy)]
pub struct Removal {
    /// Disconnect clients of the network
    #[arg(short, long)]
    pub force: bool,
    /// Try again for some seconds while it is in use
    #[arg(long)]
    pub retry: bool,
    /// If it is in use, remove it once it is not
    #[arg(long)]
    pub deferred: bool,
}

/// Devices that a verb shows.
#[derive(Args)]
pub struct Chosen {
    /// The devices (default: all, each line with its name in front)
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// Lines of this kind of target
    #[arg(long, value_name = "TARGET")]
    pub target: Option<String>,
}

/// `info`
#[derive(Args)]
pub struct Info {
    /// The devices (default: all)
    #[arg(value_name = "NAME")]
    pub names: Vec<String>,
    /// In columns
    #[arg(short, short_alias = 'C', long)]
    pub columns: bool,
    /// Which columns, separated by commas
    #[arg(short = 'o', long = "options", value_name = "FIELDS", value_delimiter = ',')]
    pub fields: Vec<String>,
    /// Without the line of their names
    #[arg(long)]
    pub noheadings: bool,
    /// What stands between columns
    #[arg(long, value_name = "TEXT")]
    pub separator: Option<String>,
    /// Each column as DM_FIELD='VALUE'
    #[arg(long)]
    pub nameprefixes: bool,
}

#[cfg(test)]
mod tests {
    use super::{Command, Dmsetup};
    use clap::{CommandFactory, Parser};

    #[test]
    fn the_command_line_is_consistent() {
        Dmsetup::command().debug_assert();
    }

    #[test]
    fn options_stand_where_scripts_have_them() {
        for line in [
            "dmsetup create vm --notable",
            "dmsetup --noudevsync create vm --table 0",
            "dmsetup load vm file --addnodeonresume",
            "dmsetup reload --table 0 vm",
            "dmsetup load --readonly vm file",
            "dmsetup reload vm -r --table 0",
            "dmsetup suspend --noflush --nolockfs vm",
            "dmsetup status --noflush -v vm",
            "dmsetup status -v",
            "dmsetup message vm 0 create_thin -1",
            "dmsetup remove -f --retry vm",
            "dmsetup rename -y vm other",
            "dmsetup remove --deferred vm other",
            "dmsetup remove_all --deferred",
            "dmsetup info -c --noheadings -o name,open --separator , vm",
            "dmsetup info -C",
            "dmsetup wait -v vm 3",
            "dmsetup udevcomplete_all",
        ] {
            let parsed = Dmsetup::try_parse_from(line.split(' '));
            assert_eq!(parsed.is_ok(), !line.contains("udevcomplete"), "{line}");
        }
        let wait = Dmsetup::try_parse_from("dmsetup wait -v vm 3".split(' ')).unwrap();
        assert!(matches!(wait.command, Command::Wait { event_nr: Some(3), .. }));
        assert_eq!(wait.verbose, 1);
    }
}
