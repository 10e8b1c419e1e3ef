"""What servers can do is asked once; what is missing and wanted is named, in the log and in the journal."""

import json
import logging

import httpx
import pytest

from analysis.lab.polar_server.testing import Fault, FaultScript, ServerSettings, SessionProfile, serve_polar
from slime_bridge import capabilities
from slime_bridge.capabilities import (
    FEATURES,
    Capabilities,
    ServerFeatures,
    configured_features,
    features_of,
    read_features,
)
from slime_bridge.client import PolarClient
from slime_bridge.config import resolve_polar_slime_config
from slime_bridge.journal import EventLog
from slime_bridge.protocol import TaskRequest
from slime_bridge.rollout import generate_rollout_polar_async, get_global_async_worker, stop_global_worker
from tests.slime_bridge.loops import run_real
from tests.slime_bridge.rollouts import Source, make_args

QUICK = FaultScript(sessions=SessionProfile(duration=0.02))
NEWER = {"cancel", "early_stop", "dispatch_priority", "agent_timeout", "sampling_seed", "control_token"}


@pytest.fixture(autouse=True)
def _stopped(caplog):
    caplog.set_level(logging.INFO, logger="slime_bridge.capabilities")
    capabilities._told.clear()
    yield
    stop_global_worker()


@pytest.fixture(scope="module", params=[False, True], ids=["baseline", "newer"])
def described(request):
    """The description of a real server of either kind, and what it has."""
    with serve_polar(newer=request.param) as polar:
        document = httpx.get(f"{polar.url}/openapi.json", trust_env=False).json()
    return document, NEWER if request.param else set()


def said(caplog, text="Inactive with the rollout server"):
    return [record for record in caplog.records if text in record.getMessage()]


def config_of(**settings):
    return resolve_polar_slime_config(make_args("http://127.0.0.1:1", **settings))


class TestDescriptions:
    def test_both_kinds_of_servers_are_told_apart(self, described):
        """From the routes and models that they publish."""
        document, available = described
        features = read_features(document)
        assert features.available == available
        assert (features.title, features.version) == ("Polar Rollout", "0.1.0")

    def test_a_server_that_takes_init_commands(self, described):
        """Newer sandboxes run a command of the task before the agent."""
        document = json.loads(json.dumps(described[0]))
        document["components"]["schemas"]["RuntimeSpec"]["properties"]["direct_exec_init_command"] = {}
        assert "init_command" in read_features(document).available

    def test_an_inlined_schema(self):
        """Generators may write the request's model in place."""
        schema = {"properties": {"early_stop_min_usable_sessions": {}}}
        post = {"requestBody": {"content": {"application/json": {"schema": schema}}}}
        document = {"paths": {"/rollout/task/submit": {"post": post}}, "components": {"schemas": {}}}
        assert {"early_stop", "agent_timeout"} <= read_features(document).available

    @pytest.mark.parametrize(
        "document",
        [
            None,
            [],
            {},
            {"paths": {}},
            {"paths": [], "components": 3},
            {"paths": {"/": 1}, "components": {"schemas": {}}},
        ],
    )
    def test_what_is_no_description_says_nothing(self, document):
        """An engine's document, or a proxy's idea of one."""
        assert read_features(document) is None

    def test_lacking_features_stand_in_order(self):
        """The same order in every message."""
        assert ServerFeatures(frozenset({"cancel"})).lacks({"control_token", "cancel", "early_stop"}) == [
            "early_stop",
            "control_token",
        ]


class TestWhatIsWanted:
    @pytest.mark.parametrize(
        ("settings", "wanted"),
        [
            ({}, set()),
            ({"polar_min_complete_accept_fraction": 0.25, "n_samples_per_prompt": 8}, {"early_stop"}),
            (
                {
                    "polar_min_complete_accept_fraction": 0.25,
                    "n_samples_per_prompt": 8,
                    "polar_scoring_mode": "individual",
                },
                set(),
            ),
            ({"polar_train_agent_timeout": 5}, {"agent_timeout"}),
            ({"polar_eval_agent_timeout": 5}, {"agent_timeout"}),
            (
                {
                    "polar_task_template": {
                        "agent": {"harness": "lab"},
                        "dispatch_priority": 5,
                        "metadata": {"eval_sampling_seed_base": 0, "agent_timeout": 3},
                        "runtime": {"image": "x", "direct_exec_init_command": "true"},
                    }
                },
                {"dispatch_priority", "sampling_seed", "agent_timeout", "init_command"},
            ),
        ],
    )
    def test_by_configuration(self, settings, wanted):
        """Known before the first prompt."""
        assert configured_features(config_of(**settings)) == wanted

    def test_the_token_is_a_feature_too(self, monkeypatch):
        """A server without tokens protects nothing."""
        monkeypatch.setenv("POLAR_CONTROL_PLANE_TOKEN", "secret")
        assert configured_features(config_of()) == {"control_token"}

    @pytest.mark.parametrize(
        ("fields", "wanted"),
        [
            ({}, set()),
            ({"dispatch_priority": 0, "metadata": {}, "runtime": None}, set()),
            (
                {"early_stop_min_usable_sessions": 3, "dispatch_priority": 1},
                {"early_stop", "dispatch_priority"},
            ),
            (
                {"metadata": {"agent_timeout": 3, "eval_sampling_seed_base": 0}},
                {"agent_timeout", "sampling_seed"},
            ),
            ({"runtime": {"image": "x", "direct_exec_init_command": "make"}}, {"init_command"}),
        ],
    )
    def test_by_request(self, fields, wanted):
        """A prompt's metadata can ask for more than the configuration does."""
        request = TaskRequest.from_payload(
            {"task_id": "t", "instruction": "x", "agent": {"harness": "lab"}, **fields}
        )
        assert features_of(request) == wanted

    def test_every_feature_has_a_reason(self):
        """A name alone helps nobody."""
        assert all(len(reason) > 20 for reason in FEATURES.values())


class Log(EventLog):
    """A journal in memory."""

    def __init__(self):
        self.records = []

    def record(self, event, /, **fields):
        self.records.append((event, fields))


def learned(polar, *requests, without_effect=None, **settings):
    """Ask a server; returns what is known, and the journal."""
    journal = Log()
    config = resolve_polar_slime_config(make_args(polar.url, **settings))
    known = Capabilities(polar.url, configured_features(config), journal, without_effect)

    async def main():
        async with PolarClient(polar.url) as client:
            await known.learn(client)
            for request in requests:
                known.note(request)
            return client

    client = run_real(main())
    return known, journal.records, client


class TestLearning:
    def test_missing_features_are_named_once(self, caplog):
        """One line with all reasons, one record, and the client does not try what is not there."""
        settings = {"polar_train_agent_timeout": 5, "polar_min_complete_accept_fraction": 0.25}
        with serve_polar() as polar:
            known, records, client = learned(polar, n_samples_per_prompt=8, **settings)
            learned(polar, n_samples_per_prompt=8, **settings)
            assert polar.requests_to("/rollout/task", "DELETE") == []
        assert set(known.inactive) == {"cancel", "early_stop", "agent_timeout"}
        assert known.inactive["early_stop"] == FEATURES["early_stop"]
        assert "cancel" in client.inactive_features
        (line,) = said(caplog)
        assert line.levelno == logging.WARNING
        assert "polar_early_stop_grace_sessions has no effect" in line.getMessage()
        assert "polar_train_agent_timeout" in line.getMessage()
        assert records == [("capabilities", {"features": [], "inactive": known.inactive, "gateways": 1})]

    def test_nothing_wanted_is_no_warning(self, caplog):
        """A baseline server is an ordinary server."""
        with serve_polar() as polar:
            known, _, _ = learned(polar)
        assert set(known.inactive) == {"cancel"}
        assert [record.levelno for record in said(caplog)] == [logging.INFO]

    def test_a_newer_server_has_it_all(self, caplog):
        """Then there is nothing to say."""
        with serve_polar(newer=True) as polar:
            known, records, _ = learned(polar, polar_train_agent_timeout=5)
        assert known.inactive == {}
        assert said(caplog) == []
        assert records[0][1]["features"] == sorted(NEWER)

    def test_a_prompt_that_asks_for_more_is_named_when_it_comes(self, caplog):
        """Once, however many prompts do."""
        request = TaskRequest.from_payload(
            {
                "task_id": "t",
                "instruction": "x",
                "agent": {"harness": "lab"},
                "runtime": {"image": "x", "direct_exec_init_command": "make"},
            }
        )
        with serve_polar() as polar:
            known, records, _ = learned(polar, request, request)
        assert "init_command" in known.inactive
        assert "init_command" in known.wanted
        assert len(records) == 2
        assert len(said(caplog)) == 2
        assert "metadata.runtime_init_command" in said(caplog)[1].getMessage()

    def test_keys_without_effect_stand_beside_them(self):
        """One list for whoever asks."""
        with serve_polar(newer=True) as polar:
            known, records, _ = learned(polar, without_effect={"rm_type": "because"})
        assert known.inactive == {"rm_type": "because"}
        assert records[0][1]["inactive"] == {"rm_type": "because"}

    @pytest.mark.parametrize(
        "fault",
        [
            Fault("response_status", path="/openapi.json", status=404, value="Not Found"),
            Fault("response_garbage", path="/openapi.json", value="<html>"),
        ],
        ids=["none", "something else"],
    )
    def test_a_server_that_does_not_describe_itself(self, caplog, fault):
        """What is not known is not claimed to be missing."""
        with serve_polar(FaultScript(faults=[fault])) as polar:
            known, records, _ = learned(polar, polar_train_agent_timeout=5)
        assert known.server is None
        assert known.inactive == {}
        assert records[0][1]["features"] is None
        (line,) = said(caplog, "does not describe itself")
        assert "cancel, agent_timeout" in line.getMessage()

    def test_trouble_on_the_way_is_tried_again(self, monkeypatch, caplog):
        """Also, it opens no fuse: nobody concludes an outage from it."""
        monkeypatch.setattr(capabilities, "_PAUSE_SECONDS", 0.01)
        fault = Fault("response_status", path="/openapi.json", status=500, times=2)
        with serve_polar(FaultScript(faults=[fault])) as polar:
            known, _, client = learned(polar)
        assert known.server is not None
        assert not client.fuse.is_open

    def test_no_gateway_is_said_at_the_start(self, caplog):
        """Instead of after the first timeout."""
        with serve_polar(settings=ServerSettings(nodes=())) as polar:
            _, records, _ = learned(polar)
        assert records[0][1]["gateways"] == 0
        assert len(said(caplog, "has no gateway yet")) == 1


class TestInTheWorker:
    def test_journal_attribute_and_metric(self, tmp_path):
        """Whoever looks later finds it: in the journal, on the worker, and as a number per rollout."""
        with serve_polar(QUICK) as polar:
            args = make_args(
                polar.url, polar_train_agent_timeout=5, partial_rollout=True, polar_run_dir=str(tmp_path)
            )
            source = Source()
            worker = get_global_async_worker(args, source)
            assert set(worker.inactive_features) == {"partial_rollout"}
            generate_rollout_polar_async(args, 0, source)
            polar.wait_until(lambda: len(worker.inactive_features) == 3)
            assert set(worker.inactive_features) == {"partial_rollout", "cancel", "agent_timeout"}
            output = generate_rollout_polar_async(args, 1, source)
            assert output.metrics["polar/inactive_features"] == 3
            stop_global_worker()
        lines = [json.loads(line) for line in (tmp_path / "journal.jsonl").read_text().splitlines()]
        (record,) = [line for line in lines if line["event"] == "capabilities"]
        assert record["features"] == []
        assert set(record["inactive"]) == {"partial_rollout", "cancel", "agent_timeout"}

    def test_a_server_that_never_describes_itself_delays_nothing(self):
        """The question runs beside the work."""
        fault = Fault("response_hang", path="/openapi.json")
        script = FaultScript(sessions=SessionProfile(duration=0.02), faults=[fault])
        with serve_polar(script) as polar:
            output = generate_rollout_polar_async(make_args(polar.url), 0, Source())
        assert len(output.samples) == 4

    def test_evaluation_asks_only_where_it_matters(self, tmp_path, caplog):
        """A time limit of the agent does; then a baseline server is named, without any training."""
        path = tmp_path / "eval.jsonl"
        path.write_text(json.dumps({"input": "question", "metadata": {}}))
        datasets = [{"name": "held-out", "path": str(path), "input_key": "input", "metadata_key": "metadata"}]
        with serve_polar(QUICK) as polar:
            for settings in ({}, {"polar_eval_agent_timeout": 5}):
                args = make_args(polar.url, eval_datasets=datasets, n_samples_per_eval_prompt=1, **settings)
                generate_rollout_polar_async(args, 0, Source(), evaluation=True)
                asked = polar.requests_to("/openapi.json")
                assert len(asked) == len(settings)
        (line,) = said(caplog)
        assert "polar_eval_agent_timeout" in line.getMessage()
