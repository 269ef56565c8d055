"""What a store says when it cannot.

StoreError
├── StoreUnavailable    not now: disk full, locked, gone; whether a write was made is open
├── StoreCorrupt        what it holds fails its checks
├── StoreFault          it refuses what it is asked: time alone mends nothing
└── StoreRefused        it will not be opened: of an unknown version, changed by hand
    └── StoreHeld       another process has it
"""


class StoreError(Exception):
    """Base of all. The text is for operators and never reaches a caller."""


class StoreUnavailable(StoreError):  # noqa: N818 - named for the state
    """The store does not take or give data now."""


class StoreCorrupt(StoreError):  # noqa: N818 - named for the state
    """What the store holds fails its checks."""


class StoreFault(StoreError):  # noqa: N818 - named for what it is
    """The store refuses a statement: one of ours is wrong, or the store was not set up for it."""


class StoreRefused(StoreError):  # noqa: N818 - named for the act
    """The store will not be opened; nothing was changed."""


class StoreHeld(StoreRefused):
    """Another process has the store."""


def told(error: BaseException) -> str:
    """Returns what the log may say of an error.

    What a store says is meant for operators. The text of another one may quote what users
    wrote: then it is the kind alone.
    """
    return str(error) if isinstance(error, StoreError) else type(error).__name__
