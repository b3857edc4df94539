"""Reads what a server tells Prometheus."""

import asyncio
import http.client

from prometheus_client.parser import text_string_to_metric_families

from tundish.server import Server


def scrape(address: str, timeout: float = 5.0) -> str:
    """The text of all metrics; checked by the parser of the reference client."""
    connection = http.client.HTTPConnection(address, timeout=timeout)
    try:
        connection.request("GET", "/metrics")
        response = connection.getresponse()
        assert response.status == 200
        return response.read().decode()
    finally:
        connection.close()


def samples(text: str) -> dict[tuple[str, tuple[tuple[str, str], ...]], float]:
    """Every sample: (name, labels) to value."""
    found: dict[tuple[str, tuple[tuple[str, str], ...]], float] = {}
    for family in text_string_to_metric_families(text):
        for sample in family.samples:
            key = (sample.name, tuple(sorted(sample.labels.items())))
            assert key not in found, f"{key} twice"
            found[key] = sample.value
    return found


def value(text: str, name: str, **labels: str) -> float:
    """The one sample of this name that has (at least) these labels."""
    (found,) = [
        value
        for (other, its), value in samples(text).items()
        if other == f"tundish_{name}" and labels.items() <= dict(its).items()
    ]
    return found


async def look(server: Server) -> str:
    """What a server of this process tells."""
    return await asyncio.to_thread(scrape, server.metrics)
