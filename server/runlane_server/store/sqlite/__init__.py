"""The store on SQLite."""

from runlane_server.store.sqlite.store import SqliteStore, check_file

__all__ = ["SqliteStore", "check_file"]
