"""The Markdown files: links lead somewhere, `make` targets exist."""

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PAGES = sorted(
    path
    for folder in (".", "docs", "clients", "examples/digits")
    for path in (ROOT / folder).glob("*.md")
)


def _anchors(page: Path) -> set[str]:
    headings = re.findall(r"^#+ (.+)$", page.read_text(), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", h.lower()).strip().replace(" ", "-") for h in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_links_between_files_lead_somewhere(page):
    for target in re.findall(r"\]\(([^)\s]+)\)", page.read_text()):
        if not re.match(r"[a-z]+:", target):
            path, _, anchor = target.partition("#")
            aim = (page.parent / path).resolve() if path else page
            assert aim.exists(), f"{page.name} links to {target}"
            assert not anchor or anchor in _anchors(aim), f"{page.name} links to {target}"


def test_every_make_target_that_a_page_names_exists():
    named = {t for page in PAGES for t in re.findall(r"(?:`|\$ )make ([a-z-]+)", page.read_text())}
    assert named
    for target in named:
        asked = subprocess.run(["make", "-n", target], cwd=ROOT, capture_output=True, check=False)
        assert asked.returncode == 0, f"make {target}: {asked.stderr.decode()}"


def test_the_makefile_has_at_most_twelve_targets():
    listed = subprocess.run(
        ["make", "--no-print-directory", "help"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        check=True,
    )
    assert 0 < len(listed.stdout.splitlines()) <= 12
