//! What one run of one point came to.

use serde::{Deserialize, Serialize};

/// One measurement. Rates are of completed I/Os; a mebibyte is 2^20 bytes.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Figures {
    /// I/Os a second.
    pub iops: f64,
    /// MiB a second.
    pub mib_per_s: f64,
    /// Mean latency.
    pub mean_us: f64,
    /// Median latency, where the program that was run tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p50_us: Option<f64>,
    /// 99th percentile.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub p99_us: Option<f64>,
    /// The slowest I/O, where the program that was run tells.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_us: Option<f64>,
    /// CPU time of the initiators' processes for each I/O.
    pub cpu_client_us: f64,
    /// CPU time of the process of a face for each I/O, which stands between client and server.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub cpu_face_us: Option<f64>,
    /// CPU time of the server for each I/O.
    pub cpu_server_us: f64,
    /// Time that all of the machine's processors together were not idle, for each I/O: it holds what
    /// the kernel does in interrupts for the switch, which is in nobody's account.
    pub cpu_machine_us: f64,
    /// What both sides copied of each byte, by their own counters, where that was asked.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub copies: Option<Copies>,
    /// What went over the initiator's link for each I/O, where that was counted.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub traffic: Option<Traffic>,
    /// The most memory that the server's process ever had, in MiB, where that was looked at.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server_mib: Option<f64>,
    /// Requests of an echo that were never answered.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub lost: Option<f64>,
    /// What a program did on a file system, where that was measured.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub program: Option<ProgramFigures>,
    /// What the batching policy did.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub batch: Option<BatchFigures>,
    /// Where the time of an I/O went, by size.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub breakdown: Vec<Stages>,
    /// How it went over time.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub timeline: Vec<Moment>,
}

impl Figures {
    /// CPU time of both sides for each I/O, with that of a face.
    pub fn cpu_us(&self) -> f64 {
        self.cpu_client_us + self.cpu_face_us.unwrap_or_default() + self.cpu_server_us
    }

    /// `1.5 + 4.8 + 4.4`: client, face (if there is one), server.
    pub fn cpu_shown(&self) -> String {
        let each = [Some(self.cpu_client_us), self.cpu_face_us, Some(self.cpu_server_us)];
        let shown: Vec<String> = each.into_iter().flatten().map(|us| format!("{us:.1}")).collect();
        shown.join(" + ")
    }

    /// The stages of requests of this size.
    pub fn stages(&self, bs: u32) -> Option<&Stages> {
        self.breakdown.iter().find(|stages| stages.bs == bs)
    }

    /// Payload bytes a second.
    pub fn bytes_per_s(&self) -> f64 {
        self.mib_per_s * f64::from(1 << 20)
    }
}

/// Copies of a byte of payload in user space. What kernels copy is in neither.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Copies {
    /// By the client: `copied_bytes` of `thinwire bench --json`.
    pub client: f64,
    /// By the server: `copied_bytes` of `thinwire status --json`, of exports and sessions.
    pub server: f64,
}

impl Copies {
    /// By both.
    pub fn all(&self) -> f64 {
        self.client + self.server
    }
}

/// What passed a link for each I/O, both ways.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct Traffic {
    /// Frames as the link counts them: a train that is cut later is one.
    pub frames: f64,
    /// Octets of them, with Ethernet's header and check sequence.
    pub octets: f64,
}

/// What Ethernet adds to a frame besides what links count.
const CHECK_SEQUENCE: f64 = 4.0;

impl Traffic {
    /// Of what a link had counted before and after so many I/Os: frames, and octets.
    pub fn between(before: [f64; 2], after: [f64; 2], ios: f64) -> Self {
        let [frames, octets] = [0, 1].map(|n| (after[n] - before[n]) / ios.max(1.0));
        Traffic { frames, octets: octets + frames * CHECK_SEQUENCE }
    }
}

/// What a program did on a file system. Its operations are what [`Figures`] counts as I/Os.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct ProgramFigures {
    /// From its start to its end.
    pub seconds: f64,
    /// CPU time of the program in user space, in seconds.
    pub user_s: f64,
    /// The same in the kernel.
    pub system_s: f64,
    /// CPU time of the attachment's process.
    pub attachment_s: f64,
    /// KB (1000 bytes) that it read in a second.
    pub read_kb_per_s: f64,
    /// The same, written.
    pub write_kb_per_s: f64,
    /// I/Os a second that reached the device.
    pub device_iops: f64,
    /// Where the kernel's time went, where perf is allowed.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub layers: Vec<LayerFigures>,
}

/// A layer of the kernel, in percent of the time that the kernel took for the program.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct LayerFigures {
    /// Its name.
    pub layer: String,
    /// In the program itself.
    pub program: f64,
    /// In the attachment's process.
    pub attachment: f64,
}

impl ProgramFigures {
    /// Percent of its time in which no processor worked for it or its attachment, of one.
    pub fn idle_percent(&self) -> f64 {
        let busy = self.user_s + self.system_s + self.attachment_s;
        ((1.0 - busy / self.seconds) * 100.0).max(0.0)
    }
}

/// `batch` of `thinwire bench --json`.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
pub struct BatchFigures {
    /// The policy's name.
    pub policy: String,
    /// The level, how many requests the policy waits for: its mean over the run.
    pub level_mean: f64,
    /// The level at its end.
    pub level_last: f64,
    /// Requests that really shared a frame, on average.
    #[serde(default)]
    pub requests_per_frame: f64,
}

/// Where the time of requests of one size went.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Stages {
    /// Bytes of a request.
    pub bs: u32,
    /// MiB a second in the same run.
    pub mib_per_s: f64,
    /// What one look at the clock of a thread's CPU costs: it is in each virtual time.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub virtual_clock_us: Option<f64>,
    /// The rows.
    pub rows: Vec<StageFigures>,
}

/// A row.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct StageFigures {
    /// The document's name for it.
    pub row: String,
    /// All time that passed, the mean in us.
    pub physical_us: f64,
    /// Time of the thread's CPU alone, where one thread does it.
    #[serde(default)]
    pub virtual_us: Option<f64>,
}

impl Stages {
    /// The physical time of a row.
    pub fn physical_us(&self, row: &str) -> Option<f64> {
        self.rows.iter().find(|stage| stage.row == row).map(|stage| stage.physical_us)
    }

    /// The virtual time of a row.
    pub fn virtual_us(&self, row: &str) -> Option<f64> {
        self.rows.iter().find(|stage| stage.row == row)?.virtual_us
    }
}

/// A point of `timeline` of `thinwire bench --json`.
#[derive(Clone, Copy, Debug, PartialEq, Serialize, Deserialize)]
pub struct Moment {
    /// Seconds since the start, at the end of the interval.
    pub t: f64,
    /// I/Os a second in the interval.
    pub iops: f64,
    /// MiB a second in the interval.
    pub mib_per_s: f64,
    /// The batch level at its end, if there is one.
    #[serde(default)]
    pub level: Option<f64>,
}
