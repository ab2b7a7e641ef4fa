"""The recipes of scripts/launch: shell and YAML are valid, commands and files exist.

What only a cluster can show was not run. `make launch` lints them.
"""

import re
import subprocess
from pathlib import Path

import pytest
import yaml

from dreamgym.cli.main import _parser

ROOT = Path(__file__).parents[1]
LAUNCH = ROOT / "scripts/launch"


@pytest.mark.parametrize("file", sorted(LAUNCH.glob("*.sh")), ids=lambda f: f.name)
def test_scripts_are_valid_shell(file):
    checked = subprocess.run(["bash", "-n", file], capture_output=True, check=False)
    assert checked.returncode == 0, checked.stderr


def documents():
    return list(yaml.safe_load_all((LAUNCH / "kubernetes.yaml").read_text()))


def test_containers_run_commands_that_exist():
    commands = []
    for document in documents():
        pod = document["spec"].get("template", {}).get("spec", {})
        commands += [c["args"] for c in pod.get("containers", ())]
    assert [c[0] for c in commands] == ["quickstart", "serve"]
    for words in commands:
        assert _parser().parse_known_args(words)[1] == [], words


def test_volumes_and_claims_have_equal_names():
    claims = {d["metadata"]["name"] for d in documents() if "Claim" in d["kind"]}
    for document in documents():
        pod = document["spec"].get("template", {}).get("spec", {})
        names = {v["name"] for v in pod.get("volumes", ())}
        for volume in pod.get("volumes", ()):
            claim = volume.get("persistentVolumeClaim", {}).get("claimName")
            assert claim is None or claim in claims
        for container in pod.get("containers", ()):
            assert {m["name"] for m in container["volumeMounts"]} <= names


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
