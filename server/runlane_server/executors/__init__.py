"""The embedded executor and the models that it serves."""
