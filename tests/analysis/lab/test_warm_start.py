"""The warm start: learns, can be repeated, is cached under all that decides it, never leaves halves."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import pytest
import torch

from analysis.lab.checkpoint import load_parameters
from analysis.lab.engine import Engine, GenerationRequest, SamplingParams
from analysis.lab.task_shelf import EpisodeRun, ShelfTask
from analysis.lab.warm_start import (
    DEMONSTRATION_SEEDS,
    WarmStartRecipe,
    cache_folder,
    copy_checkpoint,
    demonstrations,
    learning_rate_at,
    warm_start,
)

torch.set_num_threads(1)

SHORT = WarmStartRecipe(steps=4, batch_size=4, demonstrations=20, ramp_steps=2)


def test_second_call_finds_the_result(tmp_path: Path) -> None:
    """The same recipe and seed are trained once; the second call returns the same folder without a step."""
    steps: list[int] = []
    first = warm_start(seed=1, recipe=SHORT, cache=tmp_path, progress=lambda step, *_: steps.append(step))
    assert (first.cached, steps) == (False, [1, 2, 3, 4])
    second = warm_start(seed=1, recipe=SHORT, cache=tmp_path, progress=lambda step, *_: steps.append(step))
    assert (second.cached, second.path, len(steps)) == (True, first.path, 4)
    assert second.losses == first.losses
    assert [path.name for path in tmp_path.iterdir()] == [first.path.name]


def test_seed_and_recipe_decide_the_folder_and_the_weights(tmp_path: Path) -> None:
    """Another seed or another number is another result; the same ones again are the same numbers."""
    base = warm_start(seed=1, recipe=SHORT, cache=tmp_path)
    other_seed = warm_start(seed=2, recipe=SHORT, cache=tmp_path)
    other_recipe = warm_start(seed=1, recipe=replace(SHORT, p_right=0.5), cache=tmp_path)
    assert len({base.path, other_seed.path, other_recipe.path}) == 3
    again = warm_start(seed=1, recipe=SHORT, cache=tmp_path / "elsewhere")
    assert again.losses == base.losses
    one, two = load_parameters(base.path), load_parameters(again.path)
    assert all(torch.equal(one[name], two[name]) for name in one)


def test_an_interrupt_leaves_nothing_behind(tmp_path: Path) -> None:
    """Ctrl-C in the middle: no half checkpoint that a later run would take for a whole one."""

    def interrupt(step: int, steps: int, loss: float) -> None:
        if step == 2:
            raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        warm_start(seed=1, recipe=SHORT, cache=tmp_path, progress=interrupt)
    assert list(tmp_path.iterdir()) == []


def test_imitation_lowers_the_loss(tmp_path: Path) -> None:
    """Thirty steps of the real recipe already halve the loss."""
    recipe = WarmStartRecipe(steps=30, demonstrations=200)
    losses = warm_start(seed=0, recipe=recipe, cache=tmp_path).losses
    assert sum(losses[-5:]) / 5 < 0.5 * losses[0]


@pytest.mark.slow
@pytest.mark.lab
@pytest.mark.timeout(240)
def test_full_recipe_acts_and_is_right_one_time_in_three(tmp_path: Path) -> None:
    """The promise that training starts from: mean reward 0.25 to 0.45, most episodes well formed."""
    result = warm_start(seed=0, cache=tmp_path)
    task = ShelfTask()
    runs = [EpisodeRun(task.episode(seed)) for seed in range(384)]
    with Engine(result.path, seed=0) as engine:
        while active := [run for run in runs if run.end is None]:
            requests = [
                GenerationRequest(
                    engine.tokenizer.apply_chat_template(
                        run.messages, tools=task.tools, add_generation_prompt=True, return_dict=False
                    ),
                    SamplingParams(max_new_tokens=task.max_new_tokens),
                )
                for run in active
            ]
            engine.generate(requests, timeout=120)
            for run, request in zip(active, requests, strict=True):
                assert request.finish is not None
                text = engine.tokenizer.decode(request.output_ids, skip_special_tokens=True)
                run.feed(text, request.finish.kind)
    ends = [run.end for run in runs if run.end is not None]
    assert 0.25 < sum(end.reward for end in ends) / len(ends) < 0.45
    assert sum(end.state == "malformed" for end in ends) / len(ends) < 0.2
    assert {"completed", "malformed", "turn_limit"} <= {end.state for end in ends}


def test_learning_rate_ramps_up_and_decays() -> None:
    """Linear ramp to the highest rate, linear decay to a tenth of it."""
    recipe = WarmStartRecipe()
    rates = [learning_rate_at(step, recipe) for step in range(recipe.steps)]
    assert rates[0] == pytest.approx(5e-3 / 20)
    assert max(rates) == pytest.approx(5e-3)
    assert rates.index(max(rates)) in (19, 20)
    assert rates[-1] == pytest.approx(5e-4, rel=0.06)
    assert all(a > b for a, b in zip(rates[20:], rates[21:], strict=False))


def test_demonstrations_share_no_episode_with_training() -> None:
    """Seeds of demonstrations start far above those of prompts, and differ between runs."""
    first, second = demonstrations(SHORT, 1), demonstrations(SHORT, 2)
    assert first == demonstrations(SHORT, 1)
    assert first != second
    assert DEMONSTRATION_SEEDS > 10**8


def test_cache_folder_follows_the_environment(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """SLIME_BRIDGE_CACHE names the folder; without it, it lies under the user's home."""
    monkeypatch.setenv("SLIME_BRIDGE_CACHE", str(tmp_path))
    assert cache_folder() == tmp_path
    monkeypatch.delenv("SLIME_BRIDGE_CACHE")
    assert cache_folder() == Path.home() / ".cache" / "slime-bridge"


def test_copying_gives_an_independent_checkpoint(tmp_path: Path) -> None:
    """The cached folder is never trained on; a copy appears whole and does not replace anything."""
    source = warm_start(seed=1, recipe=SHORT, cache=tmp_path / "cache").path
    target = copy_checkpoint(source, tmp_path / "run" / "checkpoint")
    assert {path.name for path in target.iterdir()} == {path.name for path in source.iterdir()}
    with pytest.raises(FileExistsError, match="exists already"):
        copy_checkpoint(source, target)
    assert [path.name for path in target.parent.iterdir()] == ["checkpoint"]
