"""The fix of a finding: with the names and ids of what was found, as a command that can be copied."""

import re
import shlex
import subprocess

import click
import pytest

from horsies.cli.main import main
from horsies.doctor.findings import Finding, FindingCode, Target, TargetKind

ID = "0198c0de-1234-7abc-8def-0123456789ab"
DATA = {
    "task_id": ID,
    "workflow_id": ID,
    "worker_id": ID,
    "queue": "night mail",
    "queues": ["night mail", "media"],
    "task_name": "$(reboot)",
    "schedule": "-x",
    "app": "shop:app",
    "pid": 7,
    "gid": "it's",
    "slot": "standby",
}
COMMANDS = [
    (code, command)
    for code in FindingCode
    for command in re.findall(r"`horsies ([^`]+)`", code.value.fix_for(DATA))
]  # fmt: skip


@pytest.mark.parametrize(("code", "command"), COMMANDS, ids=str)
def test_every_command_in_a_fix_exists_with_its_options(code: FindingCode, command: str) -> None:
    words = shlex.split(command)
    group: click.Command = main
    context = click.Context(main)
    while isinstance(group, click.Group):
        name, words = words[0], words[1:]
        found = group.get_command(context, name)
        assert found is not None, f"{code}: no command {name}"
        group = found
    group.make_parser(context).parse_args(words)


def test_a_fix_has_the_names_and_ids_of_its_finding() -> None:
    paused = Finding(FindingCode.QUEUE_PAUSED, "", {"queue": "night mail"})
    assert "`horsies queues resume 'night mail'`" in paused.fix
    assert paused.target == Target(TargetKind.QUEUE, "night mail")
    assert "`horsies queues resume QUEUE`" in FindingCode.QUEUE_PAUSED.value.fix
    assert "`horsies tasks cancel TASK_ID`" in FindingCode.QUEUE_BLOCKED.value.fix
    assert "--queues='night mail,media'" in Finding(FindingCode.QUEUE_WITHOUT_WORKER, "", DATA).fix
    assert "rollback prepared 'it''s'" in Finding(FindingCode.PREPARED_TRANSACTION, "", DATA).fix
    assert Finding(FindingCode.FSYNC_OFF, "").target is None


@pytest.mark.parametrize(
    "name", ["mail", "night mail", "$(touch pwned)", "`id`", "a'b\"c", "-rf", "--yes", "\x1b[2Jgone\n", "é\u202e", ";ls", "\\", "'"]
)  # fmt: skip
def test_a_hostile_name_is_one_argument_of_the_command_and_prints_nothing_else(name: str) -> None:
    fix = Finding(FindingCode.QUEUE_PAUSED, "", {"queue": name}).fix
    assert fix.isprintable()
    command = fix.removeprefix("Resume it with `").removesuffix("` when the reason for the pause is gone.")
    script = f"horsies() {{ printf '%s\\0' \"$@\"; }}\n{command}"
    ran = subprocess.run(["/bin/bash", "-c", script], capture_output=True, check=True, text=True)
    _, _, *words = ran.stdout.split("\0")[:-1]
    assert words == (["--", name] if name.startswith("-") else [name])


def test_a_hostile_name_is_the_value_of_its_option() -> None:
    fix = Finding(FindingCode.TASKS_UNKNOWN, "", {"task_name": "-x; ls"}).fix
    assert "`horsies tasks cancel --task='-x; ls'`" in fix


def test_what_was_found_has_no_control_characters() -> None:
    assert Finding(FindingCode.QUEUE_PAUSED, "\x1b[2J\nqueue \u202e of José").seen == "\\x1b[2J\\nqueue \\u202e of José"
