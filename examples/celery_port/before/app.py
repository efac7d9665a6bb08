"""The app and its schedule.

$ celery -A examples.celery_port.before.app worker
$ celery -A examples.celery_port.before.app beat
"""

import os

from celery import Celery
from celery.schedules import crontab

app = Celery("shop", include=["examples.celery_port.before.tasks"])
app.conf.update(
    broker_url=os.environ.get("BROKER_URL", "redis://localhost/0"),
    result_backend=os.environ.get("RESULT_BACKEND", "redis://localhost/1"),
    task_acks_late=True,
    task_reject_on_worker_lost=True,
    task_time_limit=30,
    worker_prefetch_multiplier=1,
    timezone="Europe/Berlin",
    beat_schedule={
        "compare-all": {"task": "shop.compare_all", "schedule": crontab(hour=6, minute=30)},
    },
)
