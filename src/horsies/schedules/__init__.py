"""Schedules: what an app declares, how it is stored, and what is due."""
