from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
from pathlib import Path

import httpx
import pytest

from analysis.lab.polar_server.testing import (
    Fault,
    FaultScript,
    ServerSettings,
    SessionProfile,
    serve_polar,
)
from analysis.lab.router import Router
from slime_bridge._launch import arguments, read_prompt_rows, synthetic_row
from slime_bridge.doctor import Finding, Report, Severity, run_doctor
from slime_bridge.doctor import examination as doctor
from slime_bridge.doctor import probe as doctor_probe
from slime_bridge.doctor.configuration import build_request, check_configuration, check_templates
from slime_bridge.doctor.environment import check_slime, check_tracking, check_versions
from slime_bridge.doctor.generation import TokenEvidence, read_evidence
from slime_bridge.doctor.report import finding
from tests.contracts.slime_runs import needs_slime, slime_dir
from tests.slime_bridge.doctor_peers import args_for, serve_engine

SCRIPTED = {"agent": {"harness": "lab", "model_name": "m"}, "evaluator": {"strategy": "session_completed"}}
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture(autouse=True)
def _environment(monkeypatch):
    monkeypatch.delenv("POLAR_CONTROL_PLANE_TOKEN", raising=False)
    monkeypatch.setattr(doctor_probe, "_CALLBACK_GRACE", 0.5)


def run(polar, **changes):
    options = {name: changes.pop(name) for name in ("prompt_data", "probe", "timeout") if name in changes}
    return run_doctor(args_for(polar, **{"polar_task_template": SCRIPTED, **changes}), **options)


def only(report, check, severity):
    """Return the one finding of that check and severity."""
    found = [item for item in report.of(check) if item.severity is severity]
    assert len(found) == 1, report.render()
    return found[0]


class TestTheWayOfTheTokens:
    """One engine, and what stands before it."""

    def test_a_good_stack_is_ready_to_train(self):
        """Callback, polling, ids, logprobs and weight version all come through, and the report says so."""
        with (
            serve_engine(unasked=True) as engine,
            serve_polar(agents=True, inference_url=engine.url) as polar,
        ):
            report = run_doctor(args_for(polar, polar_run_dir="/tmp"))
        assert report.ok, report.render()
        tokens = only(report, "token ids", Severity.OK)
        assert "3 prompt ids, 2 output ids, 2 logprobs, weight version 4" in tokens.summary
        probe = "\n".join(item.summary for item in report.of("probe task"))
        assert "by polling" in probe
        assert "by callback to 127.0.0.1:" in probe
        assert "127.0.0.1:0" not in probe
        assert "2 tokens to train on" in probe
        assert report.worst in (Severity.OK, Severity.INFO)

    @pytest.mark.lab
    def test_the_real_router_is_named_as_what_drops_the_ids(self, tmp_path):
        """The stock router leaves out the fields that ask for ids; the engine behind it would give them."""
        with (
            serve_engine() as engine,
            Router([engine.url], log_path=tmp_path / "router.log") as router,
            serve_polar(agents=True, inference_url=router.url) as polar,
        ):
            router_args = {"sglang_router_ip": "127.0.0.1", "sglang_router_port": router.port}
            report = run_doctor(args_for(polar, **router_args))
            fields = {"return_prompt_token_ids", "return_meta_info"}
            asked = [fields & body.keys() for body in engine.chats]
        # Through the router, the doctor's direct request, the probe task's through the router.
        assert asked == [set(), fields, set()]
        assert only(report, "router", Severity.OK).evidence == f"{engine.url} (version 0.5.12)"
        lost = only(report, "token ids", Severity.ERROR)
        assert "zero trainable tokens" in lost.summary
        assert f"{engine.url}, asked directly, gives 3 prompt ids" in lost.evidence
        assert "return_prompt_token_ids, return_meta_info" in lost.evidence
        assert "patch-slime" in lost.fix
        probe = only(report, "probe task", Severity.ERROR)
        assert "no token ids" in probe.summary
        assert not report.ok

    @pytest.mark.lab
    def test_an_engine_that_gives_ids_unasked_works_behind_the_real_router(self, tmp_path):
        """Answers pass the router untouched, so such an engine is what the fix recommends."""
        with (
            serve_engine(unasked=True) as engine,
            Router([engine.url], log_path=tmp_path / "router.log") as router,
            serve_polar(agents=True, inference_url=router.url) as polar,
        ):
            report = run_doctor(args_for(polar))
        assert report.ok, report.render()

    def test_a_chat_endpoint_without_ids_beside_a_native_one_with(self):
        """An engine whose chat endpoint lacks the extension is told apart from one that knows no ids."""
        with (
            serve_engine(chat_ids=False) as engine,
            serve_polar(agents=True, inference_url=engine.url) as polar,
        ):
            lost = only(run_doctor(args_for(polar)), "token ids", Severity.ERROR)
            assert "native /generate does give token ids" in lost.evidence
            engine.native_ids = False
            lost = only(run_doctor(args_for(polar)), "token ids", Severity.ERROR)
            assert "gives no token ids either" in lost.evidence

    def test_no_weight_version_is_a_warning(self):
        """Training works without one, but lag and mixed turns are not seen then."""
        with (
            serve_engine(unasked=True, weight_version=None) as engine,
            serve_polar(agents=True, inference_url=engine.url) as polar,
        ):
            report = run_doctor(args_for(polar))
        assert report.ok
        assert "weight_version" in only(report, "token ids", Severity.WARNING).fix
        assert "which weights" in only(report, "probe task", Severity.WARNING).summary

    def test_logprobs_that_are_missing_are_an_error(self):
        """Ids alone cannot be trained on."""
        with (
            serve_engine(unasked=True, logprobs=False) as engine,
            serve_polar(agents=True, inference_url=engine.url) as polar,
        ):
            assert not run_doctor(args_for(polar)).ok

    def test_gateways_that_call_another_address_than_the_router(self):
        """Their rollouts may come from weights that nobody trains."""
        with (
            serve_engine(unasked=True) as engine,
            serve_polar(agents=True, inference_url=engine.url) as polar,
        ):
            report = run_doctor(
                args_for(polar, sglang_router_ip="127.0.0.1", sglang_router_port=1), probe=False
            )
        assert (
            "not the trainer's router http://127.0.0.1:1" in only(report, "router", Severity.WARNING).summary
        )
        assert "no answer at http://127.0.0.1:1" in only(report, "router", Severity.ERROR).summary


class TestServer:
    def test_no_server_is_one_error_with_a_fix(self):
        """A server that is not there is said once, and nothing else is tried."""
        report = run_doctor(
            arguments(
                {"polar_rollout_url": "http://127.0.0.1:9", "polar_task_template": SCRIPTED, "save": "/tmp"}
            )
        )
        down = only(report, "rollout server", Severity.ERROR)
        assert "refused" in down.evidence
        assert "polar_rollout_url" in down.fix
        assert not report.of("gateways")
        assert not report.of("probe task")

    def test_something_else_on_the_port(self):
        """An engine under polar_rollout_url is no rollout server, and the message says so."""
        with serve_engine() as engine:
            report = run_doctor(
                arguments({"polar_rollout_url": engine.url, "polar_task_template": SCRIPTED, "save": "/tmp"})
            )
        assert "no such route" in only(report, "rollout server", Severity.ERROR).evidence

    def test_optional_features(self):
        """What a baseline server lacks matters only where a key relies on it."""
        with serve_polar() as polar:
            plain = run(polar, probe=False)
            wanting = run(
                polar, probe=False, polar_min_complete_accept_fraction=0.5, polar_early_stop_grace_sessions=1
            )
        assert "none, as the baseline" in only(plain, "rollout server", Severity.INFO).summary
        assert "polar_early_stop_grace_sessions has no effect" in (
            only(wanting, "rollout server", Severity.WARNING).evidence
        )
        with serve_polar(newer=True) as polar:
            newer = run(polar, probe=False)
        assert "Polar Rollout 0.1.0; optional features: cancel, early stop" in (
            only(newer, "rollout server", Severity.INFO).summary
        )

    def test_no_gateway(self):
        """Without a gateway every session would wait until its timeout."""
        with serve_polar(settings=ServerSettings(nodes=())) as polar:
            report = run(polar)
        assert "has no gateway" in only(report, "gateways", Severity.ERROR).summary
        assert only(report, "probe task", Severity.SKIPPED)

    def test_a_closed_gate_is_an_error_with_the_command_that_opens_it(self):
        """A killed trainer may leave it closed, and then no agent ever gets an answer."""
        with serve_polar(gateways=2) as polar:
            url = polar.gateways["node-2"].url
            httpx.post(f"{url}/admin/inference/pause", trust_env=False)
            report = run(polar, probe=False)
        closed = [f for f in report.of("gateways") if "gate is closed" in f.summary]
        assert [f.severity for f in closed] == [Severity.ERROR]
        assert f"curl -X POST {url}/admin/inference/resume" in closed[0].fix

    def test_a_gateway_that_cannot_be_reached_from_here(self):
        """The barrier would fail there; everything else works."""
        with serve_polar(gateways=2) as polar:
            polar.gateways["node-1"].stop()
            report = run(polar, probe=False)
        warned = [f for f in report.of("gateways") if "cannot be reached from here" in f.summary]
        assert [f.severity for f in warned] == [Severity.WARNING]

    def test_older_and_unknown_routers(self):
        """Workers are listed by either route; a router with neither gets one clear line."""
        with serve_engine() as engine, serve_polar(agents=True, inference_url=engine.url) as polar:
            report = run(polar, probe=False)
            assert "lists no workers" in only(report, "router", Severity.INFO).summary
            engine.pages["/list_workers"] = {"urls": ["http://a:1", "http://b:2"]}
            listed = only(run(polar, probe=False), "router", Severity.OK)
            assert "has 2 engines" in listed.summary
            engine.pages["/workers"] = {"workers": [{"url": "http://a:1", "is_healthy": False}]}
            without = only(run(polar, probe=False), "router", Severity.ERROR)
            assert "has 0 engines" in without.summary
            assert "http://a:1 (not healthy)" in without.evidence

    def test_a_slow_router_is_not_called_dead(self, monkeypatch):
        """Under load a router answers late; that is a warning."""
        monkeypatch.setattr(doctor, "_REQUEST_SECONDS", 0.5)
        with serve_engine() as engine, serve_polar() as polar:
            engine.slow = 2.0
            port = engine.url.rpartition(":")[2]
            report = run(polar, probe=False, sglang_router_ip="127.0.0.1", sglang_router_port=port)
        assert "slow to answer" in only(report, "router", Severity.WARNING).summary

    def test_the_control_token_is_sent_and_never_shown(self, monkeypatch):
        """A server that asks for the token gets it; the report holds it nowhere."""
        monkeypatch.setenv("POLAR_CONTROL_PLANE_TOKEN", "very-secret-value")
        settings = ServerSettings(control_token="very-secret-value", protect_submit=True, newer=True)
        with serve_polar(settings=settings) as polar:
            report = run(polar)
        assert "tokens to train on" in report.render()
        assert "very-secret-value" not in json.dumps(report.to_dict())


class TestProbe:
    def probe(self, *faults, sessions=None, **changes):
        script = FaultScript(faults=list(faults), sessions=sessions or SessionProfile())
        with serve_polar(script=script, newer=True) as polar:
            return run(polar, **changes), polar

    def test_a_lost_callback_is_a_warning_that_names_the_keys(self):
        """Polling alone works, only later; the fix names what Polar must reach."""
        report, _ = self.probe(Fault("callback_lost"))
        assert "by polling" in only_probe(report, "by polling").summary
        lost = only(report, "probe task", Severity.WARNING)
        assert "no callback" in lost.summary
        assert "polar_callback_host (127.0.0.1)" in lost.fix

    def test_a_callback_that_nobody_can_deliver(self):
        """An advertised address that leads elsewhere shows as a missing callback."""
        report, _ = self.probe(polar_callback_host="127.0.0.2", polar_callback_bind_host="127.0.0.1")
        assert "told to call 127.0.0.2:" in only(report, "probe task", Severity.WARNING).evidence

    def test_an_address_that_cannot_be_bound(self):
        """Training could not start; polling is checked all the same."""
        report, _ = self.probe(polar_callback_bind_host="192.0.2.1")
        assert "cannot be bound" in only(report, "probe task", Severity.ERROR).summary
        assert only_probe(report, "by polling")

    def test_a_refused_task_shows_the_servers_words(self):
        """A template that the server does not take is an error with its message."""
        report, _ = self.probe(polar_task_template={**SCRIPTED, "runtime": {"image": " "}})
        refused = only(report, "probe task", Severity.ERROR)
        assert "did not take the task" in refused.summary
        assert "must not be empty" in refused.evidence

    def test_a_task_that_never_ends_is_given_up_and_cancelled(self):
        """After the timeout nothing of the probe keeps running where the server can cancel."""
        report, polar = self.probe(Fault("task_endless"), timeout=1.0)
        late = only(report, "probe task", Severity.ERROR)
        assert "no result by polling within 1 s; the task's status is running" in late.summary
        assert "--timeout" in late.fix
        assert len(polar.cancelled) == 1

    def test_a_task_that_fails_as_a_whole(self):
        """It is never called back, and nobody waits for that."""
        report, _ = self.probe(Fault("task_failed"))
        assert "ended as failed" in only(report, "probe task", Severity.ERROR).summary

    def test_an_error_of_the_agent_is_quoted_without_its_secrets(self):
        """The session's own words are the evidence; keys in them are not."""
        text = "agent died: OPENAI_API_KEY=sk-aaaaaaaaaaaaaaaaaaaaaaaa was refused"
        report, _ = self.probe(Fault("session_error", value=text))
        failed = only(report, "probe task", Severity.ERROR)
        assert "agent died" in failed.evidence
        assert "sk-aaaa" not in report.render()

    @pytest.mark.parametrize(
        ("kind", "words"),
        [
            ("no_token_ids", "no token ids"),
            ("short_logprobs", "logprob error"),
            ("nan_logprob", "logprob error"),
            ("zero_mask", "zero trainable"),
            ("no_traces", "no traces"),
            ("session_timeout", "timeout"),
            ("session_malformed", "malformed"),
        ],
    )
    def test_each_way_to_have_nothing_to_train_on_is_named(self, kind, words):
        """The reason is the one that training would give."""
        report, _ = self.probe(Fault(kind))
        assert f"nothing to train on: {words}" in only(report, "probe task", Severity.ERROR).summary

    def test_a_null_reward_is_a_warning(self):
        """It would be trained on as 0.0, which nobody should learn from a curve."""
        report, _ = self.probe(sessions=SessionProfile(reward=None))
        assert "no reward" in only(report, "probe task", Severity.WARNING).summary
        report, _ = self.probe(sessions=SessionProfile(reward=None), polar_missing_reward="error")
        assert "cannot be converted" in only(report, "probe task", Severity.ERROR).summary

    def test_without_a_probe_nothing_is_submitted(self):
        """--no-probe leaves no trace on the server."""
        report, polar = self.probe(probe=False)
        assert polar.submits == 0
        assert only(report, "probe task", Severity.SKIPPED)

    def test_an_interrupt_cancels_the_probe(self):
        """Ctrl-C comes through, and the task does not run on for nobody."""
        with serve_polar(script=FaultScript(faults=[Fault("task_endless")]), newer=True) as polar:

            def interrupt():
                polar.wait_until(lambda: polar.submits)
                signal.pthread_kill(threading.main_thread().ident, signal.SIGINT)

            thread = threading.Thread(target=interrupt)
            thread.start()
            with pytest.raises(KeyboardInterrupt):
                run(polar)
            thread.join()
            polar.wait_until(lambda: polar.cancelled)


def only_probe(report, words):
    [found] = [item for item in report.of("probe task") if words in item.summary]
    return found


class TestConfiguration:
    def found(self, **keys):
        return check_configuration(arguments(keys))[0]

    def texts(self, severity, **keys):
        return [item.summary for item in self.found(**keys) if item.severity is severity]

    def test_every_wrong_key_is_reported_at_once(self):
        """Three mistakes are three findings, each with its key, its value and the allowed form."""
        errors = self.texts(
            Severity.ERROR,
            polar_rollout_url="http://h:1",
            polar_task_template=SCRIPTED,
            polar_max_async_level=0,
            polar_callback_host="0.0.0.0",
            polar_fully_async="perhaps",
        )
        assert len(errors) == 3
        for key, value in (
            ("max_async_level", "0"),
            ("callback_host", "0.0.0.0"),
            ("fully_async", "perhaps"),
        ):
            [text] = [text for text in errors if f"polar_{key}" in text]
            assert value in text
            assert "expected" in text

    @pytest.mark.parametrize("template", [None, {}, {"agent": None}, [], "text"])
    def test_an_empty_or_wrong_template_is_named(self, template):
        """An empty section is an error that names the key, never a type error from the depths."""
        errors = self.texts(Severity.ERROR, polar_rollout_url="http://h:1", polar_task_template=template)
        assert len(errors) == 1
        assert "polar_task_template" in errors[0]

    def test_a_filter_that_cannot_be_loaded_is_an_error(self):
        """Before the first rollout, with the flag's name."""
        keys = {"polar_rollout_url": "http://h:1", "polar_task_template": SCRIPTED}
        [text] = self.texts(Severity.ERROR, **keys, dynamic_sampling_filter_path="no.such.filter")
        assert "dynamic_sampling_filter_path is 'no.such.filter'" in text
        assert not self.texts(Severity.ERROR, **keys, dynamic_sampling_filter_path="builtins.any")

    def test_a_misspelt_key_is_a_warning_with_the_right_one(self):
        """A key without effect is never silent."""
        warnings = self.texts(
            Severity.WARNING,
            polar_rollout_url="http://h:1",
            polar_task_template=SCRIPTED,
            polar_callback_hosts="x",
        )
        assert any("did you mean polar_callback_host" in text for text in warnings)

    def test_what_the_command_line_says_is_asked_for(self):
        """Limits from defaults would be those of another run, so they are said to be unknown."""
        assert any(
            "rollout_batch_size" in text
            for text in self.texts(
                Severity.INFO, polar_rollout_url="http://h:1", polar_task_template=SCRIPTED
            )
        )

    def test_a_journal_that_cannot_be_written(self, tmp_path):
        """Found before the training, not in its first rollout."""
        file = tmp_path / "file"
        file.write_text("")
        keys = {"polar_rollout_url": "http://h:1", "polar_task_template": SCRIPTED}
        assert any("no folder" in t for t in self.texts(Severity.ERROR, polar_run_dir=f"{file}/run", **keys))
        assert not self.texts(Severity.ERROR, polar_run_dir=f"{tmp_path}/deep/run", **keys)
        assert any("no journal" in t for t in self.texts(Severity.WARNING, polar_run_dir="off", **keys))

    def test_fully_async_without_a_barrier_is_mentioned(self):
        """The flag that avoids cut turns is named where it helps."""
        keys = {"polar_rollout_url": "http://h:1", "polar_task_template": SCRIPTED, "polar_fully_async": True}
        path = "slime_bridge.megatron_hooks.install_weight_update_barrier"
        assert any("push cuts" in t for t in self.texts(Severity.INFO, **keys))
        assert not any(
            "push cuts" in t for t in self.texts(Severity.INFO, custom_megatron_init_path=path, **keys)
        )


class TestTemplates:
    TEMPLATE = {**SCRIPTED, "metadata": {"difficulty": "{sample.metadata.level}"}}

    def found(self, tmp_path, lines, template=None, **keys):
        path = tmp_path / "prompts.jsonl"
        path.write_text(
            "\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n"
        )
        args = arguments(
            {"polar_rollout_url": "http://h:1", "polar_task_template": template or self.TEMPLATE, **keys}
        )
        _, config = check_configuration(args)
        return check_templates(args, config, list(read_prompt_rows(str(path), args)), source=str(path))

    def test_rows_with_the_same_problem_are_one_finding_with_their_lines(self, tmp_path):
        """A mistake in many rows is said once, with the first lines that have it."""
        good = {"input": "a", "metadata": {"level": 3}}
        bad = {"input": "a", "metadata": {"lvl": 3}}
        found, sample = self.found(tmp_path, [good, bad, good, bad, {"input": " ", "metadata": {"level": 1}}])
        errors = [item for item in found if item.severity is Severity.ERROR]
        assert [item.summary for item in errors] == [
            "2 of 5 rows cannot be submitted",
            "1 of 5 rows cannot be submitted",
        ]
        assert errors[0].evidence.startswith("line 2, 4: ")
        assert "sample.metadata.level" in errors[0].evidence
        assert "blank instruction" in errors[1].evidence
        assert sample.prompt == "a"

    def test_requests_of_one_size_are_no_range(self, tmp_path):
        """The row says how large requests are, from the smallest to the largest where they differ."""
        row = {"input": "a", "metadata": {"level": 3}}
        evidence = [
            self.found(tmp_path, rows)[0][0].evidence for rows in ([row, row], [row, {**row, "input": "ab"}])
        ]
        size = int(evidence[0].split()[2])
        assert evidence == [f"requests of {size} bytes", f"requests of {size} to {size + 1} bytes"]

    def test_lines_that_slime_passes_over_are_counted(self, tmp_path):
        """They would be missing from the epoch without a word."""
        found, _ = self.found(tmp_path, [{"input": "a"}, "{torn", ""], template=SCRIPTED)
        [lost] = [item for item in found if item.severity is Severity.WARNING]
        assert "1 of 2 lines are passed over" in lost.summary
        assert "line 2" in lost.evidence

    @pytest.mark.parametrize(
        ("row", "keys", "words"),
        [
            ({"prompt": "a"}, {}, "has no column 'input' (input_key)"),
            ({"input": "a"}, {"label_key": "label"}, "has no column 'label' (label_key)"),
            ([1], {}, "is no JSON object but a list"),
            ({"input": "a", "metadata": "text"}, {}, "metadata that is a str"),
            ({"input": "a", "tools": "{"}, {}, "tools in a text that is not JSON"),
            ({"input": "a", "metadata": {"agent_timeout": "soon"}}, {}, "metadata.agent_timeout is 'soon'"),
            ({"input": None}, {}, "blank instruction"),
        ],
    )
    def test_each_kind_of_wrong_row(self, tmp_path, row, keys, words):
        """The row's line and what is wrong with it, in terms of the file."""
        found, sample = self.found(tmp_path, [row], template=SCRIPTED, **keys)
        [error] = [item for item in found if item.severity is Severity.ERROR]
        assert words in error.evidence
        assert error.evidence.startswith("line 1")
        assert sample is None

    def test_a_rendered_chat_template_as_instruction_is_warned_about(self, tmp_path):
        """Special tokens of the policy's template have no business in an agent's instruction."""
        found, _ = self.found(tmp_path, [{"input": "a"}], template=SCRIPTED, apply_chat_template=True)
        assert any("apply_chat_template" in item.summary for item in found)

    def test_a_slice_of_the_file(self, tmp_path):
        """Slime's `file@[start:stop]` reads the same rows here."""
        path = tmp_path / "p.jsonl"
        path.write_text("".join(json.dumps({"input": str(i)}) + "\n" for i in range(5)))
        rows = read_prompt_rows(f"{path}@[1:3]", arguments({}))
        assert [row.sample.prompt for row in rows] == ["1", "2"]
        assert len(list(read_prompt_rows(str(path), arguments({}), limit=2))) == 2

    def test_the_request_is_the_workers(self):
        """What is rendered here is what the worker would submit, sessions and metadata included."""
        args = arguments(
            {"polar_rollout_url": "http://h:1", "polar_task_template": SCRIPTED, "n_samples_per_prompt": 4}
        )
        _, config = check_configuration(args)
        request = build_request(args, config, synthetic_row("Do it.").sample)
        assert (request.instruction, request.num_samples) == ("Do it.", 4)
        assert request.metadata == {"group_id": 0, "policy_version": 0, "rollout_step": 0}

    def test_a_missing_file_is_an_error_and_the_rest_goes_on(self):
        """The other checks do not depend on the rows."""
        with serve_polar() as polar:
            report = run(polar, prompt_data="/nowhere/p.jsonl", probe=False)
        assert "/nowhere/p.jsonl" in only(report, "templates", Severity.ERROR).summary
        assert report.of("rollout server")


@pytest.fixture
def package(tmp_path, monkeypatch):
    """Put a package named slime on the path."""

    def put(files):
        for name, source in files.items():
            path = tmp_path / name
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(textwrap.dedent(source))
        for name in [n for n in sys.modules if n == "slime" or n.startswith("slime.")]:
            monkeypatch.delitem(sys.modules, name)
        monkeypatch.syspath_prepend(str(tmp_path))
        return tmp_path

    yield put
    for name in [n for n in sys.modules if n == "slime" or n.startswith("slime.")]:
        del sys.modules[name]


class TestEnvironment:
    def test_no_slime_is_no_error_here(self):
        """A laptop has none, and can check everything else."""
        [absent] = check_slime()
        assert absent.severity is Severity.INFO
        assert "not importable" in absent.summary

    def test_the_namesake_is_an_error_that_says_how_to_get_the_real_one(self, package):
        """PyPI's `slime` is another project; training with it cannot work."""
        package({"slime/__init__.py": "", "slime/core/__init__.py": ""})
        [wrong] = check_slime()
        assert wrong.severity is Severity.ERROR
        assert "pip uninstall slime" in wrong.fix
        assert "THUDM/slime" in wrong.fix

    def test_a_broken_slime_is_an_error_with_its_cause(self, package):
        """A checkout without its requirements is told apart from none at all."""
        package(
            {
                "slime/__init__.py": "",
                "slime/rollout/__init__.py": "",
                "slime/utils/__init__.py": "",
                "slime/utils/types.py": "import a_package_that_is_not_there",
            }
        )
        [broken] = check_slime()
        assert broken.severity is Severity.ERROR
        assert "a_package_that_is_not_there" in broken.evidence

    @pytest.mark.slime
    @needs_slime
    def test_real_slime_is_recognised(self):
        """With the checkout on the path: its place, its trajectory key, and its adapter's state."""
        code = (
            "from slime_bridge.doctor.environment import check_slime\n"
            "for item in check_slime(): print(item.severity, item.summary, item.evidence)\n"
        )
        environment = {**os.environ, "PYTHONPATH": f"{ROOT}{os.pathsep}{slime_dir()}"}
        environment["PYTHONDONTWRITEBYTECODE"] = "1"
        done = subprocess.run(
            [sys.executable, "-c", code],
            env=environment,
            capture_output=True,
            text=True,
            timeout=55,
            check=True,
        )
        assert "ok THUDM's Slime; trajectories are told apart by Sample.group_id" in done.stdout
        assert "adapter is as released" in done.stdout

    def test_versions_that_do_not_fit(self, monkeypatch):
        """A library below the floor is an error; numpy 2 beside Megatron a warning."""
        versions = {"numpy": "2.1.0", "msgspec": "0.18.6", "megatron-core": "0.16.0", "python": "3.12.1"}

        def version(name):
            if name in versions:
                return versions[name]
            return "99.0"

        monkeypatch.setattr("slime_bridge.doctor.environment.metadata.version", version)
        found = check_versions()
        assert ["msgspec" in item.summary for item in found if item.severity is Severity.ERROR] == [True]
        assert ["numpy<2" in item.fix for item in found if item.severity is Severity.WARNING] == [True]
        assert "msgspec 0.18.6" in found[0].evidence

    @pytest.mark.parametrize(
        ("keys", "words"),
        [
            ({"use_wandb": False}, ["off"]),
            ({"use_wandb": True}, ["wandb_group is not set", "generate_id"]),
            ({"use_wandb": True, "wandb_group": "g"}, ["generate_id"]),
            ({"use_wandb": True, "wandb_random_suffix": False}, []),
            ({"use_wandb": True, "wandb_random_suffix": False, "wandb_mode": "disabled"}, ["disabled"]),
        ],
    )
    def test_what_keeps_wandb_from_working(self, monkeypatch, keys, words):
        """Each trap of Slime's W&B start is named with the flag that avoids it."""
        monkeypatch.setenv("WANDB_API_KEY", "0" * 40)
        monkeypatch.delenv("WANDB_MODE", raising=False)
        monkeypatch.setattr("slime_bridge.doctor.environment.metadata.version", lambda name: "0.31.0")
        found = check_tracking(arguments(keys))
        problems = [item.summary for item in found if item.severity is not Severity.OK]
        assert len(problems) == len(words)
        for problem, word in zip(problems, words, strict=True):
            assert word in problem

    def test_wandb_without_a_key(self, monkeypatch):
        """Online without any key is a warning that names where to put it."""
        monkeypatch.delenv("WANDB_API_KEY", raising=False)
        monkeypatch.delenv("WANDB_MODE", raising=False)
        monkeypatch.setattr("slime_bridge.doctor.environment.metadata.version", lambda name: "0.20.0")
        [found] = check_tracking(arguments({"use_wandb": True, "wandb_group": "g"}))
        assert found.severity is Severity.WARNING
        assert "runtime_env" in found.fix


class TestReport:
    def test_findings_come_one_by_one_in_the_callers_thread(self):
        """A notebook may show each finding as it is made; together they are the report."""
        seen = []
        with serve_polar() as polar:
            report = run_doctor(
                args_for(polar, polar_task_template=SCRIPTED),
                on_finding=lambda item: seen.append((item, threading.current_thread())),
            )
        assert tuple(item for item, _ in seen) == report.findings
        assert {thread for _, thread in seen} == {threading.current_thread()}

    def test_works_inside_a_running_event_loop(self):
        """As in a notebook's kernel."""

        async def cell(polar):
            return run(polar)

        with serve_polar() as polar:
            report = asyncio.run(cell(polar))
        assert "tokens to train on" in report.render()

    def test_a_broken_check_hides_no_other(self, monkeypatch):
        """A bug in one check is a finding of its own."""

        def broken():
            raise ZeroDivisionError("oops")

        monkeypatch.setattr(doctor, "check_versions", broken)
        with serve_polar() as polar:
            report = run(polar, probe=False)
        assert "ZeroDivisionError: oops" in only(report, "versions", Severity.WARNING).evidence
        assert report.of("gateways")

    def test_a_bug_behind_the_network_is_a_finding_too(self, monkeypatch):
        """Also one in the checks that run in the other thread."""

        async def broken(*args, **kwargs):
            raise ZeroDivisionError("oops")

        monkeypatch.setattr(doctor, "check_gateways", broken)
        with serve_polar() as polar:
            report = run(polar, probe=False)
        assert "ZeroDivisionError" in report.render()

    def test_forms(self):
        """Rows are flat and of text, the dictionary is JSON, the text has every finding."""
        items = (
            finding("a", Severity.OK, "fine"),
            finding("b", Severity.ERROR, "bad", evidence="Bearer abcdefghijkl", fix="one\ntwo"),
        )
        report = Report(items, 1.25)
        assert report.to_rows()[1] == {
            "check": "b",
            "severity": "error",
            "summary": "bad",
            "evidence": "Bearer ***",
            "fix": "one\ntwo",
        }
        assert json.loads(json.dumps(report.to_dict()))["counts"]["error"] == 1
        assert (report.ok, report.worst) == (False, Severity.ERROR)
        assert report.render().splitlines() == [
            "OK       a: fine",
            "ERROR    b: bad",
            "         Bearer ***",
            "         fix: one",
            "         two",
            "not ready to train: 1 ok, 1 error in 1.2 s",
        ]
        assert Report((), 0.0).worst is Severity.OK
        assert Finding("a", Severity.OK, "fine").render() == "OK       a: fine"


@pytest.mark.parametrize(
    ("answer", "expected"),
    [
        (None, TokenEvidence()),
        ({"choices": []}, TokenEvidence()),
        ({"choices": [None]}, TokenEvidence()),
        (
            {
                "prompt_token_ids": [1, 2],
                "choices": [
                    {
                        "token_ids": [3],
                        "logprobs": {"content": [{"token": "a", "token_id": 3, "logprob": -1}]},
                    }
                ],
            },
            TokenEvidence(2, 1, 1),
        ),
        (
            {"choices": [{"token_ids": [], "meta_info": {"output_token_logprobs": [[-1.0, 5, "a"]]}}]},
            TokenEvidence(),
        ),
        (
            {
                "metadata": {"weight_version": 3},
                "choices": [
                    {
                        "prompt_token_ids": [1],
                        "token_ids": [5, 6],
                        "meta_info": {"output_token_logprobs": [[-1.0, 5, "a"], [-1.0, 7, "b"]]},
                    }
                ],
            },
            TokenEvidence(1, 2, 0, "3"),
        ),
        (
            {"choices": [{"logprobs": {"content": [{"token": "a", "id": 3, "logprob": -1}]}}]},
            TokenEvidence(),
        ),
    ],
)
def test_evidence_follows_the_gateways_rules(answer, expected):
    """An empty list hides other sources, logprobs must match the ids, an id under another name is none."""
    assert read_evidence(answer) == expected
