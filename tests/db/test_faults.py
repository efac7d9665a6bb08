import os
import subprocess
import sys

import pytest


def start_python(faults: str) -> subprocess.CompletedProcess[str]:
    code = "from horsies.db import faults; print(faults.planted)"
    env = {**os.environ, "HORSIES_FAULTS": faults}
    return subprocess.run([sys.executable, "-c", code], env=env, capture_output=True, text=True, check=False)


def test_faults_are_planted_from_the_environment_of_a_process() -> None:
    done = start_python("record_heartbeat:before:drop,finish_tasks:after:kill")
    assert "statement='record_heartbeat', when='before', action='drop'" in done.stdout
    assert "statement='finish_tasks', when='after', action='kill'" in done.stdout


@pytest.mark.parametrize("wrong", ["record_heartbeat:never:drop", "record_heartbeat:before:explode"])
def test_an_invalid_fault_is_refused_by_name(wrong: str) -> None:
    done = start_python(wrong)
    assert done.returncode == 1
    assert f"HORSIES_FAULTS: '{wrong}' is not statement:before|after:drop|kill|error" in done.stderr
