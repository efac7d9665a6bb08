"""What the tables and plots show, in their order. The other numbers of a round are in the JSON only."""

RATES = {"drain": "tasks/s", "async drain": "tasks/s", "bulk": "tasks/s", "send": "tasks/s", "pipeline": "tasks/s"}
WORKFLOWS = {"workflows": "/s", "chain p50": "ms"}
LATENCIES = {"latency p50": "ms", "latency p95": "ms", "latency p99": "ms", "start p50": "ms"}
REST = {"memory": "MB", "sleep": "of ideal"}

TABLES = (RATES, LATENCIES, {**WORKFLOWS, **REST})
UNITS = {**RATES, **WORKFLOWS, **LATENCIES, **REST}
LOWER_IS_BETTER = {"ms", "MB"}
