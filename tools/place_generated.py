"""Moves what buf generated to where it is imported from.

`runlane.v1` goes to the client as it is. `buf.validate` goes under
`runlane._vendor`, so that the distribution takes no top-level name but its
own; the imports are rewritten to match. The table of deadlines and retries lies
beside the stubs, since the client is installed without the protos. What was generated for
another language goes as it is, with the table: see `AS_IT_IS`. With `--check`
nothing is moved: it is told what in its place is not as it was generated, committed
or not.
"""

import re
import shutil
import sys
from collections.abc import Iterable
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
GENERATED = ROOT / "build" / "gen"
CALLS = ROOT / "proto" / "calls.json"
CLIENT = ROOT / "clients" / "python" / "runlane"
PLACES = ("v1", "_vendor")
# Places of other languages by what was generated for them; absent where the language is.
AS_IT_IS = {
    ROOT / "build" / "gen-go" / "runlane" / "v1": ROOT / "clients" / "go" / "runlanev1",
    ROOT / "build" / "gen-typescript" / "runlane" / "v1": ROOT / "clients/typescript/src/gen",
}
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


def place(generated: Path, package: Path) -> None:
    """Places both packages.

    Args:
        generated: What buf wrote.
        package: Where they go.
    """
    _place(generated / "runlane" / "v1", package / "v1")
    shutil.copyfile(CALLS, package / "v1" / CALLS.name)
    shutil.rmtree(package / "_vendor", ignore_errors=True)
    _place(generated / "buf" / "validate", package / "_vendor" / "buf" / "validate")
    for folder in (package / "_vendor", package / "_vendor" / "buf"):
        (folder / "__init__.py").write_text(HEADER)


def place_as_it_is(generated: Path, package: Path) -> None:
    """Places the code of another language, and nothing beside it."""
    shutil.rmtree(package, ignore_errors=True)
    shutil.copytree(generated, package)


def differing(fresh: Path, package: Path, places: Iterable[str] = PLACES) -> list[str]:
    """Returns the paths in a package that are not as in a fresh one, or only in one of them."""
    told, found = _contents(fresh, places), _contents(package, places)
    return sorted(path for path in told.keys() | found if told.get(path) != found.get(path))


def _contents(package: Path, places: Iterable[str]) -> dict[str, bytes]:
    return {
        path.relative_to(package).as_posix(): path.read_bytes()
        for name in places
        for path in (package / name).rglob("*")
        if path.is_file() and "__pycache__" not in path.parts
    }


def main() -> None:
    """Places what was generated, or checks what is in place."""
    others = {made: package for made, package in AS_IT_IS.items() if made.is_dir()}
    for made in others:
        if not (made / "calls.ts").exists():  # TypeScript has it as a module
            shutil.copyfile(CALLS, made / CALLS.name)
    if "--check" not in sys.argv[1:]:
        place(GENERATED, CLIENT)
        for made, package in others.items():
            place_as_it_is(made, package)
        return
    fresh = ROOT / "build" / "fresh"
    place(GENERATED, fresh)
    stale = [CLIENT / path for path in differing(fresh, CLIENT)]
    for made, package in others.items():
        stale += [package / path for path in differing(made, package, ["."])]
    for path in stale:
        print(f"{path.relative_to(ROOT)}: not as it is generated")
    if stale:
        sys.exit("generated code is not fresh: run make gen")


if __name__ == "__main__":
    main()
