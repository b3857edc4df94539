"""``make soak``: rounds of consumers that come, lag, leave and are killed, with checks after each.

Each round is a pure function of its seed: SEED, SEED + 1, ... The first that fails ends the soak,
and says how to repeat that round alone. At the end one of several consumers stands still for a
while, and the service's memory is watched.
"""

import argparse
import random
import sys
import time
from collections import Counter

from soak.driver import RoundFailed, Soak
from soak.stall import stall


def main() -> int:
    parser = argparse.ArgumentParser(prog="soak", description=__doc__.partition("\n")[0])
    parser.add_argument("--seed", type=int, help="of the first round; drawn if left out")
    parser.add_argument("--rounds", type=int, default=1000)
    parser.add_argument("--crashes", type=float, default=0.2, help="rounds in which the server is")
    parser.add_argument("--stall", type=float, default=0, help="seconds that one stands still")
    args = parser.parse_args()
    if args.rounds and not rounds(args):
        return 1
    if args.stall:
        print(f"soak: one consumer stands still for {args.stall:g} s", flush=True)
        found = stall(args.stall)
        print(*found, sep="\n", end="\n" if found else "", flush=True)
        return 1 if found else 0
    return 0


def rounds(args: argparse.Namespace) -> bool:
    seed = random.randrange(10**9) if args.seed is None else args.seed
    print(f"soak: {args.rounds} rounds from seed {seed}", flush=True)
    begun = time.monotonic()
    seen: Counter[str] = Counter()
    with Soak(args.crashes) as soak:
        for number in range(seed, seed + args.rounds):
            try:
                going = soak.round(number)
            except RoundFailed as error:
                print(f"\nround {number} failed: {error}", flush=True)
                return False
            seen["consumers"] += len(going.roles)
            seen["server kills"] += going.crashes
            seen.update(event.what for event in going.events if event.what in {"kill", "stop"})
            done = number - seed + 1
            if done % 10 == 0 or done == args.rounds:
                counts = ", ".join(f"{n} {what}" for what, n in sorted(seen.items()))
                seconds = time.monotonic() - begun
                print(f"  {done} rounds in {seconds:.0f} s: {counts}", flush=True)
    return True


if __name__ == "__main__":
    sys.exit(main())
