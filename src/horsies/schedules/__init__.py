"""Schedules: what is declared, what is stored, and what is due."""
