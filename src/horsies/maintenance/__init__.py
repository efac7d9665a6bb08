"""What one process in the cluster does: elect, reap, expire, retain."""
