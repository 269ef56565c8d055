"""The store on PostgreSQL."""

from runlane_server.store.postgres.connect import Address
from runlane_server.store.postgres.examine import ExaminedDatabase, examine_database
from runlane_server.store.postgres.store import PostgresStore, check_database

__all__ = [
    "Address",
    "ExaminedDatabase",
    "PostgresStore",
    "check_database",
    "examine_database",
]
