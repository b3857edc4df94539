"""That `docs/tuning.md` lists every metric."""

import re
from pathlib import Path

from helpers.datasets import arrays
from helpers.scraping import look, samples
from tundish import AsyncClient, serve

TUNING = Path(__file__).parents[2] / "docs" / "tuning.md"


def documented():
    """The metrics of the docs: name to labels and meaning."""
    section = TUNING.read_text().split("\n## Metrics\n")[1].split("\n## ")[0]
    found, labels = {}, []
    for part in section.split("\n\n"):
        if part.startswith("Of ") and part.endswith(":"):
            _, _, its = part.partition(" labels ")
            labels = re.findall(r"`([a-z]+)`", its)
        for name, meaning in re.findall(r"^\| `(\w+)` \| (.+) \|$", part, re.MULTILINE):
            assert name not in found
            found[name] = (labels, meaning)
    return found


async def test_the_docs_list_every_metric_with_its_labels_and_meaning(path):
    async with serve(arrays(), socket=path, metrics="127.0.0.1:0") as server:
        async with AsyncClient(path) as client:
            stream, split = client.epoch(0), client.epoch(0, split="all")
            await anext(stream)
            await anext(split)
            text = await look(server)
    exported = dict(re.findall(r"^# HELP (tundish_\w+) (.+)$", text, re.MULTILINE))
    told = documented()
    meanings = {name: meaning for name, (_, meaning) in told.items()}
    beside = {"tundish_up", "tundish_server_info", "tundish_run_waited_for_seconds"}
    assert set(meanings) == set(exported)
    for name in set(exported) - beside:
        assert meanings[name] == exported[name]
    labels = {name: [label for label, _ in its] for name, its in samples(text)}
    for name, its in labels.items():
        if name.startswith("tundish_") and name != "tundish_server_info":
            assert its == sorted(told[name][0]), name
    kinds = dict(re.findall(r"^# TYPE (tundish_\w+) (\w+)$", text, re.MULTILINE))
    for name, kind in kinds.items():
        assert (kind == "counter") == name.endswith("_total"), name
