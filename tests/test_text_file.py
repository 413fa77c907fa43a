"""Files that users name: any editor's UTF-8, and messages with the path as typed."""

import json
import os
from pathlib import Path

import pytest

from costmodels.workload.presets import model
from hardware.catalog import cluster
from hardware.errors import InputError
from hardware.text_file import read_json_file, read_text_file, read_toml_file
from planner.evidence.measured import read_runs
from planner.ingest.launch_text import read_launch_text
from planner.sweeps.sweep_file import read_sweep

CONFIG = {
    "model_type": "llama",
    "num_hidden_layers": 2,
    "hidden_size": 64,
    "intermediate_size": 128,
    "num_attention_heads": 4,
    "vocab_size": 512,
}
MARKED = "utf-8-sig"


def written(folder, name, text, encoding=MARKED):
    path = folder / name
    path.write_text(text, encoding=encoding)
    return path


def test_a_byte_order_mark_is_no_part_of_any_file(tmp_path):
    assert model(str(written(tmp_path, "config.json", json.dumps(CONFIG)))).layers == 2
    toml = "[transformer]\nlayers = 3\nhidden = 64\nvocab = 512\nheads = 4\nffn = 128\n"
    assert model(str(written(tmp_path, "mine.toml", toml))).layers == 3
    assert cluster(str(written(tmp_path, "lab.toml", "[[island]]\nnode = 'dgx-h100'\nnodes = 2\n"))).gpus == 16
    grid = "[[grid]]\nmodels = ['llama3_8b']\nclusters = ['dgx-h100:1']\nglobal_batches = [8]\nsequences = [64]\n"
    assert len(read_sweep(written(tmp_path, "sweep.toml", grid)).questions) == 1
    assert read_runs(written(tmp_path, "runs.csv", "id,hardware,n_gpus,seq_len,global_batch_size\n")) == ()
    assert read_launch_text(written(tmp_path, "args", "--num-layers 2 \\\r\n --bf16\r\n"), ()).arguments == (
        "--num-layers",
        "2",
        "--bf16",
    )


def test_other_encodings_and_sizes_say_what_they_are(tmp_path):
    with pytest.raises(InputError, match=r"wide\.json: not UTF-8 text \(UTF-16\); allowed: a report in UTF-8"):
        read_json_file(written(tmp_path, "wide.json", "{}", "utf-16"), allowed="a report")
    with pytest.raises(InputError, match=r"not UTF-8 text \(byte 1\)"):
        read_text_file(written(tmp_path, "latin", "gr\xfc\xdfe"[1:], "latin-1"), allowed="a text")
    with pytest.raises(InputError, match="has more than 3 bytes; allowed: up to 3 bytes"):
        read_text_file(written(tmp_path, "long", "four", "utf-8"), allowed="a text", most_bytes=3)
    with pytest.raises(InputError, match=r"cannot be read \(Is a directory\)"):
        read_text_file(tmp_path, allowed="a text")
    with pytest.raises(InputError, match="cannot be read"):
        read_text_file(tmp_path / "a\x00b", allowed="a text")


@pytest.mark.parametrize("text", ["x = " + "[" * 5000, "x = 1" + "0" * 5000, "x"])
def test_what_is_no_toml_is_refused(text, tmp_path):
    with pytest.raises(InputError, match="not TOML"):
        read_toml_file(written(tmp_path, "x.toml", text), allowed="a TOML file")


@pytest.mark.parametrize("name", ["deep/config.json", "deep/mine.toml"])
def test_messages_name_the_path_as_typed(name, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "deep").mkdir()
    for text, said in (("", "not JSON|needs one of"), ("{" if name.endswith("json") else "=", "not JSON|not TOML")):
        (tmp_path / name).write_text(text)
        with pytest.raises(InputError, match=f"^{name}: ({said})"):
            model(name)
    (tmp_path / name).write_text(json.dumps({"model_type": "llamma"}) if name.endswith("json") else "nam = 1")
    with pytest.raises(InputError, match=f"^{name}: "):
        model(name)


def test_a_folder_that_is_no_model_says_what_it_lacks(tmp_path):
    with pytest.raises(InputError, match=r"the folder has no config\.json; allowed: a folder with"):
        model(str(tmp_path))
    (tmp_path / "params.json").write_text("{}")
    with pytest.raises(InputError, match=r"the folder has no config.json; it holds params\.json"):
        model(str(tmp_path))


def test_a_hub_name_without_a_size_leads_to_the_nearest_presets():
    with pytest.raises(InputError, match="nearest: llama3_8b"):
        model("meta-llama/Meta-Llama-3-Instruct")


def test_pipes_that_nobody_writes_into_and_devices_keep_nobody_waiting(tmp_path):
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with pytest.raises(InputError, match="pipe: is a pipe that nobody writes into; allowed: a text"):
        read_text_file(pipe, allowed="a text")
    with pytest.raises(InputError, match="/dev/zero: is a device"):
        read_text_file(Path("/dev/zero"), allowed="a text")


def test_a_pipe_with_a_writer_is_read_whole():
    reading, writing = os.pipe()
    os.write(writing, b"text")
    os.close(writing)
    try:
        assert read_text_file(Path(f"/dev/fd/{reading}"), allowed="a text") == "text"
    finally:
        os.close(reading)
