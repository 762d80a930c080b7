//! The `thinwire-lab` command. Everything is in the library, so that it can be tested.

fn main() -> std::process::ExitCode {
    std::process::ExitCode::from(thinwire_lab::run())
}
