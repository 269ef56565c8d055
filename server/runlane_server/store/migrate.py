"""Migrations: numbered SQL files, each applied once and never edited afterwards.

What is here knows files, numbers and checksums; a store reads what it has
applied, asks `plan` what is missing and executes that in one transaction.
"""

import hashlib
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from importlib.resources import files
from sqlite3 import complete_statement

from runlane_server.store.errors import StoreRefused

_NAME = re.compile(r"(\d{4})_([a-z0-9_]+)\.sql")


@dataclass(slots=True, frozen=True)
class Migration:
    """One numbered file.

    Attributes:
        name: The file's name without number and ending.
        checksum: SHA-256 of its text.
    """

    version: int
    name: str
    sql: str
    checksum: str

    def statements(self) -> list[str]:
        """Splits the text into single statements, without comments between them."""
        found: list[str] = []
        text = ""
        for line in self.sql.splitlines(keepends=True):
            if not text and (not line.strip() or line.lstrip().startswith("--")):
                continue
            text += line
            if complete_statement(text):
                found.append(text.strip())
                text = ""
        if text.strip():
            raise ValueError(f"migration {self.version} ends inside a statement")
        return found


def read_migrations(package: str) -> list[Migration]:
    """Reads the files under `migrations` of a package; their numbers are 1, 2, 3, ..."""
    found: list[Migration] = []
    for entry in files(package).joinpath("migrations").iterdir():
        match = _NAME.fullmatch(entry.name)
        if match is not None:
            sql = entry.read_text(encoding="utf-8")
            checksum = hashlib.sha256(sql.encode()).hexdigest()
            found.append(Migration(int(match[1]), match[2], sql, checksum))
    found.sort(key=lambda migration: migration.version)
    if [migration.version for migration in found] != list(range(1, len(found) + 1)):
        raise ValueError(f"the migrations of {package} are not numbered 1, 2, 3, ...")
    return found


def plan(
    migrations: Sequence[Migration],
    applied: Mapping[int, str],
    where: str,
    *,
    verify: bool = False,
) -> list[Migration]:
    """Returns the migrations that are still to be applied, in order.

    Args:
        migrations: All that this program knows.
        applied: The checksums of what the store has, by version.
        where: Names the store in errors.
        verify: Refuse a store that lacks one, instead of returning it.

    Raises:
        StoreRefused: The store is newer than this program, or one of its migrations is
            not what this program has under that number.
    """
    known = {migration.version: migration for migration in migrations}
    newest = max(applied, default=0)
    if newest > len(migrations):
        raise StoreRefused(
            f"{where} has schema version {newest}; this program knows {len(migrations)} and no "
            "later one"
        )
    for version in range(1, newest + 1):
        if applied.get(version) != known[version].checksum:
            raise StoreRefused(
                f"{where}: migration {version} ({known[version].name}) was applied with other "
                "contents than this program has"
            )
    missing = [migration for migration in migrations if migration.version > newest]
    if verify and missing:
        raise StoreRefused(
            f"{where} has schema version {newest}; {len(migrations)} is wanted and may not be made"
        )
    return missing
