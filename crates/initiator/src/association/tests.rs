//! Each event in each state, against the table in the documentation.

use thinwire_buffer::{Pool, RxFrame, SegList};
use thinwire_proto::{Role, Sealed, SessionConfig};
use thinwire_wire::{
    Address, Addresses, Offer, OfferedExports, Probe, Refuse, Retry, Status, Welcome,
};

use super::*;
use crate::snapshot::{Make, check};

const TARGET: Addr = Addr::Sim(2);
/// Of the target's process, its session, and another's.
const INSTANCE: u64 = 7;
const SESSION: u64 = 70;
const SIZES: FrameSizes = FrameSizes { base: 1500, max: 1500 };

const STATES: [Make<Association>; 5] = [
    ("Idle", idle),
    ("Seeking", seeking),
    ("Associated", associated),
    ("Doubted", || {
        let mut a = associated();
        a.on_unknown_session(Time(4), SESSION).unwrap();
        a
    }),
    ("Rejoining", rejoining),
];

fn config() -> InitiatorConfig {
    let config = InitiatorConfig::new(TargetName::Address(TARGET), "disk");
    InitiatorConfig { lane: 1 << 31, insecure: true, ..config }
}

fn idle() -> Association {
    let room = Room { frames: 8, bytes: 1 << 16 };
    let addr = Addr::Sim(1);
    let link = LinkInfo { addr, frame_bytes: SIZES, room };
    Association::new(vec![link], SipRng::new(1), None)
}

fn seeking() -> Association {
    let mut a = idle();
    a.seek(Time(0), &config());
    a
}

fn associated() -> Association {
    let mut a = seeking();
    assert_eq!(welcome(&mut a, INSTANCE, false), "enters");
    a
}

/// Beside a session that is not heard any more.
fn rejoining() -> Association {
    let mut a = associated();
    a.seek(Time(4), &config());
    a
}

fn nonce(a: &Association) -> u64 {
    a.attempt.as_ref().map_or(0, |attempt| attempt.candidates()[0].nonce)
}

/// An answer of the target to the present greeting.
fn asked(a: &Association) -> Asked {
    let low = a.attempt.as_ref().map_or(0, |attempt| attempt.session_low(0));
    Asked { link: 0, from: TARGET, id: session_id(&config(), low) }
}

fn told(told: Result<(), DropReason>) -> String {
    told.map_or_else(|_| "dropped".to_owned(), |()| String::new())
}

fn welcomed(instance: u64) -> Welcome<'static> {
    Welcome {
        nonce: 0,
        session: SESSION,
        instance,
        epoch: 1,
        slots: 8,
        frame_bytes_max: 1500,
        request_bytes_max: 1 << 20,
        room_frames: 8,
        room_bytes: 1 << 16,
        credit_bytes: 1 << 20,
        addresses: Addresses::new(&[]),
    }
}

fn welcome(a: &mut Association, instance: u64, is_granted: bool) -> String {
    let welcome = Welcome { nonce: nonce(a), ..welcomed(instance) };
    let asked = asked(a);
    match a.on_welcome(Time(3), &config(), asked, &welcome, is_granted) {
        Ok(Answer::Entered(_)) => "enters".to_owned(),
        Ok(Answer::Waits) => "asks the old one".to_owned(),
        Ok(other) => format!("{other:?}"),
        Err(_) => "dropped".to_owned(),
    }
}

/// Many places that anybody may have offered take no path from those that the target names.
#[test]
fn the_ways_that_a_target_names_come_first() {
    let config = InitiatorConfig { target: TargetName::Node("node".into()), ..config() };
    let mut a = idle();
    a.seek(Time(0), &config);
    let names: [String; 0] = [];
    let exports = OfferedExports::fitting(&names, "node", 1000);
    let nonce = a.attempt.as_ref().unwrap().nonce();
    let offer = Offer { nonce, instance: 1, total: 0, first: 0, cookie: 5, node: "node", exports };
    let id = session_id(&config, 0);
    let places = [TARGET].into_iter().chain((0..20).map(|n| Addr::Sim(100 + n)));
    for from in places {
        let _ = a.on_offer(Time(1), &config, Asked { link: 0, from, id }, &offer, true);
    }
    let named = [Address::Sim(2), Address::Sim(3), Address::Sim(4)];
    let nonce = self::nonce(&a);
    let welcome = Welcome { nonce, addresses: Addresses::new(&named), ..welcomed(INSTANCE) };
    let id = session_id(&config, a.attempt.as_ref().unwrap().session_low(0));
    a.on_welcome(Time(3), &config, Asked { link: 0, from: TARGET, id }, &welcome, false).unwrap();
    let paths: Vec<_> = a.session().unwrap().path_reports().map(|path| path.addr).collect();
    assert_eq!(paths[..3], [Addr::Sim(2), Addr::Sim(3), Addr::Sim(4)]);
    assert_eq!(paths.len(), 16);
}

/// The target probes the session's path.
fn hear(a: &mut Association, now: Time) {
    let Some(session) = &mut a.session else { return };
    // A number that none before it had.
    let packet_number = (now.0 >> 10) + 1;
    let header = Header { epoch: 1, packet_number, ..Header::new(Kind::Probe) };
    let probe = Probe { token: 1, room_frames: 8, room_bytes: 1 << 16 };
    let (mut batch, pool) = (TxBatch::new(), Pool::new(0));
    outside_frame(&mut batch, TARGET, header, 1500, |out| probe.emit(out));
    let bytes = pool.copy_of(&batch.frames()[0].head).freeze();
    let (waited, queued) = (Duration::ZERO, Duration::ZERO);
    let mut rx = RxFrame { from: TARGET, bytes, rest: SegList::new(), waited, queued };
    let frame = Sealed::look(&mut rx).and_then(|sealed| sealed.unseal(&pool, &mut 0)).unwrap();
    session.on_probe(now, 0, &frame, &probe, SIZES).unwrap();
}

/// Its session had no path since it was last heard.
fn lose_paths(a: &mut Association) {
    let Some(session) = &a.session else { return };
    let (local_id, remote_id) = (session.local_id(), session.remote_id());
    let (role, batching, canary) = (Role::Initiator, Default::default(), Default::default());
    let config = SessionConfig { role, local_id, remote_id, epoch: 1, seed: 1, batching, canary };
    a.session = Some(Session::new(Time(3), config, Room { frames: 8, bytes: 1 << 16 }));
}

/// Lets the time come, as a turn does, with a session that has the attachment.
fn turn(a: &mut Association, now: Time) -> String {
    a.settle(now, &config(), true);
    a.watch(now, &config());
    a.drive(now, &config(), true).unwrap();
    if a.has_frames() { "greets".to_owned() } else { String::new() }
}

#[test]
fn it_is_as_documented() {
    check(
        include_str!("../association.md"),
        &STATES,
        &[
            ("seek", |a| {
                a.seek(Time(4), &config());
                String::new()
            }),
            ("RETRY, before a greeting", |a| {
                let retry = Retry { nonce: nonce(a), cookie: 9 };
                told(a.on_retry(Time(3), &config(), asked(a), &retry))
            }),
            ("RETRY, to a greeting", |a| {
                turn(a, Time(5));
                let retry = Retry { nonce: nonce(a), cookie: 9 };
                told(a.on_retry(Time(3), &config(), asked(a), &retry))
            }),
            ("REFUSE", |a| {
                let (nonce, status) = (nonce(a), Status::Busy as u16);
                told(
                    a.on_refuse(&config(), asked(a), &Refuse { nonce, status, text: "no" })
                        .map(drop),
                )
            }),
            ("REFUSE, to another session id", |a| {
                let (nonce, status) = (nonce(a), Status::Busy as u16);
                let other = Asked { id: asked(a).id ^ 1, ..asked(a) };
                told(a.on_refuse(&config(), other, &Refuse { nonce, status, text: "no" }).map(drop))
            }),
            ("WELCOME, of the process it was with", |a| welcome(a, INSTANCE, true)),
            ("WELCOME, of another process", |a| welcome(a, INSTANCE + 1, true)),
            ("UNKNOWN_SESSION", |a| told(a.on_unknown_session(Time(4), SESSION))),
            ("UNKNOWN_SESSION, of another", |a| told(a.on_unknown_session(Time(4), SESSION + 1))),
            ("a moment later", |a| turn(a, Time(5))),
            ("100 ms later", |a| turn(a, Time(4) + DOUBT)),
            ("all paths dead for not quite 3 s", |a| {
                lose_paths(a);
                turn(a, Time(3) + DEAD_FOR)
            }),
            ("all paths dead for 3 s", |a| {
                lose_paths(a);
                turn(a, Time(3) + DEAD_FOR + Duration::from_millis(1))
            }),
            ("heard since", |a| {
                hear(a, Time(9));
                turn(a, Time(10))
            }),
            ("the session is left", |a| {
                a.leave(Time(5), &config(), true);
                String::new()
            }),
            ("failed for good", |a| {
                a.rest();
                String::new()
            }),
        ],
        Association::state,
    );
}
