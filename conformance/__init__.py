"""The conformance kit: scenarios as data, and the driver that plays them with Python's client."""
