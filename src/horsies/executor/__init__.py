"""The code inside a child process: receive assignments, run the tasks, report the endings."""
