//! The asking side of the control socket.

use std::io::{self, BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::{AttachmentStatus, ControlRequest, Response, TargetStatus};
use crate::reload::Reloaded;
use crate::rundir::{RunDir, node_of};

/// The longest answer that is taken in: a target that tells of all its sessions says some MiB.
const ANSWER_BYTES_MAX: u64 = 64 << 20;

/// Why an attachment or a target could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No process listens.
    #[error("no process listens on its control socket")]
    Absent,
    /// It is somebody else's, who is neither us nor, to whom all answer, are we root.
    #[error("no permission to ask it")]
    Forbidden,
    /// It did not answer in time.
    #[error("it does not answer")]
    Silent,
    /// It closed the connection instead of answering.
    #[error("it ended without an answer")]
    Ended,
    /// The answer makes no sense.
    #[error("its answer cannot be understood: {0}")]
    Garbled(String),
    /// Something else.
    #[error("{0}")]
    Io(io::Error),
}

impl From<io::Error> for ControlError {
    fn from(e: io::Error) -> Self {
        use io::ErrorKind::*;
        match e.kind() {
            NotFound | ConnectionRefused => ControlError::Absent,
            PermissionDenied => ControlError::Forbidden,
            // A full backlog says WouldBlock: the process does not take connections in.
            WouldBlock | TimedOut => ControlError::Silent,
            ConnectionReset | BrokenPipe | UnexpectedEof => ControlError::Ended,
            _ => ControlError::Io(e),
        }
    }
}

/// One request to one process.
pub struct ControlClient {
    stream: BufReader<UnixStream>,
}

impl ControlClient {
    /// Connects and asks.
    pub fn ask(dir: &RunDir, name: &str, request: ControlRequest) -> Result<Self, ControlError> {
        let mut stream = dir.connect(name)?;
        stream.set_write_timeout(Some(Duration::from_millis(200)))?;
        let mut line = serde_json::to_vec(&request).expect("a request is valid JSON");
        line.push(b'\n');
        match stream.write_all(&line) {
            // It has answered already, and does not want to hear us.
            Err(e) if e.kind() == io::ErrorKind::BrokenPipe => {}
            said => said?,
        }
        Ok(ControlClient { stream: BufReader::new(stream) })
    }

    /// The next answer; waits for at most `patience`.
    pub fn answer(&mut self, patience: Duration) -> Result<Response, ControlError> {
        let patience = patience.max(Duration::from_millis(1));
        self.stream.get_ref().set_read_timeout(Some(patience))?;
        let mut line = Vec::new();
        if (&mut self.stream).take(ANSWER_BYTES_MAX).read_until(b'\n', &mut line)? == 0 {
            return Err(ControlError::Ended);
        }
        match serde_json::from_slice(&line) {
            Ok(Response::Forbidden { .. }) => Err(ControlError::Forbidden),
            Ok(answer) => Ok(answer),
            Err(e) => Err(ControlError::Garbled(e.to_string())),
        }
    }

    /// Asks an attachment how it is.
    pub fn status(
        dir: &RunDir,
        name: &str,
        patience: Duration,
    ) -> Result<AttachmentStatus, ControlError> {
        match Self::ask(dir, name, ControlRequest::Status)?.answer(patience)? {
            Response::Status(status) if status.name == name => Ok(*status),
            other => Err(ControlError::Garbled(format!("{other:?}"))),
        }
    }

    /// Has a target read its configuration again; the sentence that it says if it goes on as before.
    pub fn reload(
        dir: &RunDir,
        name: &str,
        patience: Duration,
    ) -> Result<Result<Reloaded, String>, ControlError> {
        match Self::ask(dir, name, ControlRequest::Reload)?.answer(patience)? {
            Response::Reloaded(reloaded) => Ok(Ok(reloaded)),
            Response::Refused { why } => Ok(Err(why)),
            other => Err(ControlError::Garbled(format!("{other:?}"))),
        }
    }

    /// Asks a target how it is.
    pub fn target(
        dir: &RunDir,
        name: &str,
        patience: Duration,
    ) -> Result<TargetStatus, ControlError> {
        match Self::ask(dir, name, ControlRequest::Status)?.answer(patience)? {
            Response::Target(status) if node_of(name) == Some(&status.node) => Ok(*status),
            other => Err(ControlError::Garbled(format!("{other:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt;

    use crate::control::{ControlCounters, ControlServer, Controlled, DetachProgress, State};
    use crate::testing::TempDir;

    #[derive(Default)]
    struct Fake {
        busy: bool,
        detaches: Vec<bool>,
        /// More, for people.
        detail: Option<String>,
    }

    impl Fake {
        fn how(&self) -> AttachmentStatus {
            AttachmentStatus {
                name: "a".into(),
                uri: "null:512".into(),
                frontend: "nbd".into(),
                path: Some("/s".into()),
                state: State::Attached,
                insecure: true,
                key: None,
                suite: None,
                paths: Vec::new(),
                leaves: Vec::new(),
                timer: Some("fail-after".into()),
                seconds_left: Some(1.5),
                read_only: false,
                bytes: 0,
                outstanding: 3,
                pid: 7,
                batch: None,
                integrity: None,
                mirrors: Vec::new(),
                cache: None,
                nodes: Vec::new(),
                spin: None,
                control: None,
                detail: self.detail.clone(),
            }
        }
    }

    impl Controlled for Fake {
        fn status(&self) -> Response {
            Response::Status(Box::new(self.how()))
        }

        fn detach(&mut self, force: bool) -> Result<DetachProgress, String> {
            self.detaches.push(force);
            if self.busy && !force {
                return Err("2 NBD clients are connected".into());
            }
            Ok(DetachProgress::Started)
        }
    }

    const SOON: Duration = Duration::from_secs(5);

    /// Runs `ask` against a server that turns until `ask` is done.
    fn with_server<T: Send>(busy: bool, ask: impl FnOnce(&RunDir) -> T + Send) -> (T, Vec<bool>) {
        serve(Fake { busy, ..Fake::default() }, ask)
    }

    fn serve<T: Send>(mut fake: Fake, ask: impl FnOnce(&RunDir) -> T + Send) -> (T, Vec<bool>) {
        let temp = TempDir::new("control");
        let dir = RunDir::create(temp.path()).unwrap();
        let mut server = ControlServer::new(dir.listen("a").unwrap()).unwrap();
        let asked = std::thread::scope(|scope| {
            let asking = scope.spawn(|| ask(&dir));
            while !asking.is_finished() {
                if server.turn(&mut fake) && fake.detaches.contains(&true) {
                    server.finish(&Response::Failed { why: "3 writes were lost".into() });
                }
                std::thread::yield_now();
            }
            asking.join().unwrap()
        });
        (asked, fake.detaches)
    }

    /// What a fake says when nothing else has come.
    fn told(fake: &Fake) -> AttachmentStatus {
        AttachmentStatus { control: Some(ControlCounters::default()), ..fake.how() }
    }

    #[test]
    fn status_is_answered() {
        let (status, _) = with_server(false, |dir| ControlClient::status(dir, "a", SOON).unwrap());
        assert_eq!(status, told(&Fake::default()));
    }

    /// Whoever connects, by whatever mistake it can.
    #[test]
    fn a_stranger_is_told_so_counted_and_not_heard() {
        // Only root can become one.
        if !rustix::process::geteuid().is_root() {
            return;
        }
        let ((shut, heard, status), detaches) = with_server(false, |dir| {
            let path = dir.file("a", "sock");
            let shut = as_stranger(|| dir.connect("a").unwrap_err().kind());
            std::fs::set_permissions(&path, std::fs::Permissions::from_mode(0o666)).unwrap();
            let heard = as_stranger(|| {
                let mut heard = Vec::new();
                for request in [ControlRequest::Detach { force: true }, ControlRequest::Status] {
                    let answer = ControlClient::ask(dir, "a", request).unwrap().answer(SOON);
                    assert!(matches!(answer, Err(ControlError::Forbidden)), "{answer:?}");
                }
                // One that says nothing is told, too, and has no place.
                BufReader::new(dir.connect("a").unwrap()).read_to_end(&mut heard).unwrap();
                String::from_utf8(heard).unwrap()
            });
            (shut, heard, ControlClient::status(dir, "a", SOON).unwrap())
        });
        assert_eq!(shut, io::ErrorKind::PermissionDenied);
        let why = "only root may ask here, and this is user 65534";
        assert_eq!(heard, format!("{{\"answer\":\"forbidden\",\"why\":\"{why}\"}}\n"));
        let control = status.control.unwrap();
        assert_eq!(control, ControlCounters { strangers: 3, ..Default::default() });
        assert_eq!(
            control.describe().unwrap(),
            "its control socket refused 3 connections of other users"
        );
        assert!(detaches.is_empty(), "a stranger was heard");
    }

    /// In a thread that is another user: Linux has users by thread.
    fn as_stranger<T: Send>(act: impl FnOnce() -> T + Send) -> T {
        let stranger = rustix::process::Uid::from_raw(65534);
        std::thread::scope(|scope| {
            let acting = scope.spawn(|| {
                rustix::thread::set_thread_res_uid(stranger, stranger, stranger).unwrap();
                act()
            });
            acting.join().unwrap()
        })
    }

    #[test]
    fn a_crowd_is_let_in_by_and_by_and_keeps_nobody_out() {
        let temp = TempDir::new("control-crowd");
        let dir = RunDir::create(temp.path()).unwrap();
        let mut server = ControlServer::new(dir.listen("a").unwrap()).unwrap();
        let mut fake = Fake::default();
        let crowd: Vec<_> = (0..40).map(|_| dir.connect("a").unwrap()).collect();
        for crowded in [0, 16, 24, 24] {
            server.turn(&mut fake);
            assert_eq!(server.counters().crowded, crowded);
        }
        let mut client = ControlClient::ask(&dir, "a", ControlRequest::Status).unwrap();
        while server.turn(&mut fake) {}
        let Response::Status(status) = client.answer(SOON).unwrap() else { panic!("no status") };
        assert_eq!(status.control.unwrap(), ControlCounters { crowded: 25, ..Default::default() });
        drop(crowd);
    }

    /// An answer that never ends, one that is none, and one of another name.
    #[test]
    fn an_answer_that_makes_no_sense_is_told_as_such() {
        let temp = TempDir::new("control-garbled");
        let dir = RunDir::create(temp.path()).unwrap();
        let listener = dir.listen("a").unwrap();
        let other = AttachmentStatus { name: "b".into(), ..Fake::default().how() };
        let other = serde_json::to_vec(&Response::Status(Box::new(other))).unwrap();
        for said in
            [&b"\xff\xfe\n"[..], b"{\"answer\":\"root\"}\n", &[other, b"\n".to_vec()].concat()]
        {
            let failed = std::thread::scope(|scope| {
                let asking = scope.spawn(|| ControlClient::status(&dir, "a", SOON).unwrap_err());
                let (mut stream, _) = listener.accept().unwrap();
                stream.read_exact(&mut [0; 16]).unwrap();
                stream.write_all(said).unwrap();
                asking.join().unwrap()
            });
            assert!(matches!(failed, ControlError::Garbled(_)), "{failed:?}");
        }
    }

    /// As of a target with many sessions: more than a socket takes at once.
    #[test]
    fn a_long_answer_arrives_whole() {
        let detail = Some("x".repeat(3 << 20));
        let fake = || Fake { detail: detail.clone(), ..Fake::default() };
        let (status, _) = serve(fake(), |dir| {
            // Somebody who asks and takes nothing in is in nobody's way.
            let _deaf = ControlClient::ask(dir, "a", ControlRequest::Status).unwrap();
            ControlClient::status(dir, "a", SOON).unwrap()
        });
        assert_eq!(status, told(&fake()));
    }

    #[test]
    fn a_busy_attachment_refuses_and_force_ends_it() {
        let ((polite, forced, end), detaches) = with_server(true, |dir| {
            let mut polite =
                ControlClient::ask(dir, "a", ControlRequest::Detach { force: false }).unwrap();
            let polite = polite.answer(SOON).unwrap();
            let mut forced =
                ControlClient::ask(dir, "a", ControlRequest::Detach { force: true }).unwrap();
            (polite, forced.answer(SOON).unwrap(), forced.answer(SOON).unwrap())
        });
        assert_eq!(polite, Response::Refused { why: "2 NBD clients are connected".into() });
        assert_eq!(forced, Response::Detaching);
        assert_eq!(end, Response::Failed { why: "3 writes were lost".into() });
        assert_eq!(detaches, [false, true]);
    }

    /// What one of them hears is nothing to those who ask for something else.
    #[test]
    fn a_detach_that_is_refused_later_ends_no_other_conversation() {
        let temp = TempDir::new("control-later");
        let dir = RunDir::create(temp.path()).unwrap();
        let mut server = ControlServer::new(dir.listen("a").unwrap()).unwrap();
        let detail = Some("x".repeat(3 << 20));
        let mut fake = Fake { detail, ..Fake::default() };
        // One has not asked yet, one has not taken all of its answer in.
        let quiet = dir.connect("a").unwrap();
        let mut slow = ControlClient::ask(&dir, "a", ControlRequest::Status).unwrap();
        let mut polite =
            ControlClient::ask(&dir, "a", ControlRequest::Detach { force: false }).unwrap();
        while server.turn(&mut fake) && fake.detaches.is_empty() {}
        server.refuse("/dev/loop0 is mounted".into());
        assert_eq!(polite.answer(SOON).unwrap(), Response::Detaching);
        let refused = Response::Refused { why: "/dev/loop0 is mounted".into() };
        assert_eq!(polite.answer(SOON).unwrap(), refused);
        (&quiet).write_all(b"{\"op\":\"status\"}\n").unwrap();
        let mut quiet = ControlClient { stream: BufReader::new(quiet) };
        let answers = std::thread::scope(|scope| {
            let asking = scope.spawn(|| [slow.answer(SOON).unwrap(), quiet.answer(SOON).unwrap()]);
            while !asking.is_finished() {
                server.turn(&mut fake);
                std::thread::yield_now();
            }
            asking.join().unwrap()
        });
        for answer in answers {
            let Response::Status(status) = answer else { panic!("no status") };
            assert!(*status == told(&fake), "another status");
        }
    }

    #[test]
    fn nonsense_is_refused_and_disturbs_nobody() {
        let deep = "[".repeat(4000) + "\n";
        let long = "{\"op\":\"status\",".to_owned() + &" ".repeat(4096) + "\"x\":1}\n";
        let nonsense = ["format c:\n", &"x".repeat(5000), "\n", "\0\n", "\u{202e}\n", &deep, &long];
        let ((answers, status), detaches) = with_server(false, |dir| {
            let mut answers = Vec::new();
            for nonsense in nonsense {
                let mut stream = dir.connect("a").unwrap();
                // It may be refused before all is said.
                let _ = stream.write_all(nonsense.as_bytes());
                let mut client = ControlClient { stream: BufReader::new(stream) };
                answers.push(client.answer(SOON).unwrap());
            }
            // More connections than are taken, all silent, then one that asks once they are gone.
            let silent: Vec<_> = (0..40).map(|_| dir.connect("a").unwrap()).collect();
            drop(silent);
            (answers, ControlClient::status(dir, "a", SOON).unwrap())
        });
        for answer in &answers {
            assert!(matches!(answer, Response::Refused { .. }), "{answer:?}");
        }
        let control = status.control.unwrap();
        assert_eq!((control.garbled, control.strangers), (answers.len() as u64, 0));
        assert!(control.describe().unwrap().contains("7 lines that were no request"));
        assert!(detaches.is_empty());
    }

    #[test]
    fn absence_and_silence_are_told_apart() {
        let temp = TempDir::new("control-absent");
        let dir = RunDir::create(temp.path()).unwrap();
        let ask = || ControlClient::status(&dir, "a", Duration::from_millis(20)).unwrap_err();
        assert!(matches!(ask(), ControlError::Absent));
        let listener = dir.listen("a").unwrap();
        assert!(matches!(ask(), ControlError::Silent));
        drop(listener);
        assert!(matches!(ask(), ControlError::Absent));
    }
}
