"""The store on SQLite."""

from runlane_server.store.sqlite.backup import backup_file, restore_file
from runlane_server.store.sqlite.examine import Examined, examine_file
from runlane_server.store.sqlite.store import SqliteStore, check_file

__all__ = ["Examined", "SqliteStore", "backup_file", "check_file", "examine_file", "restore_file"]
