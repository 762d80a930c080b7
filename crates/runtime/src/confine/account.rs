//! Whose rights to files a process has: those of whoever started it, or of the account that it will become.
//!
//! A target that is to become another user opens its files as that user would, from the beginning, so that
//! nothing is found there that would be missing later. Only what must be opened with the starter's rights is, one
//! call at a time ([`as_starter`]). The kernel keeps that apart for each thread, as `setfsuid(2)` says; threads
//! that are made inherit it.

use std::ffi::CString;
use std::sync::atomic::{AtomicU64, Ordering};

use nix::unistd::{Gid, Group, Uid, User, getgrouplist, setfsgid, setfsuid};

use super::ConfineError;

/// A user of this machine, and the groups that come with it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Account {
    /// As the system calls it, or its number if it has no name.
    pub name: String,
    /// Its number.
    pub uid: u32,
    /// Its group, or the one that was asked for.
    pub gid: u32,
    /// All groups, that one among them.
    pub groups: Vec<u32>,
}

impl Account {
    /// Looks `NAME[:GROUP]` up, where each may be a number. Reads the system's files, or asks whom those say.
    ///
    /// # Errors
    /// There is no such user or group, the lookup failed, or a number without a user came without a group.
    pub fn look_up(text: &str) -> Result<Self, ConfineError> {
        let (user, group) = match text.split_once(':') {
            Some((user, group)) => (user, Some(group)),
            None => (text, None),
        };
        let unknown = |what, name: &str| ConfineError::Unknown { what, name: name.to_owned() };
        let failed = |what, name: &str, why: nix::Error| ConfineError::Lookup {
            what,
            name: name.to_owned(),
            why: why.desc().to_owned(),
        };
        let number = user.parse::<u32>().ok();
        let found = match number {
            Some(number) => User::from_uid(Uid::from_raw(number)),
            None => User::from_name(user),
        };
        let found = found.map_err(|e| failed("user", user, e))?;
        if found.is_none() && number.is_none() {
            return Err(unknown("user", user));
        }
        let gid = match group {
            Some(group) => {
                let number = group.parse::<u32>().ok().map(Gid::from_raw);
                let by_name = || match Group::from_name(group) {
                    Ok(Some(found)) => Ok(found.gid),
                    Ok(None) => Err(unknown("group", group)),
                    Err(e) => Err(failed("group", group, e)),
                };
                number.map_or_else(by_name, Ok)?
            }
            None => match &found {
                Some(found) => found.gid,
                None => return Err(unknown("user", user)),
            },
        };
        let (name, uid) = match (&found, number) {
            (Some(found), _) => (found.name.clone(), found.uid.as_raw()),
            (None, number) => (user.to_owned(), number.unwrap_or_default()),
        };
        let mut groups = vec![gid.as_raw()];
        if let Some(found) = &found {
            let name = CString::new(found.name.as_str()).map_err(|_| unknown("user", user))?;
            let all = getgrouplist(&name, gid).map_err(|e| failed("groups of user", user, e))?;
            groups.extend(all.into_iter().map(Gid::as_raw).filter(|other| *other != gid.as_raw()));
        }
        Ok(Account { name, uid, gid: gid.as_raw(), groups })
    }
}

/// Nobody else's files: none of these can be a user and a group, which are never all ones.
const STARTERS: u64 = u64::MAX;

/// User and group as which this process uses files until it has become them.
static FILES_AS: AtomicU64 = AtomicU64::new(STARTERS);

/// From now on this thread, and all that it makes, use files as that account would. To be called before other threads
/// are made, by root.
///
/// # Errors
/// The kernel refuses: who is not root cannot become somebody else.
pub fn use_files_as(account: &Account) -> Result<(), ConfineError> {
    let groups: Vec<_> =
        account.groups.iter().map(|gid| rustix::process::Gid::from_raw(*gid)).collect();
    rustix::thread::set_thread_groups(&groups)
        .map_err(|e| ConfineError::become_user(account, e.into()))?;
    set(account.uid, account.gid).map_err(|()| {
        ConfineError::become_user(account, std::io::ErrorKind::PermissionDenied.into())
    })?;
    FILES_AS.store(u64::from(account.uid) << 32 | u64::from(account.gid), Ordering::SeqCst);
    Ok(())
}

/// Does something with the rights to files of whoever started this process, as long as it still has them: before
/// [`super::give_up`]. Afterwards it is done with those that are left, and fails where they do not suffice. Only
/// calls that open or make something; nothing that a peer has a say in.
pub fn as_starter<R>(act: impl FnOnce() -> R) -> R {
    let files_as = FILES_AS.load(Ordering::SeqCst);
    if files_as == STARTERS {
        return act();
    }
    struct Back(u64);
    impl Drop for Back {
        fn drop(&mut self) {
            let (uid, gid) = ((self.0 >> 32) as u32, self.0 as u32);
            set(uid, gid).expect("rights to files that were raised go back");
        }
    }
    let _back = Back(files_as);
    // Whether it worked is seen by whether `act` does.
    let _ = set(0, 0);
    act()
}

/// This process has become the account for good.
pub(super) fn forget_starter() {
    FILES_AS.store(STARTERS, Ordering::SeqCst);
}

/// The call itself tells nothing of its success but what was set before.
fn set(uid: u32, gid: u32) -> Result<(), ()> {
    let (uid, gid) = (Uid::from_raw(uid), Gid::from_raw(gid));
    // Back to root: the user first, who may choose any group. To somebody else: the group first.
    if uid.is_root() {
        setfsuid(uid);
    }
    setfsgid(gid);
    setfsuid(uid);
    match (setfsuid(uid) == uid, setfsgid(gid) == gid) {
        (true, true) => Ok(()),
        _ => Err(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn accounts_are_found_by_name_and_by_number() {
        let root = Account::look_up("root").unwrap();
        assert_eq!((root.uid, root.gid), (0, 0));
        assert_eq!(Account::look_up("0").unwrap(), root);
        let nobody = Account::look_up("nobody").unwrap();
        assert_eq!(nobody.groups[0], nobody.gid);
        let other = Account::look_up("nobody:0").unwrap();
        assert_eq!((other.uid, other.gid), (nobody.uid, 0));
        assert!(other.groups.contains(&0));
        let nameless = Account::look_up("4123456:4123457").unwrap();
        assert_eq!((nameless.uid, nameless.groups), (4_123_456, vec![4_123_457]));
    }

    #[test]
    fn who_is_not_there_is_named() {
        for (text, said) in [
            ("no-such-user", "no user `no-such-user`"),
            ("nobody:no-such-group", "no group `no-such-group`"),
            ("4123456", "no user `4123456`"),
            ("", "no user ``"),
        ] {
            let error = Account::look_up(text).unwrap_err().to_string();
            assert!(error.contains(said), "{text}: {error}");
        }
    }
}
