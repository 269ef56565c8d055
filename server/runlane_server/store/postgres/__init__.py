"""The store on PostgreSQL."""

from runlane_server.store.postgres.connect import Address
from runlane_server.store.postgres.store import PostgresStore, check_database

__all__ = ["Address", "PostgresStore", "check_database"]
