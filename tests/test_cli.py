"""The command line as typed: commands, options, exit codes, messages."""

import json
import re
from pathlib import Path

import pytest
from typer.testing import CliRunner

from planner import cli
from planner.cli import app

RUN = CliRunner()
SEARCH = (
    "search",
    "llama3_8b",
    "dgx-h100:1",
    "--global-batch",
    "32",
    "--seq",
    "4096",
    "--fix",
    "tp=2",
    "--fix",
    "pp=1",
)
ESTIMATE = ("estimate", "llama3_70b", "dgx-h100:8", "--global-batch", "128", "--seq", "8192", "--tp", "8", "--pp", "4")

OPTIONS = {
    "": {"--version", "--help"},
    "search": {
        "--global-batch", "--seq", "--precision", "--framework", "--objective", "--micro-batch", "--recompute", "--fix",
        "--top", "--time-limit", "--offload", "--power-cap", "--thermal", "--launcher", "--profile", "--json", "--html",
        "--trace", "--telemetry", "--from", "--rank", "--world-size", "--software", "--try", "--loss",
        "--lora-rank", "--lora-targets", "--images", "--freeze",
    },
    "estimate": {
        "--global-batch", "--seq", "--precision", "--framework", "--tp", "--pp", "--cp", "--vpp", "--ep", "--etp",
        "--dp", "--zero", "--shard-group", "--micro-batch", "--layers-per-stage", "--sequence-parallel",
        "--no-sequence-parallel", "--rank-order", "--schedule", "--recompute", "--offload", "--power-cap", "--thermal",
        "--launcher", "--placement", "--profile", "--json", "--software", "--loss",
        "--lora-rank", "--lora-targets", "--images", "--freeze",
    },
    "fewest": {
        "--global-batch", "--seq", "--precision", "--framework", "--recompute", "--fix", "--time-limit", "--json",
        "--software", "--loss", "--lora-rank", "--lora-targets", "--images", "--freeze",
    },
    "compare": {
        "--by", "--global-batch", "--seq", "--precision", "--framework", "--micro-batch", "--recompute", "--fix",
        "--time-limit", "--json", "--software", "--loss", "--lora-rank", "--lora-targets", "--images", "--freeze",
    },
    "explain": {"--rank", "--measured-s", "--measured", "--row"},
    "traffic": {"--rank", "--scaling", "--json"},
    "export": {"--rank", "--to", "--framework-version", "--hosts", "--launcher", "--output"},
    "check": {
        *("--framework", "--framework-version", "--world-size", "--args-file", "--model", "--cluster"),
        *("--images", "--json"),
    },
    "sweep": {"--output", "--workers", "--scheduler", "--resume"},
    "validate": {"--profile", "--json"},
    "calibrate": {"--output", "--nccl-tests", "--gemm", "--accelerator", "--cluster"},
    "import topology": {"--output", "--accelerator", "--node", "--nodes", "--name", "--hosts"},
    "import nccl-tests": {"--output", "--cluster", "--accelerator"},
    "import telemetry": {"--output", "--cluster", "--accelerator"},
    "catalog models": {"--json"},
    "catalog accelerators": {"--json"},
    "catalog clusters": {"--json"},
}  # fmt: skip
"""Every option of every command. A new one is a promise to keep: add it here with a line in the changelog."""


def run(*arguments: str):
    return RUN.invoke(app, list(arguments))


def commands(group, prefix: str = ""):
    yield prefix, group
    for name, command in getattr(group, "commands", {}).items():
        yield from commands(command, f"{prefix} {name}".strip())


def test_the_set_of_options_is_pinned():
    from typer.main import get_command  # noqa: PLC0415 - only this test looks inside

    found = {}
    for name, command in commands(get_command(app)):
        names = {text for item in command.params for text in (*item.opts, *item.secondary_opts) if text[:2] == "--"}
        if name not in ("catalog", "import"):
            found[name] = names | ({"--help"} if not name else set())
    assert found == OPTIONS


def test_every_option_says_what_it_does_within_eighty_columns(monkeypatch):
    from typer.main import get_command  # noqa: PLC0415 - only this test looks inside

    monkeypatch.setenv("COLUMNS", "80")
    for name, command in commands(get_command(app)):
        assert command.help, name
        for item in command.params:
            assert getattr(item, "help", ""), f"{name} {item.name}"
        lines = run(*name.split(), "--help").stdout.splitlines()
        assert max(map(len, lines)) <= 80, name


def test_one_of_a_thing_is_no_plural(monkeypatch):
    monkeypatch.setenv("COLUMNS", "1000")
    asked = ("--global-batch", "8", "--seq", "2048", "--fix", "tp=1", "--fix", "pp=1", "--micro-batch", "1")
    texts = [
        run("search", "llama3_8b", "dgx-h100:1", *asked, "--fix", "dp=1").output,
        run("search", "llama32_1b", "dgx-h100:1", *asked, "--fix", "cp=1", "--recompute", "none").output,
        run("fewest", "llama3_8b", "dgx-h100", "--global-batch", "8", "--seq", "2048", "--fix", "pp=1").output,
        run("check", "--world-size", "1", "--", "--num-layers", "2", "--hidden-size", "64").output,
        *(run("catalog", "clusters", name).output for name in ("dgx-h100:1", "p3-16xlarge", "gb200-nvl72:2", "lambda")),
    ]
    nouns = "GPUs|grids|nodes|hosts|layers|stages|adapters|micro-batches|sequences"
    for text in texts:
        assert not re.search(rf"\b1 ({nouns})\b", text), text
        assert not re.search(r"[;,]\s*$", text, flags=re.MULTILINE), text


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("cli")
    result = run(
        *SEARCH,
        "--top",
        "3",
        "--json",
        f"{folder}/plan.json",
        "--html",
        f"{folder}/plan.html",
        "--trace",
        f"{folder}/t.json",
    )
    assert result.exit_code == 0, result.output
    return folder / "plan.json"


def test_search_writes_its_files(saved):
    data = json.loads(saved.read_text())
    assert data["request"]["fixed"] == {"tp": 2, "pp": 1}
    assert data["layouts"][0]["tp"] == 2
    assert len(data["layouts"]) <= 3
    assert (saved.parent / "plan.html").read_text().startswith("<!doctype html>")
    assert json.loads((saved.parent / "t.json").read_text())["traceEvents"]
    assert {path.name for path in saved.parent.iterdir()} == {"plan.json", "plan.html", "t.json"}


def test_traffic_of_a_saved_report(saved, tmp_path):
    result = run("traffic", str(saved), "--json", str(tmp_path / "traffic.json"))
    assert result.exit_code == 0, result.output
    assert "How busy its share of each link is" in result.output
    data = json.loads((tmp_path / "traffic.json").read_text())
    assert data["traffic"] == json.loads(saved.read_text())["layouts"][0]["traffic"]
    assert run("traffic", str(saved), "--rank", "99").exit_code == 2


def test_the_same_search_gives_the_same_report(saved, tmp_path):
    assert run(*SEARCH, "--top", "3", "--json", str(tmp_path / "again.json")).exit_code == 0
    one, two = (json.loads(path.read_text()) for path in (saved, tmp_path / "again.json"))
    for data in (one, two):
        del data["search"]["wall_s"]
    assert one == two


def test_json_has_standard_output_to_itself():
    result = run(*SEARCH, "--top", "1", "--json", "-")
    assert json.loads(result.stdout)["layouts"][0]["rank"] == 1
    assert "Best: " in result.stderr


def test_explain_and_export_follow_a_search(saved, tmp_path):
    explained = run("explain", str(saved))
    assert explained.exit_code == 0, explained.output
    assert "From peak to the step as it is" in explained.stdout
    assert "have changed since" not in explained.stdout
    arguments = run("export", str(saved), "--to", "megatron")
    assert "--tensor-model-parallel-size 2" in arguments.stdout
    written = run("export", str(saved), "--to", "megatron", "-o", str(tmp_path / "launch"))
    assert written.exit_code == 0, written.output
    assert {"launch.sh", "arguments.txt", "layout.json"} <= {path.name for path in (tmp_path / "launch").iterdir()}
    assert run("export", str(saved), "--to", "megatron", "-o", str(tmp_path / "launch")).exit_code == 2
    assert json.loads(run("export", str(saved), "--to", "json").stdout)["schedule"]
    named = run("export", str(saved), "--to", "megatron", "--hosts", "gpu-7", "-o", str(tmp_path / "named"))
    assert named.exit_code == 0, named.output
    assert "gpu-7" in (tmp_path / "named" / "nodes.tsv").read_text()
    old = run("export", str(saved), "--to", "megatron", "--framework-version", "0.1")
    assert (old.exit_code, "0.1" in old.stderr) == (2, True)


def test_explain_prices_anew_and_says_when_that_differs(saved, tmp_path):
    data = json.loads(saved.read_text())
    parts = data["layouts"][0]["breakdown"]
    parts["compute_s"] *= 2.0
    (tmp_path / "old.json").write_text(json.dumps(data))
    explained = run("explain", str(tmp_path / "old.json"))
    assert explained.exit_code == 0, explained.output
    assert "have changed since this report was made" in " ".join(explained.stdout.split())


def test_what_is_exported_is_legal(saved, tmp_path):
    arguments = tmp_path / "arguments.txt"
    arguments.write_text(run("export", str(saved), "--to", "megatron").stdout)
    result = run("check", "--world-size", "8", "--args-file", str(arguments), "--json", "-")
    assert result.exit_code == 0, result.output
    assert json.loads(result.stdout)["legal"] is True


def test_check_names_rules_and_neighbours():
    given = {"num-layers": 80, "hidden-size": 8192, "num-attention-heads": 64, "max-position-embeddings": 8192}
    given |= {"seq-length": 8192, "micro-batch-size": 1, "global-batch-size": 128, "tensor-model-parallel-size": 24}
    words = [word for name, value in given.items() for word in (f"--{name}", str(value))]
    result = run("check", "--world-size", "64", "--json", "-", "--", *words)
    data = json.loads(result.stdout)
    assert result.exit_code == 3
    assert data["legal"] is False
    assert "heads-tp" in {violation["rule"] for violation in data["violations"]}
    assert data["nearest"]
    assert "64 attention heads do not divide by tp 24" in result.stderr


def test_estimate_prices_an_explicit_layout(tmp_path):
    result = run(*ESTIMATE, "--layers-per-stage", "21,21,19,19", "--json", str(tmp_path / "e.json"))
    assert result.exit_code == 0, result.output
    data = json.loads((tmp_path / "e.json").read_text())
    assert data["layout"]["layers_per_stage"] == [[21], [21], [19], [19]]
    assert data["layout"]["dp"] == 2
    assert data["legal"] is True
    assert "21,21,19,19, 80 in all" in result.stdout
    explained = run("explain", str(tmp_path / "e.json"))
    assert explained.exit_code == 0, explained.output
    assert "21,21,19,19" in explained.stdout


def test_estimate_says_what_a_framework_would_refuse():
    question = (
        "estimate",
        "mixtral_8x7b",
        "dgx-h100:1",
        "--global-batch",
        "32",
        "--seq",
        "4096",
        "--tp",
        "2",
        "--ep",
        "4",
    )
    result = run(*question, "--no-sequence-parallel", "--json", "-")
    data = json.loads(result.stdout)
    assert data["legal"] is False
    assert data["violations"][0]["rule"]
    assert "megatron does not run this layout" in result.stderr
    assert "Estimate, not legal for megatron: " in result.stderr


@pytest.mark.parametrize("command", ["explain", "traffic"])
def test_a_saved_layout_that_its_framework_refuses_is_said_to_be_so(tmp_path, command):
    report = str(tmp_path / "ill.json")
    question = ("--global-batch", "8", "--seq", "4097", "--tp", "2", "--json", report)
    run("estimate", "llama3_8b", "dgx-h100:1", *question)
    said = run(command, report).stdout
    assert "Rank 1, not legal for megatron: TP2 PP1 DP4, fits" in said
    assert "megatron does not run this layout" in said
    assert "(seq-tp)" in said


def test_a_sequence_of_one_token_is_said_so():
    question = ("--global-batch", "1", "--seq", "1", "--tp", "2", "--dp", "1")
    said = run("estimate", "llama32_1b", "dgx-h100:1", *question).stdout
    assert "batch 1 sequence of 1 token, " in said
    assert "sequence 1 over cp 1 is 1 a rank, which does not divide by tp 2" in " ".join(said.split())
    assert "1 tokens" not in said


def test_nothing_feasible_ends_with_three(tmp_path):
    question = ("search", "llama31_405b", "dgx-h100:1", "--global-batch", "8", "--seq", "4096")
    result = run(*question, "--json", str(tmp_path / "none.json"))
    assert result.exit_code == 3
    assert "Nothing feasible" in result.stdout
    data = json.loads((tmp_path / "none.json").read_text())
    assert data["layouts"] == []
    assert data["infeasible"]["constraint"]
    assert data["infeasible"]["nearest_change"]
    assert run("explain", str(tmp_path / "none.json")).exit_code == 2


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (("search", "llama3_9b", *SEARCH[2:]), "nearest: llama3_8b"),
        (("search", "llama3_8b", "dgx-h10:1", *SEARCH[3:]), "dgx-h100"),
        ((*SEARCH, "--precision", "bf17"), "bf16"),
        ((*SEARCH, "--fix", "tp=x"), "tp=x"),
        ((*SEARCH, "--micro-batch", "two"), "--micro-batch 'two'"),
        ((*SEARCH, "--micro-batch", "2", "--fix", "mbs=4"), "--fix or --micro-batch give micro_batch twice"),
        ((*SEARCH, "--json", "both", "--html", "./both"), "--json and --html name one file"),
        ((*SEARCH, "--html", "-"), "'-' is no name"),
        ((*ESTIMATE, "--recompute", "full:99"), "full:1 to full:"),
        ((*ESTIMATE, "--recompute", "selective:moe"), "has no moe"),
        ((*SEARCH, "--recompute", "selective:mlpp"), "mlp"),
        ((*SEARCH, "--power-cap", "20"), "allowed: 200 to 700 W"),
        ((*SEARCH, "--framework", "nemo", "--offload", "optimizer"), "allowed: megatron, bridge, deepspeed, none"),
        ((*ESTIMATE, "--framework", "none", "--offload", "states"), "--offload states with ZeRO-1; allowed: --zero 3"),
        ((*SEARCH, "--json", "/nowhere/at/all.json"), "/nowhere/at"),
        ((*SEARCH, "--framework", "megatrom"), "megatron"),
        (("search", "llama3_8b", "dgx-h100:1", "--global-batch", "0"), "global-batch"),
        (("search", "llama3_8b", "dgx-h100:1", "--global-batch", "8"), "--seq"),
        ((*ESTIMATE, "--zero", "4"), "zero"),
        ((*ESTIMATE, "--layers-per-stage", "80"), "names 1 stages and --pp 4"),
        (("explain", "none.json"), "none.json"),
        (("export", "none.json", "--to", "yaml"), "yaml"),
        (("sweep", "none.toml", "-o", "out"), "none.toml"),
        (("validate", "none.csv"), "none.csv"),
        (("check", "--world-size", "8"), "--args-file"),
        (("catalog", "models", "none_7b"), "none_7b"),
        (("catalog", "clusters", "none"), "none"),
        (("catalog", "accelerators", "none"), "none"),
        (("fly",), "fly"),
    ],
)
def test_a_mistake_ends_with_two_and_one_message(arguments, words):
    result = run(*arguments)
    assert result.exit_code == 2, result.output
    assert words in result.stderr
    assert "Traceback" not in result.output
    assert result.stdout == ""


def test_rank_out_of_range_names_the_range(saved):
    result = run("explain", str(saved), "--rank", "99")
    assert result.exit_code == 2
    assert "1 to " in result.stderr


def test_an_interrupt_ends_with_130(monkeypatch):
    from planner import commands  # noqa: PLC0415

    def interrupt(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr(commands, "search", interrupt)
    result = run(*SEARCH)
    assert result.exit_code == cli.INTERRUPTED == 130
    assert "interrupted" in result.stderr


def test_a_defect_shows_no_traceback_unless_asked(monkeypatch):
    from planner import commands  # noqa: PLC0415

    def fail(*_):
        raise ZeroDivisionError("by zero")

    monkeypatch.setattr(commands, "search", fail)
    monkeypatch.delenv("PLAN_TRACEBACK", raising=False)
    result = run(*SEARCH)
    assert result.exit_code == 1
    assert "ZeroDivisionError: by zero" in result.stderr
    assert "PLAN_TRACEBACK" in result.stderr
    monkeypatch.setenv("PLAN_TRACEBACK", "1")
    assert isinstance(run(*SEARCH).exception, ZeroDivisionError)


def test_catalog_json_has_the_fields_of_the_contract():
    model = json.loads(run("catalog", "models", "Llama3-70B", "--json", "-").stdout)
    assert model["parameters"] == 70_553_706_496
    assert {"active_parameters", "layers", "flops_per_token"} <= set(model)
    cluster = json.loads(run("catalog", "clusters", "dgx-h100:8", "--json", "-").stdout)
    assert (cluster["gpus"], cluster["nodes"], cluster["nics"]) == (64, 8, 64)
    part = json.loads(run("catalog", "accelerators", "H100-SXM-80GB", "--json", "-").stdout)
    assert part["dense_tflops"]["bf16"] == 989.0


def test_catalog_reads_files(tmp_path):
    path = tmp_path / "lab.toml"
    path.write_text('name = "lab"\n[[island]]\nnode = "dgx-h100"\nnodes = 3\n')
    result = run("catalog", "clusters", str(path), "--json", "-")
    assert json.loads(result.stdout)["gpus"] == 24


@pytest.mark.parametrize("kind", ["models", "accelerators", "clusters"])
def test_catalog_lists_and_shows(kind):
    names = json.loads(run("catalog", kind, "--json", "-").stdout)[kind]
    listed = run("catalog", kind)
    assert all(name in listed.stdout for name in names[:5])
    shown = run("catalog", kind, names[0])
    assert shown.exit_code == 0
    assert names[0] in shown.stdout


RUNS = """id,model,hardware,n_gpus,seq_len,global_batch_size,micro_batch_size,tp,pp,precision,step_time_s,status
a1,llama3_8b,H100,8,8192,128,1,1,1,bf16,12.5,ok
a2,llama3_8b,H100,8,8192,128,1,2,1,bf16,13.0,ok
b3,llama3_8b,H100,8,8192,128,1,4,1,bf16,14.0,oom
c4,llama3_8b,H100,8,8192,128,1,3,1,bf16,14.0,ok
"""


def test_validate_prints_errors_and_writes_the_contract(tmp_path):
    (tmp_path / "runs.csv").write_text(RUNS)
    result = run("validate", str(tmp_path / "runs.csv"), "--json", str(tmp_path / "out.json"))
    assert result.exit_code == 0, result.output
    data = json.loads((tmp_path / "out.json").read_text())
    assert [row["id"] for row in data["rows"]] == ["a1", "a2", "b3", "c4"]
    for row in data["rows"]:
        assert {"id", "step_time_s", "peak_mem_gb", "verdict", "skipped"} <= set(row)
    assert data["rows"][0]["step_time_s"] > 0.0
    reason = data["rows"][3]["skipped"]
    assert reason
    assert data["summary"]["skipped"] == {reason: 1}
    assert data["rows"][3]["step_time_s"] is None
    assert data["summary"]["all"][0]["rows"] == 2
    assert data["summary"]["verdicts"]["out_of_memory"] == 1
    assert "4 runs, 3 predicted, 2 with a step time" in result.stdout
    assert reason in " ".join(result.stdout.split())


def test_sweep_prints_its_table(tmp_path):
    file = tmp_path / "sweep.toml"
    file.write_text(
        'title = "Two batches"\n[[grid]]\nmodels = ["llama3_8b"]\nclusters = ["dgx-h100:1"]\n'
        'global_batches = [32, 64]\nsequences = [4096]\nfixed = ["tp=2", "pp=1"]\n'
    )
    result = run("sweep", str(file), "-o", str(tmp_path / "out"))
    assert result.exit_code == 0, result.output
    assert "Two batches" in result.stdout
    assert "2 points, 0 without a layout, 0 kept from before" in result.stdout
    assert (tmp_path / "out" / "results.csv").is_file()
