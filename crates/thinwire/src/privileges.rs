//! What a target gives up once it serves, and what it keeps and why (`docs/security.md`, "Privileges").

use std::path::PathBuf;
use std::sync::OnceLock;

use thinwire_runtime::confine::{
    self, Account, Confinement, Kept, Measure, refused_calls, rings, use_files_as,
};

use crate::cli::PrivilegeArgs;
use crate::config::TargetSettings;
use crate::control::{MeasureStatus, PrivilegesStatus};
use crate::error::{Failure, Outcome};
use crate::export::ExportSpec;
use crate::last_resort::paths_of;
use crate::offer::{OfferProtocol, OfferSpec};
use crate::remote::host_name;
use crate::state_dir;
use crate::uri::VolumeSpec;

/// Why no measure is taken, if none is.
const NOT_WANTED: &str = "--no-confine";

/// What a user wants of it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PrivilegeSettings {
    /// Whom the target becomes, as `NAME[:GROUP]`. Default: nobody else.
    pub user: Option<String>,
    /// Privileges are given up. Default: true.
    pub confine: bool,
}

impl Default for PrivilegeSettings {
    fn default() -> Self {
        PrivilegeSettings { user: None, confine: true }
    }
}

impl PrivilegeSettings {
    /// What a file says, which counts from now on.
    pub fn take(&mut self, user: Option<&str>, confine: Option<bool>) {
        self.user = user.map(str::to_owned).or(self.user.take());
        self.confine = confine.unwrap_or(self.confine);
    }

    /// What the command line says, which counts more.
    ///
    /// # Errors
    /// A user is named, and nothing is to be given up.
    pub fn override_by(&mut self, args: &PrivilegeArgs) -> Outcome {
        self.take(args.user.as_deref(), args.no_confine.then_some(false));
        match &self.user {
            Some(user) if !self.confine => Err(Failure::usage(format!(
                "user {user} and `confine = false` (--no-confine): who becomes another user gives up \
                 privileges; leave one of them away"
            ))),
            _ => Ok(()),
        }
    }
}

/// What will be given up: what that needs is there.
#[derive(Debug)]
pub struct Privileges {
    settings: PrivilegeSettings,
    /// Whom the target becomes.
    account: Option<Account>,
    /// What that one is called, or who has started it. Looked up before a filter stands in the way.
    name: String,
    /// A file or folder that is somebody else's, if there is one.
    foreign: Option<PathBuf>,
}

impl Privileges {
    /// Looks up whom the target is to become, and what it uses that is not its own. To be called before other threads
    /// are made.
    ///
    /// # Errors
    /// There is no such user or group; or the target is not root, and not that user either.
    pub fn look(config: &TargetSettings) -> Outcome<Self> {
        // Legs of mirrors may come later, under this name.
        let _ = host_name();
        let settings = config.privileges.clone();
        let account = settings.user.as_deref().map(Account::look_up).transpose();
        let account = account.map_err(|e| Failure::failed(format!("--user: {e}")))?;
        let (myself, group) = (rustix::process::geteuid(), rustix::process::getegid());
        // Whoever is that already need not become it.
        let is_other =
            |account: &Account| (account.uid, account.gid) != (myself.as_raw(), group.as_raw());
        let account = account.filter(is_other);
        if let Some(account) = &account
            && !myself.is_root()
        {
            return Err(Failure::failed(format!(
                "--user {}: only root can become another user, and this is user {}; start the target as \
                 root, or as that user with the capabilities that its links need",
                account.name,
                myself.as_raw()
            )));
        }
        let stays = account.as_ref().is_none_or(|account| account.uid == myself.as_raw());
        let foreign = stays.then(|| foreign_of(config)).flatten();
        let name = account.as_ref().map_or_else(own_name, |account| account.name.clone());
        Ok(Privileges { settings, account, name, foreign })
    }

    /// The target becomes another user, and not only one of another group.
    pub fn changes_user(&self) -> bool {
        let myself = rustix::process::geteuid().as_raw();
        self.account.as_ref().is_some_and(|account| account.uid != myself)
    }

    /// From now on files are used as that user would; makes the state directory for it, if there is none. To be
    /// called before other threads are made.
    ///
    /// # Errors
    /// The kernel refuses.
    pub fn begin(&self, config: &TargetSettings) -> Outcome {
        let Some(account) = &self.account else { return Ok(()) };
        if let Err(e) = state_dir::make_for(&config.state_dir, account) {
            let folder = config.state_dir.display();
            tracing::warn!("cannot make {folder} for user {}: {e}", account.name);
        }
        use_files_as(account).map_err(|e| Failure::failed(e.to_string()))
    }

    /// The same for who only looks whether all is there: nothing is made.
    ///
    /// # Errors
    /// As of [`Privileges::begin`].
    pub fn begin_check(&self) -> Outcome {
        match &self.account {
            Some(account) => use_files_as(account).map_err(|e| Failure::failed(e.to_string())),
            None => Ok(()),
        }
    }

    /// Gives up all that is not needed any more, in all threads.
    ///
    /// # Errors
    /// Users or capabilities could not be given up.
    pub fn give_up(&self) -> Outcome<Confined> {
        let user = self.name.clone();
        if !self.settings.confine {
            tracing::warn!(
                "--no-confine: this target keeps all privileges of user {user}, and may make any system \
                 call"
            );
            return Ok(Confined { user, kept_for: None, left: None });
        }
        let kept = Kept { files_of_others: self.foreign.is_some() };
        let left = confine::give_up(self.account.as_ref(), kept);
        let left = left.map_err(|e| Failure::failed(e.to_string()))?;
        for (what, measure) in [("no_new_privs", &left.no_new_privs), ("seccomp", &left.seccomp)] {
            if let Err(why) = measure {
                tracing::warn!("{what} is not set: {why}");
            }
        }
        let kept_for = self.foreign.as_ref().filter(|_| !left.capabilities.is_empty());
        let kept_for = kept_for.map(|path| {
            let path = path.display();
            format!("{path} belongs to another user, and is to be written while the target serves")
        });
        let confined = Confined { user, kept_for, left: Some(left) };
        tracing::info!("{}", confined.status().describe());
        Ok(confined)
    }
}

/// A file or folder of the configuration that this user could not use without CAP_DAC_OVERRIDE, and will while it
/// serves: what keeps records of who may write, and their places, and what clients of AoE have set.
fn foreign_of(config: &TargetSettings) -> Option<PathBuf> {
    let exports = config.exports.iter().flat_map(|export| {
        let paths = paths_of(std::iter::once(&export.volume));
        paths.into_iter().map(|path| (path, !export.read_only))
    });
    let keeps_records = |export: &ExportSpec| {
        let has_path = || !paths_of(std::iter::once(&export.volume)).is_empty();
        !export.read_only && (!export.volume.is_store() || has_path())
    };
    let is_aoe = |offer: &OfferSpec| matches!(offer.protocol, OfferProtocol::Aoe { .. });
    let records = config.exports.iter().any(keeps_records) || config.offers.iter().any(is_aoe);
    let mut all = exports.chain(records.then(|| (config.state_dir.clone(), true)));
    all.find(|(path, write)| path.exists() && !confine::may_use(path, *write)).map(|(path, _)| path)
}

/// Whether an export's record will be in the state directory, although it is a store of this machine: there is no place
/// beside a device, and none beside a file that the user may not write. As whoever the files are used by now.
pub fn needs_state_dir(volume: &VolumeSpec) -> bool {
    use std::os::unix::fs::FileTypeExt;
    let needs = |path: &PathBuf| {
        let is_device =
            std::fs::metadata(path).is_ok_and(|meta| meta.file_type().is_block_device());
        is_device || !confine::may_use(path, true)
    };
    paths_of(std::iter::once(volume)).iter().any(needs)
}

/// This process's user, by name if it has one.
fn own_name() -> String {
    let uid = rustix::process::geteuid().as_raw().to_string();
    Account::look_up(&uid).map_or(uid, |account| account.name)
}

/// What a target has left, for `status`.
#[derive(Clone, Debug)]
pub struct Confined {
    user: String,
    kept_for: Option<String>,
    /// `None` with --no-confine.
    left: Option<Confinement>,
}

/// Set once a target has given up what it does not need.
pub type ConfinedOnce = OnceLock<Confined>;

impl Confined {
    /// As `status` tells it, with what has been refused until now.
    pub fn status(&self) -> PrivilegesStatus {
        let measure = |of: fn(&Confinement) -> &Measure| match self.left.as_ref().map(of) {
            Some(Ok(())) => MeasureStatus { taken: true, why: None },
            Some(Err(why)) => MeasureStatus { taken: false, why: Some(why.clone()) },
            None => MeasureStatus { taken: false, why: Some(NOT_WANTED.to_owned()) },
        };
        let ids = || (rustix::process::geteuid().as_raw(), rustix::process::getegid().as_raw());
        let (uid, gid) = self.left.as_ref().map_or_else(ids, |left| (left.uid, left.gid));
        let rings = rings();
        PrivilegesStatus {
            user: self.user.clone(),
            uid,
            gid,
            capabilities: self
                .left
                .as_ref()
                .map_or_else(confine::capabilities, |left| left.capabilities.clone()),
            kept_for: self.kept_for.clone(),
            no_new_privs: measure(|left| &left.no_new_privs),
            not_dumpable: measure(|left| &left.not_dumpable),
            seccomp: measure(|left| &left.seccomp),
            io_uring: MeasureStatus { taken: rings.is_ok(), why: rings.err() },
            refused_calls: refused_calls()
                .into_iter()
                .map(|call| (call.name, call.count))
                .collect(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testing::target_settings;

    #[test]
    fn what_is_said_later_counts_and_contradictions_are_refused() {
        let args = |user: Option<&str>, no_confine| PrivilegeArgs {
            user: user.map(str::to_owned),
            no_confine,
        };
        let of = |files: &[(Option<&str>, Option<bool>)], args: PrivilegeArgs| {
            let mut all = PrivilegeSettings::default();
            files.iter().for_each(|(user, confine)| all.take(*user, *confine));
            all.override_by(&args).map(|()| (all.user, all.confine))
        };
        let user = |name: &str| Some(name.to_owned());
        assert_eq!(of(&[], args(None, false)).unwrap(), (None, true));
        assert_eq!(of(&[(Some("a"), None)], args(None, false)).unwrap(), (user("a"), true));
        let two = [(Some("a"), Some(false)), (None, Some(true))];
        assert_eq!(of(&two, args(None, false)).unwrap(), (user("a"), true));
        assert_eq!(of(&two, args(Some("b"), false)).unwrap(), (user("b"), true));
        assert_eq!(of(&[(None, Some(false))], args(None, false)).unwrap(), (None, false));
        for (files, args) in [
            (&[(Some("a"), None)], args(None, true)),
            (&[(Some("a"), Some(false))], args(None, false)),
        ] {
            let error = of(files, args).unwrap_err();
            assert!(error.message.contains("user a and `confine = false`"), "{error}");
        }
    }

    #[test]
    fn users_that_are_not_there_are_named() {
        let mut config = target_settings();
        config.privileges.user = user_of("no-such-user");
        let error = Privileges::look(&config).unwrap_err();
        assert!(error.message.contains("--user: there is no user `no-such-user`"), "{error}");
        // Whoever is that user has nothing to become.
        config.privileges.user = user_of(&rustix::process::geteuid().as_raw().to_string());
        let privileges = Privileges::look(&config).unwrap();
        assert!(!privileges.changes_user() && privileges.foreign.is_none());
    }

    fn user_of(name: &str) -> Option<String> {
        Some(name.to_owned())
    }

    #[test]
    fn what_is_left_is_said_in_one_line() {
        let left = Confinement {
            uid: 993,
            gid: 993,
            capabilities: Vec::new(),
            no_new_privs: Ok(()),
            not_dumpable: Ok(()),
            seccomp: Err("there is no filter for m68k".into()),
        };
        let confined = Confined { user: "thinwire".into(), kept_for: None, left: Some(left) };
        let mut status = confined.status();
        status.io_uring = MeasureStatus { taken: true, why: None };
        assert_eq!(
            status.describe(),
            "runs as user thinwire (id 993) without capabilities; no_new_privs: yes; not dumpable: yes; \
             seccomp: no (there is no filter for m68k); io_uring restricted: yes"
        );
        status.capabilities = vec!["CAP_DAC_OVERRIDE".into()];
        status.kept_for = Some("/srv/x belongs to another user".into());
        status.refused_calls.insert("socket".into(), 2);
        let said = status.describe();
        assert!(
            said.contains("with CAP_DAC_OVERRIDE, because /srv/x belongs to another user;"),
            "{said}"
        );
        assert!(said.ends_with("; refused system calls: socket 2 times"), "{said}");
        let all = Confined { user: "root".into(), kept_for: None, left: None }.status();
        assert_eq!(all.seccomp, MeasureStatus { taken: false, why: Some("--no-confine".into()) });
    }
}
