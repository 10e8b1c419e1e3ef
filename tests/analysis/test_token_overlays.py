"""What is known of each token, as levels with fixed bounds."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest

from analysis.errors import ExplorerError
from analysis.lab.run_folder import RunFolder
from analysis.token_overlays import OVERLAYS, available_overlays, find_overlay, legend_of, levels_of
from analysis.trace_tokens import TraceTokens, read_trace_tokens, trace_tokens
from tests.analysis.transcripts.made_sessions import Words, load_sessions, session, trace


@pytest.fixture
def tokens(tmp_path: Path) -> TraceTokens:
    """Three prompt tokens; sampled, sampled, two in between, sampled, sampled."""
    return read_trace_tokens(load_sessions(tmp_path, session("ses-1"), tokenizer=Words()), "ses-1")


class TestReading:
    def test_what_is_known_without_a_dump(self, tokens: TraceTokens) -> None:
        assert (tokens.session_id, tokens.trace_index, tokens.prompt_tokens, tokens.total) == (
            "ses-1",
            0,
            3,
            9,
        )
        assert tokens.turn.tolist() == [-1, -1, -1, 0, 0, 0, 0, 1, 1]
        assert tokens.turn_position.tolist() == [-1, -1, -1, 0, 1, -1, -1, 0, 1]
        assert tokens.versions == ("3", "4")
        assert tokens.version.tolist() == [-1, -1, -1, 0, 0, -1, -1, 1, 1]
        assert tokens.starts == ((3, 2), (7, 2))
        assert available_overlays(tokens) == ["mask", "logprob", "version", "place"]

    def test_a_window_knows_its_place(self, tmp_path: Path) -> None:
        run = load_sessions(tmp_path, session("ses-1"))
        part = read_trace_tokens(run, "ses-1", window=(4, 8))
        assert part.position.tolist() == [4, 5, 6, 7]
        assert part.version.tolist() == [0, -1, -1, 1]
        assert part.total == 9
        assert levels_of(part, "mask").tolist() == [3, 2, 2, 3]

    def test_weights_that_changed_within_a_turn(self, tmp_path: Path) -> None:
        spans = [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 2}]
        about = {"completion_metadata": [{"weight_versions": spans}, {"weight_version": "4"}]}
        found = read_trace_tokens(load_sessions(tmp_path, session("ses-1", trace(metadata=about))), "ses-1")
        assert found.version.tolist() == [-1, -1, -1, 0, 1, -1, -1, 1, 1]

    def test_a_session_without_token_ids(self, tmp_path: Path) -> None:
        bare = trace(ids=((), ()), mask=[], response_logprobs=None)
        run = load_sessions(tmp_path, session("ses-1", bare))
        with pytest.raises(ExplorerError, match="no token ids"):
            read_trace_tokens(run, "ses-1")
        with pytest.raises(ExplorerError, match="no trace 0"):
            trace_tokens(run.token_arrays("ses-1"))

    def test_another_estimators_advantage_stands_on_what_is_learned(self, tmp_path: Path) -> None:
        arrays = load_sessions(tmp_path, session("ses-1")).token_arrays("ses-1")
        found = trace_tokens(arrays, advantage=-0.75)
        assert np.isnan(found.advantage).tolist() == [True] * 3 + [False, False, True, True, False, False]
        assert set(found.advantage[found.learns].tolist()) == {-0.75}
        assert levels_of(found, "advantage").tolist() == [0, 0, 0, 2, 2, 0, 0, 2, 2]

    def test_a_trained_trace_knows_everything(self, embedded: RunFolder) -> None:
        import analysis

        run = analysis.load(embedded.root, index=False, progress=False)
        traces = run.traces()
        row = traces[traces["trained"].fillna(False)].iloc[0]
        found = read_trace_tokens(run, row.session_id, int(row.trace_index))
        assert available_overlays(found) == list(OVERLAYS)
        assert found.advantage[found.learns].mean() == pytest.approx(row.advantage)
        assert np.nanmean(found.difference) == pytest.approx(row.train_logprob_diff, abs=1e-6)


class TestLevels:
    def test_the_mask(self, tokens: TraceTokens) -> None:
        assert levels_of(tokens, "mask").tolist() == [1, 1, 1, 3, 3, 2, 2, 3, 3]
        dropped = replace(tokens, trainable=np.zeros(9, np.int8))
        assert levels_of(dropped, "mask").tolist() == [1, 1, 1, 4, 4, 2, 2, 4, 4]
        unknown = replace(tokens, mask=np.full(9, -1, np.int8))
        assert levels_of(unknown, "mask").tolist() == [1, 1, 1, 0, 0, 0, 0, 0, 0]

    def test_probabilities_of_what_was_sampled(self, tokens: TraceTokens) -> None:
        # 0.995, 0.61, two that nobody sampled, 0.0498, 0.0009
        assert levels_of(tokens, "logprob").tolist() == [0, 0, 0, 1, 3, 0, 0, 5, 6]

    @pytest.mark.parametrize(
        ("value", "level"),
        [(0.0, 5), (1e-9, 6), (0.1, 6), (0.1001, 7), (1.0, 8), (50.0, 9), (-0.05, 4), (-9.0, 1), (np.nan, 0)],
    )
    def test_advantages_around_zero(self, tokens: TraceTokens, value: float, level: int) -> None:
        found = replace(tokens, advantage=np.full(9, value, np.float32))
        assert levels_of(found, "advantage").tolist() == [0, 0, 0, level, level, 0, 0, level, level]

    def test_differences_of_what_was_sampled(self, tokens: TraceTokens) -> None:
        found = replace(tokens, train_logprob=tokens.logprob + np.float32(0.1))
        assert levels_of(found, "difference").tolist() == [0, 0, 0, 7, 7, 0, 0, 7, 7]

    def test_places_in_a_turn(self, tokens: TraceTokens) -> None:
        found = replace(tokens, turn_position=np.array([-1, 0, 1, 3, 4, 63, 64, 1023, 1024], np.int32))
        assert levels_of(found, "place").tolist() == [0, 1, 2, 2, 3, 4, 5, 6, 7]

    def test_more_versions_than_colours(self, tokens: TraceTokens) -> None:
        names = tuple(map(str, range(9)))
        found = replace(tokens, version=np.arange(9, dtype=np.int16), versions=names)
        assert levels_of(found, "version").tolist() == [1, 2, 3, 4, 5, 6, 7, 8, 1]
        assert [label for _, label in legend_of(found, "version")] == list(names)

    @pytest.mark.parametrize("name", list(OVERLAYS))
    def test_every_level_but_the_unknown_is_in_the_legend(self, tokens: TraceTokens, name: str) -> None:
        rng = np.random.default_rng(0)
        values = rng.normal(0, 1, 9).astype(np.float32)
        found = replace(tokens, train_logprob=values, advantage=values)
        legend = [level for level, _ in legend_of(found, name)]
        assert set(levels_of(found, name).tolist()) - {0} <= set(legend)
        assert legend == sorted(legend)

    def test_an_overlay_that_is_not_there(self) -> None:
        with pytest.raises(ExplorerError, match="no overlay is called 'heat'"):
            find_overlay("heat")
