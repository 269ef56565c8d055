"""The pure core: the rules of sessions and runs, without clock, randomness or io."""
