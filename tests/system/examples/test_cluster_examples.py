"""Pages on Slurm, Kubernetes and Docker: run as far as one machine can, and read as what reads them there."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import subprocess
import sys
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import pytest
import yaml

from test_pages import blocks, wrong
from uneven.cluster.emulate.ports import quiet_ports
from uneven.journal.reader import read
from uneven.policy.core.records import StepRecord
from uneven.runtime.jobs.processes import import_path
from uneven.runtime.throttle.throttle import Throttle
from uneven_bench.forked.scripts import run_script

ROOT = Path(__file__).parents[3]
CLUSTER = ROOT / "examples" / "cluster"
PAGES = ROOT / "docs" / "how-to"

WORKER = """
import os
names = ("RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE", "UNEVEN_RUN")
os.write(1, ("worker " + " ".join(os.environ[name] for name in names) + "\\n").encode())  # in one go
"""

SCONTROL = """#!/bin/sh
test "$*" = "show hostnames localhost,other" && printf 'localhost\\nother\\n'
"""

SRUN = """#!/bin/sh
# both nodes of the job, one task on each, on this machine
SLURM_PROCID=0 SLURM_NODEID=0 "$@" & first=$!
SLURM_PROCID=1 SLURM_NODEID=1 "$@" & second=$!
wait $first && wait $second
"""

TRAINS = """
import torch, uneven
torch.manual_seed(0)
session = uneven.Session()
model = torch.nn.Linear(4, 1, dtype=torch.float64)
model, optimizer = session.setup(model, torch.optim.SGD(model.parameters(), lr=0.1))
data = torch.utils.data.TensorDataset(torch.arange(64, dtype=torch.float64).reshape(16, 4))
for (x,) in session.loader(data, global_batch_size=8):
    model(x).square().mean().backward()
    optimizer.step()
    optimizer.zero_grad()
print(session.rank, session.world.size, session.world.local_size, model.weight.sum().item())
session.close()
"""


def documents(name: str) -> list[dict[str, Any]]:
    return list(yaml.safe_load_all((CLUSTER / name).read_text()))


def command(pod: dict[str, Any]) -> tuple[str, set[str]]:
    """What the container runs, and the variables that it gets."""
    (container,) = pod["containers"]
    assert container["command"] == ["sh", "-c"]
    (line,) = container["args"]
    return line, {one["name"] for one in container["env"]}


def on_path(folder: Path, **programs: str) -> dict[str, str]:
    """An environment in which these programs come first, and `uneven` is this one."""
    folder.mkdir()
    uneven = f'#!/bin/sh\nexec {shlex.quote(sys.executable)} -m uneven "$@"\n'
    for name, text in {"uneven": uneven, **programs}.items():
        (folder / name).write_text(text)
        (folder / name).chmod(0o755)
    return {**os.environ, "PATH": f"{folder}:{os.environ['PATH']}", "PYTHONPATH": import_path()}


@pytest.mark.parametrize(
    ("page", "language", "names"),
    [
        ("slurm.md", "bash", ["train.sbatch"]),
        ("kubernetes.md", "yaml", ["train.yaml", "spot.yaml"]),
        ("docker.md", "yaml", ["compose.yml"]),
    ],
)
def test_pages_show_the_files(page: str, language: str, names: list[str]) -> None:
    assert blocks((PAGES / page).read_text(), language) == [(CLUSTER / name).read_text() for name in names]


def test_the_batch_script_starts_a_launcher_on_each_node(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WORKER)
    (port,) = quiet_ports(1)
    env = on_path(tmp_path / "bin", srun=SRUN, scontrol=SCONTROL)
    env |= {"SLURM_JOB_ID": str(port - 29500), "SLURM_JOB_NODELIST": "localhost,other", "SLURM_NNODES": "2"}
    script = (CLUSTER / "train.sbatch").read_text().replace("% 3000", "")  # the port is one that is free here
    done = subprocess.run(["bash", "-c", script], cwd=tmp_path, env=env, capture_output=True, text=True, timeout=100)
    assert done.returncode == 0, done.stderr
    directory = f"runs/{port - 29500}"
    found = sorted(line.split() for line in done.stdout.splitlines() if line.startswith("worker"))
    assert [line[:4] for line in found] == [["worker", "0", "2", "1"], ["worker", "1", "2", "1"]]
    assert {line[4] for line in found} == {str(tmp_path / directory)}


def test_tasks_of_srun_train_together(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(TRAINS)
    (port,) = quiet_ports(1)
    step = {"SLURM_JOB_ID": "7", "SLURM_STEP_ID": "0", "SLURM_STEP_NUM_TASKS": "2", "MASTER_PORT": str(port)}
    step |= {"SLURM_STEP_NODELIST": "localhost", "SLURM_STEP_TASKS_PER_NODE": "2", "SLURM_NODEID": "0"}
    env = {**os.environ, **step, "PYTHONPATH": import_path(), "OMP_NUM_THREADS": "1"}
    other = subprocess.Popen(
        [sys.executable, "train.py"], cwd=tmp_path, env=env | {"SLURM_PROCID": "1", "SLURM_LOCALID": "1"},
        stdout=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        first = run_script(
            ["train.py"], cwd=tmp_path, env=env | {"SLURM_PROCID": "0", "SLURM_LOCALID": "0"}, timeout_s=90
        )
        printed, _ = other.communicate(timeout=60)
    finally:
        other.kill()
        other.communicate()
    assert first.returncode == 0, first.stderr
    assert first.stdout.split()[:3] == ["0", "2", "2"]
    assert printed.split() == ["1", *first.stdout.split()[1:]]


@pytest.mark.parametrize("name", ["train.yaml", "spot.yaml"])
def test_commands_of_the_manifests_exist(name: str) -> None:
    pods = [one["spec"].get("template", one)["spec"] for one in documents(name) if one["kind"] != "Service"]
    assert pods
    for pod in pods:
        line, known = command(pod)
        assert set(re.findall(r"\$(\w+)", line)) <= known | {"JOB_COMPLETION_INDEX"}
        assert line.startswith("exec uneven run ")
        assert wrong(line.removeprefix("exec ")) == []
        volumes = {one["name"] for one in pod.get("volumes", [])}
        assert {one["name"] for one in pod["containers"][0].get("volumeMounts", [])} == volumes


def test_pods_of_the_job_are_found_by_name() -> None:
    service, job = documents("train.yaml")
    spec, pod = job["spec"], job["spec"]["template"]["spec"]
    assert (job["apiVersion"], spec["completionMode"]) == ("batch/v1", "Indexed")
    assert spec["completions"] == spec["parallelism"] == 2
    line, _ = command(pod)
    assert f"--nnodes {spec['completions']} " in line
    assert service["spec"]["clusterIP"] == "None"
    assert service["spec"]["selector"] == {"job-name": job["metadata"]["name"]}
    assert pod["subdomain"] == service["metadata"]["name"]
    (master,) = (one["value"] for one in pod["containers"][0]["env"] if one["name"] == "MASTER")
    assert master == f"{job['metadata']['name']}-0.{service['metadata']['name']}"


def test_pods_that_come_and_go_find_the_one_that_stays() -> None:
    service, first, more = documents("spot.yaml")
    assert service["spec"]["selector"].items() <= first["metadata"]["labels"].items()
    template = more["spec"]["template"]
    assert more["spec"]["selector"]["matchLabels"] == template["metadata"]["labels"]
    assert not service["spec"]["selector"].items() <= template["metadata"]["labels"].items()
    (found,) = (one["value"] for one in template["spec"]["containers"][0]["env"] if one["name"] == "FIRST")
    assert found == service["metadata"]["name"]
    (port,) = (one["port"] for one in service["spec"]["ports"])
    assert all(f":{port}" in command(pod)[0] for pod in (first["spec"], template["spec"]))


def test_both_pods_of_the_job_run_together(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WORKER)
    line, _ = command(documents("train.yaml")[1]["spec"]["template"]["spec"])
    (port,) = quiet_ports(1)
    env = on_path(tmp_path / "bin") | {"MASTER": f"127.0.0.1 --master-port {port}", "RUNS": str(tmp_path)}
    line = line.replace('"$MASTER"', "$MASTER")  # the default port may be in use on this machine
    pods = [
        subprocess.Popen(
            ["sh", "-c", line],
            cwd=tmp_path,
            env=env | {"JOB_COMPLETION_INDEX": str(index)},
            stdout=subprocess.PIPE,
            text=True,
        )
        for index in range(2)
    ]
    try:
        printed = [pod.communicate(timeout=100)[0] for pod in pods]
    finally:
        for pod in pods:
            pod.kill()
            pod.communicate()
    assert [pod.returncode for pod in pods] == [0, 0]
    assert [text.split()[:4] for text in printed] == [["worker", "0", "2", "1"], ["worker", "1", "2", "1"]]


def test_the_image_has_what_its_steps_copy() -> None:
    lines = re.findall(r"^(COPY|ENTRYPOINT|CMD) (.+)$", (ROOT / "Dockerfile").read_text(), re.MULTILINE)
    copied = [line.split()[0] for kind, line in lines if kind == "COPY" and not line.startswith("--from")]
    assert copied == [".", "constraints.txt", "examples"]
    everything, *sent = (ROOT / ".dockerignore").read_text().split()
    assert everything == "*"
    sent = [one.removeprefix("!") for one in sent if one.startswith("!")]
    assert all((ROOT / one).exists() for one in sent)
    assert {*copied[1:], "src", "pyproject.toml", "hatch_build.py", "README.md", "LICENSE"} <= {*sent}
    assert [line for kind, line in lines if kind != "COPY"] == ['["uneven"]', '["demo"]']


@pytest.mark.timeout(300)
def test_the_four_services_train_together(tmp_path: Path) -> None:
    """Their commands, with their cores, in a folder that holds what the image holds."""
    (file,) = documents("compose.yml")
    machines = {name: one for name, one in file["services"].items() if "cpus" in one}
    watch = file["services"]["watch"]["command"]
    assert all(wrong(f"uneven {one['command']}") == [] for one in file["services"].values())
    shutil.copytree(ROOT / "examples", tmp_path / "examples")
    (port,) = quiet_ports(1)
    env = on_path(tmp_path / "bin") | {"OMP_NUM_THREADS": "1"}
    (folder,) = {match[1] for one in machines.values() if (match := re.search(r"--run-dir (\S+)", one["command"]))}
    assert watch == f"watch {folder}"
    started = []
    with ExitStack() as stack:
        throttle = Throttle()
        stack.callback(throttle.close)
        for one in machines.values():
            line = one["command"].replace("machine0", f"127.0.0.1 --master-port {port}").replace(folder, "runs/first")
            words = ["uneven", *shlex.split(line)]
            with (tmp_path / f"{len(started)}.txt").open("w") as output:
                started.append(subprocess.Popen(words, cwd=tmp_path, env=env, stdout=output, stderr=output))
            stack.callback(started[-1].wait)
            stack.callback(started[-1].kill)
            throttle.limit(started[-1].pid, one["cpus"])
        codes = [one.wait(250) for one in started]
    printed = [(tmp_path / f"{number}.txt").read_text() for number in range(len(started))]
    assert codes == [0, 0, 0, 0], printed
    assert "test accuracy" in printed[0]
    ranks = read(tmp_path / "runs" / "first").ranks
    trained = [sum(one.batch for one in ranks[rank] if isinstance(one, StepRecord)) for rank in range(4)]
    assert min(trained) > 0
    assert sum(trained) == 10 * 1437  # epochs times images


@pytest.mark.skipif(shutil.which("kubectl") is None, reason="no kubectl")
def test_kubectl_reads_the_manifests(tmp_path: Path) -> None:
    names = ["train.yaml", "spot.yaml"]
    for name in names:
        shutil.copy(CLUSTER / name, tmp_path)
    (tmp_path / "kustomization.yaml").write_text(yaml.safe_dump({"resources": names}))
    done = subprocess.run(["kubectl", "kustomize", "."], cwd=tmp_path, capture_output=True, text=True, timeout=60)
    assert done.returncode == 0, done.stderr
    kinds = sorted(one["kind"] for one in yaml.safe_load_all(done.stdout))
    assert kinds == ["Deployment", "Job", "Pod", "Service", "Service"]
