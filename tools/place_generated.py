"""Moves what buf generated to where it is imported from.

`runlane.v1` goes to the client as it is. `buf.validate` goes under
`runlane._vendor`, so that the distribution takes no top-level name but its
own; the imports are rewritten to match.
"""

import re
import shutil
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATED = ROOT / "build" / "gen"
CLIENT = ROOT / "clients" / "python" / "runlane"
HEADER = '"""Generated code. `make gen` makes it anew."""\n'


def _rewrite(text: str) -> str:
    text = re.sub(r"\bfrom buf\.validate import", "from runlane._vendor.buf.validate import", text)
    return re.sub(r"\bimport buf\.validate\b", "import runlane._vendor.buf.validate", text)


def _place(source: Path, target: Path) -> None:
    shutil.rmtree(target, ignore_errors=True)
    target.mkdir(parents=True)
    (target / "__init__.py").write_text(HEADER)
    for path in sorted(source.iterdir()):
        empty_grpc = path.name.endswith("_pb2_grpc.pyi") and "_service_" not in path.name
        if path.suffix in {".py", ".pyi"} and not empty_grpc:
            (target / path.name).write_text(_rewrite(path.read_text()))


def main() -> None:
    """Places both packages."""
    _place(GENERATED / "runlane" / "v1", CLIENT / "v1")
    shutil.rmtree(CLIENT / "_vendor", ignore_errors=True)
    _place(GENERATED / "buf" / "validate", CLIENT / "_vendor" / "buf" / "validate")
    for folder in (CLIENT / "_vendor", CLIENT / "_vendor" / "buf"):
        (folder / "__init__.py").write_text(HEADER)


if __name__ == "__main__":
    main()
