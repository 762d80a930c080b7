//! What is offered in other protocols: from offers to their servers, each on a link of its own.

use std::cell::RefCell;
use std::rc::Rc;

use thinwire_aoe::{AoeCanary, AoeOffer, AoePort, AoeServer, AoeServerConfig};
use thinwire_buffer::{Addr, LinkInfo};
use thinwire_ebd::{EbdCanary, EbdOffer, EbdServer, ServerConfig};
use thinwire_runtime::clock::entropy;
use thinwire_runtime::shards::Guest;
use thinwire_target::Dialect;
use thinwire_wire::aoe::{DATA_OFFSET, ShelfSlot};
use thinwire_wire::ebd::EbdForm;

use crate::config::TargetSettings;
use crate::error::{Failure, Outcome};
use crate::kept::{FileKeeper, KeptDevice, KeptPlace};
use crate::links::open_foreign_link;
use crate::offer::{OfferProtocol, OfferSpec};
use crate::state_dir::try_out;

/// What is spoken on one link.
enum Lane {
    Ebd(EbdForm, Vec<EbdOffer>),
    /// Devices of the one server of AoE that a target has, on all of its links.
    Aoe(Vec<ShelfSlot>),
}

/// Opens what a target offers so. All offers of EBD of one interface and EtherType are one server's, and all of AoE.
///
/// # Errors
/// A link cannot be opened.
pub fn guests(config: &TargetSettings) -> Outcome<Vec<Guest>> {
    let mut lanes: Vec<(&OfferSpec, Lane)> = Vec::new();
    let mut devices: Vec<AoeOffer> = Vec::new();
    let (place, mut kept) = (KeptPlace::new(config), Vec::new());
    for offer in &config.offers {
        warn_of(offer);
        let lane = lanes.iter_mut().find(|(first, _)| first.link() == offer.link());
        match (
            lane.map(|(_, lane)| lane),
            lane_of((offer, &config.offers), &mut devices, &place, &mut kept),
        ) {
            (Some(Lane::Ebd(_, known)), Lane::Ebd(_, new)) => known.extend(new),
            (Some(Lane::Aoe(known)), Lane::Aoe(new)) => known.extend(new),
            (None, lane) => lanes.push((offer, lane)),
            (Some(_), _) => unreachable!("offers of two protocols on one link were refused"),
        }
    }
    let mut server = AoeServer::new(AoeServerConfig {
        offers: devices,
        seed: entropy(),
        canary: AoeCanary::None,
    });
    if !kept.is_empty() {
        if let Err(error) = try_out(&config.state_dir) {
            tracing::warn!(
                "what clients of AoE set of devices (config string, masks, reservation) will be forgotten when this target ends: \
                 nothing can be written in {} ({error}); make that folder writable, or name another with --state-dir",
                config.state_dir.display()
            );
        }
        let keeper = FileKeeper::new(place, kept);
        let keeper =
            keeper.map_err(|e| Failure::failed(format!("cannot serve AoE: no thread: {e}")))?;
        server = server.kept_by(Box::new(keeper));
    }
    let server = Rc::new(RefCell::new(server));
    lanes.into_iter().map(|(first, lane)| open(config, first, lane, &server)).collect()
}

fn warn_of(offer: &OfferSpec) {
    tracing::warn!(
        "offer {offer}: neither authenticated nor encrypted: whoever can send frames on {} can read and write it",
        offer.ifname
    );
    if let OfferProtocol::Aoe { cached: true, .. } = offer.protocol {
        tracing::warn!(
            "offer {offer}: CACHED: writes are answered before they are on the medium, and most clients of AoE never flush: \
             if this target or its machine dies, what was answered may be lost, and the client is not told"
        );
    }
}

/// The lane of one offer. A device of AoE comes to the others, unless it is there by another link.
fn lane_of(
    (offer, offers): (&OfferSpec, &[OfferSpec]),
    devices: &mut Vec<AoeOffer>,
    place: &KeptPlace,
    all_kept: &mut Vec<KeptDevice>,
) -> Lane {
    let export = offer.export.clone();
    let stations: Vec<Addr> = offer.stations.iter().map(|&mac| Addr::Mac(mac)).collect();
    match offer.protocol {
        OfferProtocol::Ebd { form, major, minor, .. } => {
            Lane::Ebd(form, vec![EbdOffer { major, minor, export, stations }])
        }
        OfferProtocol::Aoe { device, cached } => {
            match devices.iter_mut().find(|known| known.device == device) {
                Some(known) => known.stations.extend(stations),
                None => {
                    let ifname = first_interface(offers, device);
                    let of = KeptDevice { device, ifname, export: export.clone() };
                    let kept = place.read(&of);
                    all_kept.push(of);
                    devices.push(AoeOffer { device, export, stations, cached, kept });
                }
            }
            Lane::Aoe(vec![device])
        }
    }
}

/// Where a device is offered: the first by name.
fn first_interface(offers: &[OfferSpec], of: ShelfSlot) -> String {
    let is_it = |offer: &&OfferSpec| matches!(offer.protocol, OfferProtocol::Aoe { device, .. } if device == of);
    offers.iter().filter(is_it).map(|offer| offer.ifname.clone()).min().expect("it is offered")
}

fn open(
    config: &TargetSettings,
    first: &OfferSpec,
    lane: Lane,
    server: &Rc<RefCell<AoeServer>>,
) -> Outcome<Guest> {
    let head_bytes = match &lane {
        Lane::Ebd(form, _) => form.header_bytes(),
        Lane::Aoe(_) => DATA_OFFSET,
    };
    let link = open_foreign_link(&first.link(), head_bytes, config.fault.as_ref(), None)?;
    let (seed, server) = (entropy(), server.clone());
    let make = move |info: LinkInfo| -> Box<dyn Dialect> {
        match lane {
            Lane::Ebd(form, offers) => {
                let canary = EbdCanary::None;
                Box::new(EbdServer::new(ServerConfig { form, offers, seed, canary }, info))
            }
            Lane::Aoe(devices) => Box::new(AoePort::new(&server, info, &devices)),
        }
    };
    Ok(Guest { link, make: Box::new(make) })
}
