"""The worker process: the services that claim tasks, dispatch them to children, and store their endings."""
