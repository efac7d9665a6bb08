"""Graphs of tasks: written, checked, drawn; started, advanced, waited for."""
