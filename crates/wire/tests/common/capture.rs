//! Captures made of frames, and what tshark with our dissector says about them.

use std::path::PathBuf;
use std::process::Command;

/// EtherType of frames straight over Ethernet.
pub const ETHERTYPE: u16 = 0x88b5;
/// UDP port of targets.
pub const UDP_PORT: u16 = 34997;

/// An Ethernet packet with one frame.
pub fn ethernet(frame: &[u8]) -> Vec<u8> {
    with_ethernet(ETHERTYPE, frame)
}

/// The same behind an 802.1Q tag.
pub fn vlan(id: u16, frame: &[u8]) -> Vec<u8> {
    let tag = [id.to_be_bytes(), ETHERTYPE.to_be_bytes()].concat();
    with_ethernet(0x8100, &[&tag, frame].concat())
}

/// A UDP datagram over IPv4, without checksum (zero means: none).
pub fn udp(from_port: u16, to_port: u16, frame: &[u8]) -> Vec<u8> {
    let length = 8 + frame.len() as u16;
    let mut ip = vec![0x45, 0, 0, 0, 0, 0, 0x40, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2];
    ip[2..4].copy_from_slice(&(20 + length).to_be_bytes());
    let words = ip.chunks(2).map(|w| u32::from(u16::from_be_bytes([w[0], w[1]])));
    let sum: u32 = words.sum();
    let folded = (sum & 0xffff) + (sum >> 16);
    ip[10..12].copy_from_slice(&(!(folded as u16)).to_be_bytes());
    for field in [from_port, to_port, length, 0] {
        ip.extend_from_slice(&field.to_be_bytes());
    }
    ip.extend_from_slice(frame);
    with_ethernet(0x0800, &ip)
}

fn with_ethernet(ethertype: u16, payload: &[u8]) -> Vec<u8> {
    let mut out = vec![2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1];
    out.extend_from_slice(&ethertype.to_be_bytes());
    out.extend_from_slice(payload);
    out
}

/// A capture file in pcap format. At most `snap` bytes of each packet are kept.
pub fn pcap(packets: &[Vec<u8>], snap: usize) -> Vec<u8> {
    let mut out = Vec::new();
    out.extend_from_slice(&0xa1b2_c3d4u32.to_le_bytes());
    out.extend_from_slice(&2u16.to_le_bytes());
    out.extend_from_slice(&4u16.to_le_bytes());
    out.extend_from_slice(&[0; 8]);
    out.extend_from_slice(&262_144u32.to_le_bytes());
    out.extend_from_slice(&1u32.to_le_bytes());
    for (at, packet) in packets.iter().enumerate() {
        let kept = &packet[..packet.len().min(snap)];
        for word in [at as u32, 0, kept.len() as u32, packet.len() as u32] {
            out.extend_from_slice(&word.to_le_bytes());
        }
        out.extend_from_slice(kept);
    }
    out
}

/// tshark with our dissector and nobody's settings.
pub struct Tshark {
    folder: PathBuf,
}

impl Tshark {
    /// `None`, loudly, if there is no tshark here. `name` is for files of this test alone.
    pub fn find(name: &str) -> Option<Tshark> {
        if Command::new("tshark").arg("--version").output().is_err() {
            eprintln!("SKIPPED: tshark is missing, so the dissector was NOT tested ({name})");
            return None;
        }
        let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join(name);
        std::fs::create_dir_all(&folder).unwrap();
        Some(Tshark { folder })
    }

    /// What it prints about the packets. Panics at its errors and at those of the script.
    pub fn run(&self, packets: &[Vec<u8>], snap: usize, arguments: &[&str]) -> String {
        let file = self.folder.join("frames.pcap");
        std::fs::write(&file, pcap(packets, snap)).unwrap();
        let script = concat!(env!("CARGO_MANIFEST_DIR"), "/../../tools/wireshark/thinwire.lua");
        let output = Command::new("tshark")
            .env("HOME", &self.folder)
            .env("XDG_CONFIG_HOME", &self.folder)
            .env("LC_ALL", "C.UTF-8")
            .args(["-n", "-X", &format!("lua_script:{script}"), "-r"])
            .arg(&file)
            .args(arguments)
            .output()
            .expect("tshark was there before");
        let errors = String::from_utf8_lossy(&output.stderr);
        let errors: Vec<&str> = errors.lines().filter(|l| !l.contains("Running as user")).collect();
        assert!(output.status.success() && errors.is_empty(), "tshark says: {errors:#?}");
        String::from_utf8(output.stdout).expect("tshark prints UTF-8")
    }

    /// The named fields of each packet. A field that occurs more than once is joined by commas.
    pub fn columns(&self, packets: &[Vec<u8>], fields: &[&str]) -> Vec<Vec<String>> {
        let mut arguments = vec!["-T", "fields", "-E", "separator=/t"];
        fields.iter().for_each(|field| arguments.extend(["-e", field]));
        let text = self.run(packets, usize::MAX, &arguments);
        let rows: Vec<Vec<String>> =
            text.lines().map(|line| line.split('\t').map(str::to_string).collect()).collect();
        assert_eq!(rows.len(), packets.len());
        rows
    }
}

/// One field as tshark took it apart.
#[derive(Debug)]
pub struct Field {
    /// Such as `thinwire.slot`.
    pub name: String,
    /// Offset in the packet.
    pub at: usize,
    /// Its bytes.
    pub value: Vec<u8>,
    /// As a person sees it.
    pub show: String,
}

/// The fields of each packet of a PDML output.
pub fn fields_of_pdml(text: &str) -> Vec<Vec<Field>> {
    let mut packets = Vec::new();
    for line in text.lines().map(str::trim) {
        if line.starts_with("<packet") {
            packets.push(Vec::new());
        } else if line.starts_with("<field name=\"thinwire") {
            let get = |name: &str| {
                let start = line.find(&format!(" {name}=\""))? + name.len() + 3;
                Some(&line[start..start + line[start..].find('"')?])
            };
            let hex = get("value").unwrap_or_default();
            let digits: Vec<u8> =
                hex.chars().filter_map(|c| c.to_digit(16)).map(|d| d as u8).collect();
            packets.last_mut().expect("fields stand in packets").push(Field {
                name: get("name").unwrap_or_default().to_string(),
                at: get("pos").and_then(|p| p.parse().ok()).unwrap_or_default(),
                value: digits.chunks_exact(2).map(|d| d[0] << 4 | d[1]).collect(),
                show: get("show").unwrap_or_default().to_string(),
            });
        }
    }
    packets
}
