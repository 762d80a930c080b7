//! `thinwire link`: which raw link a plain interface name gets, and why.

use serde::Serialize;
use thinwire_link::survey::{Survey, survey};
use thinwire_link::xdp::{XdpConfig, XdpLink};

use crate::cli::LinkArgs;
use crate::error::{Failure, Outcome};
use crate::output;
use crate::rundir::SCHEMA;

/// `link --json`.
#[derive(Serialize)]
struct Json {
    schema: u32,
    interfaces: Vec<JsonInterface>,
}

#[derive(Serialize)]
struct JsonInterface {
    name: String,
    /// What the plain name stands for: `packet:eth1` or `xdp:eth1`.
    link: String,
    address: String,
    mtu: usize,
    driver: Option<String>,
    rx_queues: u32,
    /// `native`, `generic`, or null where the kernel does not tell.
    xdp: Option<&'static str>,
    /// Whether XDP frames reach us without a copy; null where the kernel does not tell.
    zero_copy: Option<bool>,
    /// Whether the driver's XDP takes frames larger than a page, likewise.
    fragments: Option<bool>,
    /// Who has XDP attached.
    attached: Option<String>,
    /// Why the plain name does not get xdp; null if it does.
    against_xdp: Option<String>,
    /// With `--try`: how the link that was opened works, or why none could be.
    tried: Option<JsonTried>,
}

#[derive(Serialize)]
struct JsonTried {
    opened: bool,
    text: String,
}

/// Looks at each interface and says what was found; fails if one cannot carry any raw link.
pub fn run(args: &LinkArgs) -> Outcome {
    let look = |name: &String| {
        let found = survey(name).map_err(|e| Failure::failed(e.to_string()))?;
        let tried = args.try_it.then(|| try_xdp(name));
        Ok((found, tried))
    };
    let found = args.interface.iter().map(look).collect::<Outcome<Vec<_>>>()?;
    if args.json {
        let interfaces = found.into_iter().map(|(survey, tried)| json(survey, tried)).collect();
        return output::say_json(&Json { schema: SCHEMA, interfaces });
    }
    let texts: Vec<_> = found.iter().map(|(survey, tried)| text(survey, tried.as_ref())).collect();
    output::say(&texts.join("\n\n"))
}

/// Opens an xdp link and lets go of it.
fn try_xdp(name: &str) -> JsonTried {
    match XdpLink::open(&XdpConfig::new(name)) {
        Ok(link) => JsonTried { opened: true, text: link.mode() },
        Err(error) => JsonTried { opened: false, text: error.to_string() },
    }
}

fn plain(survey: &Survey) -> String {
    let kind = if survey.against_xdp().is_some() { "packet" } else { "xdp" };
    format!("{kind}:{}", survey.ifname)
}

fn json(survey: Survey, tried: Option<JsonTried>) -> JsonInterface {
    JsonInterface {
        link: plain(&survey),
        against_xdp: survey.against_xdp(),
        name: survey.ifname,
        address: survey.address.to_string(),
        mtu: survey.mtu,
        driver: survey.driver,
        rx_queues: survey.rx_queues,
        xdp: survey.xdp.map(|xdp| if xdp.native { "native" } else { "generic" }),
        zero_copy: survey.xdp.map(|xdp| xdp.zero_copy),
        fragments: survey.xdp.map(|xdp| xdp.fragments),
        attached: survey.attached,
        tried,
    }
}

fn text(survey: &Survey, tried: Option<&JsonTried>) -> String {
    let yes = |is: bool| if is { "yes" } else { "no" };
    let unknown = "the kernel does not tell";
    let xdp = |say: &dyn Fn(&thinwire_link::survey::XdpSupport) -> String| {
        survey.xdp.as_ref().map_or(unknown.to_owned(), say)
    };
    let mut rows = vec![
        ("link", plain(survey)),
        ("address", survey.address.to_string()),
        ("MTU", survey.mtu.to_string()),
        ("driver", survey.driver.clone().unwrap_or_else(|| "unknown".into())),
        ("receive queues", survey.rx_queues.to_string()),
        ("XDP", xdp(&|xdp| if xdp.native { "native" } else { "generic" }.into())),
        ("zero copy", xdp(&|xdp| yes(xdp.zero_copy).into())),
        ("jumbo frames", xdp(&|xdp| yes(xdp.fragments).into())),
    ];
    if let Some(holder) = &survey.attached {
        rows.push(("XDP is held by", holder.clone()));
    }
    if let Some(why) = survey.against_xdp() {
        rows.push(("xdp not chosen", why));
    }
    if let Some(tried) = tried {
        let outcome = if tried.opened { "opens" } else { "refused" };
        rows.push(("xdp tried", format!("{outcome}: {}", tried.text)));
    }
    let width = rows.iter().map(|(what, _)| what.len()).max().unwrap_or(0);
    let lines = rows.iter().map(|(what, value)| format!("  {what:<width$}  {value}"));
    std::iter::once(survey.ifname.clone()).chain(lines).collect::<Vec<_>>().join("\n")
}
