//! An NBD client that says exactly what it is told to.

use std::io::{Read, Write};
use std::os::unix::net::UnixStream;

use thinwire_frontend::nbd::proto::{
    CHUNK_MAGIC, OPTION_MAGIC, OPTION_REPLY_MAGIC, REQUEST_MAGIC, SIMPLE_REPLY_MAGIC, chunk,
    option, option_reply,
};

/// The bytes of an option.
pub fn option_bytes(option: u32, data: &[u8]) -> Vec<u8> {
    let mut bytes = OPTION_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&option.to_be_bytes());
    bytes.extend_from_slice(&(data.len() as u32).to_be_bytes());
    bytes.extend_from_slice(data);
    bytes
}

/// A 32-bit length and the string.
pub fn string(text: &[u8]) -> Vec<u8> {
    [&(text.len() as u32).to_be_bytes()[..], text].concat()
}

/// Data of `GO` and `INFO`.
pub fn info_data(name: &str, kinds: &[u16]) -> Vec<u8> {
    let mut data = string(name.as_bytes());
    data.extend_from_slice(&(kinds.len() as u16).to_be_bytes());
    data.extend(kinds.iter().flat_map(|kind| kind.to_be_bytes()));
    data
}

/// Data of the context options.
pub fn context_data(name: &str, queries: &[&str]) -> Vec<u8> {
    let mut data = string(name.as_bytes());
    data.extend_from_slice(&(queries.len() as u32).to_be_bytes());
    data.extend(queries.iter().flat_map(|query| string(query.as_bytes())));
    data
}

/// The bytes of a request's header.
pub fn request_bytes(flags: u16, command: u16, cookie: u64, offset: u64, len: u32) -> Vec<u8> {
    let mut bytes = REQUEST_MAGIC.to_be_bytes().to_vec();
    bytes.extend_from_slice(&flags.to_be_bytes());
    bytes.extend_from_slice(&command.to_be_bytes());
    bytes.extend_from_slice(&cookie.to_be_bytes());
    bytes.extend_from_slice(&offset.to_be_bytes());
    bytes.extend_from_slice(&len.to_be_bytes());
    bytes
}

/// One answer, simple or in one chunk.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Answer {
    pub cookie: u64,
    pub error: u32,
    /// Bytes read, or extents, or the text of an error.
    pub data: Vec<u8>,
}

pub struct Client {
    pub socket: UnixStream,
    pub structured: bool,
    pub flags: u16,
    pub bytes: u64,
}

impl Client {
    /// Connected and greeted, nothing said.
    pub fn connect(path: &str) -> Self {
        let mut client = Client {
            socket: UnixStream::connect(path).unwrap(),
            structured: false,
            flags: 0,
            bytes: 0,
        };
        assert_eq!(client.take::<18>(), *b"NBDMAGICIHAVEOPT\0\x03");
        client
    }

    /// In the handshake, with both flags answered.
    pub fn haggle(path: &str) -> Self {
        let mut client = Client::connect(path);
        client.say(&3u32.to_be_bytes());
        client
    }

    /// In the transmission.
    pub fn open(path: &str, structured: bool) -> Self {
        let mut client = Client::haggle(path);
        if structured {
            client.option(option::STRUCTURED_REPLY, b"");
            let replies = client
                .option(option::SET_META_CONTEXT, &context_data("disk0", &["base:allocation"]));
            assert_eq!(replies.len(), 2);
            client.structured = true;
        }
        let replies = client.option(option::GO, &info_data("disk0", &[]));
        assert_eq!(replies.last().unwrap().0, option_reply::ACK);
        let export = &replies[0].1;
        client.bytes = u64::from_be_bytes(export[2..10].try_into().unwrap());
        client.flags = u16::from_be_bytes(export[10..12].try_into().unwrap());
        client
    }

    pub fn say(&mut self, bytes: &[u8]) {
        self.socket.write_all(bytes).unwrap();
    }

    pub fn take<const N: usize>(&mut self) -> [u8; N] {
        let mut bytes = [0; N];
        self.socket.read_exact(&mut bytes).unwrap();
        bytes
    }

    pub fn take_vec(&mut self, len: usize) -> Vec<u8> {
        let mut bytes = vec![0; len];
        self.socket.read_exact(&mut bytes).unwrap();
        bytes
    }

    fn u32(&mut self) -> u32 {
        u32::from_be_bytes(self.take())
    }

    fn u64(&mut self) -> u64 {
        u64::from_be_bytes(self.take())
    }

    /// Sends an option and returns the replies, up to the ACK or error: kind and data.
    pub fn option(&mut self, option: u32, data: &[u8]) -> Vec<(u32, Vec<u8>)> {
        self.say(&option_bytes(option, data));
        self.option_replies(option)
    }

    pub fn option_replies(&mut self, option: u32) -> Vec<(u32, Vec<u8>)> {
        let mut replies = Vec::new();
        loop {
            assert_eq!(self.u64(), OPTION_REPLY_MAGIC);
            assert_eq!(self.u32(), option);
            let kind = self.u32();
            let len = self.u32() as usize;
            replies.push((kind, self.take_vec(len)));
            if kind == option_reply::ACK || kind >> 31 != 0 {
                return replies;
            }
        }
    }

    /// Sends a request, with a payload if it is a write.
    pub fn request(&mut self, flags: u16, command: u16, cookie: u64, offset: u64, len: u32) {
        self.say(&request_bytes(flags, command, cookie, offset, len));
    }

    /// The next answer; `read` is the length of the data that a successful simple reply carries.
    pub fn answer(&mut self, read: usize) -> Answer {
        match self.u32() {
            SIMPLE_REPLY_MAGIC => {
                let error = self.u32();
                let cookie = self.u64();
                let data = if error == 0 { self.take_vec(read) } else { Vec::new() };
                Answer { cookie, error, data }
            }
            CHUNK_MAGIC => {
                assert!(self.structured, "a chunk that was not negotiated");
                assert_eq!(self.take::<2>(), chunk::DONE.to_be_bytes());
                let kind = u16::from_be_bytes(self.take());
                let cookie = self.u64();
                let len = self.u32() as usize;
                let data = self.take_vec(len);
                match kind {
                    chunk::OFFSET_DATA => Answer { cookie, error: 0, data: data[8..].to_vec() },
                    chunk::BLOCK_STATUS => Answer { cookie, error: 0, data: data[4..].to_vec() },
                    chunk::ERROR => {
                        let error = u32::from_be_bytes(data[..4].try_into().unwrap());
                        let text = u16::from_be_bytes(data[4..6].try_into().unwrap());
                        assert_eq!(data.len(), 6 + usize::from(text));
                        Answer { cookie, error, data: data[6..].to_vec() }
                    }
                    kind => panic!("a chunk of kind {kind}"),
                }
            }
            magic => panic!("an answer that starts with {magic:#x}"),
        }
    }

    /// True if the server has closed the connection, saying nothing more.
    pub fn is_closed(&mut self) -> bool {
        // A reset is as closed as an end.
        matches!(self.socket.read(&mut [0; 64]), Ok(0) | Err(_))
    }
}
