"""Series of monitoring tools: every form, under load and idle, damaged, and laid on a cluster."""

import json
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from hardware import catalog
from hardware.cluster_file import parse_cluster, to_toml
from hardware.errors import InputError
from hardware.importers.device_names import accelerator_in
from hardware.importers.telemetry import DeviceReading, Telemetry, read_telemetry
from hardware.importers.telemetry.samples import quantity, reasons_of
from planner.devices.telemetry import measured_cluster

SMI = """\
timestamp, name, index, temperature.gpu, power.draw [W], clocks.current.sm [MHz], utilization.gpu [%], \
clocks_event_reasons.active
2026/03/01 10:00:00.000, NVIDIA H200, 0, 31, 77.10 W, 345 MHz, 0 %, 0x0000000000000001
2026/03/01 10:00:01.000, NVIDIA H200, 0, 60, 690.00 W, 1905 MHz, 100 %, 0x0000000000000004
2026/03/01 10:00:01.000, NVIDIA H200, 1, 84, 560.00 W, 1400 MHz, 99 %, 0x0000000000000048
2026/03/01 10:00:02.000, NVIDIA H200, 0, 62, 694.00 W, 1925 MHz, 98 %, 0x0000000000000004
2026/03/01 10:00:02.000, NVIDIA H200, 1, 87, 570.00 W, 1420 MHz, 97 %, 0x0000000000000048
2026/03/01 10:00:03.000, NVIDIA H2
"""
DMON = """\
#Entity   GPUTL     TMPTR     POWER       SMCLK
ID                  C         W           MHz
GPU 0     99        66        655.123     1755
GPU 1     98        81        601.5       1500
GPU 0     97        68        659.123     1735
GPU 1     100       N/A       603.5       1510
GPU 0     9
"""
EXPORTER = """\
# HELP DCGM_FI_DEV_GPU_TEMP GPU temperature (in C).
# TYPE DCGM_FI_DEV_GPU_TEMP gauge
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="rack1-n10"} 71
DCGM_FI_DEV_GPU_TEMP{gpu="0",UUID="GPU-b",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="rack1-n2"} 55
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="rack1-n10"} 1600
DCGM_FI_DEV_SM_CLOCK{gpu="0",UUID="GPU-b",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="rack1-n2"} 1980 9
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-a",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="rack1-n10"} 99
DCGM_FI_DEV_GPU_UTIL{gpu="0",UUID="GPU-b",device="nvidia0",modelName="NVIDIA H100 80GB HBM3",Hostname="rack1-n2"} 98
DCGM_FI_DEV_GPU_UTIL{gpu="0",GPU_I_ID="3",Hostname="rack1-n2"} 98
go_goroutines 12
"""
CARD = {
    "Temperature (Sensor edge) (C)": "60.0",
    "Temperature (Sensor junction) (C)": "74.0",
    "sclk clock speed:": "(1650Mhz)",
    "Average Graphics Package Power (W)": "540.0",
    "GPU use (%)": "99",
}


def read(tmp_path: Path, text: str, name: str = "node.txt") -> Telemetry:
    path = tmp_path / name
    path.write_text(text, encoding="utf-8")
    return read_telemetry(path)


def only(telemetry: Telemetry, gpu: int, host: str = "") -> DeviceReading:
    return next(found for found in telemetry.readings if (found.gpu, found.host) == (gpu, host))


def test_a_number_that_only_looks_like_one_is_named(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="without a label gpu"):
        read(tmp_path, EXPORTER.replace(chr(34) + "0" + chr(34), chr(34) + "²" + chr(34)))


def test_nvidia_smi_counts_samples_under_load(tmp_path: Path) -> None:
    telemetry = read(tmp_path, SMI)
    assert telemetry.tool.startswith("nvidia-smi")
    assert only(telemetry, 0) == DeviceReading(
        host="", gpu=0, device="NVIDIA H200", samples=2, clock_hz=1915e6, temperature_c=61.0, hottest_c=62.0,
        power_w=692.0, reasons=("power cap",),
    )  # fmt: skip
    assert only(telemetry, 1).reasons == ("heat",)
    assert "1 lines or records break off" in telemetry.assumed[0]


def test_nvidia_smi_without_units_repeated_headers_and_flags(tmp_path: Path) -> None:
    head = "index, clocks.gr [MHz], power.draw [W], clocks_throttle_reasons.hw_power_brake_slowdown"
    text = (
        f"nohup: ignoring input\n{head}\n3, 1700, 650, Active\n{head}\n3, 1710, [N/A], Active\n4, 300, 80, Not Active\n"
    )
    telemetry = read(tmp_path, text)
    assert [found.gpu for found in telemetry.readings] == [3]  # GPU 4 draws too little to be at work
    assert only(telemetry, 3).clock_hz == 1700e6
    assert only(telemetry, 3).reasons == ("power brake",)
    assert any("no utilization" in text for text in telemetry.assumed)


def test_identities_without_index_count_in_order(tmp_path: Path) -> None:
    telemetry = read(tmp_path, "uuid, clocks.sm [MHz]\nGPU-b, 1500 MHz\nGPU-a, 1600 MHz\nGPU-b, 1520 MHz\n")
    assert {found.gpu: found.clock_hz for found in telemetry.readings} == {0: 1510e6, 1: 1600e6}


def test_dmon_table(tmp_path: Path) -> None:
    telemetry = read(tmp_path, DMON)
    assert telemetry.tool == "dcgmi dmon"
    first, second = only(telemetry, 0), only(telemetry, 1)
    assert (first.clock_hz, first.temperature_c, round(first.power_w)) == (1745e6, 67.0, 657)
    assert (second.temperature_c, second.samples) == (81.0, 2)


def test_exporter_knows_its_hosts(tmp_path: Path) -> None:
    telemetry = read(tmp_path, EXPORTER)
    assert [found.host for found in telemetry.readings] == ["rack1-n2", "rack1-n10"]  # by number, not by letter
    assert only(telemetry, 0, "rack1-n10").clock_hz == 1600e6
    assert only(telemetry, 0, "rack1-n2").temperature_c == 55.0


def test_rocm_smi_prefers_the_junction_and_reads_a_loop(tmp_path: Path) -> None:
    hotter = {**CARD, "Temperature (Sensor junction) (C)": "78.0", "sclk clock speed:": "(1550Mhz)"}
    text = (
        f"WARNING: low power\n{json.dumps({'card1': CARD, 'system': {}})}\n{json.dumps({'card1': hotter})}\n"
        '{"card1": {"x'
    )
    telemetry = read(tmp_path, text)
    assert only(telemetry, 1).temperature_c == 76.0
    assert only(telemetry, 1).clock_hz == 1600e6
    assert "break off" in telemetry.assumed[0]


def amd_smi_row(gpu: int, clock_mhz: int) -> dict[str, object]:
    """As amd-smi prints a GPU of two dies."""
    dies = {f"gfx_{die}": {"clk": {"value": clock_mhz, "unit": "MHz"}, "min_clk": "N/A"} for die in range(2)}
    return {
        "gpu": gpu,
        "usage": {"gfx_activity": {"value": 97, "unit": "%"}},
        "power": {"socket_power": {"value": 738, "unit": "W"}, "gfx_voltage": "N/A"},
        "clock": {**dies, "mem_0": {"clk": {"value": 1300, "unit": "MHz"}}},
        "temperature": {"edge": "N/A", "hotspot": {"value": 61 + gpu, "unit": "C"}},
    }


@pytest.mark.parametrize("indent", [None, 4])
@pytest.mark.parametrize("key", ["", "gpu_data"])
def test_amd_smi_reads_lists_in_a_loop(tmp_path: Path, key: str, indent: int | None) -> None:
    rows = [amd_smi_row(0, 1900), amd_smi_row(1, 1500)]
    text = json.dumps({key: rows} if key else rows, indent=indent)
    telemetry = read(tmp_path, f"WARNING: [no group]\n{text}\n{text}\n" + text[: len(text) // 3])
    assert telemetry.tool == "amd-smi metric --json"
    found = only(telemetry, 1)
    assert (found.clock_hz, found.temperature_c, found.power_w) == (1500e6, 62.0, 738.0)


@pytest.mark.parametrize(
    ("device", "name"),
    [
        ("AMD Instinct MI300X OAM", "mi300x"),
        ("AMD INSTINCT MI250 (MCM) OAM AC MBA", "mi250-gcd"),
        ("NVIDIA H100 80GB HBM3", "h100-sxm-80gb"),
        ("Tesla V100-SXM2-32GB", "v100-sxm2-32gb"),
    ],
)
def test_devices_have_the_names_of_their_makers(device: str, name: str) -> None:
    assert accelerator_in(device) == name


def test_a_long_series_leaves_out_its_warm_up(tmp_path: Path) -> None:
    degrees = [50] * 20 + [70] * 35 + [90] * 45  # the median of all is 70, of those after the first fifth 90
    rows = "".join(f"0, {one}, 100 %\n" for one in degrees)
    assert only(read(tmp_path, f"index, temperature.gpu, utilization.gpu [%]\n{rows}"), 0).temperature_c == 90.0


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("0, 60, 690 W\n", "not the output of a known monitoring tool, or its header is missing"),
        ("index, temperature.gpu, utilization.gpu [%]\n0, 40, 3 %\n", "every accelerator is idle"),
        ("index, clocks.sm [MHz]\n0, [N/A]\n", "no clock, temperature or draw"),
        ("index, clocks.sm [MHz]\nzero, 1000 MHz\n", "index 'zero'; allowed: a whole number"),
        ('DCGM_FI_DEV_GPU_TEMP{UUID="a"} 3\n', "without a label gpu"),
        ('{"card0": {"a": ' * 1200, "broken JSON"),
        ("", "the file is empty"),
    ],
)
def test_refusals(tmp_path: Path, text: str, said: str) -> None:
    with pytest.raises(InputError, match=said):
        read(tmp_path, text)


@settings(max_examples=150, deadline=None)
@given(base=st.sampled_from((SMI, DMON, EXPORTER, json.dumps({"card0": CARD}))), data=st.data())
def test_damaged_files_end_in_an_answer_or_a_refusal(
    tmp_path_factory: pytest.TempPathFactory, base: str, data: st.DataObject
) -> None:
    place = data.draw(st.integers(0, len(base)))
    cut = data.draw(st.integers(0, 30))
    text = base[:place] + data.draw(st.text(max_size=12)) + base[place + cut :]
    try:
        telemetry = read(tmp_path_factory.mktemp("damaged"), text)
    except InputError:
        return
    for found in telemetry.readings:
        assert 0.0 <= found.clock_hz <= 20e9
        assert -40.0 <= found.temperature_c <= 200.0


def test_quantities_and_masks() -> None:
    assert quantity("612.34 W", "w") == 612.34
    assert quantity("(1700Mhz)", "mhz") == 1700.0
    assert quantity("612 W", "mhz") is None
    assert quantity("[N/A]", "w") is None
    assert quantity("2147483632", "c") is None  # blank of DCGM
    assert quantity("900", "c") == 900.0  # named and left out with its device
    assert reasons_of("0x8") == {"hardware slowdown"}
    assert reasons_of("N/A") == frozenset()


MIXED = """\
index, name, temperature.gpu, power.draw [W], clocks.sm [MHz], utilization.gpu [%]
0, NVIDIA H100 80GB HBM3, 70, 650 W, 1700 MHz, 99 %
1, NVIDIA H100 80GB HBM3, 71, 330 W, 1690 MHz, [N/A]
2, NVIDIA H100 80GB HBM3, 31, 320 W, 1980 MHz, [N/A]
3, NVIDIA H100 80GB HBM3, 72, [Unknown Error], 1600 MHz, [N/A]
4, NVIDIA H100 80GB HBM3, 73, 640 W, 1650 MHz, 3 %
"""


def test_where_utilization_is_not_stated_the_draw_decides_sample_by_sample(tmp_path: Path) -> None:
    """From 325 W, half of 650: GPU 1 works and GPU 2 does not; GPU 3 says nothing, GPU 4 says that it idles."""
    telemetry = read(tmp_path, MIXED)
    assert [found.gpu for found in telemetry.readings] == [0, 1, 3]
    assert only(telemetry, 1).clock_hz == 1690e6
    text = "; ".join(telemetry.assumed)
    assert "no utilization of GPU 1, GPU 2; samples from 50% of the highest draw count" in text
    assert "neither utilization nor draw of GPU 3; all its samples count" in text
    assert "2 of 5 accelerators idle" in text
    table = "#Entity   GPUTL   POWER   SMCLK   TMPTR\nID\nGPU 0  99  650.1  1700  70\nGPU 1  N/A  640  1690  71\n"
    assert [found.clock_hz for found in read(tmp_path, table).readings] == [1700e6, 1690e6]


@pytest.mark.parametrize(
    ("old", "new", "said", "left"),
    [
        ("1905 MHz", "99999 MHz", "clock 99999 MHz of GPU 0 is nothing that a device shows: 1 such", "clock_hz"),
        ("60, 690", "4000, 690", "temperature 4000 C of GPU 0 is nothing that a device shows", "temperature_c"),
        ("690.00 W", "-690.00 W", "draw -690 W of GPU 0 is nothing that a device shows", "power_w"),
    ],
)
def test_values_that_no_device_shows_are_named(tmp_path: Path, old: str, new: str, said: str, left: str) -> None:
    telemetry = read(tmp_path, SMI.replace(old, new))
    assert any(said in text for text in telemetry.assumed)
    last = {"clock_hz": 1925e6, "temperature_c": 62.0, "power_w": 694.0}  # the other sample of GPU 0 alone
    assert getattr(only(telemetry, 0), left) == last[left]


def test_a_draw_like_that_of_idle_devices_is_no_work(tmp_path: Path) -> None:
    text = (
        "index, power.draw [W], clocks.sm [MHz], utilization.gpu [%]\n0, 70 W, 345 MHz, 0 %\n1, {} W, 1700 MHz, [N/A]\n"
    )
    with pytest.raises(InputError, match="every accelerator is idle"):
        read(tmp_path, text.format(75))
    assert [found.gpu for found in read(tmp_path, text.format(640)).readings] == [1]


def test_who_says_nothing_does_not_make_an_idle_file_a_busy_one(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="every accelerator is idle"):
        read(tmp_path, MIXED.replace("99 %", "2 %").replace("330 W", "[N/A]").replace("[Unknown Error]", "[N/A]"))
    head = "index, clocks.sm [MHz], utilization.gpu [%]\n"
    telemetry = read(tmp_path, f"{head}0, 1700 MHz, 99 %\n1, [N/A], [N/A]\n")
    assert [found.gpu for found in telemetry.readings] == [0]
    assert any("no clock, temperature or draw of GPU 1: as the model has it" in text for text in telemetry.assumed)
    assert not any("idle" in text for text in telemetry.assumed)


def test_a_file_of_silly_values_alone_is_refused_with_them(tmp_path: Path) -> None:
    with pytest.raises(InputError, match=r"no clock, temperature or draw .*clock 99999 MHz of GPU 0"):
        read(tmp_path, "index, clocks.sm [MHz]\n0, 99999 MHz\n")


def test_what_is_covered_in_part_or_too_fast_is_said(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text(SMI.replace("1905", "5905").replace("1925", "5905"), encoding="utf-8")
    notes = measured_cluster([tmp_path / "n.csv"], "dgx-h200:1").assumed
    assert "n: 2 of 8 accelerators measured under load, the others as the model has them" in notes
    assert "n GPU 0: 5905 MHz is above the 1980 MHz that h200-sxm-141gb reaches, and counts as that" in notes
    (tmp_path / "m.csv").write_text(MIXED, encoding="utf-8")
    assert measured_cluster([tmp_path / "m.csv"]).cluster.gpus == 5  # GPU 4 idles, and is there


def test_laid_on_a_cluster_and_survives_writing(tmp_path: Path) -> None:
    for name in ("b", "a"):
        (tmp_path / f"{name}.csv").write_text(SMI, encoding="utf-8")
    found = measured_cluster([tmp_path / "b.csv", tmp_path / "a.csv"], "dgx-h200:4")
    devices = found.cluster.islands[0].devices
    assert [(device.node, device.gpu, device.clock_hz) for device in devices] == [
        (0, 0, 1915e6), (0, 1, 1410e6), (1, 0, 1915e6), (1, 1, 1410e6),
    ]  # fmt: skip
    assert found.hosts == ("a", "b")
    assert any("2 nodes without a series" in text for text in found.assumed)
    assert parse_cluster(to_toml(found.cluster), "again.toml", "again").islands == found.cluster.islands


def test_a_cluster_by_its_devices(tmp_path: Path) -> None:
    (tmp_path / "n.csv").write_text(SMI, encoding="utf-8")
    cluster = measured_cluster([tmp_path / "n.csv"]).cluster
    assert cluster.gpus == 2
    assert cluster.islands[0].node.accelerator.name.startswith("h200")


@pytest.mark.parametrize(
    ("spec", "said"),
    [
        ("dgx-h200:1", "2 hosts and dgx-h200:1 has 1 nodes"),
        ("dgx-a100:2", "the device is 'NVIDIA H200' and the cluster has a100"),
    ],
)
def test_series_that_do_not_fit(tmp_path: Path, spec: str, said: str) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.csv").write_text(SMI, encoding="utf-8")
    with pytest.raises(InputError, match=said):
        measured_cluster([tmp_path / "a.csv", tmp_path / "b.csv"], spec)
    assert catalog.cluster(spec).gpus


def test_the_same_device_twice(tmp_path: Path) -> None:
    (tmp_path / "x").mkdir()
    for path in (tmp_path / "a.csv", tmp_path / "x" / "a.csv"):
        path.write_text(SMI, encoding="utf-8")
    with pytest.raises(InputError, match="GPU 0 of host a is in"):
        measured_cluster([tmp_path / "a.csv", tmp_path / "x" / "a.csv"], "dgx-h200:2")
