"""Shared builders: commands as steps, the pure machine, and the engine on a real store.

`steps`    commands, each made from the state that it meets
`lane`     one session of the pure machine
`world`    use cases and engine on a real store, with a clock that is set by hand
`postgres` a PostgreSQL server of the tests' own
`cells`    the table of states, cell by cell: what `lane` and `world` must both do
"""
