"""Collections of garbage don't look at what the service has to keep for good."""

from tundish import Client

FEEDS = """
    import gc
    import time
    from tundish import DataLoader

    records = [{"number": n, "tags": [n]} for n in range(200_000)]

    def seconds():
        begun = time.perf_counter()
        gc.collect()
        return time.perf_counter() - begun

    class Collects:
        def __len__(self):
            return 2

        def __getitem__(self, index):
            if index == 1:
                gc.unfreeze()
            return [seconds() for _ in range(3)] + [len(records)]

    class Drops:
        def __len__(self):
            return 1

        def __getitem__(self, index):
            class Ring:
                pass
            for _ in range(1000):
                ring = Ring()
                ring.me = ring
            del ring
            gc.collect()
            return sum(type(one).__name__ == "Ring" for one in gc.get_objects())

    feeds = {
        "collects": DataLoader(Collects(), batch_size=None),
        "drops": DataLoader(Drops(), batch_size=None),
    }
"""


def test_a_collection_takes_no_longer_for_a_large_dataset(serve):
    service = serve(FEEDS, "feeds")
    with Client(service.socket) as client:
        frozen, thawed = client.epoch(0, feed="collects")
    assert frozen[-1] == thawed[-1] == 200_000
    assert min(frozen[:3]) < min(thawed[:3]) / 5


def test_what_becomes_garbage_later_is_collected(serve):
    service = serve(FEEDS, "feeds")
    with Client(service.socket) as client:
        assert list(client.epoch(0, feed="drops")) == [0]
