"""The page of cases names tests that exist, each case once."""

import re
from collections import Counter
from pathlib import Path

CASE = re.compile(r"^\| ([A-Z]+-\d\d) \|", re.MULTILINE)
TEST = re.compile(r"`([\w/]+\.py)::(test_\w+)`")


def test_every_test_that_the_page_names_exists(repository: Path) -> None:
    named = TEST.findall((repository / "docs/cases.md").read_text())
    assert len(named) > 80
    missing = [
        f"{path}::{name}"
        for path, name in named
        if not re.search(rf"^\s*(async )?def {name}\(", _text(repository / "tests" / path), re.MULTILINE)
    ]
    assert missing == []


def test_every_case_has_one_row_and_every_row_a_test(repository: Path) -> None:
    page = (repository / "docs/cases.md").read_text()
    cases = Counter(CASE.findall(page))
    assert cases and set(cases.values()) == {1}
    held, _, _ = page.partition("## What does not arise")
    rows = [line for line in held.splitlines() if CASE.match(line)]
    assert [row for row in rows if not TEST.search(row)] == []


def _text(path: Path) -> str:
    return path.read_text() if path.exists() else ""
