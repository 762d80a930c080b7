//! The control socket from both its ends, and what lies in the run directory: connections that send lines in
//! pieces, garbage, too much or nothing, processes that answer whatever they like, and records with anything in
//! them. Answers are whole lines, two at most to each question, whoever is honest is served, and nobody hangs.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::LazyLock;
use std::time::Duration;

use thinwire::control::{
    ControlClient, ControlError, ControlRequest, ControlServer, Controlled, DetachProgress,
    LINE_BYTES_MAX, Response,
};
use thinwire::reload::Reloaded;
use thinwire::rundir::RunDir;
use thinwire_fuzz::{Choices, Reached, fuzz};

const WORDS: &[&str] = &[
    "{\"op\":\"status\"}",
    "{\"op\":\"reload\"}",
    "{\"op\":\"detach\",\"force\":true}",
    "{\"op\":\"detach\",\"force\":false}",
    "\n",
    "\n\n",
    "{",
    "}",
    "\"",
    "\"op\":",
    "\"detach\"",
    "null",
    "[",
    ",",
    " ",
    "\0",
];
const RECORDS: &[&str] = &[
    "{\"schema\":2,\"name\":\"c\",\"uri\":\"null:512\",\"frontend\":\"nbd\",\"path\":null,\"insecure\":true,\"pid\":1,\
     \"start_ticks\":1,\"leftovers\":[]}",
    "{\"schema\":2,\"node\":\"c\",\"insecure\":true,\"pid\":1,\"start_ticks\":1}",
    "\"leftovers\":[{\"kind\":\"socket\",\"path\":\"/x\"}]",
    "\"pid\":-1,",
    "\"start_ticks\":18446744073709551615,",
    "\"name\":\"c\",",
    "{",
    "}",
    "[",
    "]",
    "\"",
    ":",
    ",",
    "1e999",
    "\\ud800",
    "\u{0}",
];
const ANSWERS: &[&str] = &[
    "{\"answer\":\"refused\",\"why\":\"x\"}\n",
    "{\"answer\":\"detaching\"}\n",
    "{\"answer\":\"detached\"}\n",
    "{\"answer\":\"forbidden\",\"why\":\"x\"}\n",
    "{\"answer\":\"status\"",
    "\"name\":\"b\"",
    "\n",
    "{",
    "}",
    "[[[[[[[[[[[[[[[[",
    "\"",
    "\0",
];

static FOLDER: LazyLock<PathBuf> = LazyLock::new(|| {
    std::env::temp_dir().join(format!("thinwire-fuzz-control-{}", std::process::id()))
});

fn bytes(choices: &mut Choices<'_>, words: &[&str], most: usize) -> Vec<u8> {
    let mut bytes = Vec::new();
    for _ in 0..choices.below(most) {
        match choices.below(6) {
            0 => {
                let length = choices.below(20);
                bytes.extend_from_slice(choices.bytes(length));
            }
            1 => {
                let byte = choices.byte();
                let length = choices.below(2 * LINE_BYTES_MAX);
                bytes.resize(bytes.len() + length, byte);
            }
            _ => bytes.extend_from_slice(choices.of(words).as_bytes()),
        }
    }
    bytes
}

#[derive(Default)]
struct Fake {
    refuses: bool,
    detaches: usize,
    reloads: usize,
}

impl Controlled for Fake {
    fn status(&self) -> Response {
        Response::Refused { why: "a long answer".repeat(2000) }
    }

    fn reload(&mut self) -> Result<Reloaded, String> {
        self.reloads += 1;
        Err("it will not".into())
    }

    fn detach(&mut self, _: bool) -> Result<DetachProgress, String> {
        self.detaches += 1;
        if self.refuses { Err("it is busy".into()) } else { Ok(DetachProgress::Started) }
    }
}

/// More turns than anything here needs.
const TURNS_MAX: usize = 2_000;

fn settle(server: &mut ControlServer, fake: &mut Fake) {
    let turns = (0..TURNS_MAX).take_while(|_| server.turn(fake)).count();
    assert!(turns < TURNS_MAX, "a server that turns for ever");
}

/// Takes in what has come, of which each line is an answer. True if that is all there will be.
fn hear(stream: &mut UnixStream, heard: &mut Vec<u8>) -> bool {
    let mut buffer = [0; 4096];
    loop {
        match stream.read(&mut buffer) {
            Ok(0) => return true,
            Ok(length) => heard.extend_from_slice(&buffer[..length]),
            Err(error) => return error.kind() != std::io::ErrorKind::WouldBlock,
        }
    }
}

struct Guest {
    stream: UnixStream,
    /// Ends of lines.
    said: usize,
    heard: Vec<u8>,
}

impl Guest {
    fn lines(&self) -> impl Iterator<Item = Response> + '_ {
        let whole =
            self.heard.split_inclusive(|byte| *byte == b'\n').filter(|line| line.ends_with(b"\n"));
        whole.map(|line| serde_json::from_slice(line).expect("each line is an answer"))
    }
}

static SERVER: Reached = Reached::new();

fn play_server(choices: &mut Choices<'_>) {
    let dir = RunDir::create(&FOLDER).expect("a folder of its own");
    let mut server = ControlServer::new(dir.listen("a").expect("it listens")).expect("it serves");
    let mut fake = Fake { refuses: choices.flag(), ..Fake::default() };
    let mut guests: Vec<Guest> = Vec::new();
    let (mut sent, mut ended) = (Vec::new(), false);
    while !choices.is_empty() && !ended {
        match choices.below(8) {
            0 | 1 => {
                let stream = dir.connect("a").expect("the backlog is not full");
                stream.set_nonblocking(true).expect("a socket");
                guests.push(Guest { stream, said: 0, heard: Vec::new() });
                // Nobody waits for ever to be taken in.
                settle(&mut server, &mut fake);
            }
            2..=4 if !guests.is_empty() => {
                let at = choices.below(guests.len());
                let said = match choices.flag() {
                    // All of a question, at once.
                    true => format!("{}\n", choices.of(&WORDS[..4])).into_bytes(),
                    false => bytes(choices, WORDS, 6),
                };
                if let Ok(length) = guests[at].stream.write(&said) {
                    sent.extend_from_slice(&said[..length]);
                    guests[at].said += said[..length].iter().filter(|&&byte| byte == b'\n').count();
                }
            }
            5 if !guests.is_empty() => {
                let at = choices.below(guests.len());
                let Guest { stream, heard, .. } = &mut guests[at];
                hear(stream, heard);
            }
            6 if !guests.is_empty() => drop(guests.swap_remove(choices.below(guests.len()))),
            7 if choices.below(4) == 0 => {
                server.finish(&Response::Failed { why: "x".into() });
                ended = true;
            }
            7 if choices.flag() => server.refuse("not after all".into()),
            _ => settle(&mut server, &mut fake),
        }
    }
    settle(&mut server, &mut fake);
    for guest in &mut guests {
        hear(&mut guest.stream, &mut guest.heard);
        settle(&mut server, &mut fake);
        hear(&mut guest.stream, &mut guest.heard);
        // A server that ends does not wait for who does not read.
        assert!(ended || guest.heard.is_empty() || guest.heard.ends_with(b"\n"), "half an answer");
        // That it begins and how it ends, for each line; and that one is too long.
        assert!(guest.lines().count() <= 2 * guest.said + 1, "answers that nobody asked for");
        guest.lines().for_each(|response| match response {
            Response::Refused { .. } => SERVER.count("refused"),
            Response::Detaching => SERVER.count("detaching"),
            Response::Failed { .. } => SERVER.count("failed"),
            other => panic!("nobody says that: {other:?}"),
        });
    }
    // Nothing is done that nobody has asked for.
    let asked =
        |word: &str| sent.windows(word.len()).filter(|part| *part == word.as_bytes()).count();
    assert!(fake.detaches <= asked("detach") && fake.reloads <= asked("reload"));
    // Whoever asks is answered beside others that say nothing, or nonsense.
    if !ended && guests.len() < 16 {
        let stream = dir.connect("a").expect("it listens");
        let mut honest = Guest { stream, said: 1, heard: Vec::new() };
        honest.stream.set_nonblocking(true).expect("a socket");
        honest.stream.write_all(b"{\"op\":\"status\"}\n").expect("it fits");
        let is_heard = (0..TURNS_MAX).any(|_| {
            settle(&mut server, &mut fake);
            hear(&mut honest.stream, &mut honest.heard)
        });
        assert!(is_heard, "nobody is kept waiting");
        assert_eq!(honest.lines().count(), 1);
    }
}

#[test]
fn fuzz_control_server() {
    fuzz!("control_server", 3_000, 200, play_server);
    SERVER.expect(&["refused", "detaching", "failed"]);
    let _ = std::fs::remove_dir_all(&*FOLDER);
}

static CLIENT: Reached = Reached::new();

fn play_client(choices: &mut Choices<'_>) {
    let dir = RunDir::create(&FOLDER.with_extension("client")).expect("a folder of its own");
    let listener = dir.listen("b").expect("it listens");
    let request =
        choices.of(&[ControlRequest::Status, ControlRequest::Detach { force: true }]).clone();
    let mut client = ControlClient::ask(&dir, "b", request).expect("it listens");
    let (mut stream, _) = listener.accept().expect("it has connected");
    stream.set_nonblocking(true).expect("a socket");
    // All of it, or as much as a socket takes; then it is gone.
    let _ = stream.write(&bytes(choices, ANSWERS, 12));
    drop(stream);
    for _ in 0..20 {
        match client.answer(Duration::from_secs(20)) {
            Ok(_) => CLIENT.count("answered"),
            Err(ControlError::Garbled(why)) => {
                assert!(!why.is_empty());
                CLIENT.count("garbled");
            }
            Err(ControlError::Forbidden) => CLIENT.count("forbidden"),
            Err(ControlError::Ended) => return CLIENT.count("ended"),
            Err(other) => panic!("{other}"),
        }
    }
}

#[test]
fn fuzz_control_client() {
    fuzz!("control_client", 1_500, 100, play_client);
    CLIENT.expect(&["answered", "garbled", "forbidden", "ended"]);
    let _ = std::fs::remove_dir_all(FOLDER.with_extension("client"));
}

static RECORD: Reached = Reached::new();

fn play_record(choices: &mut Choices<'_>) {
    let folder = FOLDER.with_extension("records");
    // What the last one has left, if that has failed.
    let _ = std::fs::remove_dir_all(&folder);
    let dir = RunDir::create(&folder).expect("a folder of its own");
    let name = *choices.of(&["c", "target-c"]);
    let file = dir.file(name, "json");
    std::fs::write(&file, bytes(choices, RECORDS, 8)).expect("a file of its own");
    if let Some(record) = dir.record(name) {
        let again = serde_json::to_vec(&record).expect("a record is JSON");
        assert_eq!(serde_json::from_slice::<thinwire::record::Record>(&again).ok(), Some(record));
        RECORD.count("attachment");
    }
    if let Some(record) = dir.target_record(name) {
        let again = serde_json::to_vec(&record).expect("a record is JSON");
        let again = serde_json::from_slice::<thinwire::record::TargetRecord>(&again);
        assert_eq!(again.ok(), Some(record));
        RECORD.count("target");
    }
    let listed =
        dir.names().expect("a folder of its own").len() + dir.targets().expect("the same").len();
    assert_eq!(listed, 1, "it is listed, whatever stands in it");
    // Neither minds what stands in it.
    let _ = (dir.is_alive(name), dir.planted());
    std::fs::remove_file(&file).expect("it is there");
}

#[test]
fn fuzz_records() {
    fuzz!("records", 2_000, 60, play_record);
    RECORD.expect(&["attachment", "target"]);
    let _ = std::fs::remove_dir_all(FOLDER.with_extension("records"));
}
