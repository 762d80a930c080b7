//! One attempt to open a session: where the target may be, who answered, when to ask again
//! (`docs/protocol.md`, "Handshake").

use std::time::Duration;

use thinwire_buffer::Addr;
use thinwire_proto::{DropReason, SipRng, Time};
use thinwire_wire::Offer;

/// First wait between two questions of an attempt; doubles up to the largest: that is what a target that serves
/// again is waited for at most, so it is short while a restart is what is likely.
pub(crate) const RETRY: Duration = Duration::from_millis(100);
const RETRY_MAX: Duration = Duration::from_millis(200);
/// The largest when the attempt is older than that.
const EAGER: Duration = Duration::from_secs(60);
const RETRY_MAX_LATER: Duration = Duration::from_millis(500);
/// How long the first attach gathers offers, so that a name in double use is noticed.
const GATHER: Duration = Duration::from_millis(150);
/// RETRYs to one HELLO that are acted on: two, should the target be restarted between them.
const RETRIES_MAX: u8 = 2;
/// Offers and addresses tried in one attempt, at most.
const CANDIDATES_MAX: usize = 16;
/// Welcomes from which it could not be told who is the only one, at most.
const WELCOMES_MAX: usize = 64;
/// Greetings of which is kept when they were made, at most: no older ones are kept anywhere.
const MADE_MAX: usize = 4 * CANDIDATES_MAX;
/// Where there are no more, one that was greeted so often and did not welcome makes room for another: it may
/// be a forger's, of whom there may be many.
const GREETED_MAX: u32 = 2;

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
    /// How many came beyond them.
    retries_beyond: u32,
    /// How often it was greeted because it was time.
    greeted: u32,
}

impl Candidate {
    /// An address that was given to us.
    pub fn at(link: usize, addr: Addr, nonce: u64) -> Self {
        Candidate {
            link,
            addr,
            nonce,
            instance: 0,
            cookie: 0,
            retries: 0,
            retries_beyond: 0,
            greeted: 0,
        }
    }
}

/// A target with our key has welcomed. Rounds are counted by how often the attempt has asked.
#[derive(Clone, Copy, Debug)]
struct Welcomed {
    instance: u64,
    /// In which round the greeting was made that it answers: it lived then, or later.
    made: u32,
    /// And in which round the answer came.
    came: u32,
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
#[derive(Debug)]
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
    /// With a key, if several targets seem to have the name: their addresses. Which of them do is told by
    /// their answers alone.
    contested: Option<Vec<String>>,
    /// Then, who has welcomed, one after the other.
    welcomes: Vec<Welcomed>,
    /// Nonces of greetings with a key, and in which round each was made; the oldest first.
    made: Vec<(u64, u32)>,
    /// How often it has asked.
    asked: u32,
    /// The old session has been given its chance to resume.
    hesitated: bool,
    /// More offers have come than there is room for: nobody hastens it any more.
    is_flooded: bool,
    /// Offers for which there was no room since it asked last.
    surplus: u64,
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
            contested: None,
            welcomes: Vec::new(),
            made: Vec::new(),
            asked: 0,
            hesitated: false,
            is_flooded: false,
            surplus: 0,
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
    /// offers are gathered; `is_patient`: who waits for a name does not mind who has it; `is_keyed`: whoever
    /// welcomes tells, and offers are nobody's word.
    pub fn look(
        &mut self,
        now: Time,
        is_first: bool,
        is_patient: bool,
        is_keyed: bool,
        rng: &mut SipRng,
    ) -> Turn {
        if is_first && !self.candidates.is_empty() && now < self.started + GATHER {
            self.next_at = self.started + GATHER;
            return Turn::Gather;
        }
        if !is_first || is_patient || self.contested.is_some() {
            return Turn::Ask;
        }
        let first = self.candidates.first().map(|c| c.instance);
        if self.candidates.iter().all(|c| Some(c.instance) == first) {
            return Turn::Ask;
        }
        if is_keyed {
            return Turn::Ambiguous(self.addresses());
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

    /// Several may have the name: whoever welcomes with our key tells.
    pub fn contest(&mut self, addresses: Vec<String>) {
        self.contested = Some(addresses);
    }

    /// A target with our key welcomes, by an answer to the greeting of this nonce: whether it is the only one, as
    /// far as is known. It is if it has before, was asked again, and nobody else has answered what was asked in
    /// between. An error names the addresses of those that may be.
    ///
    /// What counts is when the greeting was made, not when the answer comes: somebody on the way may hold answers
    /// back and play them back, of a process that is gone, too.
    pub fn is_sole(&mut self, instance: u64, nonce: u64) -> Result<bool, Vec<String>> {
        let Some(addresses) = &self.contested else { return Ok(true) };
        let now = Welcomed { instance, made: self.round_of(nonce), came: self.asked };
        let all = &mut self.welcomes;
        if all.iter().any(|w| (w.instance, w.made) == (instance, now.made)) {
            // Not another sign of life.
            return Ok(false);
        }
        if all.len() >= WELCOMES_MAX {
            return Err(addresses.clone());
        }
        let before = all.iter().filter(|w| w.instance == instance).map(|w| w.made);
        let before = before.filter(|&made| made < now.made).max();
        let is_sole = before
            .is_some_and(|before| all.iter().all(|w| w.instance == instance || w.made < before));
        all.push(now);
        // One was there before another was asked, and after that had answered: two live at the same time.
        let spans = |one: &Welcomed, other: &Welcomed| {
            let is_behind = |w: &&Welcomed| w.instance == one.instance && other.came < w.made;
            one.instance != other.instance
                && one.came < other.made
                && all.iter().any(|w| is_behind(&w))
        };
        match all.iter().any(|one| all.iter().any(|other| spans(one, other))) {
            true => Err(addresses.clone()),
            false => Ok(is_sole),
        }
    }

    /// In which round the greeting of this nonce was made; 0 if that is long ago.
    fn round_of(&self, nonce: u64) -> u32 {
        self.made.iter().find(|(of, _)| *of == nonce).map_or(0, |&(_, round)| round)
    }

    /// Whether what a candidate is sent must be another greeting: while it is told by answers who has the name,
    /// each round asks for new ones.
    pub fn wants_another(&self, at: usize) -> bool {
        self.contested.is_some() && self.round_of(self.candidates[at].nonce) != self.asked
    }

    /// Gives a candidate another nonce: what it is sent next is another greeting.
    pub fn rename(&mut self, at: usize, nonce: u64) {
        if self.made.len() == MADE_MAX {
            self.made.remove(0);
        }
        self.made.push((nonce, self.asked));
        self.candidates[at].nonce = nonce;
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
        if self.is_flooded {
            self.candidates.retain(|c| c.greeted < GREETED_MAX);
        }
        self.surplus = 0;
        self.asked += 1;
        self.next_at = now + self.backoff;
        let most = if now.since(self.started) < EAGER { RETRY_MAX } else { RETRY_MAX_LATER };
        self.backoff = (self.backoff * 2).min(most);
    }

    /// A candidate is greeted because it is time.
    pub fn greet(&mut self, at: usize) {
        let candidate = &mut self.candidates[at];
        (candidate.retries, candidate.retries_beyond) = (RETRIES_MAX, 0);
        candidate.greeted += 1;
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
        let (instance, cookie) = (offer.instance, offer.cookie);
        let candidate = Candidate::at(link, from, rng.next_u64());
        let candidate = Candidate { instance, cookie, ..candidate };
        if self.candidates.len() >= CANDIDATES_MAX {
            return self.squeeze_in(candidate, rng);
        }
        self.candidates.push(candidate);
        if self.is_flooded {
            return Ok(());
        }
        self.next_at = if is_first { (self.started + GATHER).max(now) } else { now };
        self.backoff = RETRY;
        Ok(())
    }

    /// The candidate there.
    pub fn at(&self, link: usize, addr: Addr) -> Option<usize> {
        self.candidates.iter().position(|c| c.link == link && c.addr == addr)
    }

    /// One for whom there is no room may take the place of one that has not been greeted, all that have come
    /// since it asked last with the same chance. Anybody can offer, and as often as they like.
    fn squeeze_in(&mut self, candidate: Candidate, rng: &mut SipRng) -> Result<(), DropReason> {
        self.is_flooded = true;
        self.surplus += 1;
        let is_new = |c: &Candidate| c.greeted == 0;
        let count = self.candidates.iter().filter(|c| is_new(c)).count() as u64;
        let drawn = rng.below(count + self.surplus) as usize;
        let place = self.candidates.iter_mut().filter(|c| is_new(c)).nth(drawn);
        *place.ok_or(DropReason::Overload)? = candidate;
        Ok(())
    }

    /// Which candidate an answer with this nonce is from.
    pub fn place(&self, nonce: u64, link: usize, from: Addr) -> Result<usize, DropReason> {
        let is_it = |c: &Candidate| c.nonce == nonce && c.link == link && c.addr == from;
        self.candidates.iter().position(is_it).ok_or(DropReason::Unasked)
    }

    /// A RETRY with this cookie: the candidate is to be greeted once more.
    /// Beyond two one of them, whichever, is what the next greeting has: so that none, forged, keeps out those
    /// behind it.
    pub fn on_retry(&mut self, at: usize, cookie: u64, rng: &mut SipRng) -> Result<(), DropReason> {
        let candidate = &mut self.candidates[at];
        let Some(left) = candidate.retries.checked_sub(1) else {
            candidate.retries_beyond = candidate.retries_beyond.saturating_add(1);
            if rng.below(u64::from(candidate.retries_beyond) + 1) == 0 {
                candidate.cookie = cookie;
            }
            return Err(DropReason::Unasked);
        };
        candidate.retries = left;
        candidate.cookie = cookie;
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use thinwire_wire::OfferedExports;

    use super::*;

    const TARGET: Addr = Addr::Sim(7);

    fn offer(attempt: &mut Attempt, now: Time, from: Addr, rng: &mut SipRng) {
        let names: [String; 0] = [];
        let exports = OfferedExports::fitting(&names, "node", 1000);
        let (nonce, instance) = (attempt.nonce(), rng.next_u64());
        let offer = Offer { nonce, instance, total: 0, first: 0, cookie: 5, node: "node", exports };
        let _ = attempt.on_offer(now, 0, from, &offer, false, rng);
    }

    /// Whenever the target serves again: it is asked within 200 ms, or 500 ms if that takes a while.
    #[test]
    fn it_never_pauses_for_long() {
        let (mut rng, mut now) = (SipRng::new(3), Time::ZERO);
        let mut attempt = Attempt::new(now, Vec::new(), &mut rng);
        let (mut longest, mut longest_later) = (Duration::ZERO, Duration::ZERO);
        while now < Time::ZERO + Duration::from_secs(600) {
            let before = now;
            round(&mut attempt, &mut now);
            let longest = if now < Time::ZERO + EAGER { &mut longest } else { &mut longest_later };
            *longest = (*longest).max(now.since(before));
        }
        assert_eq!((longest, longest_later), (RETRY_MAX, RETRY_MAX_LATER));
    }

    /// It asks and greets all, once it is time. Whether the target is among them.
    fn round(attempt: &mut Attempt, now: &mut Time) -> bool {
        *now = attempt.next_at().max(*now);
        attempt.back_off(*now);
        (0..attempt.candidates().len()).for_each(|at| attempt.greet(at));
        attempt.candidates().iter().any(|c| c.addr == TARGET)
    }

    fn flood(attempt: &mut Attempt, now: Time, count: u32, rng: &mut SipRng) {
        for _ in 0..count {
            let nobody = Addr::Sim(1000 + rng.below(1 << 30) as u32);
            offer(attempt, now, nobody, rng);
        }
    }

    #[test]
    fn offers_of_many_keep_nobody_out_for_ever() {
        let (mut rng, mut now) = (SipRng::new(1), Time(1_000_000_000));
        let mut attempt = Attempt::new(now, Vec::new(), &mut rng);
        round(&mut attempt, &mut now);
        flood(&mut attempt, now, 1000, &mut rng);
        assert_eq!(attempt.candidates().len(), CANDIDATES_MAX);
        let is_greeted = (0..4).any(|_| {
            offer(&mut attempt, now, TARGET, &mut rng);
            round(&mut attempt, &mut now)
        });
        assert!(is_greeted);
    }

    /// Several seem to have the name; these welcome, and at `/` it asks again. A capital letter answers a
    /// greeting of the round before. What the last comes to.
    fn contested(welcomes: &str) -> Result<bool, ()> {
        let mut rng = SipRng::new(3);
        let all = b"abc".map(|who| Candidate::at(0, Addr::Sim(u32::from(who)), 0));
        let mut attempt = Attempt::new(Time(1), all.to_vec(), &mut rng);
        attempt.contest(vec!["somewhere".into()]);
        let nonce = |round: u32, who: u8| u64::from(round) << 8 | u64::from(who);
        let mut round = 0;
        let mut ask = |attempt: &mut Attempt| {
            round += 1;
            attempt.back_off(Time(1));
            for (at, &who) in b"abc".iter().enumerate() {
                assert!(attempt.wants_another(at));
                attempt.rename(at, nonce(round, who));
                assert!(!attempt.wants_another(at));
            }
            round
        };
        let mut asked = ask(&mut attempt);
        let mut told = Ok(false);
        for who in welcomes.bytes() {
            let (small, of) = match who {
                b'/' => {
                    asked = ask(&mut attempt);
                    continue;
                }
                _ => (who.to_ascii_lowercase(), asked - u32::from(who.is_ascii_uppercase())),
            };
            told = attempt.is_sole(u64::from(small), nonce(of, small)).map_err(drop);
        }
        told
    }

    #[test]
    fn a_restart_makes_no_name_ambiguous_and_two_targets_do() {
        for (welcomes, comes_to) in [
            ("a", Ok(false)),
            ("aaa", Ok(false)),
            ("a/a", Ok(true)),
            ("a//a", Ok(true)),
            ("aa///a", Ok(true)),
            // It was restarted.
            ("a/b", Ok(false)),
            ("ab/b", Ok(false)),
            ("ab//b", Ok(false)),
            ("ab/b/b", Ok(true)),
            ("a/b/b", Ok(true)),
            ("a/b/c/c", Ok(true)),
            // There may be two, or there are.
            ("ab/a", Ok(false)),
            ("ab/ba", Ok(false)),
            ("a/ba/b", Ok(false)),
            ("ab/ba/b", Err(())),
            ("a/ba/ba", Err(())),
            ("a/b/a", Err(())),
            // What was answered before comes late, or again.
            ("a/bA/bA/b", Ok(true)),
            ("a/Ab/A/b", Ok(false)),
            ("a/Ab/A/b/b", Ok(true)),
            ("a/bA", Ok(false)),
            ("a/A", Ok(false)),
            ("a/bA/B", Ok(false)),
        ] {
            assert_eq!(contested(welcomes), comes_to, "{welcomes}");
        }
    }

    #[test]
    fn an_offer_in_a_flood_has_its_chance_and_nobody_hastens_the_questions() {
        let (mut rng, mut now) = (SipRng::new(2), Time(1_000_000_000));
        let mut attempt = Attempt::new(now, Vec::new(), &mut rng);
        let mut greeted = 0;
        for _ in 0..2000 {
            let before = now;
            greeted += u32::from(round(&mut attempt, &mut now));
            assert!(greeted == 0 || now.since(before) >= RETRY, "at {now:?}");
            flood(&mut attempt, now, 50, &mut rng);
            offer(&mut attempt, now, TARGET, &mut rng);
            flood(&mut attempt, now, 50, &mut rng);
        }
        // Of 101 offers half as many as there is room for are taken, each for two rounds.
        assert!((200..500).contains(&greeted), "{greeted}");
    }
}
