"""Inside a child process: receive a frame, run the tasks, send the endings."""
