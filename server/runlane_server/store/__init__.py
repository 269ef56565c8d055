"""Stores: one Protocol and what implements it."""
