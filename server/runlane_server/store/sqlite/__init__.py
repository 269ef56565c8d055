"""The store on SQLite."""

from runlane_server.store.sqlite.store import SqliteStore

__all__ = ["SqliteStore"]
