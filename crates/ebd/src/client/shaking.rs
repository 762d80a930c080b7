//! Handshakes: the first, and those with a server that has forgotten the client or was away; and whether a block of the
//! size agreed on passes the network both ways.

use std::time::Duration;

use thinwire_buffer::{RxFrame, SegList, Time};
use thinwire_volume::{ErrorKind, Gravity, VolumeEvent};
use thinwire_wire::ebd::{
    EbdForm, Frame, HandshakeAnswer, HandshakeAsk, NakReason, Operation, Tag,
};

use super::request::BLOCKS_MAX;
use super::timing::Timeout;
use super::{EbdCanary, EbdClient};

/// How often it is asked: soon, then seldom.
const SOON: Duration = Duration::from_millis(200);
const SELDOM: Duration = Duration::from_secs(1);
/// While answers come behind the next asking, it waits twice as long for the next, up to this.
const SLOWEST: Duration = Duration::from_secs(4);
/// A server that has not shaken hands after so many counts as away: more than it may be deaf for, in the idealised form.
const AWAY_TRIES: u32 = 15;
/// So many handshakes are sent soon after each other.
const SOON_COUNT: u32 = 25;
/// A block that has been asked for so often without an answer does not pass.
const PROBES_MAX: u32 = 3;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// A handshake is to be answered.
    Asking,
    /// A block of the size agreed on is to be.
    Probing,
    /// Both were.
    Over,
}

/// Where the handshake stands.
#[derive(Debug)]
pub(super) struct Shaking {
    stage: Stage,
    /// Bytes of the block that is asked for.
    block_bytes: u32,
    identifier: u8,
    /// Of the handshake that was sent last: its answer has it, in the implemented form.
    number: u16,
    /// Of the handshake that was sent last.
    tag: Option<Tag>,
    tries: u32,
    /// What is waited at least, since an answer was late.
    patience: Duration,
    sent: Time,
    next: Time,
    /// The sizes that passed: they are not asked for again.
    proved: u32,
    refusal: Option<NakReason>,
}

impl Shaking {
    /// The first of a client, whose handshakes are numbered from behind this one.
    pub fn new(now: Time, block_bytes: u32, number: u16) -> Self {
        Shaking {
            stage: Stage::Asking,
            block_bytes,
            identifier: 0,
            number: number % HandshakeAsk::NUMBERS,
            tag: None,
            tries: 0,
            patience: Duration::ZERO,
            sent: now,
            next: now,
            proved: 0,
            refusal: None,
        }
    }

    /// Another, that answers to this one do not fit.
    fn anew(&self, now: Time, block_bytes: u32) -> Self {
        let Shaking { identifier, patience, .. } = *self;
        Shaking { identifier, patience, ..Shaking::new(now, block_bytes, self.number) }
    }

    /// It does not begin before this.
    pub fn begin_at(&mut self, at: Time) {
        self.next = at;
    }

    /// The last handshake was asked for under this identifier.
    pub fn was_asked(&self, identifier: u8) -> bool {
        self.identifier == identifier
    }

    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    pub fn refusal(&self) -> Option<NakReason> {
        self.refusal
    }

    pub fn next(&self) -> Time {
        if self.is_over() { Time::NEVER } else { self.next }
    }
}

impl EbdClient {
    /// Shakes hands anew: the server does not know this client any more, or does not answer.
    pub(super) fn shake_anew(&mut self) {
        if self.shaking.is_over() {
            let (block_bytes, proved) = (self.shaking.block_bytes, self.shaking.proved);
            self.shaking = Shaking { proved, ..self.shaking.anew(self.now, block_bytes) };
        }
    }

    /// The server has not answered for long.
    pub(super) fn go_away(&mut self) {
        if self.away_since.is_none() {
            self.away_since = Some(self.heard_at);
            self.note(Gravity::Warning, "the server does not answer: waiting for it".to_owned());
        }
        self.shake_anew();
    }

    /// Sends what a handshake waits for, if it is time.
    pub(super) fn shake(&mut self) {
        let (now, form) = (self.now, self.config.form);
        if self.shaking.is_over() || now < self.shaking.next || self.failure.is_some() {
            return;
        }
        let every = if self.shaking.tries < SOON_COUNT { SOON } else { SELDOM };
        let every = every.max(self.shaking.patience);
        (self.shaking.next, self.shaking.sent) = (now + every, now);
        self.shaking.tries += 1;
        if self.shaking.tries > AWAY_TRIES && self.is_open && self.away_since.is_none() {
            self.away_since = Some(now);
            self.note(
                Gravity::Warning,
                "the server does not shake hands: waiting for it".to_owned(),
            );
        }
        match self.shaking.stage {
            Stage::Over => {}
            Stage::Asking => {
                self.shaking.identifier = self.free_identifier();
                self.shaking.number = (self.shaking.number + 1) % HandshakeAsk::NUMBERS;
                let own = match self.config.form {
                    EbdForm::Ideal => self.shaking.identifier,
                    EbdForm::Implemented => self.config.client,
                };
                let ask = HandshakeAsk {
                    major: self.config.major,
                    minor: self.config.minor,
                    block_bytes: self.shaking.block_bytes,
                    writes: !self.config.read_only,
                    takes_over: self.config.take_over && !self.is_open,
                    state: self.told,
                    number: self.shaking.number,
                };
                let (frame, payload, len) = ask.frame(form, own);
                self.shaking.tag = Some(frame.tag);
                self.say(&frame, SegList::new());
                let head = &mut self.out.frames_mut().last_mut().expect("just said").head;
                head.extend_from_slice(&payload[..len]);
            }
            Stage::Probing if self.shaking.tries > PROBES_MAX => self.halve_block(),
            Stage::Probing => {
                let frame = self.probe_frame();
                self.say(&frame, SegList::new());
                let bytes = self.block as usize * 512;
                let head = &mut self.out.frames_mut().last_mut().expect("just said").head;
                head.resize(head.len() + bytes, 0);
            }
        }
    }

    /// Asks for the first block, in a frame as long as one that writes it.
    fn probe_frame(&self) -> Frame {
        Frame {
            operation: Operation::Read,
            is_answer: false,
            wants_wack: false,
            tag: self.tag(self.shaking.identifier, u32::MAX - u32::from(self.shaking.identifier)),
            credit: 0,
            length: self.block.min((self.geometry.bytes / 512) as u32) as u8,
            sector: 0,
        }
    }

    /// An identifier that no request has: what is said of those says nothing of a handshake.
    fn free_identifier(&self) -> u8 {
        let mut identifier = self.shaking.identifier.wrapping_add(1);
        let is_taken = |identifier: u8| {
            let own = |tag: Tag| matches!(tag, Tag::Ideal { identifier: other, .. } if other == identifier);
            self.requests.iter().any(|request| own(request.tag))
        };
        for _ in 0..256 {
            if !is_taken(identifier) {
                break;
            }
            identifier = identifier.wrapping_add(1);
        }
        identifier
    }

    /// The tag of a request.
    pub(super) fn tag(&self, identifier: u8, handle: u32) -> Tag {
        let (major, minor) = (self.config.major, self.config.minor);
        match self.config.form {
            EbdForm::Ideal => Tag::Ideal { identifier, major, minor },
            EbdForm::Implemented => Tag::Implemented {
                client: self.config.client,
                index: self.index,
                handle,
                reserved: 0,
            },
        }
    }

    fn halve_block(&mut self) {
        let half = (self.block / 2).max(1) * 512;
        if half == self.block * 512 {
            // It is as small as can be: whatever it is, it is not the size.
            self.shaking.tries = 0;
            return self.go_away();
        }
        let was = self.block * 512;
        self.note(
            Gravity::Warning,
            format!(
                "blocks of {was} bytes do not pass the way to {}, so they have {half}: is the MTU of every \
                 port on it as large as that of the adapter?",
                self.config.server
            ),
        );
        self.shaking = self.shaking.anew(self.now, half);
    }

    /// An answer has come while hands are shaken. True if it was about that.
    pub(super) fn on_shaking(&mut self, frame: &Frame, rx: &RxFrame) -> bool {
        match (self.shaking.stage, frame.operation) {
            (Stage::Asking, Operation::Handshake) => {
                self.on_shaken(frame, rx);
                true
            }
            (_, Operation::Handshake) => true,
            (Stage::Asking, Operation::Nak) => {
                // Of a request that was sent before, it says nothing.
                match self.shaking.tag == Some(frame.tag) {
                    true => self.on_handshake_refused(frame),
                    false => {
                        let patience = 2 * self.shaking.patience.max(SOON);
                        self.shaking.patience = patience.min(SLOWEST);
                        self.report.late += 1;
                    }
                }
                true
            }
            (Stage::Probing, Operation::Read)
                if (frame.tag, frame.sector, frame.length)
                    == (self.probe_frame().tag, 0, self.probe_frame().length) =>
            {
                self.shaking.proved = self.block;
                self.open();
                true
            }
            (Stage::Probing, Operation::Nak) if frame.tag == self.probe_frame().tag => {
                // A disk that fails at its first block answers, too.
                let why = NakReason::from_number(frame.length);
                match why {
                    Some(NakReason::Unknown) => {
                        self.shaking = self.shaking.anew(self.now, self.shaking.block_bytes)
                    }
                    _ => self.open(),
                }
                true
            }
            _ => false,
        }
    }

    fn on_handshake_refused(&mut self, frame: &Frame) {
        let Some(why) = NakReason::from_number(frame.length) else {
            return self.report.dropped += 1;
        };
        self.shaking.refusal = Some(why);
        if why == NakReason::Busy && self.config.take_over && !self.is_open && frame.sector != 0 {
            // From whom it takes over has to be said; if that was, somebody is about to be granted it.
            if self.told.writer != frame.sector as u16 {
                self.told.writer = frame.sector as u16;
                self.shaking.next = self.now;
            }
            return;
        }
        let kind = match why {
            NakReason::Fenced => ErrorKind::Fenced,
            NakReason::Changed => ErrorKind::ContentChanged,
            // Others may have what it needs for a while.
            // And a device that was there may come back.
            _ if self.is_open => return,
            NakReason::TooMany | NakReason::Unknown => return,
            NakReason::Busy | NakReason::NoDevice | NakReason::Media if self.config.waits => return,
            _ => ErrorKind::Invalid,
        };
        self.fail(kind);
    }

    fn on_shaken(&mut self, frame: &Frame, rx: &RxFrame) {
        let header = self.config.form.header_bytes();
        let mut payload = [0; 12];
        let len = rx.len().saturating_sub(header).min(payload.len());
        rx.copy_to(header, &mut payload[..len]);
        let Some((answer, index)) = HandshakeAnswer::of(frame, &payload[..len]) else {
            return self.report.dropped += 1;
        };
        let is_asked = match frame.tag {
            Tag::Ideal { identifier, .. } => identifier == self.shaking.identifier,
            Tag::Implemented { .. } => answer.number == self.shaking.number,
        };
        if !is_asked {
            // It may tell of another life of the server, or have been meant for an earlier client here; or the way takes longer.
            self.shaking.patience = (2 * self.shaking.patience.max(SOON)).min(SLOWEST);
            return self.report.late += 1;
        }
        let block = answer.block_bytes / 512;
        // Whatever becomes of the block: so many sectors are no more than a request may have of blocks.
        let longest = u32::from(answer.request_sectors).min(BLOCKS_MAX);
        let is_fit = answer.block_bytes % 512 == 0
            && block > 0
            && answer.block_bytes <= self.shaking.block_bytes
            && longest > 0
            && u32::from(answer.credit) >= longest
            && answer.sectors > 0;
        let bytes = u64::from(answer.sectors) * 512;
        let is_other = self.is_open
            && (bytes < self.geometry.bytes || answer.state.content != self.told.content);
        let is_too_small =
            is_fit && self.requests.iter().any(|r| r.sectors().div_ceil(block) > BLOCKS_MAX);
        if !is_fit || is_other || is_too_small {
            let what =
                if is_fit { "it has become another device" } else { "what it offers is none" };
            self.note(Gravity::Failure, format!("the server at {}: {what}", self.config.server));
            return self.fail(if is_fit { ErrorKind::ContentChanged } else { ErrorKind::Invalid });
        }
        self.report.handshakes += 1;
        let round_trip = self.now.since(self.shaking.sent);
        let latency = Duration::from_micros(answer.latency_us.into());
        self.timeout = Timeout::new(4 * round_trip, latency);
        self.wack_timeout = Timeout::new(2 * round_trip, Duration::ZERO);
        (self.told, self.index, self.block) = (answer.state, index, block);
        self.shaking.block_bytes = answer.block_bytes;
        (self.credit, self.first_credit) = (answer.credit, answer.credit);
        // Twice that is to fit the credit, and whole blocks, unless a request is shorter than one.
        let longest = longest.min(u32::from(answer.credit) / 2).max(1);
        self.request_sectors = (longest / block * block).max(longest.min(block));
        if self.is_open && bytes > self.geometry.bytes {
            self.events += 1;
            self.grown = Some(VolumeEvent::Resized { bytes });
        }
        self.geometry.bytes = self.geometry.bytes.max(bytes);
        if !self.is_open {
            self.geometry.preferred_bytes = answer.block_bytes.next_power_of_two().max(512);
            self.geometry.io_bytes_max = self.request_sectors * 512;
        }
        self.shaking.refusal = None;
        if self.shaking.proved >= block {
            return self.open();
        }
        (self.shaking.stage, self.shaking.tries, self.shaking.next) = (Stage::Probing, 0, self.now);
    }

    /// The server can be asked: first for what was answered and not flushed, then for what was not answered.
    fn open(&mut self) {
        self.shaking.stage = Stage::Over;
        // Another answer to the block that was asked for may still come.
        self.pairs.end(self.now, self.shaking.identifier, 0, self.block);
        if let Some(since) = self.away_since.take() {
            let seconds = self.now.since(since).as_secs();
            self.note(Gravity::News, format!("the server is back after {seconds} s"));
        }
        self.is_open = true;
        self.heard_at = self.now;
        for request in
            self.requests.extract_if(.., |request| request.is_replay()).collect::<Vec<_>>()
        {
            self.forget(&request);
        }
        // They are sent again, under other tags, once all that was lost has been.
        self.requests.iter_mut().for_each(|request| request.to_send_again = true);
        self.replaying = 0;
        self.replays.clear();
        for mut start in self.retained.starts() {
            let (end, _) = self.retained.get(start).expect("it begins there");
            while start < end {
                let most = end.min(start.saturating_add(self.request_sectors));
                self.replays.push_back((start, most));
                start = most;
            }
        }
        if self.config.canary == EbdCanary::NoReplay {
            self.replays.clear();
        }
    }
}
