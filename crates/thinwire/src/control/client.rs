//! The asking side of the control socket.

use std::io::{self, BufRead, BufReader, Write};
use std::os::unix::net::UnixStream;
use std::time::Duration;

use super::{AttachmentStatus, ControlRequest, Response, TargetStatus};
use crate::rundir::RunDir;

/// Why an attachment or a target could not be asked.
#[derive(Debug, thiserror::Error)]
pub enum ControlError {
    /// No process listens.
    #[error("no process listens on its control socket")]
    Absent,
    /// The socket belongs to somebody else.
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
        stream.write_all(&line)?;
        Ok(ControlClient { stream: BufReader::new(stream) })
    }

    /// The next answer; waits for at most `patience`.
    pub fn answer(&mut self, patience: Duration) -> Result<Response, ControlError> {
        let patience = patience.max(Duration::from_millis(1));
        self.stream.get_ref().set_read_timeout(Some(patience))?;
        let mut line = String::new();
        match self.stream.read_line(&mut line)? {
            0 => Err(ControlError::Ended),
            _ => serde_json::from_str(&line).map_err(|e| ControlError::Garbled(e.to_string())),
        }
    }

    /// Asks an attachment how it is.
    pub fn status(
        dir: &RunDir,
        name: &str,
        patience: Duration,
    ) -> Result<AttachmentStatus, ControlError> {
        match Self::ask(dir, name, ControlRequest::Status)?.answer(patience)? {
            Response::Status(status) => Ok(*status),
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
            Response::Target(status) => Ok(*status),
            other => Err(ControlError::Garbled(format!("{other:?}"))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::control::{ControlServer, Controlled, DetachProgress, State};
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
                paths: Vec::new(),
                leaves: Vec::new(),
                timer: Some("fail-after".into()),
                seconds_left: Some(1.5),
                read_only: false,
                bytes: 0,
                outstanding: 3,
                pid: 7,
                batch: None,
                spin: None,
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

    #[test]
    fn status_is_answered() {
        let (status, _) = with_server(false, |dir| ControlClient::status(dir, "a", SOON).unwrap());
        assert_eq!(status, Fake::default().how());
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
        assert_eq!(status, fake().how());
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
            assert!(answer == fake.status(), "no status");
        }
    }

    #[test]
    fn nonsense_is_refused_and_disturbs_nobody() {
        let (answers, _) = with_server(false, |dir| {
            let mut answers = Vec::new();
            for nonsense in ["format c:\n".to_owned(), "x".repeat(5000), "\n".into(), "\0\n".into()]
            {
                let mut stream = dir.connect("a").unwrap();
                stream.write_all(nonsense.as_bytes()).unwrap();
                let mut client = ControlClient { stream: BufReader::new(stream) };
                answers.push(client.answer(SOON).unwrap());
            }
            // More connections than are taken, all silent, then one that asks once they are gone.
            let silent: Vec<_> = (0..40).map(|_| dir.connect("a").unwrap()).collect();
            drop(silent);
            ControlClient::status(dir, "a", SOON).unwrap();
            answers
        });
        for answer in answers {
            assert!(matches!(&answer, Response::Refused { .. }), "{answer:?}");
        }
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
