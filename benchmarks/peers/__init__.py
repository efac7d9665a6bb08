"""`make bench-peers`: the same workloads for other task queues and for ours, on one machine, alternating."""
