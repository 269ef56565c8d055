"""This folder is on the path: `support` is what several suites share."""
