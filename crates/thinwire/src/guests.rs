//! What is offered in other protocols: from offers to their servers, each on a link of its own.

use thinwire_buffer::Addr;
use thinwire_ebd::{EbdCanary, EbdOffer, EbdServer, ServerConfig};
use thinwire_runtime::clock::entropy;
use thinwire_runtime::shards::Guest;
use thinwire_target::Dialect;

use crate::config::TargetSettings;
use crate::error::Outcome;
use crate::links::open_foreign_link;
use crate::offer::OfferSpec;

/// Opens what a target offers so. All offers of one interface and EtherType are one server's.
///
/// # Errors
/// A link cannot be opened.
pub fn guests(config: &TargetSettings) -> Outcome<Vec<Guest>> {
    let mut lanes: Vec<(&OfferSpec, Vec<EbdOffer>)> = Vec::new();
    for offer in &config.offers {
        tracing::warn!(
            "offer {offer}: neither authenticated nor encrypted: whoever can send frames on {} can read and write it",
            offer.ifname
        );
        let device = EbdOffer {
            major: offer.major,
            minor: offer.minor,
            export: offer.export.clone(),
            stations: offer.stations.iter().map(|&mac| Addr::Mac(mac)).collect(),
        };
        match lanes.iter_mut().find(|(first, _)| first.link() == offer.link()) {
            Some((_, devices)) => devices.push(device),
            None => lanes.push((offer, vec![device])),
        }
    }
    let mut guests = Vec::new();
    for (first, offers) in lanes {
        let form = first.form;
        let link =
            open_foreign_link(&first.link(), form.header_bytes(), config.fault.as_ref(), None)?;
        let server = ServerConfig { form, offers, seed: entropy(), canary: EbdCanary::None };
        let make = move |info| Box::new(EbdServer::new(server, info)) as Box<dyn Dialect>;
        guests.push(Guest { link, make: Box::new(make) });
    }
    Ok(guests)
}
