"""The checkpoint: an ordinary folder that others load, made again from its seed, replaced in one step."""

from __future__ import annotations

import json
import stat
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

import analysis.lab.checkpoint as checkpoint_module
from analysis.errors import CheckpointError
from analysis.lab.checkpoint import (
    CheckpointSpec,
    create_checkpoint,
    load_config,
    load_parameters,
    load_tokenizer,
    publish_folder,
    save_parameters,
)
from analysis.lab.model import Weights, sequence_logits

torch.set_num_threads(1)


def test_transformers_loads_it_and_computes_the_same_logits(tmp_path: Path) -> None:
    """An ordinary folder: AutoModel and AutoTokenizer read it, logits agree within 1e-4."""
    folder = create_checkpoint(tmp_path / "model", seed=0)
    model = AutoModelForCausalLM.from_pretrained(folder).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder)
    assert sum(parameter.numel() for parameter in model.parameters()) == 168_512
    assert len(tokenizer) <= model.config.vocab_size
    assert tokenizer.eos_token_id == model.generation_config.eos_token_id == model.config.eos_token_id
    weights = Weights.fuse(load_parameters(folder), load_config(folder))
    ids = torch.randint(0, 448, (4, 150))
    with torch.inference_mode():
        difference = (model(ids).logits - sequence_logits(weights, ids)).abs().max()
    assert float(difference) < 1e-4


def test_equal_seeds_give_equal_files_and_others_do_not(tmp_path: Path) -> None:
    """A run can be repeated from its seed alone."""
    folders = [create_checkpoint(tmp_path / name, seed=seed) for name, seed in (("a", 3), ("b", 3), ("c", 4))]
    for path in sorted(folders[0].iterdir()):
        contents = [(folder / path.name).read_bytes() for folder in folders]
        assert contents[0] == contents[1], path.name
        assert (contents[0] == contents[2]) == (path.name != "model.safetensors"), path.name


def test_files_are_readable_by_other_users(tmp_path: Path) -> None:
    """A server that runs as somebody else must be able to read every file."""
    folder = create_checkpoint(tmp_path / "model", seed=0)
    assert {stat.S_IMODE(path.stat().st_mode) for path in folder.iterdir()} == {0o644}
    assert stat.S_IMODE(folder.stat().st_mode) == 0o755


def test_config_has_the_rotary_base_in_both_places(tmp_path: Path) -> None:
    """A reader of the old place alone would otherwise compute with 10000."""
    config = json.loads((create_checkpoint(tmp_path / "model", seed=0) / "config.json").read_text())
    assert config["rope_theta"] == config["rope_parameters"]["rope_theta"] == 100.0


def test_initial_weights_have_the_asked_spread(tmp_path: Path) -> None:
    """The spread decides whether a model of this size ever learns to copy."""
    folder = create_checkpoint(tmp_path / "model", seed=0, spec=CheckpointSpec(initializer_range=0.3))
    parameters = load_parameters(folder)
    assert abs(float(parameters["model.embed_tokens.weight"].std()) - 0.3) < 0.01
    assert bool((parameters["model.norm.weight"] == 1).all())


def test_a_folder_in_use_is_left_alone(tmp_path: Path) -> None:
    """Creating over something else is refused, and touches nothing."""
    folder = tmp_path / "model"
    folder.mkdir()
    (folder / "notes.txt").write_text("mine")
    with pytest.raises(CheckpointError, match="not empty"):
        create_checkpoint(folder, seed=0)
    assert [path.name for path in tmp_path.rglob("*")] == ["model", "notes.txt"]


def test_a_failure_on_the_way_leaves_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The folder appears complete or not at all."""

    def fail(*args: object, **kwargs: object) -> None:
        raise OSError("disk full")

    monkeypatch.setattr(checkpoint_module, "save_parameters", fail)
    with pytest.raises(OSError, match="disk full"):
        create_checkpoint(tmp_path / "model", seed=0)
    assert list(tmp_path.iterdir()) == []


def test_publishing_where_somebody_was_faster_keeps_theirs(tmp_path: Path) -> None:
    """Two processes may make the same folder; the second one gives way."""
    mine, theirs = tmp_path / "mine", tmp_path / "theirs"
    for folder in (mine, theirs):
        folder.mkdir()
        (folder / "owner").write_text(folder.name)
    assert publish_folder(mine, theirs) is False
    assert (theirs / "owner").read_text() == "theirs"
    assert publish_folder(mine, tmp_path / "free") is True


def test_saving_weights_replaces_them_and_drops_the_tied_head(tmp_path: Path) -> None:
    """A trainer saves its whole state dict; the file holds what the architecture names, readable by all."""
    folder = create_checkpoint(tmp_path / "model", seed=0)
    model = AutoModelForCausalLM.from_pretrained(folder)
    with torch.no_grad():
        model.model.norm.weight.fill_(2.0)
    path = save_parameters(folder, model.state_dict())
    assert "lm_head.weight" not in load_file(path)
    assert stat.S_IMODE(path.stat().st_mode) == 0o644
    assert bool((load_parameters(folder)["model.norm.weight"] == 2).all())
    assert not [item for item in folder.iterdir() if item.name.startswith(".")]


def test_sharded_and_half_precision_weights_load(tmp_path: Path) -> None:
    """Folders from elsewhere may be sharded and in bfloat16; they load as float32."""
    folder = create_checkpoint(tmp_path / "model", seed=0)
    whole = load_parameters(folder)
    (folder / "model.safetensors").unlink()
    names = sorted(whole)
    for number, part in enumerate((names[:5], names[5:])):
        shard = {name: whole[name].to(torch.bfloat16) for name in part}
        save_file(shard, folder / f"model-0000{number + 1}-of-00002.safetensors")
    loaded = load_parameters(folder)
    assert loaded.keys() == whole.keys()
    assert all(tensor.dtype == torch.float32 for tensor in loaded.values())
    assert all(torch.allclose(loaded[name], whole[name], rtol=1e-2, atol=1e-3) for name in names)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda folder: (folder / "model.safetensors").unlink(), r"no \*.safetensors"),
        (
            lambda folder: (folder / "model.safetensors").write_bytes(b"\x10\0\0"),
            "cannot be read as safetensors",
        ),
        (lambda folder: (folder / "config.json").write_text("{"), "cannot be read as JSON"),
        (lambda folder: (folder / "config.json").write_text("[]"), "no JSON object"),
        (lambda folder: (folder / "config.json").unlink(), "cannot be read as JSON"),
    ],
    ids=["no-weights", "torn-weights", "torn-config", "config-list", "no-config"],
)
def test_damaged_folders_say_what_is_wrong(tmp_path: Path, damage: object, message: str) -> None:
    """Each kind of damage gives one typed error that names the file."""
    folder = create_checkpoint(tmp_path / "model", seed=0)
    damage(folder)  # type: ignore[operator]
    with pytest.raises(CheckpointError, match=message):
        load_parameters(folder)


@pytest.mark.parametrize("kind", ["absent", "torn"])
def test_unusable_tokenizers_are_typed_errors(tmp_path: Path, kind: str) -> None:
    """Whatever the tokenizer library raises, the caller gets one type that names the folder."""
    folder = create_checkpoint(tmp_path / "model", seed=0)
    assert load_tokenizer(folder).eos_token == "<|im_end|>"
    if kind == "absent":
        (folder / "tokenizer_config.json").unlink()
    else:
        (folder / "tokenizer.json").write_text("{")
    with pytest.raises(CheckpointError, match="tokenizer"):
        load_tokenizer(folder)
