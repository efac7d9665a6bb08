"""The journey of a graph: start, advance, control, wait, inspect."""
