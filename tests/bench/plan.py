"""What a run of the bench is to do."""

from dataclasses import dataclass
from pathlib import Path


@dataclass(slots=True, frozen=True)
class Plan:
    """How many rounds, and where the stores lie."""

    folder: Path
    rounds: int
