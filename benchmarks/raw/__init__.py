"""The limits: what the same server, tables and machine do for hand-written code without a queue around it."""
