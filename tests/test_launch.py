"""The recipes of scripts/launch: shell and YAML are valid, commands and files exist.

What only a cluster can show was not run. `make launch` lints them.
"""

import re
import subprocess
from pathlib import Path
from types import SimpleNamespace

import pytest
import yaml

from dreamgym.cli.main import _parser
from dreamgym.run import process

ROOT = Path(__file__).parents[1]
LAUNCH = ROOT / "scripts/launch"


@pytest.mark.parametrize("file", sorted(LAUNCH.glob("*.sh")), ids=lambda f: f.name)
def test_scripts_are_valid_shell(file):
    checked = subprocess.run(["bash", "-n", file], capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr


def documents(name):
    return list(yaml.safe_load_all((LAUNCH / name).read_text()))


def pods(name):
    """Return what each object of a file says of its pods."""
    specs = [d["spec"].get("template", {}).get("spec", {}) for d in documents(name)]
    return [spec for spec in specs if spec]


PODS = {
    "kubernetes.yaml": ["quickstart", "serve"],
    "kubernetes_distributed.yaml": ["quickstart"],
}


@pytest.mark.parametrize("name", PODS)
def test_containers_run_commands_that_exist(name):
    commands = [c["args"] for pod in pods(name) for c in pod["containers"]]
    assert [c[0] for c in commands] == PODS[name]
    for words in commands:
        assert _parser().parse_known_args(words)[1] == [], words


@pytest.mark.parametrize("name", PODS)
def test_volumes_and_claims_have_equal_names(name):
    claims = {d["metadata"]["name"] for d in documents(name) if "Claim" in d["kind"]}
    for pod in pods(name):
        names = {v["name"] for v in pod["volumes"]}
        for volume in pod["volumes"]:
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            assert claim is None or claim in claims
        for container in pod["containers"]:
            assert {m["name"] for m in container["volumeMounts"]} <= names


def test_pods_of_one_run_meet_at_the_first(monkeypatch):
    service, claim, job = documents("kubernetes_distributed.yaml")
    spec, (pod,) = job["spec"], pods("kubernetes_distributed.yaml")
    assert spec["completionMode"] == "Indexed"
    assert spec["completions"] == spec["parallelism"]
    assert service["spec"]["clusterIP"] == "None"  # names of pods, no balancing
    assert service["spec"]["selector"] == spec["template"]["metadata"]["labels"]
    assert pod["subdomain"] == service["metadata"]["name"]
    assert claim["spec"]["accessModes"] == ["ReadWriteMany"]
    words = " ".join(pod["containers"][0]["args"])
    (text,) = re.findall(r"--distributed[= ](\S+)", words)
    met = []
    config = SimpleNamespace(update=lambda *_: None)
    distributed = SimpleNamespace(initialize=lambda **values: met.append(values))
    jax = SimpleNamespace(config=config, distributed=distributed)
    monkeypatch.setattr(process, "jax", jax)
    process.join_processes(text.replace("$(JOB_COMPLETION_INDEX)", "1"))
    host = f"{job['metadata']['name']}-0.{pod['subdomain']}"
    port = service["spec"]["ports"][0]["port"]
    assert met == [
        {
            "coordinator_address": f"{host}:{port}",
            "num_processes": spec["completions"],
            "process_id": 1,
        }
    ]


def test_the_image_holds_every_package():
    text = (LAUNCH / "Dockerfile").read_text()
    copied = set(re.findall(r"^COPY (.*) \S+$", text, re.MULTILINE))
    sources = {word for line in copied for word in line.split()}
    assert {"worldmodel", "curriculum", "dreamgym", "pyproject.toml"} <= sources
    assert all((ROOT / source).exists() for source in sources)
    extras = re.findall(r"EXTRAS=([\w,]+)", text)
    declared = (ROOT / "pyproject.toml").read_text()
    for name in {e for group in extras for e in group.split(",")}:
        assert re.search(rf"^{name} = \[", declared, re.MULTILINE), name
