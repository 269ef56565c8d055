"""The reference names all there is, and its links lead somewhere."""

import re
from pathlib import Path

from google.protobuf import descriptor_pool
from runlane._retry import TABLE

ROOT = Path(__file__).resolve().parents[3]
PAGE = (ROOT / "docs" / "protocol.md").read_text(encoding="utf-8")


def anchors(text: str) -> list[str]:
    heads = re.findall(r"^#+ (.+)$", text, re.MULTILINE)
    return [re.sub(r"[^a-z0-9_ -]", "", head.lower()).replace(" ", "-") for head in heads]


def test_each_call_and_each_field_of_what_it_takes_is_told():
    pool = descriptor_pool.Default()
    for name in TABLE["methods"]:
        method = pool.FindMethodByName(name.replace("/", "."))
        short = f"{method.containing_service.name}.{method.name}"
        told = PAGE.partition(f"\n### {short}\n")[2].partition("\n### ")[0]
        assert told.strip(), short
        for message in (method.input_type, method.output_type):
            assert f"[{message.name}](#{message.name.lower()})" in told, short
            section = PAGE.partition(f"\n### {message.name}\n")[2].partition("\n### ")[0]
            for field in message.fields:
                row = next(
                    line for line in section.splitlines() if line.startswith(f"| `{field.name}` |")
                )
                assert row.split("|")[2].strip() == str(field.number)
                assert row.split("|")[-2].strip(), f"{message.name}.{field.name} is not described"


def test_links_lead_somewhere_and_no_two_places_share_a_name():
    names = anchors(PAGE)
    assert len(names) == len(set(names))
    assert set(re.findall(r"\(#([^)]+)\)", PAGE)) <= set(names)
    for page in re.findall(r"\((?!#)([^)#]+?)(?:#[^)]*)?\)", PAGE):
        if page.endswith((".md", ".json", "/")):
            assert (ROOT / "docs" / page).resolve().exists(), page
