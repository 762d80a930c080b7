//! The shipped clients of other protocols, as one to whoever drives them.

use thinwire_aoe::{AoeCanary, AoeClient, AoeClientConfig, AoeClientState};
use thinwire_buffer::{LinkInfo, RxFrame, Time};
use thinwire_ebd::{ClientConfig, ClientState, EbdCanary, EbdClient};
use thinwire_volume::{Closing, Completion, ErrorKind, Geometry, Io, Part, Volume};

/// What a user speaks, and how.
#[derive(Clone, Debug)]
pub enum DialectSettings {
    /// EBD.
    Ebd(ClientConfig),
    /// AoE.
    Aoe(AoeSettings),
}

/// How a user speaks AoE.
#[derive(Clone, Debug)]
pub struct AoeSettings {
    /// Settings of its client.
    pub config: AoeClientConfig,
    /// What is answered is on the medium, as far as it has been told.
    pub is_durable: bool,
}

impl DialectSettings {
    /// How long a server may be away.
    pub fn fails_after(&mut self, after: std::time::Duration) {
        match self {
            DialectSettings::Ebd(config) => config.fail_after = Some(after),
            DialectSettings::Aoe(aoe) => aoe.config.fail_after = Some(after),
        }
    }

    /// It waits for ever for a server that is away.
    pub fn waits(&self) -> bool {
        match self {
            DialectSettings::Ebd(config) => config.fail_after.is_none(),
            DialectSettings::Aoe(aoe) => aoe.config.fail_after.is_none(),
        }
    }

    /// Plants a fault in clients of EBD.
    pub fn plant_ebd(&mut self, canary: EbdCanary) {
        if let DialectSettings::Ebd(config) = self {
            config.canary = canary;
        }
    }

    /// Plants a fault in clients of AoE.
    pub fn plant_aoe(&mut self, canary: AoeCanary) {
        if let DialectSettings::Aoe(aoe) = self {
            aoe.config.canary = canary;
        }
    }
}

/// One that runs.
pub(super) enum Client {
    Ebd(EbdClient),
    Aoe(AoeClient),
}

/// The same of each.
macro_rules! each {
    ($client:expr, $it:ident => $does:expr) => {
        match $client {
            Client::Ebd($it) => $does,
            Client::Aoe($it) => $does,
        }
    };
}

impl Client {
    pub fn new(
        now: Time,
        settings: &DialectSettings,
        (read_only, take_over): (bool, bool),
        seed: u64,
        info: LinkInfo,
    ) -> Self {
        match settings.clone() {
            DialectSettings::Ebd(config) => {
                let config = ClientConfig { seed, read_only, take_over, ..config };
                Client::Ebd(EbdClient::new(now, config, info))
            }
            DialectSettings::Aoe(AoeSettings { config, .. }) => {
                let config = AoeClientConfig { seed, read_only, ..config };
                Client::Aoe(AoeClient::new(now, config, info))
            }
        }
    }

    pub fn on_frame(&mut self, now: Time, frame: &mut RxFrame) {
        each!(self, it => it.on_foreign_frame(now, 0, frame));
    }

    pub fn settle(&mut self, now: Time) {
        each!(self, it => Part::settle(it, now));
    }

    /// The end of a turn: when the next is due.
    pub fn end_turn(&mut self, closing: &mut Closing<'_>) -> u64 {
        each!(self, it => Part::close(it, closing)).0
    }

    pub fn submit(&mut self, io: Io) {
        each!(self, it => it.submit(io));
    }

    pub fn poll(&mut self, done: &mut Vec<Completion>) {
        each!(self, it => it.poll(done));
    }

    pub fn geometry(&self) -> Geometry {
        each!(self, it => it.geometry())
    }

    pub fn failure(&self) -> Option<ErrorKind> {
        each!(self, it => it.failure())
    }

    /// It is in use, and its server answers.
    pub fn is_served(&self) -> bool {
        match self {
            Client::Ebd(it) => it.report().state == ClientState::Open,
            Client::Aoe(it) => it.report().state == AoeClientState::Open,
        }
    }

    pub fn is_closed(&self) -> bool {
        each!(self, it => it.is_closed())
    }

    pub fn close(&mut self) {
        match self {
            Client::Ebd(it) => it.close(),
            Client::Aoe(it) => it.close(),
        }
    }

    pub fn abort(&mut self) {
        each!(self, it => it.abort());
    }

    /// What it would tell people, which nobody reads.
    pub fn drop_notes(&mut self) {
        each!(self, it => while it.take_note().is_some() {});
    }

    /// Where it stands, for a person.
    pub fn describe(&self) -> String {
        each!(self, it => format!("{:?}, refused: {:?}", it.report(), it.refusal()))
    }
}
