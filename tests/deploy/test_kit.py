"""The files of deploy/: valid by the tools of their platforms, and in agreement with the command line and with each other."""

import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Iterator
from functools import reduce
from pathlib import Path
from typing import Any, cast

import click
import psycopg
import pytest

from horsies import RecoveryConfig
from horsies.cli.main import main

yaml: Any = pytest.importorskip("yaml", reason="PyYAML is not installed")

DEPLOY = Path(__file__).parents[2] / "deploy"
DOCS = DEPLOY.parent / "docs"
KUBERNETES, SYSTEMD = DEPLOY / "kubernetes", DEPLOY / "systemd"
COMPOSE: Any = yaml.safe_load((DEPLOY / "docker" / "compose.yaml").read_text())
DOCKERFILE = (DEPLOY / "docker" / "Dockerfile").read_text()
OBJECTS: dict[str, Any] = {
    f"{each['kind']}/{each['metadata']['name']}": each
    for file in sorted(KUBERNETES.glob("*.yaml"))
    for each in yaml.safe_load_all(file.read_text())
    if "metadata" in each
}
GRACE_S = RecoveryConfig().grace_ms / 1000
TO_STORE_RESULTS_S = 5.0


def pod_of(name: str) -> Any:
    spec = OBJECTS[name]["spec"]
    return (spec["jobTemplate"]["spec"] if "jobTemplate" in spec else spec)["template"]["spec"]


WITH_PODS = [name for name in OBJECTS if name.split("/")[0] in {"Deployment", "Job", "CronJob"}]


def arguments_of(name: str) -> list[str]:
    (container,) = pod_of(name)["containers"]
    return container["args"]


def option(words: list[str], name: str) -> str | None:
    found = [word.partition("=")[2] for word in words if word.startswith(f"{name}=")]
    return found[0] if found else None


# -- the command line


def unit_commands() -> Iterator[tuple[str, list[str]]]:
    for file in SYSTEMD.glob("*.service"):
        (line,) = re.findall(r"^ExecStart=(.+)$", file.read_text(), re.MULTILINE)
        program, *words = shlex.split(line)
        assert program == "/opt/shop/venv/bin/horsies"
        yield file.name, [word for word in words if word != "$HORSIES_WORKER_OPTIONS"]


def console(page: str) -> str:
    """All commands of a page."""
    return "".join(re.findall(r"^```console\n(.*?)^```", (DOCS / page).read_text(), re.MULTILINE | re.DOTALL))


IN_THE_IMAGE = re.findall(r"^\$ docker run .* shop (\S[^>\n]*?)(?: >.*)?$", console("docker.md"), re.MULTILINE)


def commands() -> dict[str, list[str]]:
    (cmd,) = re.findall(r"^CMD (\[.+\])$", DOCKERFILE, re.MULTILINE)
    return {
        **{name: arguments_of(name) for name in WITH_PODS},
        **{f"compose {name}": of["command"] for name, of in COMPOSE["services"].items() if name != "db"},
        **dict(unit_commands()),
        "Dockerfile": yaml.safe_load(cmd),
        **{line: line.split() for line in IN_THE_IMAGE},
    }


@pytest.mark.parametrize("name", commands())
def test_every_command_and_its_options_exist(name: str) -> None:
    command, *options = commands()[name]
    found = main.get_command(click.Context(main), command)
    assert found is not None
    if isinstance(found, click.Group):  # what is not a command of the dashboard is `serve`
        found = found.commands[options.pop(0) if options[0] in found.commands else "serve"]
    found.make_context(command, options)


def test_the_pages_use_the_image() -> None:
    assert [line.split()[0] for line in IN_THE_IMAGE] == ["check", "migrate", "web"]


def test_the_page_of_systemd_names_the_units_and_their_files() -> None:
    page = (DOCS / "systemd.md").read_text()
    units = {file.name for file in SYSTEMD.glob("horsies-*")}
    for word in re.findall(r"horsies-\w[\w@.*]*", console("systemd.md")):
        unit = re.sub(r"@[\w*]+", "@", word)
        assert {unit, f"{unit}.service"} & units, word
    read = re.findall(r"=-?(?:passwords:)?/etc/horsies/(\S+)", "".join(unit.read_text() for unit in SYSTEMD.glob("*")))
    assert {f"`{name.replace('%i', 'NAME')}`" for name in read} <= set(
        re.findall(r"^\| (`\S+`) \|", page, re.MULTILINE)
    )


def test_the_page_of_kubernetes_creates_every_secret_and_applies_every_file() -> None:
    text = console("kubernetes.md")
    needed = set(re.findall(r"'secretRef': {'name': '([\w-]+)'}|'secretName': '([\w-]+)'", str(OBJECTS)))
    needed |= {(OBJECTS["TriggerAuthentication/horsies-reader"]["spec"]["secretTargetRef"][0]["name"], "")}
    assert {name or other for name, other in needed} == set(re.findall(r"create secret generic (\S+)", text))
    applied = set(re.findall(r"-f (deploy/\S+)", text))
    assert {Path(path).name for path in applied} == {"config.yaml", "migrate-job.yaml", "keda.yaml"}
    assert all((DEPLOY.parent / path).exists() for path in applied)
    for kind, name in re.findall(r"\b(job|deployment)(?:/| )(horsies-\w+)", text):
        assert f"{kind.title()}/{name}" in OBJECTS


def test_every_variable_is_one_that_horsies_reads() -> None:
    source = "".join(file.read_text() for file in (DEPLOY.parent / "src" / "horsies").rglob("*.py"))
    for file in DEPLOY.rglob("*.*"):
        if file.suffix in {".yaml", ".service", ".env"}:
            for name in set(re.findall(r"\bHORSIES_[A-Z_]+\b", file.read_text())) - {"HORSIES_WORKER_OPTIONS"}:
                assert f'"{name}"' in source, (file.name, name)


# -- stopping


def test_pods_have_time_to_stop() -> None:
    timeout = float(OBJECTS["ConfigMap/horsies"]["data"]["HORSIES_SHUTDOWN_TIMEOUT"])
    assert (
        pod_of("Deployment/horsies-worker")["terminationGracePeriodSeconds"] >= timeout + GRACE_S + TO_STORE_RESULTS_S
    )


def test_containers_have_time_to_stop() -> None:
    worker = COMPOSE["services"]["worker"]
    timeout = float(worker["environment"]["HORSIES_SHUTDOWN_TIMEOUT"])
    assert float(worker["stop_grace_period"].removesuffix("s")) >= timeout + GRACE_S + TO_STORE_RESULTS_S


def test_services_have_time_to_stop() -> None:
    unit = (SYSTEMD / "horsies-worker@.service").read_text()
    (timeout,) = re.findall(r"^HORSIES_SHUTDOWN_TIMEOUT=(\d+)$", (SYSTEMD / "horsies.env").read_text(), re.MULTILINE)
    (stop,) = re.findall(r"^TimeoutStopSec=(\d+)$", unit, re.MULTILINE)
    assert float(stop) >= float(timeout) + GRACE_S + TO_STORE_RESULTS_S
    assert "\nKillMode=mixed\n" in unit


def test_containers_start_an_init_by_the_exec_form() -> None:
    assert re.findall(r"^ENTRYPOINT (.+)$", DOCKERFILE, re.MULTILINE) == ['["tini", "--", "horsies"]']
    assert re.findall(r"^USER (.+)$", DOCKERFILE, re.MULTILINE) == ["10001"]
    assert all("command" not in pod_of(name)["containers"][0] for name in WITH_PODS), "it would replace the init"
    assert all("entrypoint" not in service for service in COMPOSE["services"].values())


# -- memory, ports and names


def test_the_memory_of_workers_fits_by_the_formula() -> None:
    """As in docs/concurrency.md, for tasks that peak at 100 MB."""
    words = arguments_of("Deployment/horsies-worker")
    (container,) = pod_of("Deployment/horsies-worker")["containers"]
    limit_mb = 1024 * float(container["resources"]["limits"]["memory"].removesuffix("Gi"))
    most = (float(option(words, "--max-memory-per-child-mb") or "inf") + 100) * (
        int(option(words, "--processes") or 0) + 1
    )
    assert most + 90 + 40 + 150 < limit_mb * 1.048576
    assert container["resources"]["requests"]["memory"] == container["resources"]["limits"]["memory"]
    assert "cpu" not in container["resources"]["limits"]


@pytest.mark.parametrize("name", [name for name in WITH_PODS if name.startswith("Deployment/")])
def test_probes_ask_the_port_that_is_served(name: str) -> None:
    words, (container,) = arguments_of(name), pod_of(name)["containers"]
    (port,) = container["ports"]
    assert str(port["containerPort"]) == (option(words, "--metrics-port") or option(words, "--port"))
    assert "0.0.0.0" in (option(words, "--metrics-host"), option(words, "--host"))  # noqa: S104 - in a container
    for probe in ("startupProbe", "livenessProbe", "readinessProbe"):
        assert container[probe]["httpGet"]["port"] == port["name"]
        assert container[probe]["timeoutSeconds"] > 5, "a busy process answers late"
        assert container[probe]["httpGet"]["path"] in {"/healthz", "/readyz", "/login"}
        assert (probe == "readinessProbe") == (container[probe]["httpGet"]["path"] == "/readyz") or "web" in name


def test_selectors_and_references_agree() -> None:
    for name, each in OBJECTS.items():
        if name.startswith("Deployment/"):
            labels = each["spec"]["template"]["metadata"]["labels"]
            assert each["spec"]["selector"]["matchLabels"] == labels == each["metadata"]["labels"]
    worker = OBJECTS["Deployment/horsies-worker"]["metadata"]["labels"]
    assert OBJECTS["PodDisruptionBudget/horsies-worker"]["spec"]["selector"]["matchLabels"] == worker
    service = OBJECTS["Service/horsies-web"]["spec"]
    assert service["selector"] == OBJECTS["Deployment/horsies-web"]["metadata"]["labels"]
    scaled = OBJECTS["ScaledObject/horsies-worker"]["spec"]
    assert f"Deployment/{scaled['scaleTargetRef']['name']}" in OBJECTS
    (trigger,) = scaled["triggers"]
    assert f"TriggerAuthentication/{trigger['authenticationRef']['name']}" in OBJECTS
    listed: list[str] = yaml.safe_load((KUBERNETES / "kustomization.yaml").read_text())["resources"]
    apart = {"kustomization.yaml", "keda.yaml", "migrate-job.yaml"}
    assert {*listed} | apart == {file.name for file in KUBERNETES.glob("*.yaml")}


@pytest.mark.parametrize("name", WITH_PODS)
def test_pods_run_without_privileges(name: str) -> None:
    pod = pod_of(name)
    (container,) = pod["containers"]
    assert pod["securityContext"]["runAsNonRoot"] is True
    assert pod["securityContext"]["runAsUser"] == 10001
    assert container["securityContext"] == {
        "allowPrivilegeEscalation": False,
        "readOnlyRootFilesystem": True,
        "capabilities": {"drop": ["ALL"]},
    }


# -- the tools of the platforms


@pytest.mark.parametrize("name", [name for name in OBJECTS if "keda.sh" not in OBJECTS[name]["apiVersion"]])
def test_manifests_match_the_schemas_of_kubernetes(name: str) -> None:
    validator: Any = pytest.importorskip("kubernetes_validate", reason="kubernetes-validate is not installed")
    validator.validate(OBJECTS[name], "1.31", strict=True)


def test_systemd_accepts_the_units(tmp_path: Path) -> None:
    program = shutil.which("systemd-analyze")
    if program is None:
        pytest.skip("there is no systemd-analyze: install systemd")
    command = tmp_path / "horsies"  # it checks that programs exist; the path of the environment may have a space
    command.symlink_to(Path(sys.executable).parent / "horsies")
    units: list[str] = []
    for file in sorted([*SYSTEMD.glob("*.service"), *SYSTEMD.glob("*.timer")]):
        unit = tmp_path / file.name.replace("@.", "@1.")
        unit.write_text(file.read_text().replace("/opt/shop/venv/bin/horsies", str(command)))
        units.append(str(unit))
    found = subprocess.run([program, "verify", *units], capture_output=True, text=True, timeout=60, check=False)
    assert [line for line in found.stderr.splitlines() if str(tmp_path) in line or "horsies" in line] == []
    assert found.returncode == 0, found.stderr


def test_compose_services_refer_to_each_other() -> None:
    services = COMPOSE["services"]
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            assert how["condition"] in {"service_healthy", "service_completed_successfully"}
            assert (how["condition"] == "service_healthy") == ("healthcheck" in services[other]), (name, other)
        assert set(service.get("secrets", [])) <= COMPOSE["secrets"].keys()
    for name in ("worker", "scheduler"):
        assert (
            f":{option(services[name]['command'], '--metrics-port')}/healthz"
            in services[name]["healthcheck"]["test"][-1]
        )
    assert f":{option(services['web']['command'], '--port')}/login" in services["web"]["healthcheck"]["test"][-1]


# -- KEDA


QUERY = " ".join(OBJECTS["ScaledObject/horsies-worker"]["spec"]["triggers"][0]["metadata"]["query"].split())


def replicas_for(sql: psycopg.Connection) -> int:
    found = sql.execute(cast("Any", QUERY)).fetchone()
    assert found is not None
    return found[0]


def test_keda_counts_what_is_due_or_running_in_the_queue(sql: psycopg.Connection) -> None:
    assert replicas_for(sql) == 0
    sql.execute("insert into horsies.tasks (task_name) select 'due' from generate_series(1, 7)")
    sql.execute("insert into horsies.tasks (task_name, queue_name) values ('elsewhere', 'mail')")
    sql.execute(
        "insert into horsies.tasks (task_name, ready, enqueued_at) values ('later', false, now() + interval '1 hour')"
    )
    sql.execute(
        "insert into horsies.tasks (task_name, status, claimed_by, claimed_at) "
        "values ('running', 'RUNNING', gen_random_uuid(), now()), ('claimed', 'CLAIMED', gen_random_uuid(), now())"
    )
    assert replicas_for(sql) == 9
    sql.execute("insert into horsies.queues (name, paused_at) values ('default', now())")
    assert replicas_for(sql) == 2


def test_keda_reads_indexes_and_no_more_than_it_counts(sql: psycopg.Connection) -> None:
    sql.execute(
        "insert into horsies.tasks (task_name, queue_name) "
        "select 'due', case when number % 2 = 0 then 'default' else 'mail' end from generate_series(1, 50000) as number"
    )
    sql.execute("analyze horsies.tasks")
    assert replicas_for(sql) == 10_000
    (plan,) = sql.execute(cast("Any", f"explain (analyze, format json) {QUERY}")).fetchone() or ({},)

    def nodes(node: dict[str, Any]) -> list[dict[str, Any]]:
        return reduce(lambda found, each: found + nodes(each), node.get("Plans", []), [node])

    scans = [node for node in nodes(plan[0]["Plan"]) if node.get("Relation Name") == "tasks" or "Index Name" in node]
    assert {node.get("Index Name") for node in scans} - {"queues_pkey"} == {"tasks_claim_idx", "tasks_in_flight_idx"}
    assert max(node["Actual Rows"] for node in scans) <= 10_000
