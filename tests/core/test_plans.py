"""Plans and samplings of the core: what Python hands over and gets back."""

import signal
import subprocess
import sys
import textwrap

import numpy as np
import pytest

from helpers.sigint import interrupt
from helpers.timing import MS
from tundish._core import Plan, Sampling

SAMPLED = ["stable", "torch", "torch:shared", "torch:persistent"]
SAMPLED += ["torch:default", "torch:default:persistent"]


def whole(
    samples: int, order: str, *, epoch: int = 0, sampling: Sampling | None = None
) -> list[int]:
    """One epoch in batches of 4, with seed 7."""
    plan = Plan(samples, order, 7, epoch, 4, False, sampling=sampling)
    return [index for batch in range(plan.batches) for index in plan.indices(batch)]


@pytest.mark.parametrize(
    ("order", "expected"),
    [
        ("burn", [1, 3, 7, 4, 5, 0, 2, 9, 8, 6]),
        ("burn:workers=2", [0, 7, 2, 5, 1, 8, 9, 6, 3, 4]),
        ("dataloader-rs", [1, 0, 5, 7, 9, 6, 4, 3, 2, 8]),
        ("torch:default:persistent", [1, 0, 5, 7, 8, 2, 3, 4, 9, 6]),
    ],
)
def test_orders_of_other_loaders(order, expected):
    assert whole(10, order, epoch=1) == expected
    assert Plan(10, order, 7, 1, 4, False).order == f"{order}/1"


def test_the_order_of_burns_workers_goes_by_the_global_batch():
    def shards(size: int, world: int) -> list[list[int]]:
        order = "burn:workers=3"
        plans = [Plan(64, order, 7, 0, size, False, rank, world) for rank in range(world)]
        batches = range(plans[0].batches)
        return [sorted(i for plan in plans for i in plan.indices(k)) for k in batches]

    assert shards(8, 1) == shards(4, 2) == shards(2, 4)
    assert shards(8, 1) != shards(16, 1)


def test_unknown_orders_list_the_known():
    with pytest.raises(
        ValueError, match=r'order="burnt": unknown order; use one of "sequential", .*'
    ):
        Plan(10, "burnt", 7, 0, 4, False)
    with pytest.raises(ValueError, match=r'"burn", "burn:workers=N", "dataloader-rs"$'):
        Plan(10, "burnt", 7, 0, 4, False)
    with pytest.raises(ValueError, match=r'order="burn:workers=0": .* from 1 to 1024'):
        Plan(10, "burn:workers=0", 7, 0, 4, False)


def test_a_plan_is_as_long_as_its_sampling():
    plan = Plan(3, "stable", 7, 0, 4, False, sampling=Sampling.random(10, 25, False))
    assert (plan.batches, plan.samples, plan.padded, plan.dropped) == (7, 25, 0, 0)
    assert plan.order == "stable/1"
    plan = Plan(3, "stable", 7, 0, 4, True, 1, 2, "pad", Sampling.random(10, 25, True))
    assert (plan.batches, plan.samples, plan.padded, plan.dropped) == (3, 12, 0, 0)


@pytest.mark.parametrize("order", SAMPLED)
def test_what_is_drawn_is_what_was_asked_for(order):
    permuted = whole(0, order, sampling=Sampling.random(10, 25, False))
    assert sorted(permuted[:10]) == sorted(permuted[10:20]) == list(range(10))
    repeated = whole(0, order, sampling=Sampling.random(3, 200, True))
    assert set(repeated) == {0, 1, 2}
    assert len(repeated) == 200
    weighted = whole(0, order, sampling=Sampling.weighted(np.array([0, 1.5, 0, 3]), 100, True))
    assert set(weighted) == {1, 3}
    once = whole(0, order, sampling=Sampling.weighted(np.array([0, 1.5, 0, 3]), 2, False))
    assert sorted(once) == [1, 3]
    subset = whole(0, order, sampling=Sampling.subset(np.arange(100, 110)))
    assert sorted(subset) == list(range(100, 110))
    assert subset != list(range(100, 110))


def test_a_fixed_sampling_goes_with_any_order():
    for order in [*SAMPLED, "sequential", "burn", "burn:workers=5", "torch:distributed"]:
        assert whole(0, order, epoch=3, sampling=Sampling.fixed(np.array([5, 1, 5]))) == [5, 1, 5]


def test_buffers_are_copied_whatever_their_strides():
    numbers = np.arange(20)
    for part in (numbers[::2], numbers[::-3], numbers[3:3], np.broadcast_to(numbers[4], 3)):
        assert whole(0, "stable", sampling=Sampling.fixed(part)) == part.tolist()
    kept = Sampling.fixed(numbers)
    numbers[:] = 0
    assert whole(0, "stable", sampling=kept) == list(range(20))
    read_only = np.arange(3)
    read_only.flags.writeable = False
    assert len(Sampling.subset(read_only)) == 3
    assert len(Sampling.subset(np.array([2**63 - 2]))) == 1


def test_samplings_are_equal_if_everything_in_them_is():
    weights = np.array([1.0, 0.0])
    one, same = Sampling.weighted(weights, 5, True), Sampling.weighted(-(-weights), 5, True)
    assert one == same
    assert hash(one) == hash(same)
    assert one.digest == same.digest
    others = [
        Sampling.weighted(weights, 6, True),
        Sampling.weighted(np.array([1.0, 0.0, 0.0]), 5, True),
        Sampling.random(2, 5, True),
        Sampling.subset(np.array([1, 0])),
        Sampling.fixed(np.array([1, 0])),
    ]
    digests = {sampling.digest for sampling in [one, *others]}
    assert len(digests) == 6
    assert all(len(digest) == 16 and int(digest, 16) for digest in digests)
    assert all(one != other for other in others)
    assert Sampling.fixed(np.array([5, 0, 1])).digest == "316fcd1dbe42adab"


@pytest.mark.parametrize(
    ("make", "message"),
    [
        (lambda: Sampling.random(0, 1, True), r"^samples=0: "),
        (lambda: Sampling.random(5, 0, True), r"^num_samples=0: must be at least 1"),
        (lambda: Sampling.weighted(np.array([]), 1, True), r"^weights=0 of them: "),
        (lambda: Sampling.weighted(np.array([1.0, -2.0]), 1, True), r"^weights=-2 at place 1: "),
        (lambda: Sampling.weighted(np.array([np.nan]), 1, True), r"^weights=NaN at place 0: "),
        (lambda: Sampling.weighted(np.zeros(3), 1, True), r"^weights=a sum of 0: "),
        (lambda: Sampling.weighted(np.array([1.0, 0.0]), 2, False), r"^num_samples=2: without"),
        (lambda: Sampling.weighted(np.ones((2, 2)), 1, True), r"^weights: 2 dimensions; "),
        (lambda: Sampling.subset(np.array([3, -1])), r"^indices: .* 0 or more, not -1 at place 1"),
        (lambda: Sampling.fixed(np.array([2**63 - 1])), r"^indices=9223372036854775807 at place 0"),
    ],
)
def test_bad_samplings_are_refused_by_name_and_value(make, message):
    with pytest.raises(ValueError, match=message):
        make()


def test_numbers_of_another_type_are_refused():
    with pytest.raises(BufferError):
        Sampling.subset(np.array([1.0]))
    with pytest.raises(BufferError):
        Sampling.weighted(np.array([1]), 1, True)
    with pytest.raises(BufferError):
        Sampling.fixed(np.array(3))
    with pytest.raises(TypeError):
        Sampling.fixed([1, 2])


def test_a_sampling_refuses_orders_of_other_loaders():
    message = r'^order="burn": a sampler\'s order is one of "stable", "torch", "torch:shared", '
    with pytest.raises(ValueError, match=message):
        Plan(0, "burn", 7, 0, 4, False, sampling=Sampling.random(10, 10, False))
    with pytest.raises(ValueError, match=r'^order="torch:shared": .* called "torch"$'):
        Plan(10, "torch:shared", 7, 0, 4, False)


def test_memory_that_is_refused_is_an_error_that_says_how_much():
    source = """
        import resource
        from tundish._core import Plan, Sampling

        resource.setrlimit(resource.RLIMIT_AS, (1 << 31, 1 << 31))
        for order, samples, sampling in [
            ("dataloader-rs", 1 << 30, None),
            ("stable", 0, Sampling.random(1000, 1 << 30, False)),
            ("torch", 0, Sampling.random(1 << 40, 1 << 29, True)),
        ]:
            try:
                Plan(samples, order, 7, 0, 4, False, sampling=sampling).indices(0)
            except ValueError as error:
                print(error)
    """
    command = [sys.executable, "-c", textwrap.dedent(source)]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=10_000 * MS)
    reason = "no memory for the order's table of 4294967296 bytes; use fewer samples, or order="
    argument = ["samples=1073741824: ", "num_samples=1073741824: ", "num_samples=536870912: "]
    lines = done.stdout.splitlines()
    assert len(lines) == 3
    assert all(line.startswith(a + reason) for line, a in zip(lines, argument, strict=True)), lines


@pytest.mark.parametrize("what", ["far", "race", "copy"])
def test_ctrl_c_while_drawing(what, tmp_path):
    source = """
        import sys
        import numpy as np
        from tundish._core import Plan, Sampling

        what = sys.argv[1]
        many = np.arange(1, 1 << 24, dtype=float)
        numbers = np.zeros(1 << 26, np.int64)
        far = Sampling.random(1000, 1000, True)
        race = Sampling.weighted(many, 1 << 22, False)
        print("READY")
        try:
            while True:
                if what == "far":
                    Plan(0, "torch", 7, 1 << 40, 4, False, sampling=far).indices(0)
                elif what == "race":
                    Plan(0, "stable", 7, 0, 4, False, sampling=race).indices(0)
                else:
                    Sampling.subset(numbers)
        except KeyboardInterrupt:
            print("INTERRUPTED")
            raise
    """
    outcome = interrupt(source, what, folder=tmp_path, delay=300 * MS)
    assert outcome.interrupted_after is not None, outcome.output
    assert outcome.interrupted_after <= 100 * MS
    assert outcome.exited_after <= 1000 * MS
    assert outcome.returncode in (130, -signal.SIGINT), outcome.output
