"""docker-compose.yml holds together: names exist, images are pinned, what is needed is waited for."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parent.parent


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return yaml.safe_load((ROOT / "docker-compose.yml").read_text())["services"]


def test_images_are_pinned(services: dict[str, Any]) -> None:
    for name, service in services.items():
        if "image" in service:
            assert re.search(r":\d", service["image"]), name
    base = re.search(r"^FROM (\S+)", services["demo"]["build"]["dockerfile_inline"], re.MULTILINE)
    assert base is not None
    assert re.search(r":\d", base[1])


def test_localstack_is_from_before_it_asked_for_an_account(services: dict[str, Any]) -> None:
    major = re.fullmatch(r"localstack/localstack:(\d+)\.\d+", services["localstack"]["image"])
    assert major is not None
    assert int(major[1]) <= 4


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


def test_the_demo_is_pointed_at_services_that_it_waits_for(services: dict[str, Any]) -> None:
    demo = services["demo"]
    _, script, *arguments = demo["command"]
    options = dict(argument.removeprefix("--").split("=") for argument in arguments)
    usage = subprocess.run(
        [sys.executable, ROOT / script, "--help"],
        env=os.environ | {"PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=True,
    ).stdout
    assert all(f"--{option} " in usage for option in options)
    assert options["endpoint"] == "localstack"
    addresses = options["zookeeper"].split(",")
    hosts = {address.split(":")[0] for address in [*addresses, demo["environment"]["LOCALSTACK_HOST"]]}
    assert hosts <= set(demo["depends_on"])


def test_ports_are_open_to_this_machine_only(services: dict[str, Any]) -> None:
    ports = [port for service in services.values() for port in service.get("ports", [])]
    assert ports
    assert all(port.startswith("127.0.0.1:") for port in ports)
