"""Commands that are run as child processes, and started anew when the code changes: `horsies dev`, `horsies worker --reload`."""
