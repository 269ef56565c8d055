"""Transcripts of other programs, as archives that ImportSession takes.

Each format is a pure function from what a file holds to drafts; nothing of a file is ever
run or imported, and what cannot be kept is counted.
"""

from runlane._transcripts.draft import Transcript, TranscriptError
from runlane._transcripts.files import FORMATS, read_transcripts

__all__ = ["FORMATS", "Transcript", "TranscriptError", "read_transcripts"]
