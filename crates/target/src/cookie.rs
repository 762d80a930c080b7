//! Cookies: whoever gives one back has received it, at the address it was made for, a short while ago.
//! Nothing is remembered for it (`docs/protocol.md`, "Addresses").

use std::net::SocketAddr;
use std::time::Duration;

use thinwire_buffer::Addr;
use thinwire_proto::{SipKey, SipRng, Time, siphash};

/// A cookie is good during the period in which it was made, and the next.
const PERIOD: Duration = Duration::from_secs(4);

/// Makes cookies and knows them again. Those of another process, or another shard, mean nothing.
pub(crate) struct Cookies {
    key: SipKey,
}

impl Cookies {
    /// With a key that the generator gives to nobody else.
    pub fn new(rng: &mut SipRng) -> Self {
        Cookies { key: [rng.next_u64(), rng.next_u64()] }
    }

    /// The cookie for a sender on a link now; never 0.
    pub fn make(&self, now: Time, link: usize, addr: Addr) -> u64 {
        self.of_period(period(now), link, addr)
    }

    /// Whether that sender was given this cookie in this period or the last. Costs two hashes of up to
    /// 32 bytes.
    pub fn is_good(&self, now: Time, link: usize, addr: Addr, cookie: u64) -> bool {
        let now = period(now);
        let is = |period| self.of_period(period, link, addr) ^ cookie == 0;
        cookie != 0 && (is(now) | is(now.wrapping_sub(1)))
    }

    /// A hash of a place that nobody who does not know the key can aim at.
    pub fn hash_of(&self, link: usize, addr: Addr) -> u64 {
        // No time is so late.
        self.of_period(u64::MAX, link, addr)
    }

    /// Likewise of a name.
    pub fn hash_of_name(&self, name: &str) -> u64 {
        siphash(self.key, name.as_bytes())
    }

    /// The period stands for a key of its own: the values of one tell nothing of those of another.
    fn of_period(&self, period: u64, link: usize, addr: Addr) -> u64 {
        let mut place = Place::default();
        place.put(&period.to_le_bytes());
        place.put(&[link as u8]);
        match addr {
            Addr::Group => place.put(&[0]),
            Addr::Mac(mac) => place.put(&mac),
            Addr::Udp(SocketAddr::V4(at)) => {
                place.put(&at.ip().octets());
                place.put(&at.port().to_le_bytes());
                place.put(&[4]);
            }
            Addr::Udp(SocketAddr::V6(at)) => {
                place.put(&at.ip().octets());
                place.put(&at.port().to_le_bytes());
                place.put(&at.scope_id().to_le_bytes());
            }
            Addr::Sim(station) => place.put(&station.to_le_bytes()),
        }
        siphash(self.key, &place.bytes[..place.len]).max(1)
    }
}

/// What is hashed. The kinds of addresses differ in length.
#[derive(Default)]
struct Place {
    bytes: [u8; 32],
    len: usize,
}

impl Place {
    fn put(&mut self, bytes: &[u8]) {
        self.bytes[self.len..self.len + bytes.len()].copy_from_slice(bytes);
        self.len += bytes.len();
    }
}

fn period(now: Time) -> u64 {
    now.0 / PERIOD.as_nanos() as u64
}

#[cfg(test)]
mod tests {
    use super::*;

    fn at(seconds: u64) -> Time {
        Time(seconds * 1_000_000_000)
    }

    fn udp(text: &str) -> Addr {
        Addr::Udp(text.parse().unwrap())
    }

    #[test]
    fn a_cookie_is_good_for_its_address_alone() {
        let cookies = Cookies::new(&mut SipRng::new(1));
        let places = [
            (0, Addr::Mac([2, 0, 0, 0, 0, 1])),
            (0, Addr::Mac([2, 0, 0, 0, 0, 2])),
            (1, Addr::Mac([2, 0, 0, 0, 0, 1])),
            (0, udp("10.0.0.1:7")),
            (0, udp("10.0.0.1:8")),
            (0, udp("10.0.0.2:7")),
            (0, udp("[fe80::1]:7")),
            (0, udp("[fe80::1%2]:7")),
            (0, Addr::Sim(7)),
        ];
        for (link, addr) in places {
            let cookie = cookies.make(at(100), link, addr);
            for (other_link, other) in places {
                let good = cookies.is_good(at(100), other_link, other, cookie);
                assert_eq!(good, (link, addr) == (other_link, other), "{addr} as {other}");
            }
            assert!(!cookies.is_good(at(100), link, addr, 0));
            assert!(!cookies.is_good(at(100), link, addr, cookie ^ 1 << 63));
        }
    }

    #[test]
    fn a_cookie_is_good_for_some_seconds() {
        let (cookies, addr) = (Cookies::new(&mut SipRng::new(1)), udp("10.0.0.1:7"));
        for made in 100..110 {
            let cookie = cookies.make(at(made), 0, addr);
            for later in 0..5 {
                assert!(cookies.is_good(at(made + later), 0, addr, cookie));
            }
            assert!(!cookies.is_good(at(made + 8), 0, addr, cookie));
            assert!(!cookies.is_good(at(made - 5), 0, addr, cookie), "of the future");
        }
    }

    #[test]
    fn a_cookie_of_another_process_means_nothing() {
        let [one, other] = [1, 2].map(|seed| Cookies::new(&mut SipRng::new(seed)));
        let cookie = one.make(at(100), 0, Addr::Sim(1));
        assert!(!other.is_good(at(100), 0, Addr::Sim(1), cookie));
    }
}
