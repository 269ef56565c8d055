"""Use cases: load the state, decide, commit, wake; and the queries beside them."""
