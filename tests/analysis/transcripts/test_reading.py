"""Transcripts from every kind of file that holds messages."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

import analysis
from analysis.lab.captures import capture_bytes
from analysis.lab.run_folder import RunFolder
from analysis.transcripts import read_transcript
from tests.analysis.transcripts.made_sessions import Words, load_sessions, session, trace, turn_messages


def load(path: Path, **options: object) -> analysis.Run:
    return analysis.load(path, index=False, progress=False, **options)


class TestASession:
    def test_turns_have_the_numbers_of_their_tokens(self, tmp_path: Path) -> None:
        run = load_sessions(tmp_path, session("ses-1"))
        found = read_transcript(run, "ses-1")
        (only,) = found.traces
        assert (found.source, only.prompt_tokens, only.response_tokens) == ("polar", 3, 6)
        first, second = only.turns
        assert (first.start, first.stop, first.sampled, first.answered) == (3, 5, 2, 2)
        assert (second.start, second.stop, second.sampled, second.answered) == (7, 9, 2, 0)
        assert first.logprob_mean == pytest.approx((-0.005 - 0.5) / 2)
        assert (first.trainable, first.advantage) == (None, None)  # no dump says
        assert (first.weight_versions, second.weight_versions) == (("3",), ("4",))
        assert (first.finish_reason, second.finish_reason) == ("tool_calls", "stop")
        assert [message.turn for message in only.messages] == [None, 0, None, 1]
        assert only.turn_at(4) is first
        assert only.turn_at(5) is None

    def test_weights_that_changed_during_a_turn(self, tmp_path: Path) -> None:
        spans = [{"version": "3", "start": 0, "end": 1}, {"version": "4", "start": 1, "end": 2}]
        about = {"completion_metadata": [{"weight_versions": spans}, {"weight_version": "4"}]}
        run = load_sessions(tmp_path, session("ses-1", trace(metadata=about)))
        first = read_transcript(run, "ses-1").traces[0].turns[0]
        assert first.weight_versions == ("3", "4")
        assert first.version_spans == (("3", 3, 4), ("4", 4, 5))

    def test_messages_that_do_not_match_the_mask_have_no_numbers(self, tmp_path: Path) -> None:
        run = load_sessions(tmp_path, session("ses-1", trace(mask=[1, 0, 1, 0, 1, 0])))
        turns = read_transcript(run, "ses-1").traces[0].turns
        assert [(turn.start, turn.sampled) for turn in turns] == [(None, None), (None, None)]

    def test_without_token_ids(self, tmp_path: Path) -> None:
        bare = trace(ids=((), ()), mask=[], response_logprobs=None)
        run = load_sessions(tmp_path, session("ses-1", bare))
        only = read_transcript(run, "ses-1").traces[0]
        assert (only.prompt_tokens, [turn.sampled for turn in only.turns]) == (None, [None, None])
        assert only.messages[1].tool_calls[0].name == "bash"

    def test_a_frame_has_a_row_per_message(self, tmp_path: Path) -> None:
        run = load_sessions(
            tmp_path, session("ses-1", trace(response=turn_messages(reasoning="hm")), trace())
        )
        frame = read_transcript(run, "ses-1").frame()
        assert frame["trace_index"].tolist() == [0] * 4 + [1] * 4
        assert frame["reasoning"].dropna().tolist() == ["hm"]
        assert frame["tools"].dropna().tolist() == ["bash", "bash"]
        assert frame["sampled_tokens"].dropna().tolist() == [2, 2, 2, 2]

    def test_bare_nan_and_half_surrogate_pairs_are_read_patiently(self, tmp_path: Path) -> None:
        response = turn_messages("half a pair: \ud83d")
        run = load_sessions(tmp_path, session("ses-1", trace(reward=float("nan"), response=response)))
        only = read_transcript(run, "ses-1").traces[0]
        assert (only.reward, only.messages[-1].text) == (None, "half a pair: \ufffd")
        assert [turn.sampled for turn in only.turns] == [2, 2]

    def test_a_session_that_is_not_there_has_no_traces(self, tmp_path: Path) -> None:
        found = read_transcript(load_sessions(tmp_path, session("ses-1")), "ses-2")
        assert (found.traces, found.source, len(found.frame())) == ((), "", 0)

    def test_a_file_that_is_gone_is_a_problem(self, tmp_path: Path) -> None:
        run = load_sessions(tmp_path, session("ses-1"))
        next(tmp_path.rglob("ses_*.json")).unlink()
        (problem,) = read_transcript(run, "ses-1").problems
        assert problem.what == "messages cannot be read"

    def test_frames_have_no_messages(self) -> None:
        assert read_transcript({}, "ses-1").traces == ()


class TestOtherFiles:
    def test_a_task_record(self, tmp_path: Path) -> None:
        record = {"task_id": "t", "status": "completed", "results": [session("ses-1"), session("ses-2")]}
        (tmp_path / "record.json").write_text(json.dumps(record))
        found = read_transcript(load(tmp_path), "ses-2")
        assert (found.source, len(found.traces[0].messages)) == ("polar", 4)

    def test_a_captured_call_of_a_session_without_a_result(self, tmp_path: Path) -> None:
        record = {
            "completion_id": "m1",
            "session_id": "ses-9",
            "request": {"messages": [{"role": "user", "content": "ask"}]},
            "response": {
                "choices": [{"finish_reason": "length", "message": {"role": "assistant", "content": "x"}}]
            },
        }
        place = tmp_path / "task_t" / "sessions" / "ses-9" / "completions"
        place.mkdir(parents=True)
        (place / "0001-m1.json").write_text(json.dumps(record))
        found = read_transcript(load(tmp_path), "ses-9")
        assert found.source == "completion"
        assert [message.text for message in found.traces[0].messages] == ["ask", "x"]
        assert found.traces[0].turns[0].finish_reason == "length"

    def test_dumps_and_rejected_groups_when_the_server_left_nothing(self, embedded: RunFolder) -> None:
        whole = load(embedded.root)
        sessions = whole.sessions()
        accepted = sessions[sessions["accepted"].fillna(False) & sessions["usable"].fillna(False)].iloc[0]
        rejected = sessions[(sessions["accepted"] == False) & sessions["usable"].fillna(False)].iloc[0]  # noqa: E712
        told = {name: read_transcript(whole, name) for name in (accepted.session_id, rejected.session_id)}
        for path in embedded.polar_results.rglob("*.json"):
            path.unlink()
        run = load(embedded.root)
        for name, source in ((accepted.session_id, "rollout_dump"), (rejected.session_id, "rejected")):
            found = read_transcript(run, name)
            assert found.source == source
            said = [message.text for message in told[name].traces[0].response]
            assert [message.text for message in found.traces[0].response] == said
            assert found.traces[0].turns[0].weight_versions == told[name].traces[0].turns[0].weight_versions

    def test_trained_tokens_have_advantages(self, embedded: RunFolder) -> None:
        run = load(embedded.root)
        traces = run.traces()
        row = traces[traces["trained"].fillna(False)].iloc[0]
        turn = read_transcript(run, row.session_id).trace(int(row.trace_index)).turns[0]
        assert turn.advantage == pytest.approx(row.advantage)
        assert turn.trainable == turn.sampled

    def test_token_ids_alone_are_decoded(self, tmp_path: Path) -> None:
        bare = trace(prompt=(), response=())
        run = load_sessions(tmp_path, session("ses-1", bare), tokenizer=Words())
        found = read_transcript(run, "ses-1")
        only = found.traces[0]
        assert (found.source, only.decoded) == ("tokens", True)
        assert [(message.role, message.turn) for message in only.messages] == [
            ("prompt", None),
            ("assistant", 0),
            ("context", None),
            ("assistant", 1),
        ]
        assert only.messages[0].text == "how many\n\n"

    def test_a_real_capture(self, tmp_path: Path) -> None:
        (tmp_path / "ses_long.json").write_bytes(capture_bytes("long"))
        run = load(tmp_path)
        (name,) = run.sessions()["session_id"]
        only = read_transcript(run, name).traces[0]
        assert len(only.response) == 251
        assert [turn.sampled for turn in only.turns] == [8192, 314]
        assert len(only.response[0].tool_calls) == 249
        assert [tool.name for tool in only.tools][:2] == ["read", "ls"]
