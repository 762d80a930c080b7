//! Config strings, masks, announcements, and other servers of the same device.

use thinwire_buffer::{Addr, Time};
use thinwire_exports::DialectDesk;
use thinwire_wire::aoe::{
    AoeCommand, ConfigCommand, ConfigQuery, Directive, DirectiveCommand, ErrorCode, Header,
    MaskCommand, MaskError, MaskList, ShelfSlot, VERSION,
};

use super::AoeServer;
use super::parties::{Mac, Sender};

/// What a server calls the version of its firmware: that of this crate, as major and minor.
const FIRMWARE: u16 = 0x0001;
/// Addresses in a list, at most: a count is one octet.
pub(super) const LIST_MAX: usize = 255;
/// Queries that are answered together, and how many more in a second.
const BURST: u64 = 256;
const PER_SECOND: u64 = 1000;
/// Other servers of a device of which people are told, at most.
const RIVALS_MAX: usize = 16;

/// How many queries may be answered: whoever can send a frame of 60 octets to everybody makes each device answer.
#[derive(Debug)]
pub(super) struct Gauge {
    left: u64,
    since: Time,
}

impl Default for Gauge {
    fn default() -> Self {
        Gauge { left: BURST, since: Time::ZERO }
    }
}

impl Gauge {
    fn take(&mut self, now: Time) -> bool {
        const PACE: u64 = 1_000_000_000 / PER_SECOND;
        let more = now.0.saturating_sub(self.since.0) / PACE;
        if more > 0 {
            self.left = (self.left + more).min(BURST);
            self.since = Time(self.since.0 + more * PACE);
        }
        let may = self.left > 0;
        self.left -= u64::from(may);
        may
    }
}

impl AoeServer {
    /// Whether one more answer to what is no command may be sent; if not, that is counted.
    pub(super) fn may_answer(&mut self, now: Time) -> bool {
        let may = self.gauge.take(now);
        self.stats.storm += u64::from(!may);
        may
    }

    /// Whether a request that changes something names its device. One to all would change what nobody has looked at: it is refused.
    pub(super) fn is_meant(&mut self, now: Time, at: usize, from: Sender, header: &Header) -> bool {
        if header.device.is_one() {
            return true;
        }
        self.stats.to_all += 1;
        if self.may_answer(now) {
            self.refuse(from, header, at, ErrorCode::BadArgument);
        }
        false
    }

    pub(super) fn on_query(
        &mut self,
        now: Time,
        at: usize,
        from: Sender,
        header: &Header,
        query: &ConfigQuery<'_>,
        desk: &mut dyn DialectDesk,
    ) {
        let offer = &self.devices[at].offer;
        if desk.exports().find(&offer.export).is_none() {
            return self.stats.absent += 1;
        }
        let config = &offer.kept.config;
        let (is_same, is_set) = (config == query.config, !config.is_empty());
        let is_meant = match query.command {
            ConfigCommand::Exact => is_same,
            ConfigCommand::Prefix => config.starts_with(query.config),
            ConfigCommand::Read => true,
            ConfigCommand::Set | ConfigCommand::ForceSet => self.is_meant(now, at, from, header),
        };
        if !is_meant || !self.may_answer(now) {
            return;
        }
        let sets = matches!(query.command, ConfigCommand::Set | ConfigCommand::ForceSet);
        // What is set already is set: the answer to it may have been lost.
        if query.command == ConfigCommand::Set && is_set && !is_same {
            return self.refuse(from, header, at, ErrorCode::ConfigPresent);
        }
        if sets && !is_same {
            self.devices[at].offer.kept.config = query.config.to_vec();
            self.keep(at);
        }
        self.stats.queries += 1;
        let header = header.answer(self.devices[at].offer.device);
        self.say_config(at, from, &header, query.command, desk.slots());
    }

    /// Says what a device is.
    fn say_config(
        &mut self,
        at: usize,
        to: Sender,
        header: &Header,
        command: ConfigCommand,
        slots: u16,
    ) {
        let info = self.ports[to.port].info;
        let (room, largest) = (info.room, info.frame_bytes.max.max(1) as u32);
        let buffers = room.frames.min(room.bytes / largest).clamp(1, u32::from(slots));
        let sectors_max = self.request_sectors_max(to.port);
        let out = self.ports[to.port].out.push(to.addr);
        let config = &self.devices[at].offer.kept.config;
        let answer = ConfigQuery {
            buffers: buffers as u16,
            firmware: FIRMWARE,
            sectors_max,
            version: VERSION,
            command,
            config,
        };
        header.put(&mut out.head);
        answer.put(&mut out.head);
    }

    /// Tells everybody on a link what is here, and asks whether it is anywhere else.
    pub(super) fn announce(&mut self, port: usize, desk: &mut dyn DialectDesk) {
        let all = Sender::all(port);
        for at in 0..self.devices.len() {
            if !self.devices[at].ports.contains(&port) {
                continue;
            }
            let device = self.devices[at].offer.device;
            if desk.exports().find(&self.devices[at].offer.export).is_none() {
                continue;
            }
            self.tag = self.tag.wrapping_add(1);
            let question = Header::request(device, AoeCommand::QueryConfig, self.tag);
            let read = ConfigQuery::request(ConfigCommand::Read, &[]);
            self.say(all, &question, |out| read.put(out));
            let header = Header { tag: 0, ..question }.answer(device);
            self.say_config(at, all, &header, ConfigCommand::Read, desk.slots());
        }
    }

    /// Somebody answers: nobody here waits for that, but it says who else is a device that is here.
    pub(super) fn on_answer(&mut self, from: Sender, header: &Header, desk: &mut dyn DialectDesk) {
        let device = header.device;
        if !self.devices.iter().any(|known| known.offer.device == device) {
            return self.stats.answers += 1;
        }
        self.stats.rivals += 1;
        if self.rivals.len() < RIVALS_MAX && !self.rivals.contains(&(from.addr, device)) {
            self.rivals.push((from.addr, device));
            desk.exports().note(rivals_text(device, self.ports[from.port].info.addr, from.addr));
        }
    }

    pub(super) fn on_mask(
        &mut self,
        now: Time,
        at: usize,
        from: Sender,
        header: &Header,
        list: &MaskList<'_>,
    ) {
        let edits = list.command == MaskCommand::Edit;
        if edits && !self.is_meant(now, at, from, header) || !self.may_answer(now) {
            return;
        }
        self.stats.queries += 1;
        let device = self.devices[at].offer.device;
        let mut stopped = None;
        if edits {
            let masks = &mut self.devices[at].offer.kept.masks;
            let before = masks.clone();
            let ended = list.iter().try_fold(0u8, |executed, directive| {
                edit(masks, directive).map_err(|error| (error, executed)).map(|()| executed + 1)
            });
            stopped = ended.err();
            if *masks != before {
                self.keep(at);
            }
        }
        let directives: Vec<_> = self.devices[at].offer.kept.masks.iter().map(listed).collect();
        let answer = match stopped {
            Some((error, executed)) => MaskList::stopped(error, executed),
            None => MaskList::new(list.command, &directives),
        };
        self.say(from, &header.answer(device), |out| answer.put(out));
    }

    /// What clients have set of a device has changed.
    pub(super) fn keep(&mut self, at: usize) {
        let offer = &self.devices[at].offer;
        if let Some(keeper) = &mut self.keeper {
            keeper.keep(offer.device, &offer.kept);
        }
    }
}

fn edit(masks: &mut Vec<Mac>, directive: Directive) -> Result<(), MaskError> {
    let Directive { command, mac } = directive;
    match DirectiveCommand::known(command).ok_or(MaskError::BadDirective)? {
        DirectiveCommand::None => {}
        DirectiveCommand::Delete => masks.retain(|known| *known != mac),
        DirectiveCommand::Add if masks.contains(&mac) => {}
        DirectiveCommand::Add if masks.len() == LIST_MAX => return Err(MaskError::ListFull),
        DirectiveCommand::Add => masks.push(mac),
    }
    Ok(())
}

fn listed(mac: &Mac) -> [u8; 8] {
    Directive::new(DirectiveCommand::None, *mac).to_bytes()
}

/// What people are told of two servers of one device.
fn rivals_text(device: ShelfSlot, own: Addr, other: Addr) -> String {
    format!(
        "aoe {device}: {other} says that it is this device, and so does {own}: clients use whichever they hear; give one of \
         the two another shelf or slot"
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn so_many_answers_and_no_more() {
        let (mut gauge, now) = (Gauge::default(), Time(7_000_000_000));
        let mut taken = |now| (0..5000).filter(|_| gauge.take(now)).count();
        assert_eq!(taken(now), BURST as usize);
        assert_eq!(taken(Time(now.0 + 100_000_000)), 100);
    }
}
