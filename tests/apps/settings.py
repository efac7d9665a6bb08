"""The configuration of an app from `HORSIES_TEST_SETTINGS`, as JSON: quick recovery unless it says otherwise."""

import json
import os
from datetime import timedelta
from typing import Any

from horsies import AppConfig, CustomQueueConfig, QueueMode, RetentionConfig, WorkerResilienceConfig
from horsies.model.config import PostgresConfig, RecoveryConfig

VARIABLE = "HORSIES_TEST_SETTINGS"
QUICK = {"heartbeat_ms": 500, "dead_after_ms": 1_500, "maintenance_ms": 200, "grace_ms": 500, "snapshot_ms": 1_000}

QUICK_RETRIES = {"db_retry_initial_ms": 100, "db_retry_max_ms": 500}


def configured() -> AppConfig:
    given: dict[str, Any] = json.loads(os.environ.get(VARIABLE, "{}"))
    broker = given.pop("broker", None)
    retention = {name: timedelta(seconds=seconds) for name, seconds in given.pop("retention", {}).items()}
    queues = [CustomQueueConfig(**queue) for queue in given.pop("queues", [])]
    return AppConfig(
        broker=PostgresConfig(**broker) if broker else None,
        queue_mode=QueueMode.CUSTOM if queues else QueueMode.DEFAULT,
        custom_queues=queues,
        recovery=RecoveryConfig(**QUICK | given.pop("recovery", {})),
        retention=RetentionConfig(**retention),
        resilience=WorkerResilienceConfig(**QUICK_RETRIES | given.pop("resilience", {})),
        **given,
    )
