"""Validate the job sets in launch/ against the published models of JobSet and Kubernetes."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import pytest
import yaml
from kubeflow_trainer_api.models.jobset_v1alpha2_job_set import JobsetV1alpha2JobSet
from pydantic import ValidationError

import bert_jax as bj

from ..commands import REPOSITORY


def read(target: str) -> dict[str, Any]:
    return yaml.safe_load((REPOSITORY / f"launch/jobset_{target}.yaml").read_text())


def differences(written: Any, understood: Any, where: str = "") -> Iterator[str]:
    """Yield the paths of values that the models have ignored or changed."""
    if isinstance(written, dict) and isinstance(understood, dict):
        for key, value in written.items():  # The models add default values, which are not compared.
            yield from differences(value, understood.get(key), f"{where}/{key}")
    elif isinstance(written, list) and isinstance(understood, list):
        assert len(written) == len(understood), where
        for index, pair in enumerate(zip(written, understood, strict=True)):
            yield from differences(*pair, f"{where}/{index}")
    elif written != understood:
        yield where


def ignored(job_set: dict[str, Any]) -> list[str]:
    return list(differences(job_set, JobsetV1alpha2JobSet.from_dict(job_set).to_dict()))


def container(job_set: dict[str, Any]) -> dict[str, Any]:
    (job,) = job_set["spec"]["replicatedJobs"]
    (only,) = job["template"]["spec"]["template"]["spec"]["containers"]
    return only


@pytest.mark.parametrize("target", ["gpu", "tpu"])
def test_the_schemas_know_every_key(target):
    assert ignored(read(target)) == []


def test_the_validation_finds_mistakes():
    job_set = read("gpu")
    container(job_set)["comand"] = container(job_set).pop("command")
    assert [path.rpartition("/")[2] for path in ignored(job_set)] == ["comand"]
    job_set["spec"]["replicatedJobs"][0]["template"]["spec"]["parallelism"] = "two"
    with pytest.raises(ValidationError, match="parallelism"):
        ignored(job_set)


@pytest.mark.parametrize("target", ["gpu", "tpu"])
def test_the_command_starts_a_recipe(target):
    program, verb, config, work_dir, *rest = container(read(target))["command"]
    assert (program, verb) == ("bert-jax", "pretrain")
    assert rest == (["--distributed"] if target == "tpu" else [])
    overrides = {"work_dir": work_dir.removeprefix("--config.work_dir=")}
    assert bj.load_config(config.removeprefix("--config="), overrides)
    mounts = [mount["mountPath"] for mount in container(read(target))["volumeMounts"]]
    assert overrides["work_dir"].startswith(mounts[0])


def test_the_pods_with_gpus_find_each_other():
    job_set = read("gpu")
    (job,) = job_set["spec"]["replicatedJobs"]
    spec, name = job["template"]["spec"], job_set["metadata"]["name"]
    variables = {each["name"]: each.get("value") for each in container(job_set)["env"]}
    assert spec["parallelism"] == spec["completions"] == int(variables["JAX_NUM_PROCESSES"])
    address, port = variables["JAX_COORDINATOR_ADDRESS"].split(":")
    assert address == f"{name}-{job['name']}-0-0.{name}"
    assert {"containerPort": int(port)} in container(job_set)["ports"]


def test_the_pods_with_tpus_fill_the_slice():
    job_set = read("tpu")
    spec = job_set["spec"]["replicatedJobs"][0]["template"]["spec"]
    topology = spec["template"]["spec"]["nodeSelector"]["cloud.google.com/gke-tpu-topology"]
    resources = container(job_set)["resources"]
    assert resources["requests"] == resources["limits"]
    chips = math.prod(map(int, topology.split("x")))
    assert spec["parallelism"] == spec["completions"]
    assert spec["parallelism"] * resources["limits"]["google.com/tpu"] == chips
