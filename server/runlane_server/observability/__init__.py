"""What the server tells those who watch it; each form needs a library of its own."""
