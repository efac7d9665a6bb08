"""What the maintenance leader does: detect dead workers, rescue their tasks, expire tasks, apply retention."""
