"""Generated code is compared with what generation gives, not with what is committed."""

import runpy
from pathlib import Path

import pytest

PROGRAM = Path(__file__).resolve().parents[3] / "tools" / "place_generated.py"


@pytest.fixture
def placed(tmp_path):
    """What was generated, in its place."""
    tool = runpy.run_path(str(PROGRAM))
    generated = tmp_path / "gen"
    for folder in ("runlane/v1", "buf/validate"):
        (generated / folder).mkdir(parents=True)
        (generated / folder / "one_pb2.py").write_text("from buf.validate import validate_pb2\n")
    for name in ("fresh", "package"):
        tool["place"](generated, tmp_path / name)
    return tool["differing"], tmp_path / "fresh", tmp_path / "package"


def test_what_is_as_it_was_generated_is_fresh(placed):
    differing, fresh, package = placed
    (package / "v1" / "__pycache__").mkdir()
    (package / "v1" / "__pycache__" / "x.pyc").write_bytes(b"x")
    (package / "hand_written.py").write_text("x")
    assert differing(fresh, package) == []
    text = (package / "v1" / "one_pb2.py").read_text()
    assert text == "from runlane._vendor.buf.validate import validate_pb2\n"


def test_what_was_changed_added_or_is_missing_is_told(placed):
    differing, fresh, package = placed
    (package / "v1" / "one_pb2.py").write_text("by hand")
    (package / "v1" / "old_pb2.py").write_text("of a proto that is gone")
    (package / "_vendor" / "buf" / "validate" / "one_pb2.py").unlink()
    assert differing(fresh, package) == [
        "_vendor/buf/validate/one_pb2.py",
        "v1/old_pb2.py",
        "v1/one_pb2.py",
    ]


def test_code_of_another_language_is_placed_as_it_is(tmp_path):
    tool = runpy.run_path(str(PROGRAM))
    generated, package = tmp_path / "gen", tmp_path / "package"
    for folder in (generated, package):
        folder.mkdir()
    (generated / "one.pb.go").write_text("package one")
    (package / "old.pb.go").write_text("of a proto that is gone")
    assert tool["differing"](generated, package, ["."]) == ["old.pb.go", "one.pb.go"]
    tool["place_as_it_is"](generated, package)
    assert tool["differing"](generated, package, ["."]) == []
    assert [path.name for path in package.iterdir()] == ["one.pb.go"]
