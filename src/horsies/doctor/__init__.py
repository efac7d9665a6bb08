"""Checks for known production problems. A check is an operation that returns findings; each finding has its fix."""
