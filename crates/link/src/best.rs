//! What a plain interface name is opened as.

use std::time::Instant;

use crate::LinkOpenError;
use crate::packet::{PacketConfig, PacketLink};
use crate::spec::Advised;
use crate::survey::{Survey, survey};
use crate::xdp::holder::LEAVE_TIME;
use crate::xdp::{XdpConfig, XdpLink};

/// Which link an interface gets, and why.
#[derive(Debug, PartialEq, Eq)]
enum Choice {
    Xdp,
    /// It is the faster one here, or the only one.
    Packet,
    /// The other one would be faster, but for this.
    PacketBecause(String),
}

/// Opens the faster link that works on the interface, for one of so many shards. If that should have
/// been `xdp`, the advice says why it is not. May wait a moment for a killed predecessor to let
/// go of the interface.
pub(crate) fn open(config: PacketConfig, shards: u8) -> Result<Advised, LinkOpenError> {
    let because = match choose(|| survey(&config.ifname), shards) {
        Choice::Packet => None,
        Choice::PacketBecause(why) => Some(why),
        // What speaks against it only now (no permission for programs) is no reason to fail.
        Choice::Xdp => {
            match XdpLink::open(&XdpConfig { packet: config.clone(), ..XdpConfig::new("") }) {
                Ok(link) => {
                    let advice = link.advice();
                    return Ok((Box::new(link), advice));
                }
                Err(error) => Some(error.to_string()),
            }
        }
    };
    let link = PacketLink::open(&config)?;
    let because = because.map(|why| format!("xdp would be faster here, but {why}"));
    let all = because.into_iter().chain(link.advice());
    let advice = all.reduce(|first, second| format!("{first}; {second}"));
    Ok((Box::new(link), advice))
}

/// Chooses by what `look` says of the interface.
fn choose(mut look: impl FnMut() -> Result<Survey, LinkOpenError>, shards: u8) -> Choice {
    let start = Instant::now();
    loop {
        // Opening it will say the same, and to somebody.
        let Ok(found) = look() else { return Choice::Packet };
        let alone = Survey { attached: None, ..found.clone() };
        if shards > 1 || alone.against_xdp().is_some() {
            return Choice::Packet;
        }
        let Some(why) = found.against_xdp() else { return Choice::Xdp };
        if found.is_held || start.elapsed() > LEAVE_TIME {
            return Choice::PacketBecause(why);
        }
        std::thread::sleep(std::time::Duration::from_millis(10));
    }
}

#[cfg(test)]
mod tests {
    use thinwire_buffer::Addr;

    use super::*;
    use crate::survey::XdpSupport;

    fn fast() -> Survey {
        let xdp =
            XdpSupport { native: true, fragments: true, zero_copy: true, zero_copy_pieces: 3 };
        Survey {
            ifname: "eth1".into(),
            address: Addr::Mac([2; 6]),
            mtu: 9000,
            driver: Some("mlx5_core".into()),
            rx_queues: 8,
            xdp: Some(xdp),
            attached: None,
            is_held: false,
        }
    }

    #[test]
    fn xdp_is_chosen_where_it_is_faster_and_works() {
        assert_eq!(choose(|| Ok(fast()), 1), Choice::Xdp);
        assert_eq!(choose(|| Ok(fast()), 2), Choice::Packet);
        assert_eq!(choose(|| Ok(Survey { xdp: None, ..fast() }), 1), Choice::Packet);
        let missing = || Err(LinkOpenError::InterfaceDown { ifname: "eth1".into() });
        assert_eq!(choose(missing, 1), Choice::Packet);
    }

    #[test]
    fn who_was_killed_is_waited_for_and_who_lives_is_named() {
        let mut looks = 0;
        let going = || {
            looks += 1;
            let attached = (looks < 5).then(|| "program 7".to_owned());
            Ok(Survey { attached, ..fast() })
        };
        assert_eq!(choose(going, 1), Choice::Xdp);
        assert_eq!(looks, 5);
        let lives = Survey { attached: Some("process 7 (x)".into()), is_held: true, ..fast() };
        let start = Instant::now();
        let Choice::PacketBecause(why) = choose(|| Ok(lives.clone()), 1) else { panic!() };
        assert!(why.contains("process 7 (x)") && start.elapsed() < LEAVE_TIME, "{why}");
        // A program that stays without a process is somebody else's.
        let stays = Survey { attached: Some("program 7".into()), ..fast() };
        let Choice::PacketBecause(why) = choose(|| Ok(stays.clone()), 1) else { panic!() };
        assert!(why.contains("program 7") && start.elapsed() > LEAVE_TIME, "{why}");
        // Where xdp is no better there is nothing to wait for, and nothing to say.
        let slow = Survey { xdp: None, ..stays };
        assert_eq!(choose(|| Ok(slow.clone()), 1), Choice::Packet);
    }
}
