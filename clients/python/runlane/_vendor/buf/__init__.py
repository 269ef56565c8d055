"""Generated code. `make gen` makes it anew."""
