"""What a leg of a mirror gets when it is back: what it lacks, and no more; and how long its absence is felt."""

import four_legs
from harness import check
from registry import test


@test(seconds=150)
def away_and_back_one_after_the_other(lab):
    """A stripe of two mirrors over four targets, under a verified load of a tenth of their regions: one target after the other is killed and started again, one of them again in the
    middle of its resync. No more is copied than was written meanwhile, no I/O waits longer than a leg may take and a second, and the legs are alike. `make soak-volumes` has
    each of them away for a minute."""
    figures, wrong = four_legs.under_load(lab, away=2, leg_timeout_ms=1000)
    check(not wrong, f"{wrong}\n{figures}")
