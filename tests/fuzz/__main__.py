"""`python -m tests.fuzz --seconds 60 --seed 1`: hostile inputs by kind, what held for them, at which rate."""

from __future__ import annotations

import argparse
import random
import sys
import time
import warnings
from collections import Counter
from functools import partial

from tests.fuzz.checks import failure
from tests.fuzz.corpus import keep, smaller
from tests.fuzz.inputs import KINDS, Input


def main() -> int:
    p = argparse.ArgumentParser("fuzz", description=__doc__)
    p.add_argument("--seconds", type=float, default=60.0)
    p.add_argument("--inputs", type=int, default=10**9, help="stop after so many")
    p.add_argument("--seed", type=int, default=0, help="0: another one each time")
    p.add_argument("--kinds", default=",".join(KINDS), help="some of them, by name")
    options = p.parse_args()
    warnings.simplefilter("error")
    seed = options.seed or random.SystemRandom().randrange(1, 10**9)
    chosen = options.kinds.split(",")
    often = [KINDS[name][0] for name in chosen]
    rng, began = random.Random(seed), time.monotonic()
    count, spent, failed = Counter[str](), Counter[str](), dict[str, str]()
    total = 0
    try:
        while total < options.inputs and time.monotonic() - began < options.seconds:
            total += 1
            own = random.Random(rng.randrange(1 << 62))
            given = KINDS[rng.choices(chosen, often)[0]][1](own)
            at = time.monotonic()
            wrong = failure(given)
            count[given.kind] += 1
            spent[given.kind] += int(1e6 * (time.monotonic() - at))
            if wrong and wrong not in failed:
                small = smaller(given, partial(fails_with, wrong))
                failed[wrong] = str(keep(small, wrong))
                print(f"{given.kind}: {wrong}\n    {failed[wrong]}", flush=True)
    finally:
        table(count, spent, seed, failed, time.monotonic() - began)
    return 1 if failed else 0


def fails_with(wrong: str, given: Input) -> bool:
    """Whether the input fails in these words."""
    return failure(given) == wrong


def table(count: Counter[str], spent: Counter[str], seed: int, failed: dict[str, str], seconds: float) -> None:
    print(f"{'kind':<20}{'inputs':>10}{'a second':>10}")
    for kind, number in sorted(count.items()):
        print(f"{kind:<20}{number:>10,}{number / max(spent[kind] / 1e6, 1e-9):>10,.0f}")
    print(f"{'all':<20}{count.total():>10,}{count.total() / seconds:>10,.0f}    seed {seed}, {len(failed)} faults")


if __name__ == "__main__":
    sys.exit(main())
