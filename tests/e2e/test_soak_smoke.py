"""A dozen rounds of `make soak`, always the same ones."""

import pytest

from soak.driver import Soak


@pytest.mark.timeout(120)
def test_a_dozen_rounds():
    kinds = set()
    with Soak(crashes=0.1) as soak:
        for seed in range(1188, 1200):
            going = soak.round(seed)
            kinds |= {cast.kind for cast in going.casts}
    assert kinds == {"shared", "group", "wait", "split", "ranks", "stream", "any"}
