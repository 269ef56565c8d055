"""The store on SQLite."""

from runlane_server.store.sqlite.backup import backup, restore
from runlane_server.store.sqlite.store import SqliteStore, check_file

__all__ = ["SqliteStore", "backup", "check_file", "restore"]
