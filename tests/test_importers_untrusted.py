"""Files of strangers: whatever they hold, the answer is a cluster or an InputError that names the file, at once."""

import contextlib
import os
import re
import subprocess
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from hardware.errors import InputError
from hardware.importers.assemble import Wishes
from hardware.importers.facts import NetworkFacts
from hardware.importers.nccl_log import read_nccl_log
from hardware.importers.source_text import MOST_BYTES, MOST_LINES, SourceText, read_source
from hardware.importers.telemetry.readings import read_telemetry
from hardware.importers.topology import import_topology, read_facts

FOLDER = Path(__file__).parent / "fixtures" / "topology"
FIXTURES = sorted(path.name for path in FOLDER.iterdir())
LAUGHS = (
    '<?xml version="1.0"?><!DOCTYPE x [<!ENTITY a0 "ha">'
    + "".join(f'<!ENTITY a{n} "' + 10 * f"&a{n - 1};" + '">' for n in range(1, 10))
    + "]><system><cpu>&a9;</cpu></system>"
)
ALIASES = "blocks: &b [x]\nswitches: " + "[" * 3 + "*b" + "]" * 3 + "\n"
MANY_PATHS = "SwitchName=l1 Nodes=n[1-40000]\n" + "".join(
    f"SwitchName=s{k} Switches=l1 Nodes=m{k}\n" for k in range(50)
)
MANY_DEVICES = '{"nodes": [' + ",".join(f'{{"id": {k}, "name": "n"}}' for k in range(50_001)) + "]}"
BAD_COUNT = (
    '<system><cpu numaid="0">\n<pci class="0x030200" busid="a"><gpu dev="0"><nvlink target="b" count="-2"/>'
    "</gpu></pci></cpu></system>"
)
MATRIX = "\tGPU0\tGPU1\tCPU Affinity\nGPU0\t X \tNV4\t0-3\nGPU1\tNV4\t X \t0-3\n"


def refused(tmp_path: Path, text: str | bytes, name: str = "given") -> InputError:
    path = tmp_path / name
    path.write_bytes(text if isinstance(text, bytes) else text.encode())
    with pytest.raises(InputError) as caught:
        import_topology([path], Wishes(accelerator="h100-sxm"))
    assert str(path) in caught.value.where
    return caught.value


@pytest.mark.parametrize(
    ("text", "reason", "line"),
    [
        (LAUGHS, "document type", 1),
        ('<!DOCTYPE x SYSTEM "file:///etc/passwd"><system/>', "document type", 1),
        ("<system>\n<cpu>\n</system>", "mismatched tag", 3),
        ("<system>" + "<pci>" * 70, "nested too deeply", 1),
        ("<system>" + "<pci/>" * 20_001 + "</system>", "too many elements", 1),
        ("<other/>", "no topology", 1),
        ("<system/>", "no <cpu>", 1),
        ('<graphs>\n<graph id="0"/>\n</graphs>', "no channel with GPUs", 1),
        (BAD_COUNT, "count = '-2'", 2),
        (ALIASES, "an alias", 2),
        ("blocks: " + "[" * 40 + "]" * 40, "too deep", 1),
        ("blocks:\n  - {switch: [", "not YAML", 3),
        ("blocks: []\n", "no list 'blocks'", 0),
        ("blocks:\n- nodes: ['n[1-99999999]']\n", "range '1-99999999'", 0),
        (
            "switches:\n  a: {switches: [b]}\n  b: {switches: [a]}\nblocks:\n- {switch: c, nodes: [n1]}\n",
            "below itself",
            0,
        ),
        ("SwitchName=a Nodes=n[1-9\n", "closing bracket", 1),
        ("SwitchName=a Nodes=n[1-9][1-99][1-999]\nSwitchName=b Nodes=m[1-999][1-999]", "too many hosts", 1),
        ("SwitchName=a Nodes=n1\nSwitchName=a Nodes=n2\n", "defined twice", 2),
        ("SwitchName=a Nodes=n1\nSwitchName=b Nodes=n1\n", "is in 'a' and in 'b'", 0),
        ("SwitchName=a Switches=b\nSwitchName=c Nodes=n1\n", "nowhere defined", 0),
        ("SwitchName=a Switches=b\nSwitchName=b Switches=a\nSwitchName=c Nodes=n1", "below itself", 0),
        ("SwitchName=a Nodes=n1\nnonsense\n", "'nonsense'", 2),
        ("[" * 100_000, "nested too deeply", 0),
        ('{"nodes": [', "not JSON", 1),
        ('{"nodes": [' + "9" * 5000 + "]}", "not JSON", 0),
        ('{"nodes": []}', "no nodes", 0),
        (MATRIX.replace("GPU1\tNV4", "GPU1\tNV2"), "joined by NV4 and by NV2", 0),
        (MATRIX.replace("NV4\t0-3\n", "ABC\t0-3\n", 1), "'ABC' is no connection", 2),
        ("\n".join(MATRIX.splitlines()[:2]), "no row for GPU1", 0),
        (MATRIX + "\n" + MATRIX, "a second matrix", 5),
        ("Link Type between two GPUs =====\n", "no header", 2),
        ("==== Link Type between two GPUs ====\nGPU0 GPU1\nGPU0 0 XGMI\n", "for GPU1", 3),
        ('Switch\t4 "S-1"\n[1]\t"H-9"[1]\t# "x" lid 1 4xNDR\n', "which has no block", 0),
        ('Switch\t4 "S-1"\n[1]\tjunk\n', "junk", 2),
        ("CA 'mlx5_0'\n\tPort 1:\n\t\tState: Down\n", "no active port", 0),
        ("\n".join(f"SwitchName=s{k} Nodes=n{k}x[1-30000] Switches=a[1-30000]" for k in (1, 2)), "more than 50000", 1),
        (MANY_PATHS, "too many switches with too many hosts", 0),
        ("<system><cpu " + " ".join(f'a{k}=""' for k in range(200_001)) + "/></system>", "too many attributes", 0),
        ("<system>" + " " * 2**22 + "</system>", "more than 4194304 characters", 0),
        ('{"nodes": [' + ",".join(["{}"] * 150_001) + "]}", "too many objects", 0),
        (MANY_DEVICES, "more than 50000 devices", 0),
        ("\t" + "\t".join(f"GPU{k}" for k in range(257)) + "\n", "257 devices", 1),
        ("= Link Type between two GPUs =\n" + " ".join(f"GPU{k}" for k in range(257)) + "\n", "257 devices", 2),
        ("SwitchName=a Nodes=b\n" + ("#" + " " * 50_000 + "\n") * 90, "more than 4194304 characters", 0),
        ("CA 'mlx5_0'\n" + "State: Active\nRate: 400\n" * 257, "more than 256 active ports", 515),
        ("".join(f"VM_hostname h{k}\n{k:016x}\n" for k in range(50_001)), "more than 50000 adapters", 0),
        ("".join(f'Ca\t1 "H-{k}"\n' for k in range(50_001)), "more than 50000 switches", 0),
        ("blocks:\n- nodes: [" + ", ".join("x" for _ in range(50_001)) + "]\n", "too deep or too long", 2),
        ("hello\n", "no known form", 1),
        ("", "empty", 0),
        (b"\xff\xfe\x00", "not UTF-8", 0),
        (b"a\x00b", "zero bytes", 0),
        ("a" * 130_000 + "\nSwitchName=a Nodes=b\n", "a line of 130000", 1),
        (b"x" * (MOST_BYTES + 1), "more than", 0),
    ],
)  # fmt: skip
def test_broken_files_are_refused_with_reason_and_line(tmp_path, text, reason, line):
    error = refused(tmp_path, text)
    assert reason in error.what
    if line:
        assert error.where.endswith(f": line {line}")


def test_an_import_loads_neither_the_search_nor_the_cost_models(tmp_path):
    """So that a refusal takes no longer than reading the file does."""
    file = tmp_path / "node.txt"
    file.write_text(MATRIX)
    code = (
        "import sys\nfrom pathlib import Path\nfrom planner import commands\n"
        "commands.import_topology([Path(sys.argv[1])], commands.Wishes(accelerator='a40'), Path(sys.argv[2]))\n"
        "rooms = {name.partition('.')[0] for name in sys.modules}\n"
        "print(*sorted(rooms & {'costmodels', 'numpy', 'ortools', 'networkx'}))"
    )
    words = [sys.executable, "-c", code, str(file), str(tmp_path / "out.toml")]
    result = subprocess.run(words, capture_output=True, text=True, check=True)
    assert not result.stdout.strip()


def test_a_file_is_split_into_lines_once():
    source = SourceText(where="file", text=MATRIX)
    assert source.lines() is source.lines()


def test_a_statement_over_most_lines_of_a_file_is_one_statement():
    text = "SwitchName=a \\\n" + " \\\n" * 150_000 + "Nodes=n1\n"
    (network,) = read_facts(SourceText(where="conf", text=text))
    assert isinstance(network, NetworkFacts)
    assert network.hosts == ("n1",)


def test_spines_over_the_same_leaves_are_counted_once():
    """500 spines over 20,000 hosts are ten million places, more than are followed one by one."""
    leaves = "".join(f"SwitchName=l{k} Nodes=n{k}x[1-500]\n" for k in range(40))
    spines = "".join(f"SwitchName=s{k} Switches=l[0-39]\n" for k in range(500))
    (network,) = read_facts(SourceText(where="conf", text=leaves + spines))
    assert isinstance(network, NetworkFacts)
    assert [len(tier.groups) for tier in network.tiers] == [40, 1]


def test_what_is_no_file_is_refused_at_once(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    for path, reason in (
        (pipe, "is a pipe that nobody writes into"),
        (tmp_path, "Is a directory"),
        (tmp_path / "none", "No such file"),
        ("/dev/zero", "is a device"),
    ):
        for read in (lambda path: import_topology([path]), read_nccl_log, read_telemetry):
            with pytest.raises(InputError, match=reason):
                read(path)


def through_a_pipe(data: bytes) -> str:
    """What a shell's ``<(command)`` gives: a name of the reading end, here with all data written by a thread."""
    reading, writing = os.pipe()

    def write() -> None:
        with contextlib.suppress(BrokenPipeError), os.fdopen(writing, "wb") as stream:
            stream.write(data)

    threading.Thread(target=write, daemon=True).start()
    return f"/dev/fd/{reading}"


@pytest.mark.parametrize("name", FIXTURES)
def test_files_come_through_pipes_as_well(name):
    file = FOLDER / name
    try:
        told = read_facts(read_source(file))
    except InputError:
        pytest.skip("needs a second file")
    piped = read_facts(read_source(through_a_pipe(file.read_bytes())))
    assert [replace(facts, where="") for facts in piped] == [replace(facts, where="") for facts in told]


def test_a_pipe_that_never_ends_is_cut_off():
    with pytest.raises(InputError, match=f"/dev/fd/[0-9]+: has more than {MOST_BYTES} bytes"):
        read_source(through_a_pipe(b"GPU0 X\n" * (MOST_BYTES // 2)))


@pytest.mark.parametrize("end", ["\n", "\r", "\r\n", "\x0b", "\x0c", "\x1e", "\x85", "\u2028"])
def test_lines_without_end_are_refused_whatever_ends_them(tmp_path, end):
    path = tmp_path / "lines"
    for count, refused_ in ((MOST_LINES, False), (MOST_LINES + 1, True)):
        path.write_bytes(("x" + end * count).encode())
        if refused_:
            with pytest.raises(InputError, match="too many lines"):
                read_source(path)
        else:
            assert len(read_source(path).lines()) == count


def test_metrics_of_more_accelerators_than_any_cluster_has_are_refused(tmp_path):
    path = tmp_path / "scrape"
    metric = 'DCGM_FI_DEV_GPU_TEMP{{gpu="0",modelName="NVIDIA H100 80GB HBM3",Hostname="h{}"}} 50\n'
    path.write_text("".join(metric.format(host) for host in range(50_001)))
    with pytest.raises(InputError, match="more than 50000 accelerators"):
        read_telemetry(path)


@pytest.mark.parametrize(
    "piece",
    [
        " ",
        "\n",
        "\t",
        "1 ",
        "GPU0 ",
        "GPU0\n",
        "a=",
        "[",
        "x\n",
        "Switch",
        "<a ",
        "\x1b[",
        "# size count type ",
        "-",
        "1 1 aaa ",
    ],
)
def test_large_files_of_nothing_are_refused_at_once(tmp_path, piece):
    path = tmp_path / "large"
    path.write_text("GPU0 hello\n" + piece * (MOST_BYTES // len(piece) - 20) + "z")
    with pytest.raises(InputError):
        import_topology([path])
    with pytest.raises(InputError):
        read_nccl_log(path)


def test_a_fabric_of_two_thousand_nodes_is_read_in_seconds():
    leaves = [f"S-{unit:04x}{rail}" for unit in range(64) for rail in range(8)]
    lines = []
    for place, leaf in enumerate(leaves):
        unit, rail = divmod(place, 8)
        lines.append(f'Switch\t65 "{leaf}"\t\t# "leaf" enhanced port 0 lid 1 lmc 0')
        for port in range(32):
            host = unit * 32 + port
            lines.append(f'[{port + 1}]\t"H-{host:08x}{rail}"[1](b) \t\t# "host-{host} mlx5_{rail}" lid 9 4xNDR')
            lines.append(f'[{port + 33}]\t"S-e{rail}{port:02x}"[{unit + 1}]\t\t# "spine" lid 7 4xNDR')
    lines += [f'Switch\t65 "S-e{rail}{k:02x}"\t\t# "spine"' for rail in range(8) for k in range(32)]
    lines += [f'Ca\t1 "H-{host:08x}{rail}"\t\t# "host-{host} mlx5_{rail}"' for host in range(2048) for rail in range(8)]
    (network,) = read_facts(SourceText(where="fabric", text="\n".join(lines) + "\n"))
    assert isinstance(network, NetworkFacts)
    assert (len(network.hosts), network.adapters) == (2048, 8)
    assert [len(tier.groups) for tier in network.tiers] == [64, 1]
    assert network.tiers[0].oversubscription == 1.0


@pytest.mark.parametrize("name", FIXTURES)
def test_truncated_files_end_in_a_cluster_or_an_error(name):
    text = (FOLDER / name).read_text()
    for part in range(1, 24):
        survives(name, text[: len(text) * part // 24])


def survives(name: str, text: str) -> None:
    where = ""
    try:
        where = read_facts(SourceText(where=name, text=text))[0].where
    except InputError as error:
        where = error.where
    assert name in where


@settings(max_examples=150, deadline=None, suppress_health_check=[HealthCheck.too_slow])
@given(st.sampled_from(FIXTURES), st.data())
def test_damaged_files_end_in_a_cluster_or_an_error(name, data):
    text = (FOLDER / name).read_text()
    words = re.split(r"(\s+|[\"\[\],:<>=])", text)
    for _ in range(data.draw(st.integers(1, 4))):
        place = data.draw(st.integers(0, len(words) - 1))
        junk = st.sampled_from(
            ["", "0", "-1", "NV99", "X", "GPU0", "]", "[", '"', "<", "9" * 30, "\u00e9", "None", "{"]
        )
        words[place] = data.draw(junk)
    survives(name, "".join(words))


def test_text_of_a_file_cannot_leave_its_comment(tmp_path):
    path = tmp_path / "evil\nname = 1.xml"
    path.write_text((FOLDER / "nccl-4gpu-nvswitch.xml").read_text().replace("mlx5_0", "a&#10;gpus = 99"))
    found = import_topology([path])
    assert found.cluster.gpus == 4
    assert not re.search(r"^gpus = 99", found.toml(), re.M)
    assert not re.search(r"^name = 1\.xml", found.toml(), re.M)
