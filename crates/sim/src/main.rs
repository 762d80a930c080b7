//! `thinwire-sim`: runs seeds.
fn main() {
    let seed = std::env::args().nth(1).unwrap().parse().unwrap();
    let to = std::env::args().nth(2).map(|n| n.parse().unwrap());
    let prints = to.is_none();
    for seed in seed..to.unwrap_or(seed + 1) {
        match std::panic::catch_unwind(|| thinwire_sim::run_seed(seed, Default::default(), prints))
        {
            Ok(Ok(_)) => {}
            Ok(Err(v)) => println!("seed {seed}: {}", v.0),
            Err(_) => println!("seed {seed}: panic"),
        }
    }
}
