"""Memory and CPU of processes, as workers report them."""

import os
import subprocess
import sys
import time

import psutil
import pytest

from horsies.executor.os_process import measure_usage
from horsies.worker.heartbeat import UsageMeter

BUSY = "import sys, time\nwhile time.process_time() < 0.3: pass\nprint('done', flush=True); sys.stdin.read()"


def test_a_process_is_measured_like_psutil_measures_it() -> None:
    with subprocess.Popen([sys.executable, "-c", BUSY], stdin=subprocess.PIPE, stdout=subprocess.PIPE) as process:
        assert process.stdout
        process.stdout.readline()
        expected, usage = psutil.Process(process.pid), measure_usage(process.pid)
        assert usage is not None
        assert usage.memory_mb == pytest.approx(
            expected.memory_info().rss / 2**20, rel=0.2
        )  # the kernel counts in batches
        assert usage.cpu_s == pytest.approx(expected.cpu_times().user + expected.cpu_times().system, abs=0.05)
        process.communicate()
    assert measure_usage(process.pid) is None


def test_cpu_is_measured_since_the_last_call() -> None:
    meter = UsageMeter()
    memory_mb, cpu_percent = meter.measure([os.getpid()])
    assert memory_mb > 1
    assert cpu_percent == 0
    used = time.process_time()
    while time.process_time() < used + 0.1:
        pass
    _, cpu_percent = meter.measure([os.getpid()])
    assert cpu_percent > 0


def test_processes_that_are_gone_count_nothing() -> None:
    with subprocess.Popen([sys.executable, "-c", "pass"]) as process:
        pass
    meter = UsageMeter()
    assert [meter.measure([process.pid]), meter.measure([process.pid])] == [(0, 0), (0, 0)]
