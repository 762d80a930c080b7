//! Room for another session: who goes when there is none (`docs/protocol.md`, "Addresses"), and whether the
//! limits allow one.

use std::time::Duration;

use thinwire_buffer::Addr;
use thinwire_proto::Time;

use crate::greet::{SESSION_NUMBER, SESSIONS_MAX};
use crate::house::{By, House, Owner};
use crate::limits::{Limit, OverLimit};
use crate::peer::Peer;
use crate::target::Target;

/// A session that has just been opened goes after the others: its initiator is about to attach.
const FRESH: Duration = Duration::from_millis(500);

impl Target {
    /// A place for another session, of an initiator at `from`; `None` if all are attached. May end
    /// sessions that are not: an initiator that still wants one learns of that with its next frame, and
    /// opens another. Several end only if a limit is lower than when they came. Whoever `comes_back` is not one more
    /// for long.
    pub(crate) fn make_room(&mut self, now: Time, from: Addr, comes_back: bool) -> Option<usize> {
        let mut attached = [false; SESSIONS_MAX];
        let house = &mut self.house;
        house.in_store.resize(self.peers.len().max(house.in_store.len()), 0);
        for session in house.exports.sessions() {
            attached[(session >> 32) as usize & SESSION_NUMBER as usize] = true;
        }
        let unattached_max = house.config.limits.get(Limit::HalfOpenPerAddress) as usize;
        let sessions_max = match comes_back {
            true => SESSIONS_MAX,
            false => house.config.limits.get(Limit::Sessions) as usize,
        };
        let from = host(from);
        let is_fresh = |created| now.since(created) < FRESH;
        let (mut free, mut taken) = (None, self.peers.len());
        let (mut idle, mut idle_here) = (Vec::new(), Vec::new());
        for (index, place) in self.peers.iter().zip(&self.promises).enumerate() {
            let (addr, rank) = match place {
                // A request of a session that ended may still be in a store for it: so what the stores
                // have is bounded, too, however slow they are.
                _ if attached[index] || house.in_store[index] > 0 => continue,
                // Who goes first has the lowest: not fresh, never used, opened long ago.
                (Some(p), _) => (p.place.1, (is_fresh(p.created), p.confirmed, p.number)),
                (None, Some(p)) => (p.place.1, (is_fresh(p.created), false, p.number)),
                (None, None) => {
                    (free, taken) = (free.or(Some(index)), taken - 1);
                    continue;
                }
            };
            idle.push((rank, index));
            if host(addr) == from {
                idle_here.push((rank, index));
            }
        }
        let (limit, mut idle, over) = match idle_here.len() < unattached_max {
            true => (Limit::Sessions, idle, (taken + 1).saturating_sub(sessions_max)),
            false => {
                let over = idle_here.len() + 1 - unattached_max;
                (Limit::HalfOpenPerAddress, idle_here, over)
            }
        };
        if over > 0 {
            self.house.stats.limits.count(limit);
            idle.sort_unstable();
            let first = idle.get(..over)?;
            first.iter().for_each(|&(_, index)| self.end(index));
            return first.first().map(|&(_, index)| index);
        }
        if free.is_some() {
            return free;
        }
        self.peers.push(None);
        self.promises.push(None);
        self.house.in_store.push(0);
        Some(self.peers.len() - 1)
    }

    /// Whether one client more of another protocol, from one address, is within the limits.
    pub(crate) fn keep_limits_of_guest(&mut self, owner: &Owner) -> Result<(), OverLimit> {
        let (limit, house) = (Limit::SessionsPerAddress, &mut self.house);
        let value = house.config.limits.get(limit);
        let same = house.owners.iter().flatten().filter(|of| owner.is_as(of, By::Address)).count();
        if same as u64 >= value {
            house.stats.limits.count(limit);
            return Err(OverLimit { limit, value });
        }
        let taken = house.owners.iter().flatten().count() + 1;
        house.has_memory(taken, taken)
    }

    /// Whether this run and member, of the same owner, has a session in which something is attached: another takes
    /// the place of that one.
    fn comes_back(&self, owner: &Owner, run: RunMember) -> bool {
        let is_same = |(at, peer): (usize, &Option<Box<Peer>>)| {
            let peer = peer.as_deref().filter(|p| (p.initiator, p.instance, p.member) == run);
            let of = self.house.owners.get(at).and_then(Option::as_ref);
            peer.is_some_and(|peer| self.house.exports.open_count(peer.session.local_id()) > 0)
                && of.is_some_and(|of| of.principal == owner.principal)
        };
        self.peers.iter().enumerate().any(is_same)
    }
}

/// Sessions of one run and member that nobody has used yet, at most: an initiator greets every place where the target
/// may be, up to 16, and an answer may be on its way when it greets them again.
const UNUSED_OF_A_RUN: usize = 32;

/// Which run of which initiator a session is of, and which of its members.
pub(crate) type RunMember = ([u8; 16], u64, u8);

impl Target {
    /// Whether one session more of this owner is within the limits by key and by address. Those of the same run
    /// and member do not count: they end when the new one is used. Where sessions that nobody attached anything
    /// in are too many, the oldest of the same owner give way: one, or several if a limit is lower than when they came.
    /// True if it comes back to what it has attached: that was within the limits of then, and they do not count.
    pub(crate) fn keep_limits(
        &mut self,
        now: Time,
        owner: &Owner,
        run: RunMember,
    ) -> Result<bool, OverLimit> {
        let mut attached = [false; SESSIONS_MAX];
        for session in self.house.exports.sessions() {
            attached[(session >> 32) as usize & SESSION_NUMBER as usize] = true;
        }
        let limits = self.house.config.limits;
        let run_of = |at: usize| match (&self.peers[at], &self.promises[at]) {
            (Some(p), _) => Some(((p.initiator, p.instance, p.member), p.number, p.created)),
            (None, Some(p)) => Some(((p.initiator, p.instance, p.member), p.number, p.created)),
            (None, None) => None,
        };
        // One session of the same run is to give way to this one; others of it that nobody has used do so now.
        let mut unused: Vec<_> = (0..self.promises.len())
            .filter(|&at| self.promises[at].is_some())
            .filter_map(|at| {
                run_of(at).filter(|(of, ..)| *of == run).map(|(_, number, _)| (number, at))
            })
            .collect();
        unused.sort_unstable();
        let superseded: Vec<usize> =
            unused.iter().rev().skip(UNUSED_OF_A_RUN - 1).map(|&(_, at)| at).collect();
        let others: Vec<usize> = (0..self.peers.len())
            .filter(|&at| run_of(at).is_some_and(|(of, ..)| of != run))
            .collect();
        let holders = others.iter().filter(|&&at| attached[at]).count();
        let idle = others.iter().filter(|&&at| !attached[at] && self.house.in_store[at] == 0);
        let is_own =
            |at: usize| self.house.owners[at].as_ref().is_some_and(|of| owner.is_as(of, By::Key));
        // Its own principal's first, then the oldest.
        let idle = idle.map(|&at| {
            let (_, number, created) = run_of(at).expect("it is there");
            (now.since(created) < FRESH, !is_own(at), number, at)
        });
        let mut idle: Vec<_> = idle.collect();
        superseded.into_iter().for_each(|at| self.end(at));
        if self.comes_back(owner, run) {
            return Ok(true);
        }
        if let Err(over) = self.house.has_memory(others.len() + 1, holders) {
            let fits = |&gone: &usize| {
                self.house.memory_of(others.len() + 1 - gone, holders) <= over.value
            };
            let gone = (1..=idle.len()).find(fits).ok_or(over)?;
            idle.sort_unstable();
            idle[..gone].iter().for_each(|&(.., at)| self.end(at));
        }
        let classes = [
            (By::Key, Limit::SessionsPerKey, Limit::HalfOpenPerKey),
            (By::Address, Limit::SessionsPerAddress, Limit::HalfOpenPerAddress),
        ];
        for (by, all, half_open) in classes {
            let (mut sessions, mut unattached) = (0, Vec::new());
            for (index, (peer, promise)) in self.peers.iter().zip(&self.promises).enumerate() {
                let Some(of) = self.house.owners.get(index).and_then(Option::as_ref) else {
                    continue;
                };
                let (its_run, number, created) = match (peer, promise) {
                    (Some(p), _) => ((p.initiator, p.instance, p.member), p.number, p.created),
                    (None, Some(p)) => ((p.initiator, p.instance, p.member), p.number, p.created),
                    (None, None) => continue,
                };
                if !owner.is_as(of, by) || its_run == run {
                    continue;
                }
                sessions += 1;
                if !attached[index] && self.house.in_store.get(index).is_none_or(|&n| n == 0) {
                    unattached.push((now.since(created) < FRESH, number, index));
                }
            }
            unattached.sort_unstable();
            for limit in [half_open, all] {
                let count = if limit == all { sessions } else { unattached.len() as u64 };
                let value = limits.get(limit);
                let over = (count + 1).saturating_sub(value);
                if over == 0 {
                    continue;
                }
                self.house.stats.limits.count(limit);
                if over > unattached.len() as u64 {
                    return Err(OverLimit { limit, value });
                }
                unattached.drain(..over as usize).for_each(|(.., index)| self.end(index));
                sessions -= over;
            }
            if by == By::Key && owner.principal.is_some() {
                let (slots, bytes) = (self.house.config.slots, self.house.config.credit_bytes);
                for (limit, each) in
                    [(Limit::SlotsPerKey, u64::from(slots)), (Limit::BytesPerKey, bytes)]
                {
                    let value = limits.get(limit);
                    if (sessions + 1) * each > value {
                        self.house.stats.limits.count(limit);
                        return Err(OverLimit { limit, value });
                    }
                }
            }
        }
        Ok(false)
    }

    /// Whether another greeting from there may be acted on now, which has shown that it receives. The first from
    /// a place for a second may whatever others do, or these would keep it out.
    pub(crate) fn may_greet(
        &mut self,
        now: Time,
        link: usize,
        from: Addr,
    ) -> Result<(), OverLimit> {
        let hash = self.cookies.hash_of(link, from);
        let is_first = self.pass(now, Limit::GreetingsPerAddress, hash)?;
        // One bucket: no place is told apart.
        match self.pass(now, Limit::Greetings, 0) {
            Err(over) if !is_first => Err(over),
            _ => Ok(()),
        }
    }

    /// Whether another greeting of this principal, which has been opened, may be acted on now.
    pub(crate) fn may_greet_as(&mut self, now: Time, principal: &str) -> Result<(), OverLimit> {
        let hash = self.cookies.hash_of_name(principal);
        self.pass(now, Limit::GreetingsPerKey, hash).map(|_| ())
    }

    fn pass(&mut self, now: Time, limit: Limit, hash: u64) -> Result<bool, OverLimit> {
        let value = self.house.config.limits.get(limit);
        self.greetings.pass(now, limit, hash, value).ok_or_else(|| {
            self.house.stats.limits.count(limit);
            OverLimit { limit, value }
        })
    }
}

impl House {
    /// Whether there is memory for so many sessions, so many of which have an attachment.
    fn has_memory(&mut self, sessions: usize, attached: usize) -> Result<(), OverLimit> {
        let (limit, value) = (Limit::Memory, self.config.limits.get(Limit::Memory));
        if self.memory_of(sessions, attached) <= value {
            return Ok(());
        }
        self.stats.limits.count(limit);
        Err(OverLimit { limit, value })
    }

    /// What so many sessions may take, in bytes.
    fn memory_of(&self, sessions: usize, attached: usize) -> u64 {
        let state = (sessions * self.config.session_state_bytes_max()) as u64;
        state + (attached * self.config.session_payload_bytes_max()) as u64
    }

    /// Whether a session may have another attachment: the first of a session is when it may hold payloads. Who
    /// comes back has that one from before.
    pub(crate) fn may_attach(&mut self, peer: &Peer) -> Result<(), OverLimit> {
        let (session, is_first) = (peer.session.local_id(), !peer.was_attached);
        if is_first && peer.comes_back {
            return Ok(());
        }
        let index = |session: u64| (session >> 32) as usize & SESSION_NUMBER as usize;
        let limits = self.config.limits;
        let owner = self.owners.get(index(session)).cloned().flatten();
        let mut attached = [false; SESSIONS_MAX];
        let (mut by_key, mut by_address) = (0, 0);
        for other in self.exports.sessions() {
            attached[index(other)] = true;
            let Some(of) = self.owners.get(index(other)).and_then(Option::as_ref) else { continue };
            let Some(owner) = &owner else { continue };
            by_key += u64::from(owner.is_as(of, By::Key));
            by_address += u64::from(owner.is_as(of, By::Address));
        }
        let mut over = None;
        for (limit, count) in
            [(Limit::AttachmentsPerKey, by_key), (Limit::AttachmentsPerAddress, by_address)]
        {
            let value = limits.get(limit);
            if count >= value {
                over = over.or(Some(OverLimit { limit, value }));
            }
        }
        let sessions = self.owners.iter().flatten().count();
        let holders = attached.iter().filter(|&&is| is).count();
        if over.is_none() && is_first {
            return self.has_memory(sessions, holders + 1);
        }
        match over {
            Some(over) => {
                self.stats.limits.count(over.limit);
                Err(over)
            }
            None => Ok(()),
        }
    }
}

/// Whoever has an address has all its ports.
pub(crate) fn host(addr: Addr) -> Addr {
    match addr {
        Addr::Udp(mut at) => {
            at.set_port(0);
            Addr::Udp(at)
        }
        other => other,
    }
}
