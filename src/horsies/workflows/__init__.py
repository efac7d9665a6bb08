"""Workflows: graphs of tasks that are compiled, started, advanced, waited for and inspected."""
