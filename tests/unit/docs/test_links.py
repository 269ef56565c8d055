"""Links between documents lead somewhere, and no page is left without one."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
PAGES = sorted(
    [*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")],
    key=lambda path: path.relative_to(ROOT).as_posix(),
)
LINK = re.compile(r"\[[^\]]+\]\(([^)\s]+)\)")
CODE = re.compile(r"^```.*?^```$|`[^`\n]*`", re.MULTILINE | re.DOTALL)


def text_of(page: Path) -> str:
    return page.read_text(encoding="utf-8")


def links(page: Path) -> list[str]:
    found = LINK.findall(CODE.sub("", text_of(page)))
    return [link for link in found if not link.startswith(("http://", "https://"))]


def anchors(page: Path) -> set[str]:
    """Returns what headings are linked by, as GitHub names them."""
    text = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.MULTILINE | re.DOTALL)
    headings = re.findall(r"^#+ (.*)$", text, re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


@pytest.mark.parametrize("page", PAGES, ids=lambda path: path.relative_to(ROOT).as_posix())
def test_links_lead_somewhere(page):
    for link in links(page):
        name, _, anchor = link.partition("#")
        target = (page.parent / name).resolve() if name else page
        assert target.is_relative_to(ROOT), link
        assert target.exists(), link
        if anchor:
            assert anchor in anchors(target), link


def test_the_readme_leads_to_every_page():
    reached = {ROOT / "README.md"}
    ahead = list(reached)
    while ahead:
        page = ahead.pop()
        for link in links(page):
            target = (page.parent / link.partition("#")[0]).resolve()
            if target.is_dir():
                found = set(target.glob("*.md"))
            else:
                found = {target} if target.suffix == ".md" else set()
            ahead += found - reached
            reached |= found
    assert [str(page.relative_to(ROOT)) for page in PAGES if page not in reached] == []


def test_the_readme_begins_with_the_two_commands():
    text = text_of(ROOT / "README.md")
    first = re.search(r"^```sh\n(.*?)^```$", text, re.MULTILINE | re.DOTALL)
    assert first is not None
    assert [line.partition("#")[0].strip() for line in first[1].splitlines()] == [
        "make demo",
        "make test",
    ]
    assert text.index("```") < 400


def test_targets_of_make_that_are_named_are_there():
    targets = set(re.findall(r"^([a-z-]+):", text_of(ROOT / "Makefile"), re.MULTILINE))
    for page in PAGES:
        named = set(re.findall(r"(?:^|`)make ([a-z-]+)", text_of(page), re.MULTILINE))
        assert named <= targets, page


def test_the_architecture_names_the_tables_that_are_there():
    sql = "".join(map(text_of, ROOT.glob("server/runlane_server/store/*/migrations/*.sql")))
    made = re.findall(r"^CREATE (?:UNLOGGED )?TABLE (\w+)", sql, re.MULTILINE)
    section = text_of(ROOT / "docs" / "architecture.md").partition("## What is stored")[2]
    cells = [line.split("|")[1] for line in section.splitlines() if line.startswith("| `")]
    named = set(re.findall(r"`(\w+)`", " ".join(cells)))
    # Some are told of below the table alone.
    assert named <= set(made) <= set(re.findall(r"`(\w+)`", section))
