//! In which order the sessions send in a turn (`docs/protocol.md`, rule 13).

use thinwire_buffer::TxBatch;
use thinwire_proto::Time;

use crate::peer::Peer;
use crate::target::Target;

/// Who has no more items to send is first while the shard is shared: some completions with their data.
const FEW: usize = 8;

impl Target {
    /// Adds the frames that the sessions have to send to `out`. True if more waits for one than may be.
    #[inline]
    pub(crate) fn transmit(&mut self, now: Time, out: &mut [TxBatch]) -> bool {
        if self.house.fair.is_shared_at(now) {
            return self.transmit_in_order(now, out);
        }
        let mut overrun = false;
        for peer in self.peers.iter_mut().flatten() {
            overrun |= peer.transmit(now, out);
        }
        overrun
    }

    /// Who has little to say waits for nobody's frames, and of the others it is another one each time.
    #[cold]
    fn transmit_in_order(&mut self, now: Time, out: &mut [TxBatch]) -> bool {
        let mut overrun = false;
        let has_few = |peer: &Peer| peer.session.queued() <= FEW;
        for peer in self.peers.iter_mut().flatten().filter(|peer| has_few(peer)) {
            overrun |= peer.transmit(now, out);
        }
        let first = self.first_to_send % self.peers.len().max(1);
        self.first_to_send = first + 1;
        let (before, behind) = self.peers.split_at_mut(first);
        let others = behind.iter_mut().chain(before).flatten();
        for peer in others.filter(|peer| !has_few(peer)) {
            overrun |= peer.transmit(now, out);
        }
        overrun
    }
}

impl Peer {
    #[inline(always)]
    fn transmit(&mut self, now: Time, out: &mut [TxBatch]) -> bool {
        if !self.confirmed {
            // Nobody may want it: it is worth no search for a frame size.
            self.session.answer(out);
            return false;
        }
        self.session.grant(self.slots.granted_slots, self.slots.granted_bytes);
        self.session.on_time(now);
        self.session.transmit(now, &mut self.slots, out);
        self.session.is_overrun() || self.session.is_worn()
    }
}
