"""botocore's descriptions of services as the product loads them."""

from __future__ import annotations

import gzip
import json
import os
from pathlib import Path

import botocore.session
import pytest
from botocore.exceptions import DataNotFoundError, UnknownServiceError
from botocore.loaders import Loader

from kinesis_trident.spout.kinesis.aws_session import create_client, create_clients
from kinesis_trident.spout.kinesis.service_models import ServiceModels
from kinesis_trident.spout.options.source import SourceOptions

OPTIONS = SourceOptions(
    stream_name="orders",
    region="eu-west-1",
    aws_access_key_id="key",
    aws_secret_access_key="secret",
)


@pytest.mark.parametrize("service", ["kinesis", "sts", "dynamodb", "s3"])
@pytest.mark.parametrize("kind", ["service-2", "endpoint-rule-set-1", "paginators-1", "waiters-2"])
def test_a_service_is_what_botocore_says(service: str, kind: str) -> None:
    try:
        expected = Loader().load_service_model(service, kind)
    except (DataNotFoundError, UnknownServiceError):
        # botocore says so of a service without such a file; what counts is that it is an error for both.
        with pytest.raises((DataNotFoundError, UnknownServiceError)):
            ServiceModels().load_service_model(service, kind)
    else:
        found = ServiceModels().load_service_model(service, kind)
        assert found == expected
        # The members of a shape are used in their order, which equal dicts do not tell.
        assert json.dumps(found) == json.dumps(expected)


@pytest.mark.parametrize("name", ["endpoints", "partitions", "_retry", "sdk-default-configuration"])
def test_data_of_all_services_is_what_botocore_says(name: str) -> None:
    assert json.dumps(ServiceModels().load_data(name)) == json.dumps(Loader().load_data(name))


def test_clients_are_created_without_a_look_at_each_service(monkeypatch: pytest.MonkeyPatch) -> None:
    listed = []
    listdir = os.listdir

    def counting(path: str) -> list[str]:
        listed.append(path)
        return listdir(path)

    monkeypatch.setattr(os, "listdir", counting)
    create_clients(OPTIONS, 0, 3)
    assert len(listed) < 20


def test_an_unknown_service_is_an_error() -> None:
    with pytest.raises(UnknownServiceError):
        ServiceModels().load_service_model("kinesys", "service-2")


def test_a_missing_file_is_an_error() -> None:
    with pytest.raises(DataNotFoundError):
        ServiceModels().load_data("nothing-of-this-name")


def described(folder: Path, operation: str, *, zipped: bool = False) -> None:
    """Write a description of Kinesis with one more call into a folder, as a user of AWS_DATA_PATH does."""
    model = Loader().load_service_model("kinesis", "service-2")
    model["operations"][operation] = model["operations"]["ListStreams"] | {"name": operation}
    to = folder / "kinesis" / "2099-01-01"
    to.mkdir(parents=True)
    content = json.dumps(model).encode()
    name, content = ("service-2.json.gz", gzip.compress(content)) if zipped else ("service-2.json", content)
    (to / name).write_bytes(content)


@pytest.mark.parametrize("zipped", [False, True])
def test_descriptions_of_aws_data_path_come_first(
    zipped: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    described(tmp_path, "ListRivers", zipped=zipped)
    monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path))
    (ours,) = create_clients(OPTIONS, 0)
    theirs = botocore.session.Session().create_client("kinesis", region_name="eu-west-1")
    assert hasattr(ours, "list_rivers")
    assert dir(ours) == dir(theirs)


def test_a_broken_description_is_botocores_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    described(tmp_path, "ListRivers")
    (file,) = tmp_path.rglob("service-2.json")
    file.write_bytes(b'{"operations": ')
    monkeypatch.setenv("AWS_DATA_PATH", str(tmp_path))
    with pytest.raises(json.JSONDecodeError):
        create_clients(OPTIONS, 0)


@pytest.mark.parametrize("service", ["sts", "dynamodb", "cloudwatch"])
def test_clients_of_other_services_are_as_botocores(service: str) -> None:
    ours = create_client(service, OPTIONS)
    theirs = botocore.session.Session().create_client(service, region_name="eu-west-1")
    assert dir(ours) == dir(theirs)
    assert ours.meta.endpoint_url == theirs.meta.endpoint_url
