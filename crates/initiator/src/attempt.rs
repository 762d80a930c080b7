//! One attempt to open a session: where the target may be, who answered, when to ask again
//! (`docs/protocol.md`, "Handshake").

use std::time::Duration;

use thinwire_buffer::Addr;
use thinwire_proto::{DropReason, SipRng, Time};
use thinwire_wire::Offer;

/// First wait between two questions of an attempt; doubles up to the largest.
pub(crate) const RETRY: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_secs(1);
/// How long the first attach gathers offers, so that a name in double use is noticed.
const GATHER: Duration = Duration::from_millis(150);
/// RETRYs to one HELLO that are acted on: two, should the target be restarted between them.
const RETRIES_MAX: u8 = 2;
/// Offers and addresses tried in one attempt, at most.
const CANDIDATES_MAX: usize = 16;

/// A place where the target may be.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Candidate {
    pub link: usize,
    pub addr: Addr,
    pub nonce: u64,
    pub instance: u64,
    /// What the target there gave us, to show that we receive; 0 for nothing yet.
    pub cookie: u64,
    /// How many RETRYs are still acted on before the HELLO is due again anyway.
    retries: u8,
}

impl Candidate {
    /// An address that was given to us.
    pub fn at(link: usize, addr: Addr, nonce: u64) -> Self {
        Candidate { link, addr, nonce, instance: 0, cookie: 0, retries: 0 }
    }
}

/// What the time brings to an attempt that looks for a name.
pub(crate) enum Turn {
    /// Nothing: offers are still gathered.
    Gather,
    /// Several targets have the name, at these addresses.
    Ambiguous(Vec<String>),
    /// To ask, and to greet all candidates.
    Ask,
}

/// An attempt to open a session, beside the old one if there is one (rule 13).
#[derive(Clone, Debug)]
pub(crate) struct Attempt {
    started: Time,
    next_at: Time,
    backoff: Duration,
    discover_nonce: u64,
    candidates: Vec<Candidate>,
    /// The lower half of the first candidate's session id.
    session_low: u32,
    /// The instances that answered to its name when there were several, and it asked again.
    rivals: Vec<u64>,
    /// The old session has been given its chance to resume.
    hesitated: bool,
}

impl Attempt {
    /// One that asks at once.
    pub fn new(now: Time, candidates: Vec<Candidate>, rng: &mut SipRng) -> Self {
        let session_low = rng.next_u64() as u32;
        Attempt {
            started: now,
            next_at: now,
            backoff: RETRY,
            discover_nonce: rng.next_u64(),
            candidates,
            session_low,
            rivals: Vec::new(),
            hesitated: false,
        }
    }

    pub fn started(&self) -> Time {
        self.started
    }

    /// When it has something to do.
    pub fn next_at(&self) -> Time {
        self.next_at
    }

    /// Not before this.
    pub fn put_off(&mut self, until: Time) {
        self.next_at = until;
    }

    pub fn nonce(&self) -> u64 {
        self.discover_nonce
    }

    pub fn candidates(&self) -> &[Candidate] {
        &self.candidates
    }

    /// The lower half of the id of the session that is asked of a candidate.
    pub fn session_low(&self, candidate: usize) -> u32 {
        self.session_low.wrapping_add(candidate as u32)
    }

    /// Gives the old session a chance, until then; false if it has had it.
    pub fn hesitate(&mut self, until: Time) -> bool {
        let is_first = !std::mem::replace(&mut self.hesitated, true);
        if is_first {
            self.next_at = until;
        }
        is_first
    }

    /// What is to be done now to find a target by its name. `is_first`: no volume is known yet, so
    /// offers are gathered; `is_patient`: who waits for a name does not mind who has it.
    pub fn look(&mut self, now: Time, is_first: bool, is_patient: bool, rng: &mut SipRng) -> Turn {
        if is_first && !self.candidates.is_empty() && now < self.started + GATHER {
            self.next_at = self.started + GATHER;
            return Turn::Gather;
        }
        if !is_first || is_patient {
            return Turn::Ask;
        }
        let first = self.candidates.first().map(|c| c.instance);
        if self.candidates.iter().all(|c| Some(c.instance) == first) {
            return Turn::Ask;
        }
        // Or is it one that has been restarted while it answered over several links? Of that one, no
        // two instances answer twice.
        let mut instances: Vec<_> = self.candidates.iter().map(|c| c.instance).collect();
        instances.sort_unstable();
        instances.dedup();
        let again = instances.iter().filter(|i| self.rivals.contains(i)).count();
        if again > 1 {
            return Turn::Ambiguous(self.addresses());
        }
        self.rivals = instances;
        self.candidates.clear();
        self.started = now;
        self.backoff = RETRY;
        self.discover_nonce = rng.next_u64();
        Turn::Ask
    }

    /// Of all candidates, each once.
    fn addresses(&self) -> Vec<String> {
        let mut addresses = Vec::new();
        for candidate in &self.candidates {
            let address = candidate.addr.to_string();
            if !addresses.contains(&address) {
                addresses.push(address);
            }
        }
        addresses
    }

    /// It asks now, and later again.
    pub fn back_off(&mut self, now: Time) {
        self.next_at = now + self.backoff;
        self.backoff = (self.backoff * 2).min(RETRY_MAX);
    }

    /// A candidate is greeted because it is time.
    pub fn greet(&mut self, at: usize) -> Candidate {
        self.candidates[at].retries = RETRIES_MAX;
        self.candidates[at]
    }

    /// An OFFER to its question. `is_first` as in [`Attempt::look`].
    pub fn on_offer(
        &mut self,
        now: Time,
        link: usize,
        from: Addr,
        offer: &Offer<'_>,
        is_first: bool,
        rng: &mut SipRng,
    ) -> Result<(), DropReason> {
        // A target that was restarted answers from the same place with another instance.
        let place = self.candidates.iter_mut().find(|c| c.link == link && c.addr == from);
        if let Some(candidate) = place {
            candidate.instance = offer.instance;
            candidate.cookie = offer.cookie;
            return Ok(());
        }
        if self.candidates.len() >= CANDIDATES_MAX {
            return Err(DropReason::Overload);
        }
        let (instance, cookie) = (offer.instance, offer.cookie);
        let candidate = Candidate::at(link, from, rng.next_u64());
        self.candidates.push(Candidate { instance, cookie, ..candidate });
        self.next_at = if is_first { (self.started + GATHER).max(now) } else { now };
        self.backoff = RETRY;
        Ok(())
    }

    /// Which candidate an answer with this nonce is from.
    pub fn place(&self, nonce: u64, link: usize, from: Addr) -> Result<usize, DropReason> {
        let is_it = |c: &Candidate| c.nonce == nonce && c.link == link && c.addr == from;
        self.candidates.iter().position(is_it).ok_or(DropReason::Unasked)
    }

    /// A RETRY with this cookie: the candidate to greet once more.
    pub fn on_retry(&mut self, at: usize, cookie: u64) -> Result<Candidate, DropReason> {
        let candidate = &mut self.candidates[at];
        candidate.retries = candidate.retries.checked_sub(1).ok_or(DropReason::Unasked)?;
        candidate.cookie = cookie;
        Ok(*candidate)
    }
}
