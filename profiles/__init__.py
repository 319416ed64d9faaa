"""Recorded profiles of real models, as data. A checkout records them again: ``make profiles``."""
