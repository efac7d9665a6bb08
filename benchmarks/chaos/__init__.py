"""Chaos: run load, inject faults, and check from what was recorded that nothing went wrong."""
