"""The terms of a send as parameters of a statement."""

from datetime import datetime, timedelta

from horsies.model.task import Terms


def params_of(terms: Terms) -> dict[str, object]:
    due, retry = terms.due, terms.retry
    return {
        "task_name": terms.task_name,
        "queue_name": terms.queue_name,
        "priority": terms.priority,
        "eta": due if isinstance(due, datetime) else None,
        "delay_s": due.total_seconds() if isinstance(due, timedelta) else None,
        "good_until": terms.good_until,
        "timeout_ms": terms.timeout_ms,
        "retry_delays_ms": list(retry.delays_ms) if retry else None,
        "retry_jitter": retry.jitter if retry else 0.0,
        "retry_for": list(retry.codes) if retry else None,
        "trace": terms.trace,
    }
