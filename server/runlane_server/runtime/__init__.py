"""The asyncio machinery: engine, group commit, wake-up bus, timers, dispatch."""
