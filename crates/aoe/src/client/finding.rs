//! Which station has the device, and how large that is.

use std::time::Duration;

use thinwire_buffer::{Addr, RxFrame, Time};
use thinwire_volume::{ErrorKind, Gravity};
use thinwire_wire::aoe::{
    AoeCommand, AtaCommand, AtaRegisters, ConfigCommand, ConfigQuery, DATA_OFFSET, ErrorCode,
    Header, IDENTIFY_BYTES, IdentifyView, SECTOR_BYTES,
};

use super::AoeClient;
use super::timing::Window;

/// How soon what was not answered is asked again: first, and at most.
const SOON: Duration = Duration::from_millis(100);
const LATE: Duration = Duration::from_secs(1);
/// Frames that one I/O is cut into, at most, and the longest I/O whatever a frame carries.
const PIECES_MAX: u32 = 64;
const IO_BYTES_MAX: u32 = 128 << 10;
/// How often a server is asked for what its drive is, before it is looked for once more.
const ASKED_MAX: u32 = 5;
/// An announcement that comes sooner than this behind the last look is not looked into.
const LOOK_GAP: Duration = Duration::from_millis(100);
/// Sectors of a request to a server of the first versions, which tell none.
pub(super) const SECTORS_OF_OLD: u8 = 2;

/// What is asked now.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// Who has it?
    Query,
    /// How large is it?
    Identify,
    /// Nothing.
    Over,
}

/// Where the search stands.
#[derive(Debug)]
pub(super) struct Finding {
    stage: Stage,
    next: Time,
    pause: Duration,
    /// Of the question that was asked last.
    tag: u32,
    /// How often that was asked.
    asked: u32,
    /// Since when it is looked for.
    since: Time,
    /// Why the last of its questions was refused, if one was.
    pub refusal: Option<ErrorCode>,
}

impl Finding {
    pub fn new(now: Time) -> Self {
        let (stage, refusal) = (Stage::Query, None);
        Finding { stage, next: now, pause: SOON, tag: 0, asked: 0, since: now, refusal }
    }

    pub fn is_over(&self) -> bool {
        self.stage == Stage::Over
    }

    /// When something is to be asked.
    pub fn next(&self) -> Time {
        if self.is_over() { Time::NEVER } else { self.next }
    }

    /// This is asked now.
    pub fn asks(&self, tag: u32) -> bool {
        !self.is_over() && self.tag == tag
    }

    /// Since when it is looked for, if it is.
    pub fn since(&self) -> Option<Time> {
        (!self.is_over()).then_some(self.since)
    }

    /// The device is looked for once more.
    pub fn begin_anew(&mut self, now: Time) {
        let since = self.since().unwrap_or(now);
        *self = Finding { since, refusal: self.refusal, ..Finding::new(now) };
    }

    fn enter(&mut self, stage: Stage, now: Time) {
        self.since = self.since().unwrap_or(now);
        (self.stage, self.next, self.pause, self.asked) = (stage, now, SOON, 0);
    }
}

impl AoeClient {
    /// Asks what is to be asked.
    pub(super) fn find(&mut self) {
        if self.finding.is_over() || self.now < self.finding.next {
            return;
        }
        if self.finding.stage == Stage::Identify && self.finding.asked == ASKED_MAX {
            // It has gone since it said that it is there.
            self.finding.begin_anew(self.now);
        }
        self.finding.asked += 1;
        self.finding.next = self.now + self.finding.pause;
        self.finding.pause = (2 * self.finding.pause).min(LATE);
        self.finding.tag = self.next_tag();
        let tag = self.finding.tag;
        self.report.frames += 1;
        let (device, server) = (self.config.device, self.server);
        if self.finding.stage == Stage::Query {
            let out = self.out.push(self.config.server.unwrap_or(Addr::Group));
            Header::request(device, AoeCommand::QueryConfig, tag).put(&mut out.head);
            return ConfigQuery::request(ConfigCommand::Read, &[]).put(&mut out.head);
        }
        let out = self.out.push(server.expect("it has said so"));
        let registers = AtaRegisters::request(AtaCommand::IdentifyDevice, 0, 1);
        Header::request(device, AoeCommand::IssueAta, tag).put(&mut out.head);
        registers.expect("it speaks of no sector").put(&mut out.head);
    }

    /// A station says that it is the device: asked, or of itself.
    pub(super) fn on_config(&mut self, from: Addr, tag: u32, query: &ConfigQuery<'_>) {
        if self.config.server.is_some_and(|server| server != from) {
            return self.report.rivals += 1;
        }
        // It has begun, and may have another drive by now, or take less.
        let begins = tag == 0
            && self.server == Some(from)
            && self.finding.is_over()
            && self.now.since(self.looked_at) > LOOK_GAP;
        if self.finding.stage != Stage::Query && !begins {
            if let Some(server) = self.server.filter(|server| *server != from) {
                self.report.rivals += 1;
                if self.report.rivals == 1 {
                    let device = self.config.device;
                    let text = format!("{from} says that it is {device}, too: {server} is used");
                    self.note(Gravity::Warning, text);
                }
            }
            return;
        }
        let told = if query.sectors_max == 0 { SECTORS_OF_OLD } else { query.sectors_max };
        let sectors = told.min(self.link_sectors).max(1);
        let is_less = self.is_known && sectors < self.frame_sectors;
        (self.server, self.frame_sectors) = (Some(from), sectors);
        if is_less {
            let text = format!("{from} takes {sectors} sectors in a request from now on");
            self.note(Gravity::News, text);
            self.recut();
        }
        self.heard();
        self.window = Window::new(u32::from(query.buffers));
        self.finding.enter(Stage::Identify, self.now);
    }

    /// The drive says what it is. False if that was not asked now.
    pub(super) fn on_identity(&mut self, tag: u32, registers: &AtaRegisters, rx: &RxFrame) -> bool {
        if self.finding.stage != Stage::Identify || tag != self.finding.tag {
            return false;
        }
        let mut data = [0; IDENTIFY_BYTES];
        if !registers.is_done() || rx.len() < DATA_OFFSET + data.len() {
            self.report.dropped += 1;
            return true;
        }
        rx.copy_to(DATA_OFFSET, &mut data);
        let view = IdentifyView::parse(&data).expect("all of it is here");
        let (bytes, serial) = (view.sectors() * SECTOR_BYTES as u64, view.serial());
        if self.is_known && (bytes < self.geometry.bytes || serial != self.serial) {
            let text = "its server answers again, and has another drive".to_owned();
            self.note(Gravity::Failure, text);
            self.fail(ErrorKind::ContentChanged);
            return true;
        }
        self.serial = serial;
        if view.has_write_cache()
            && !self.config.flushes
            && !self.config.read_only
            && !self.is_known
        {
            let text =
                "the drive has a write cache, and is not flushed: what it has answered may be lost";
            self.note(Gravity::Warning, text.to_owned());
        }
        if !self.is_known {
            self.geometry.bytes = bytes;
            let piece = u32::from(self.frame_sectors) * SECTOR_BYTES as u32;
            self.geometry.io_bytes_max = (piece * PIECES_MAX).min(IO_BYTES_MAX);
        }
        self.finding.enter(Stage::Over, self.now);
        (self.is_known, self.heard_at, self.looked_at) = (true, self.now, self.now);
        true
    }
}
