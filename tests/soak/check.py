"""Whether a round went as it must."""

from collections import defaultdict
from typing import Any

from helpers.nursery import Consumer
from soak.plan import Role, Round


def complaints(
    going: Round, consumers: dict[int, Consumer], expected: list[dict[int, str]]
) -> list[str]:
    """What is wrong, a line each.

    Args:
        going: the round, over.
        consumers: those that were started, by role.
        expected: the digest of each batch that each role may get.
    """
    found: list[str] = []
    splits: dict[int, list[int]] = defaultdict(list)
    for who, consumer in consumers.items():
        role = going.roles[who]
        kind = going.casts[role.cast].kind
        if kind == "split":
            splits[role.cast].append(who)
        got = [(cell["batch"], cell["digest"]) for cell in consumer.cells]
        wrong = [batch for batch, digest in got if expected[who].get(batch) != digest]
        found += [f"consumer {who}: batch {batch} has other bytes" for batch in wrong]
        found += [f"consumer {who}: {what}" for what in _one(going, role, consumer, expected[who])]
    for members in splits.values():
        found += _split(going, {who: consumers[who] for who in members}, expected[members[0]])
    return found


def _generations(members: dict[int, Consumer]) -> list[dict[int, Consumer]]:
    """Members of a split apart: who comes when it has ended, or all have left, begins another."""
    generations: list[dict[int, Consumer]] = []
    lines = {who: consumer.lines for who, consumer in members.items() if consumer.cells}
    for who in sorted(lines, key=lambda who: lines[who][0]["at"]):
        together = generations[-1] if generations else {}
        last = [lines[member][-1] for member in together]
        over = [line["at"] for line in last if "end" in line]
        over.append(max((line["at"] for line in last), default=0.0))
        if lines[who][0]["at"] > min(over):
            generations.append({})
        generations[-1][who] = members[who]
    return generations


def _one(going: Round, role: Role, consumer: Consumer, expected: dict[int, str]) -> list[str]:
    """What is wrong with one consumer by itself."""
    found = []
    batches, ended = consumer.batches, consumer.ended
    kind = going.casts[role.cast].kind
    all_of_it = list(range(role.job.get("start", 0), len(expected)))
    # What a stopped member of a split has in its hands may go to the others, and come back.
    again = kind == "split" and (going.crashes or "stop" in role.fates)
    if len(set(batches)) < len(batches) and not again:
        found.append(f"a batch came twice: {batches}")
    if kind not in {"any", "split"} and batches != all_of_it[: len(batches)]:
        found.append(f"batches out of place: {batches}")
    if ended is None:
        if "kill" not in role.fates:
            found.append("it ended without a word")
    elif "error" in ended:
        if not _may_fail(going, role, ended["error"], batches):
            found.append(ended["error"])
    elif "end" in ended:
        counts = ended["end"]
        if kind != "split" and sorted(batches) != all_of_it:
            found.append(f"it ended after {batches}")
        if counts["batches"] != len(batches) or counts["errors"]:
            found.append(f"it had {len(batches)} batches, but {counts}")
    elif len(batches) not in {role.job.get("leave"), role.job.get("fail")}:
        found.append(f"it left after {len(batches)} batches")
    return found


def _may_fail(going: Round, role: Role, error: str, batches: list[int]) -> bool:
    kind = going.casts[role.cast].kind
    if going.crashes and "without a WELCOME" in error:
        return not batches  # it was just shaking hands
    if kind == "any":
        return going.crashes and "ConnectionLost" in error and "no position" in error
    if kind in {"group", "wait"}:
        # Somebody was killed, or left, before all had come.
        return not batches and "join_timeout" in error
    return False


def _split(going: Round, members: dict[int, Consumer], expected: dict[int, str]) -> list[str]:
    """What is wrong with the consumers of a split epoch together."""
    found = []
    ended = [who for who, consumer in members.items() if "end" in (consumer.ended or {})]
    had = {batch for consumer in members.values() for batch in consumer.batches}
    if ended and len(had) < len(expected):
        found.append(f"split: {ended} ended, but nobody had {sorted(set(expected) - had)}")
    for together in _generations(members):
        if any(_is_new(going, consumer) for consumer in together.values()):
            continue
        holders: dict[int, list[int]] = defaultdict(list)
        for who, consumer in together.items():
            for batch in set(consumer.batches):
                if _is_sure(going, going.roles[who], consumer, batch):
                    holders[batch].append(who)
        twice = {batch: having for batch, having in holders.items() if len(having) > 1}
        found += [f"split: batch {batch} was acknowledged by {twice[batch]}" for batch in twice]
    return found


def _is_new(going: Round, consumer: Consumer) -> bool:
    """Whether it began at the new server, perhaps before others could tell that what they had."""
    return going.crashed is not None and consumer.cells[0]["at"] > going.crashed


def _is_sure(going: Round, role: Role, consumer: Consumer, batch: int) -> bool:
    """Whether this consumer's acknowledgement of the batch must have counted."""
    ended: dict[str, Any] = consumer.ended or {}
    if going.crashes and ("end" not in ended or "stop" in role.fates):
        return False  # the server that knew of it is gone, and it told no other in time
    if "stop" in role.fates:
        return False  # it may have stood still for longer than `lease_timeout`
    last = consumer.batches[-1] == batch
    return not last or "end" in ended or len(consumer.batches) == role.job.get("leave")
