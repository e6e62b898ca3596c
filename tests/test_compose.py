"""docker-compose.yml holds together, and its commands work as processes of this machine: `make long` runs those.

No engine is needed, and none is used: `make containers` runs the file in one.
"""

from __future__ import annotations

import functools
import json
import os
import re
import shlex
import shutil
import socket
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any
from urllib.request import urlopen

import jsonschema
import pytest
import yaml
from composition import ENDS, Composition, load
from tenacity import Retrying, retry_if_result, stop_after_delay, wait_fixed

from kinesis_trident.checkpoint.embedded import LOOPBACK

ROOT = Path(__file__).resolve().parent.parent
FILE = load()
OURS = "kinesis-trident:demo"


@pytest.fixture
def services() -> dict[str, Any]:
    return FILE["services"]


def dockerfile(services: dict[str, Any]) -> str:
    (text,) = {service["build"]["dockerfile_inline"] for service in services.values() if "build" in service}
    return text


def test_the_file_is_as_the_specification_wants_it() -> None:
    schema = json.loads((ROOT / "tests" / "schemas" / "compose-spec.json").read_text())
    check = functools.partial(jsonschema.validate, schema=schema, cls=jsonschema.Draft7Validator)
    check(FILE)
    wrong = FILE | {"services": {"one": {"image": "redis:8", "helthcheck": {}}}}
    with pytest.raises(jsonschema.ValidationError, match="helthcheck"):
        check(wrong)


def test_images_are_pinned(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if "build" not in service:
            assert re.search(r":v?\d+\.\d+\.\d+", service["image"]), name
    # Both stages have one base: what the first installs has to run on the second.
    (base,) = set(re.findall(r"^FROM (\S+)", dockerfile(services), re.MULTILINE))
    assert re.search(r":\d+\.\d+\.\d+", base)


def test_what_runs_our_package_or_spark_has_one_image(services: dict[str, Any]) -> None:
    """Driver and executors need the same Python and the same packages."""
    programs = {"python", "kinesis-trident", "moto_server", "spark-class"}
    for name, service in services.items():
        runs = service.get("command", [""])[0]
        assert (service["image"] == OURS) == (runs in programs), name
        if runs in programs:
            assert shutil.which(runs, path=str(Path(sys.executable).parent)), runs
            assert "build" in service, name


def test_the_image_installs_extras_that_there_are(services: dict[str, Any]) -> None:
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    lines = dockerfile(services).replace("\\\n", "").splitlines()
    *_, pip = (shlex.split(line) for line in lines if line.startswith("RUN pip "))
    extras = re.fullmatch(r"\.\[([a-z,]+)\]", pip[-1])
    assert extras is not None
    assert set(extras[1].split(",")) <= set(project["optional-dependencies"])
    assert pip[pip.index("--constraint") + 1] == "constraints.txt"
    base = re.search(r"^FROM python:(\d+\.\d+)", lines[0])
    assert base is not None
    assert f"Programming Language :: Python :: {base[1]}" in project["classifiers"]
    assert f"/lib/python{base[1]}/site-packages" in dockerfile(services)


def test_the_image_runs_as_a_user_in_a_folder_of_its_own(services: dict[str, Any]) -> None:
    stage = dockerfile(services).rpartition("\nFROM ")[2].splitlines()
    user = stage.index("USER demo")
    assert stage.index("RUN useradd --create-home demo") < user
    (folder,) = (line.split()[-1] for line in stage[user:] if line.startswith("WORKDIR "))
    (made,) = (line.split() for line in stage[user:] if line.startswith("RUN mkdir "))
    assert folder in made


def test_a_job_is_checked_by_the_image_and_a_server_by_the_file(services: dict[str, Any]) -> None:
    assert 'CMD kinesis-trident check "$APPLICATION"' in dockerfile(services)
    for name, service in services.items():
        checked = "healthcheck" in service
        assert checked != ("APPLICATION" in service.get("environment", {})), name
    for name, job in ("demo", "demo"), ("words", "trident_word_count"):
        given = services[name]["environment"]
        assert f'"{given["APPLICATION"]}"' in (ROOT / "examples" / f"{job}.py").read_text()
        assert f"--zookeeper={given['KINESIS_TRIDENT_ZOOKEEPER']}" in services[name]["command"]


def test_what_an_image_is_built_of_comes_with_the_package(services: dict[str, Any]) -> None:
    """The wheel's packages are links to folders, which the build needs too."""
    allowed = {line[1:] for line in (ROOT / ".dockerignore").read_text().splitlines() if line.startswith("!")}
    linked = {Path(os.readlink(one)).name for one in (ROOT / "kinesis_trident").iterdir() if one.is_symlink()}
    copied = {
        "pyproject.toml",
        "constraints.txt",
        "examples",
        "kinesis_trident",
        "pyspark_kinesis_trident.py",
    }
    assert linked | copied <= allowed
    assert all((ROOT / one).exists() for one in allowed)


def test_the_images_of_debian_stand_for_those_of_the_file(services: dict[str, Any]) -> None:
    text = (ROOT / "tests" / "containers" / "Containerfile").read_text()
    targets = set(re.findall(r"^FROM \S+ AS (\w+)$", text, re.MULTILINE))
    images = {service["image"].partition(":")[0].rpartition("/")[2] for service in services.values()}
    assert images - targets == {"kinesis-trident", "grafana"}
    entry = (ROOT / "tests" / "containers" / "zookeeper").read_text()
    read = set(re.findall(r"\$(ZOO_\w+)", entry))
    for name in ("zoo1", "zoo2", "zoo3"):
        assert set(services[name]["environment"]) == read


def test_the_ensemble_knows_its_three_members(services: dict[str, Any]) -> None:
    members = {
        name: service
        for name, service in services.items()
        if service.get("image", "").startswith("zookeeper")
    }
    assert len(members) == 3
    for name, service in members.items():
        number = service["environment"]["ZOO_MY_ID"]
        assert f"server.{number}={name}:2888:3888;2181" in service["environment"]["ZOO_SERVERS"].split()
    assert len({service["environment"]["ZOO_MY_ID"] for service in members.values()}) == 3


def test_whoever_waits_for_health_waits_for_a_service_that_reports_it(services: dict[str, Any]) -> None:
    for name, service in services.items():
        for other, how in service.get("depends_on", {}).items():
            assert other in services, name
            assert how["condition"] != "service_healthy" or "healthcheck" in services[other], other
            assert "healthcheck" in services[other] or how["condition"] == "service_completed_successfully"


def needed_by(services: dict[str, Any], name: str) -> set[str]:
    """The services that are waited for before `name` starts."""
    direct = set(services[name].get("depends_on", {}))
    return direct.union(*(needed_by(services, other) for other in direct))


def mounted(services: dict[str, Any], name: str) -> dict[str, Path]:
    """The files of this repository that a service reads, by their paths in its container."""
    mounts = (mount.split(":") for mount in services[name].get("volumes", []))
    return {target: ROOT / source for source, target, *_ in mounts if source.startswith(".")}


def test_each_service_waits_for_those_that_it_names(services: dict[str, Any]) -> None:
    for name, service in services.items():
        configs = [path.read_text() for path in mounted(services, name).values()]
        text = " ".join([*map(str, service.get("command", [])), *configs])
        named = {other for other in services if re.search(rf"(?<![\w.-]){other}:\d", text)} - {name}
        assert named <= needed_by(services, name), name


def test_each_service_is_used(services: dict[str, Any]) -> None:
    used = set(ENDS).union(*(needed_by(services, name) for name in ENDS))
    assert used == set(services)


@pytest.mark.parametrize("name", ["demo", "words"])
def test_a_job_has_the_options_that_it_is_given(services: dict[str, Any], name: str) -> None:
    _, script, *arguments = services[name]["command"]
    options = [argument.partition("=")[0] for argument in arguments]
    usage = subprocess.run(
        [sys.executable, ROOT / script, "--help"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert [option for option in options if not re.search(rf"^  {option}\b", usage, re.MULTILINE)] == []


def test_executors_share_the_folder_that_the_demo_writes_to(services: dict[str, Any]) -> None:
    shared = services["demo"]["environment"]["TMPDIR"]
    for name in ("demo", "spark-worker-1", "spark-worker-2", "ui"):
        assert any(mount.split(":")[1] == shared for mount in services[name]["volumes"]), name
    assert f" {shared} " in dockerfile(services), "a folder that Docker makes would belong to root"


def test_ports_are_open_to_this_machine_only(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)


def test_prometheus_asks_the_page_by_a_name_that_it_allows(services: dict[str, Any]) -> None:
    files = mounted(services, "prometheus")
    config = yaml.safe_load(files["/etc/prometheus/prometheus.yml"].read_text())
    assert set(config["rule_files"]) <= set(files)
    (target,) = config["scrape_configs"][0]["static_configs"][0]["targets"]
    host, _, port = target.partition(":")
    assert {f"--allowed-host={host}", f"--port={port}"} <= set(services["ui"]["command"])


def test_grafana_finds_its_source_and_the_dashboard(services: dict[str, Any]) -> None:
    files = mounted(services, "grafana")
    provisioning = "/etc/grafana/provisioning"
    (source,) = yaml.safe_load(files[f"{provisioning}/datasources/prometheus.yml"].read_text())["datasources"]
    assert source["isDefault"] is True
    dashboard = json.loads((ROOT / "docs" / "grafana.json").read_text())
    assert {panel["datasource"]["type"] for panel in dashboard["panels"] if "datasource" in panel} == {
        source["type"]
    }
    listens = next(word for word in services["prometheus"]["command"] if "listen-address" in word)
    assert source["url"] == f"http://prometheus:{listens.rpartition(':')[2]}"
    dashboards = yaml.safe_load(files[f"{provisioning}/dashboards/kinesis-trident.yml"].read_text())
    (provider,) = dashboards["providers"]
    target = services["grafana"]["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"]
    assert files[target] == ROOT / "docs" / "grafana.json"
    assert str(Path(target).parent) == provider["options"]["path"]
    assert all(mount.endswith(":ro") for mount in services["grafana"]["volumes"])


@pytest.fixture(scope="module")
def composition(
    program_of: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory
) -> Iterator[Composition]:
    """All services that stay, each healthy by its own health check."""
    running = Composition(tmp_path_factory.mktemp("composition"), program_of)
    try:
        yield running.start(ENDS)
    finally:
        running.stop()


def answer(composition: Composition, service: str, port: int, path: str) -> Any:
    with urlopen(f"http://{LOOPBACK}:{composition.port(service, port)}{path}", timeout=30) as page:
        return json.load(page)


@pytest.mark.long
def test_the_ensemble_has_a_leader_and_two_followers(composition: Composition) -> None:
    roles = []
    for name in ("zoo1", "zoo2", "zoo3"):
        with socket.create_connection((LOOPBACK, composition.port(name, 2181)), timeout=30) as connection:
            connection.sendall(b"srvr")
            said = b"".join(iter(lambda one=connection: one.recv(4096), b"")).decode()
        roles += re.findall(r"^Mode: (\w+)$", said, re.MULTILINE)
    assert sorted(roles) == ["follower", "follower", "leader"]


@pytest.mark.long
def test_spark_has_two_workers_with_cores_for_both_jobs(composition: Composition) -> None:
    cluster = answer(composition, "spark-master", 8080, "/json/")
    assert [worker["state"] for worker in cluster["workers"]] == ["ALIVE", "ALIVE"]
    options = composition.services["spark-master"]["environment"]["SPARK_MASTER_OPTS"]
    assert cluster["cores"] == 2 * int(options.partition("defaultCores=")[2])


@pytest.mark.long
def test_prometheus_scrapes_the_page_and_has_the_alerts(composition: Composition) -> None:
    def targets() -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = answer(composition, "prometheus", 9090, "/api/v1/targets")["data"][
            "activeTargets"
        ]
        return found if all(one["health"] == "up" for one in found) else []

    def up() -> list[str]:
        path = "/api/v1/query?query=kinesis_trident_zookeeper_up"
        return [one["value"][1] for one in answer(composition, "prometheus", 9090, path)["data"]["result"]]

    waiting = Retrying(
        stop=stop_after_delay(120), wait=wait_fixed(0.2), retry=retry_if_result(lambda one: not one)
    )
    assert len(waiting(targets)) == 1
    # A target is up before what it said can be asked for.
    assert waiting(up) == ["1"]
    (group,) = answer(composition, "prometheus", 9090, "/api/v1/rules")["data"]["groups"]
    assert group["rules"]
