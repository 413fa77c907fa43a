"""From a priced layout to a launch folder of every framework, through the command line."""

import json
import shutil
import subprocess

import pytest
from typer.testing import CliRunner

from planner.cli import app

RUN = CliRunner()
OWN = {
    "bridge": (["--zero", "1"], "model.tensor_model_parallel_size=2", ""),
    "nemo": (["--zero", "1"], "trainer.strategy.tensor_model_parallel_size=2", ""),
    "torchtitan": (["--zero", "3"], "--parallelism.tensor_parallel_degree 2", ""),
    "deepspeed": (["--zero", "2", "--no-sequence-parallel"], "--tensor-model-parallel-size 2", "ds_config.json"),
    "galvatron": (["--zero", "2"], "runtime.train.sequence_parallel=true", "galvatron_config.json"),
}
USUAL = {"launch.sh", "arguments.txt", "nodes.tsv", "ranks.tsv", "layout.json", "README.md"}


def run(*words: str):
    return RUN.invoke(app, list(words))


def priced(folder, framework: str, *words: str) -> str:
    report = folder / "one.json"
    base = ["estimate", "llama3_8b", "dgx-h100:1", "--global-batch", "64", "--seq", "4096", "--tp", "2"]
    result = run(*base, "--framework", framework, *words, "--json", str(report))
    assert result.exit_code == 0, result.output
    return str(report)


@pytest.mark.parametrize("framework", OWN)
def test_a_priced_layout_becomes_a_launch_folder(framework, tmp_path):
    words, said, file = OWN[framework]
    report = priced(tmp_path, framework, *words)
    printed = run("export", report, "--to", framework)
    assert printed.exit_code == 0, printed.output
    assert said in printed.stdout.splitlines()
    target = tmp_path / "launch"
    written = run("export", report, "--to", framework, "--hosts", "gpu-7", "-o", str(target))
    assert written.exit_code == 0, written.output
    assert {path.name for path in target.iterdir()} == USUAL | ({file} if file else set())
    assert "gpu-7" in (target / "nodes.tsv").read_text()
    if file:
        assert json.loads((target / file).read_text())
    if shutil.which("bash"):
        subprocess.run(["bash", "-n", str(target / "launch.sh")], check=True)


@pytest.mark.skipif(shutil.which("bash") is None or shutil.which("awk") is None, reason="needs bash and awk")
@pytest.mark.parametrize(
    ("framework", "program"),
    [
        ("bridge", ["TRAIN", "--recipe", "RECIPE", "--mode", "pretrain", "--dataset", "mock"]),
        ("nemo", ["NEMO", "llm", "pretrain", "--factory", "RECIPE", "--yes"]),
        ("torchtitan", ["-m", "torchtitan.train", "--user", "1"]),
        ("deepspeed", ["TRAIN", "--deepspeed", "--deepspeed_config", "HERE/ds_config.json"]),
        (
            "galvatron",
            ["TRAIN", "YAML", "runtime.parallel.galvatron_config_path=HERE/galvatron_config.json"],
        ),
    ],
)
def test_the_script_gives_torchrun_the_program_and_its_words(framework, program, tmp_path):
    target = tmp_path / "launch"
    report = priced(tmp_path, framework, *OWN[framework][0])
    assert run("export", report, "--to", framework, "-o", str(target)).exit_code == 0
    tools = tmp_path / "bin"
    tools.mkdir()
    for name in ("torchrun", "nemo"):
        (tools / name).write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
        (tools / name).chmod(0o755)
    environment = {"PATH": f"{tools}:/usr/bin:/bin", "NODE_RANK": "0", "USER_ARGS": "--user 1"}
    environment |= {"TRAIN_SCRIPT": "TRAIN", "MODEL_RECIPE": "RECIPE", "CONFIG_YAML": "YAML"}
    done = subprocess.run([str(target / "launch.sh")], env=environment, capture_output=True, text=True, check=True)
    words = done.stdout.replace(str(target), "HERE").replace(str(tools / "nemo"), "NEMO").splitlines()
    start = words.index("29500") + 1
    assert words[start : start + len(program)] == program
    plain = run("export", report, "--to", framework).stdout.split()
    assert len(words) - start == len(program) + len(plain) + (0 if framework == "torchtitan" else 2)


def test_what_a_framework_cannot_do_ends_with_its_reason(tmp_path):
    report = priced(tmp_path, "megatron", "--zero", "1")
    refused = run("export", report, "--to", "torchtitan")
    assert (refused.exit_code, "ZeRO stage 1 has no option" in " ".join(refused.stderr.split())) == (2, True)


@pytest.mark.parametrize(
    ("hosts", "said"),
    [
        ("a;rm -rf /", "'a;rm -rf /' is no host name"),
        ("$(reboot)", "is no host name"),
        ("a b", "is no host name"),
        ("-oProxyCommand=x", "is no host name"),
        ("a\tb", "is no host name"),
        ("gpu-1,gpu-1", "names gpu-1 twice"),
    ],
)
def test_host_names_are_names(hosts, said, tmp_path):
    result = run("export", priced(tmp_path, "bridge"), "--to", "bridge", "--hosts", hosts)
    assert result.exit_code == 2
    assert said in result.stderr


@pytest.mark.parametrize("host", ["gpu-1", "node_7.rack2.example.org", "10.0.0.1", "fe80::1%eth0"])
def test_names_and_addresses_are_accepted(host, tmp_path):
    assert run("export", priced(tmp_path, "bridge"), "--to", "bridge", "--hosts", host).exit_code == 0


def test_placed_ranks_run_on_the_hosts_that_the_user_names(tmp_path):
    report = tmp_path / "one.json"
    base = ["estimate", "llama3_8b", "dgx-h100:2", "--global-batch", "64", "--seq", "1024", "--tp", "2"]
    assert run(*base, "--json", str(report)).exit_code == 0
    data = json.loads(report.read_text())
    for place in data["layout"]["placement"]:
        place["host"] = {"node0": "node1", "node1": "node0"}[place["host"]]
    report.write_text(json.dumps(data))
    assert run("export", str(report), "--to", "megatron", "--hosts", "a,b", "-o", str(tmp_path / "out")).exit_code == 0
    rows = (tmp_path / "out" / "nodes.tsv").read_text().splitlines()[1:]
    assert [row.split("\t")[1] for row in rows] == ["b", "a"]
    report.write_text(json.dumps(data).replace('"node1"', '"node2"'))
    few = run("export", str(report), "--to", "megatron", "--hosts", "a,b")
    assert few.exit_code == 2
    assert "--hosts names 2 hosts and the plan places ranks on node2" in few.stderr
