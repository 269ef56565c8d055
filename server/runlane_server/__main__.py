"""`python -m runlane_server` is `runlane`."""

from runlane_server.cli import main

if __name__ == "__main__":
    main()
