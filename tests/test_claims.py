"""The page of claims: every anchor and every test that it names exists, and every claim has a verdict."""

import ast
import re

import pytest

VERDICTS = ("Confirmed", "Qualified", "Contradicted", "Not yet shown", "Ours rather than the abstract's")


@pytest.fixture(scope="module")
def page(root):
    return (root / "chapters" / "reference" / "claims.md").read_text()


def rows(page):
    return [
        line.strip("| ").split(" | ") for line in page.splitlines() if line.startswith("| ") and "Verdict" not in line
    ]


def test_every_claim_has_a_verdict_and_shows_where_unless_nothing_is_shown(page):
    assert len(rows(page)) >= 15
    for row in rows(page):
        *_, where, verdict = row
        assert verdict.startswith(VERDICTS), row
        assert "`" in where or verdict.startswith("Not yet shown"), row


def test_every_named_anchor_is_in_a_chapter(page, root):
    chapters = "\n".join(file.read_text() for file in (root / "chapters").rglob("*.md"))
    anchors = set(re.findall(r"^\((.+)\)=$", chapters, flags=re.M)) | set(re.findall(r":label: (\S+)", chapters))
    named = re.findall(r"\{(?:prf:)?ref\}`(?:[^`<]*<)?([^`>]+)>?`", page)
    assert len(named) >= 12
    assert set(named) <= anchors


def test_every_named_test_exists(page, root):
    named = re.findall(r"`(tests/\w+\.py)::(\w+)`", page)
    assert len(named) >= 10
    for file, name in named:
        functions = [
            node.name for node in ast.walk(ast.parse((root / file).read_text())) if isinstance(node, ast.FunctionDef)
        ]
        assert name in functions, f"{file}::{name}"
