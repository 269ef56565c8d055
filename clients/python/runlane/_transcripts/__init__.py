"""Transcripts of other programs, as archives that ImportSession takes.

Each format is a pure function from what a file holds to drafts; nothing of a file is ever
run or imported, and what cannot be kept is counted.
"""

from runlane._transcripts.draft import Transcript
from runlane._transcripts.files import FORMATS, read_transcripts
from runlane._transcripts.report import TranscriptError

__all__ = ["FORMATS", "Transcript", "TranscriptError", "read_transcripts"]
