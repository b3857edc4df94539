"""One consumer stands still, the others read on: what the service takes stays under its limit."""

import threading
import time

from helpers.memory import MIB, NATIVE, PYTHON, Watch, read_all, stalled
from helpers.serving import Service

ROWS, LIMIT = 100, 48 * MIB


def stall(seconds: float) -> list[str]:
    """Stalls one of 1, 2 and 8 consumers for so long, with slots and inline; what went wrong."""
    found: list[str] = []
    cases = [
        (source, consumers, shared_memory)
        for source in (NATIVE, PYTHON)
        for consumers in (1, 2, 8)
        for shared_memory in (True, False)
    ]
    threads = [threading.Thread(target=_case, args=(seconds, found, *case)) for case in cases]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return found


def _case(
    seconds: float, found: list[str], source: str, consumers: int, shared_memory: bool
) -> None:
    name = f"{consumers} consumers, {'slots' if shared_memory else 'inline'}"
    options = ("--memory-limit", str(LIMIT))
    service = Service(source.format(rows=ROWS, nbytes=MIB), "train", *options)
    everything, epochs = list(range(ROWS)), 0
    try:
        with Watch(service) as watch:
            with stalled(service, shared_memory=shared_memory) as numbers:
                end = time.monotonic() + seconds
                while time.monotonic() < end:
                    epochs += 1
                    others = [epochs % 2] * (consumers - 1)  # the stalled one's epoch, too
                    got = read_all(service, others, shared_memory=shared_memory)
                    if got != [everything] * (consumers - 1):
                        found.append(f"{name}: the others got {got}")
                    time.sleep(seconds / 40)
            if numbers != everything:
                found.append(f"{name}: the one that stood still got {numbers}")
            peak = watch.memory["peak"]
        # The interpreter's own memory grows a little as it works.
        if not (watch.used <= LIMIT and peak <= LIMIT and watch.real <= LIMIT + 8 * MIB):
            found.append(f"{name}: used {watch.used}, peak {peak}, real {watch.real} of {LIMIT}")
        print(
            f"  {name}: {epochs} epochs beside one that stood still for {seconds:g} s, at most "
            f"{peak / MIB:.1f} of {LIMIT // MIB} MiB, the kernel says {watch.real / MIB:.1f}",
            flush=True,
        )
    except BaseException as error:
        found.append(f"{name}: {type(error).__name__}: {error}")
    finally:
        service.cleanup()
