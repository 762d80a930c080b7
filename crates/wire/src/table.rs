//! All messages, in one table: whoever adds one adds its row here, and a struct.

use alloc::vec::Vec;

use crate::field::Body;
use crate::*;

/// Which side says a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Sender {
    /// Initiator to target.
    Initiator,
    /// Target to initiator.
    Target,
    /// Both ways.
    Both,
}

/// What is known of a type of message without looking at one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MessageRow {
    /// The message type number.
    pub number: u8,
    /// Its name on paper.
    pub name: &'static str,
    /// The only kind of frame it may stand in.
    pub kind: Kind,
    /// Who says it.
    pub sender: Sender,
    /// Its length on the wire; 0 if that varies.
    pub bytes: usize,
}

/// All types of messages, in the order of the table.
pub const MESSAGES: &[MessageRow] = Message::ROWS;

/// A message that was checked and not read.
pub(crate) struct Checked {
    pub kind: Kind,
    /// Bytes of payload that belong to it.
    pub payload_bytes: u32,
}

macro_rules! messages {
    (<$life:lifetime> $(
        $name:ident = $variant:ident($body:ty), in $kind:ident, by $sender:ident;
    )*) => {
        /// Any message, checked.
        #[derive(Clone, Copy, Debug, PartialEq, Eq)]
        #[allow(missing_docs, reason = "each variant is its type")]
        pub enum Message<$life> {
            $( $variant($body), )*
        }

        impl<$life> Message<$life> {
            const ROWS: &'static [MessageRow] = &[$(
                MessageRow {
                    number: <$body>::TYPE,
                    name: stringify!($name),
                    kind: Kind::$kind,
                    sender: Sender::$sender,
                    bytes: <$body>::BYTES,
                }
            ),*];

            /// The only kind of frame this message may stand in.
            #[inline]
            pub fn kind(&self) -> Kind {
                match self {
                    $( Message::$variant(_) => Kind::$kind, )*
                }
            }

            /// The message type number.
            #[inline]
            pub fn number(&self) -> u8 {
                match self {
                    $( Message::$variant(_) => <$body>::TYPE, )*
                }
            }

            /// Appends the message as its sender writes it. Of [`Data`] this is the message alone, without
            /// the payload.
            pub fn emit(&self, out: &mut Vec<u8>) {
                match self {
                    $( Message::$variant(body) => body.write(out), )*
                }
            }

            /// Tells the name and the bytes of each field in the order of the wire. Reserved bytes are
            /// called `reserved`.
            pub fn each_field(&self, see: &mut dyn FnMut(&'static str, &[u8])) {
                match self {
                    $( Message::$variant(body) => body.each_field(see), )*
                }
            }

            /// Checks what [`Message::read`] would read, and makes nothing of it but what the frame must
            /// agree with.
            #[inline]
            pub(crate) fn check(number: u8, body: &$life [u8]) -> Result<Option<Checked>, FrameError> {
                Ok(Some(match number {
                    $( <$body>::TYPE => Checked {
                        kind: Kind::$kind,
                        payload_bytes: <$body>::read(body, 0)?.payload_bytes(),
                    }, )*
                    _ => return Ok(None),
                }))
            }

            /// From the bytes behind its first four, which were checked; nothing if the type is unknown.
            #[inline]
            pub(crate) fn read(number: u8, body: &$life [u8], payload_at: usize) -> Option<Self> {
                match number {
                    $( <$body>::TYPE => Some(Message::$variant(<$body>::read(body, payload_at).ok()?)), )*
                    _ => None,
                }
            }
        }
    };
}

messages! { <'a>
    REQUEST = Request(Request), in Session, by Initiator;
    DATA = Data(Data), in Session, by Both;
    COMPLETE = Complete(Complete), in Session, by Target;
    ACK_RANGES = AckRanges(AckRanges<'a>), in Session, by Both;
    CREDIT = Credit(Credit), in Session, by Both;
    RESET = Reset(Reset), in Session, by Initiator;
    RESET_DONE = ResetDone(ResetDone), in Session, by Target;
    EVENT = Event(Event), in Session, by Target;
    PING = Ping(Ping), in Session, by Both;
    ATTACH = Attach(Attach<'a>), in Session, by Initiator;
    ATTACHED = Attached(Attached), in Session, by Target;
    ATTACH_REFUSED = AttachRefused(AttachRefused<'a>), in Session, by Target;
    DETACH = Detach(Detach), in Session, by Initiator;
    DETACHED = Detached(Detached), in Session, by Target;
    BYE = Bye(Bye), in Session, by Both;
    ASK_CLOCKS = AskClocks(AskClocks), in Session, by Initiator;
    CLOCKS = Clocks(Clocks), in Session, by Target;
    SUMS = Sums(Sums<'a>), in Session, by Both;
    HELLO = Hello(Hello<'a>), in Hello, by Initiator;
    WELCOME = Welcome(Welcome<'a>), in Welcome, by Target;
    REFUSE = Refuse(Refuse<'a>), in Refuse, by Target;
    UNKNOWN_SESSION = UnknownSession(UnknownSession), in UnknownSession, by Both;
    RETRY = Retry(Retry), in Retry, by Target;
    KEYED_HELLO = KeyedHello(KeyedHello<'a>), in KeyedHello, by Initiator;
    KEYED_ANSWER = KeyedAnswer(KeyedAnswer<'a>), in KeyedAnswer, by Target;
    DISCOVER = Discover(Discover<'a>), in Discover, by Initiator;
    OFFER = Offer(Offer<'a>), in Offer, by Target;
    PROBE = Probe(Probe), in Probe, by Both;
    PROBE_REPLY = ProbeReply(ProbeReply), in ProbeReply, by Both;
}
