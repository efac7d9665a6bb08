"""What goes wrong in production, looked for: each check is a verb that returns findings, each finding has its cure."""
