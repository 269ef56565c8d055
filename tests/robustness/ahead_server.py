"""A server whose machine's clock is 60 s ahead."""

import time

AHEAD = 60.0
_time, _time_ns = time.time, time.time_ns

time.time = lambda: _time() + AHEAD
time.time_ns = lambda: _time_ns() + int(AHEAD * 1_000_000_000)

if __name__ == "__main__":
    from runlane_server.cli import main

    main()
