//! The exchanges that the document draws in its Figures 3, 4 and 7 to 10 (E. Van Hensbergen, F. Rawson, "Revisiting
//! Link-Layer Storage Networking"), between our client and our server, frame by frame beside those kept in `tests/golden`. Our
//! copy of the document has no drawings, so what they show is taken from sections 2.2 to 2.4. After a deliberate change, run
//! with `THINWIRE_BLESS=1` and look at the difference.

mod common;

use std::cell::RefCell;
use std::fmt::Write as _;
use std::path::Path;
use std::rc::Rc;
use std::time::Duration;

use common::{Fate, World, stamp};
use thinwire_buffer::Addr;
use thinwire_volume::{ErrorKind, Op};
use thinwire_wire::ebd::{EbdForm, Frame, NakReason, Operation, Tag};

const FORMS: [EbdForm; 2] = [EbdForm::Ideal, EbdForm::Implemented];
/// What Ethernet adds to a frame: its header and its check sequence.
const ETHERNET: usize = 14 + 4;
const BLOCK: usize = 4096;

/// What was said, with what was lost of it.
struct Capture {
    lost: Rc<RefCell<Vec<usize>>>,
}

impl Capture {
    /// From now on; of the frames for which `loses` says so the first is lost.
    fn begin(world: &mut World, loses: impl Fn(&Frame, bool) -> bool + 'static) -> Self {
        world.seen.clear();
        let lost: Rc<RefCell<Vec<usize>>> = Rc::default();
        let (noted, mut at) = (lost.clone(), 0);
        world.judge = Box::new(move |frame, by_server| {
            at += 1;
            let mut noted = noted.borrow_mut();
            match noted.is_empty() && loses(frame, by_server) {
                true => {
                    noted.push(at - 1);
                    Fate::Lost
                }
                false => Fate::Arrives,
            }
        });
        Capture { lost }
    }

    /// What it came to, as it is kept.
    fn text(self, world: &mut World, title: &str) -> String {
        let form = world.form;
        let mut text = format!("{title}\n\n");
        let (mut headers, mut payloads) = (0, 0);
        for (at, (by_server, frame, len)) in std::mem::take(&mut world.seen).into_iter().enumerate()
        {
            let way = if by_server { "server to client" } else { "client to server" };
            let header = form.header_bytes();
            (headers, payloads) = (headers + header, payloads + len - header);
            let octets = format!("{header} + {}", len - header);
            let lost = if self.lost.borrow().contains(&at) { "  lost" } else { "" };
            let wack = if frame.wants_wack { ", WACK wanted" } else { "" };
            let said = format!("{}{wack}", name(&frame));
            let _ = writeln!(text, "{way}  {octets:>9}  {said:<18}  {}{lost}", fields(&frame));
        }
        let _ = write!(text, "\n{}", beside(form, headers, payloads));
        text
    }
}

fn name(frame: &Frame) -> String {
    let name = format!("{:?}", frame.operation).to_uppercase();
    if name == "SYNCWRITE" { "SYNC-WRITE".into() } else { name }
}

/// All fields of a header but the type.
fn fields(frame: &Frame) -> String {
    let tag = match frame.tag {
        Tag::Ideal { identifier, major, minor } => {
            format!("identifier {identifier} device {major}.{minor}")
        }
        Tag::Implemented { client, index, handle, reserved } => {
            format!("client {client} index {index} handle {handle:08x} reserved {reserved}")
        }
    };
    let length = match (frame.operation, NakReason::from_number(frame.length)) {
        (Operation::Nak, Some(why)) => format!("reason {} ({})", frame.length, why.describe()),
        _ => format!("length {}", frame.length),
    };
    format!("{tag} credit {} {length} sector {}", frame.credit, frame.sector)
}

/// Octets of an exchange, and what the document says of each frame.
fn beside(form: EbdForm, headers: usize, payloads: usize) -> String {
    let header = form.header_bytes();
    let (section, says) = match form {
        EbdForm::Ideal => ("2.2", "10 and 28"),
        EbdForm::Implemented => ("2.3", "18 and 34, which do not fit each other"),
    };
    format!(
        "header and payload of all: {headers} + {payloads} octets\n\
         header of a frame, and that with Ethernet's header and check sequence: {header} and {} octets; the document \
         ({section}): {says}\n",
        header + ETHERNET
    )
}

/// Compares with what is kept under this name, or keeps it.
fn kept(name: &str, text: &str) {
    let path = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/golden").join(name);
    if std::env::var_os("THINWIRE_BLESS").is_some() {
        std::fs::create_dir_all(path.parent().unwrap()).unwrap();
        std::fs::write(&path, text).unwrap();
    }
    let golden = std::fs::read_to_string(&path).unwrap();
    assert_eq!(golden, text, "{name}: the exchange has changed");
}

fn nothing(_: &Frame, _: bool) -> bool {
    false
}

fn of(world: &World) -> &'static str {
    match world.form {
        EbdForm::Ideal => "idealised",
        EbdForm::Implemented => "implemented",
    }
}

/// The frames of the server that say this.
fn said_by_server(world: &World, operation: Operation) -> usize {
    world.seen.iter().filter(|(by_server, f, _)| *by_server && f.operation == operation).count()
}

/// A store that has something, with a client that uses it.
fn ready(form: EbdForm) -> (World, Addr, Rc<std::cell::Cell<bool>>) {
    let (mut world, gate, _) = World::slow(form, false);
    let client = world.open(1);
    world.write(client, 16, &stamp(16, 24, 1)).unwrap();
    world.flush(client).unwrap();
    (world, client, gate)
}

/// Figures 3 and 7: one request, and an answer for each block; in the implemented form a WACK before them.
#[test]
fn reads() {
    for (form, figure) in [(EbdForm::Ideal, 3), (EbdForm::Implemented, 7)] {
        let (mut world, client, _) = ready(form);
        let capture = Capture::begin(&mut world, nothing);
        assert_eq!(world.read(client, 16, 3 * BLOCK).unwrap(), stamp(16, 24, 1));
        assert_eq!(said_by_server(&world, Operation::Read), 3);
        let wacks = usize::from(form == EbdForm::Implemented);
        assert_eq!(said_by_server(&world, Operation::Wack), wacks);
        let title = format!("Figure {figure}: READ of three blocks, {} form", of(&world));
        kept(&format!("figure-{figure:02}.txt"), &capture.text(&mut world, &title));
    }
}

/// Figures 4 and 8: a request and an answer for each block; in the implemented form a WACK for the first of them only.
#[test]
fn writes() {
    for (form, figure) in [(EbdForm::Ideal, 4), (EbdForm::Implemented, 8)] {
        let (mut world, client, gate) = ready(form);
        let capture = Capture::begin(&mut world, nothing);
        // A disk takes a while: who answers at once sends no WACK.
        gate.set(false);
        let writing = world.submit(client, Op::Write, 16, &stamp(16, 24, 2));
        world.pass(Duration::from_millis(1));
        gate.set(true);
        // Nothing tells that this volume has done something, but that somebody comes.
        world.receive(Addr::Mac([2, 0, 0, 0, 9, 9]), &[0; 18]);
        world.wait(writing).unwrap();
        assert_eq!(said_by_server(&world, Operation::Write), 3);
        let wacks = usize::from(form == EbdForm::Implemented);
        assert_eq!(said_by_server(&world, Operation::Wack), wacks);
        let title = format!("Figure {figure}: WRITE of three blocks, {} form", of(&world));
        kept(&format!("figure-{figure:02}.txt"), &capture.text(&mut world, &title));
    }
}

/// Figure 9: what cannot be done is answered by a NAK.
#[test]
fn refusals() {
    for form in FORMS {
        let (mut world, client, _) = ready(form);
        let capture = Capture::begin(&mut world, nothing);
        let last = common::BYTES / 512 - 1;
        assert_eq!(world.read(client, last, 1024), Err(ErrorKind::Invalid));
        assert_eq!(said_by_server(&world, Operation::Nak), 1);
        let title = format!("Figure 9: NAK of a READ beyond the end, {} form", of(&world));
        kept(&format!("figure-09-{}.txt", of(&world)), &capture.text(&mut world, &title));
    }
}

/// Figure 10: after a timeout only what is missing is asked for again.
#[test]
fn retries() {
    for form in FORMS {
        let (mut world, client, _) = ready(form);
        let capture = Capture::begin(&mut world, |frame, by_server| {
            by_server && frame.operation == Operation::Read && frame.sector == 24
        });
        assert_eq!(world.read(client, 16, 3 * BLOCK).unwrap(), stamp(16, 24, 1));
        assert_eq!(world.client(client).report().repeated, 1);
        let title =
            format!("Figure 10: READ of three blocks, of which one is lost, {} form", of(&world));
        kept(&format!("figure-10-{}.txt", of(&world)), &capture.text(&mut world, &title));
    }
}
