"""A storm of Ctrl-C against a reading sync client: every batch arrives, exactly once, in order."""

import subprocess
import sys
import textwrap

from helpers.serving import Service

SOURCE = """
    import numpy as np
    from tundish import ArrayDataset, DataLoader
    train = DataLoader(ArrayDataset(i=np.arange(4000)), batch_size=4, num_workers=2)
"""

STORM = """
    import os, random, signal, sys, threading, time
    from tundish_client import Client

    reading = False
    def interrupt():
        while True:
            time.sleep(random.uniform(0.0005, 0.003))
            if reading:
                os.kill(os.getpid(), signal.SIGINT)

    threading.Thread(target=interrupt, daemon=True).start()
    interrupts = epochs = 0
    with Client(sys.argv[1]) as client:
        while interrupts < 100:
            stream, got = client.epoch(epochs), []
            while True:
                batch = None
                try:
                    try:
                        reading = True
                        batch = next(stream)
                    finally:
                        reading = False
                except KeyboardInterrupt:
                    interrupts += 1
                except StopIteration:
                    break
                if batch is not None:
                    got.append(int(batch["i"][0]) // 4)
            epochs += 1
            # What is interrupted between next()'s return and the assignment is this loop's loss.
            assert stream.position.batch == 1000, stream.position
            assert len(got) >= 990, len(got)
            assert got == sorted(set(got)), got
    print(interrupts)
"""


def test_no_interrupt_costs_a_batch_or_the_connection():
    service = Service(SOURCE)
    try:
        done = subprocess.run(
            [sys.executable, "-c", textwrap.dedent(STORM), str(service.socket)],
            capture_output=True,
            text=True,
            timeout=15,
        )
    finally:
        service.cleanup()
    assert done.returncode == 0, done.stderr
    assert int(done.stdout) >= 100
