import copy
import logging
from types import SimpleNamespace

import pytest
import yaml

from slime_bridge.config import resolve_sglang_router_base_url
from slime_bridge.errors import ConfigError, TemplateError
from slime_bridge.topology import load_topology, render_topology_template, resolve_rollout_url

ROUTER = SimpleNamespace(sglang_router_ip="10.0.0.7", sglang_router_port=3000)
NO_ROUTER = SimpleNamespace(sglang_router_ip=None, sglang_router_port=None)
GATEWAY = {"nodes": [{"id": "n1"}]}


@pytest.fixture
def write(tmp_path):
    def write(document):
        path = tmp_path / "topology.yaml"
        path.write_text(document if isinstance(document, str) else yaml.safe_dump(document))
        return str(path)

    return write


class TestRouterUrl:
    @pytest.mark.parametrize(
        ("args", "url"),
        [
            ({"sglang_router_ip": "10.0.0.7", "sglang_router_port": 3000}, "http://10.0.0.7:3000"),
            ({"sglang_router_ip": "router", "sglang_router_port": "3000"}, "http://router:3000"),
            ({"sglang_router_ip": "fd00::1", "sglang_router_port": 3000}, "http://[fd00::1]:3000"),
            ({"sglang_router_ip": "[fd00::1]", "sglang_router_port": 3000}, "http://[fd00::1]:3000"),
            ({"sglang_model_routers": {"default": ("h", 1)}}, "http://h:1"),
            (
                {
                    "sglang_router_ip": "a",
                    "sglang_router_port": 2,
                    "sglang_model_routers": {"default": ("b", 1)},
                },
                "http://a:2",
            ),
        ],
    )
    def test_known(self, args, url):
        """Both places where Slime leaves the address, and addresses of both families."""
        assert resolve_sglang_router_base_url(SimpleNamespace(**args)) == url

    @pytest.mark.parametrize(
        "args", [{}, {"sglang_router_ip": None, "sglang_router_port": 1}, {"sglang_router_ip": "h"}]
    )
    def test_not_known(self, args):
        """Before Slime's servers have started, the error says who sets the address."""
        with pytest.raises(ConfigError, match="Slime sets both when its servers have started"):
            resolve_sglang_router_base_url(SimpleNamespace(**args))

    @pytest.mark.parametrize("port", ["http", 0, 70000, True])
    def test_bad_port(self, port):
        """The error names the argument and its value."""
        args = SimpleNamespace(sglang_router_ip="h", sglang_router_port=port)
        with pytest.raises(ConfigError, match=f"sglang_router_port is {port!r}"):
            resolve_sglang_router_base_url(args)


class TestRolloutUrl:
    @pytest.mark.parametrize(
        ("rollout", "url"),
        [
            (None, "http://127.0.0.1:8080"),
            ({}, "http://127.0.0.1:8080"),
            ({"host": "0.0.0.0", "port": 9}, "http://127.0.0.1:9"),
            ({"host": "::"}, "http://127.0.0.1:8080"),
            ({"host": "fd00::1"}, "http://[fd00::1]:8080"),
            ({"host": "polar", "port": "9000"}, "http://polar:9000"),
            ({"port": 9, "public_url": "https://polar.example/base/"}, "https://polar.example/base"),
            ({"public_url": None, "port": 9}, "http://127.0.0.1:9"),
            ({"public_url": "http://{args.polar_host}:9"}, "http://h:9"),
            ({"http_max_connections": 5, "from_a_newer_server": {"x": 1}}, "http://127.0.0.1:8080"),
        ],
    )
    def test_public_url_is_derived_as_polar_does(self, write, rollout, url):
        """Defaults, wildcards and newer keys: the address that the server itself would announce."""
        document = {"gateway": GATEWAY, **({} if rollout is None else {"rollout": rollout})}
        args = SimpleNamespace(polar_host="h")
        assert resolve_rollout_url(write(document), args) == url

    @pytest.mark.parametrize(
        ("document", "problem"),
        [
            ("", "is empty|holds empty"),
            ("- a\n", "holds a list"),
            ("rollout: [1\n", "is not YAML"),
            ("when: 2024-99-99\n", "is not YAML"),
            (f"rollout: {'[' * 2000}", "is not YAML"),
            ("rollout:\n", "`rollout` is empty: expected a mapping"),
            ("gateway: []\n", "`gateway` is a list: expected a mapping"),
            ("rollout: {port: 0}\n", "rollout.port is 0: expected an integer from 1 to 65535"),
            ("rollout: {port: x}\n", "rollout.port is 'x'"),
            ("rollout: {host: ''}\n", "rollout.host is ''"),
            ("rollout: {public_url: 'polar:80'}\n", "rollout.public_url is 'polar:80': expected a base URL"),
            ("rollout: {public_url: 'http://${HOST}:80'}\n", "rollout.public_url is"),
        ],
    )
    def test_errors_name_file_key_and_value(self, write, document, problem):
        """An empty section or a wrong value is told by its name."""
        path = write(document)
        with pytest.raises(ConfigError, match=problem) as error:
            resolve_rollout_url(path, NO_ROUTER)
        assert path in str(error.value)

    def test_missing_file_and_directory(self, tmp_path):
        """A path that cannot be read is an error with its reason."""
        with pytest.raises(ConfigError, match="polar_topology_path .* No such file"):
            load_topology(str(tmp_path / "none.yaml"))
        with pytest.raises(ConfigError, match="Is a directory"):
            load_topology(str(tmp_path))

    def test_unknown_placeholder(self, write):
        """The error says where in the file the name stands."""
        path = write({"rollout": {"public_url": "{args.nothing}"}})
        with pytest.raises(TemplateError, match=r"rollout.public_url: \{args.nothing\} is unknown"):
            resolve_rollout_url(path, SimpleNamespace())


class TestRender:
    @pytest.mark.parametrize(
        "inference",
        [
            "absent",
            None,
            {},
            {"engine": "sglang"},
            {"base_url": None},
            {"base_url": "http://127.0.0.1:8000/"},
            {"base_url": "{sglang.router_base_url}"},
            {"base_url": "http://{args.sglang_router_ip}:{args.sglang_router_port}"},
        ],
    )
    def test_gateways_call_the_router(self, write, inference):
        """Every gateway that names no engine of its own is pointed at the trainer's router."""
        node = {"id": "n1", **({} if inference == "absent" else {"inference": inference})}
        document = render_topology_template(write({"gateway": {"nodes": [node, {"id": "n2"}]}}), ROUTER)
        urls = [node["inference"]["base_url"] for node in document["gateway"]["nodes"]]
        assert urls == ["http://10.0.0.7:3000"] * 2

    def test_everything_else_stays(self, write):
        """Newer keys and the engine's settings are written back as they were."""
        document = {
            "rollout": {"port": 8080, "save_dir": "./results"},
            "gateway": {
                "heartbeat_interval_seconds": 30,
                "nodes": [
                    {
                        "id": "n1",
                        "inference": {"engine": "vllm"},
                        "model_pool": [{"alias": "pool/a"}],
                        "port": 1,
                    }
                ],
            },
            "newer": [1, {"x": None}],
        }
        rendered = render_topology_template(write(document), ROUTER)
        expected = copy.deepcopy(document)
        expected["gateway"]["nodes"][0]["inference"]["base_url"] = "http://10.0.0.7:3000"
        assert rendered == expected

    def test_another_engine_is_kept_with_a_warning(self, write, caplog):
        """A deliberate address is not overruled, and the risk is told."""
        document = {"gateway": {"nodes": [{"id": "n", "inference": {"base_url": "http://balancer:80"}}]}}
        with caplog.at_level(logging.WARNING):
            rendered = render_topology_template(write(document), ROUTER)
        assert rendered == document
        [record] = caplog.records
        assert "http://balancer:80, not the trainer's router http://10.0.0.7:3000" in record.getMessage()

    def test_another_engine_needs_no_router(self, write, caplog):
        """Where nothing asks for the router, its address may be unknown."""
        document = {"gateway": {"nodes": [{"id": "n", "inference": {"base_url": "http://balancer:80"}}]}}
        assert render_topology_template(write(document), NO_ROUTER) == document
        assert not caplog.records

    def test_unknown_router(self, write):
        """A gateway is never left pointing at nothing."""
        with pytest.raises(ConfigError, match="SGLang router is not known"):
            render_topology_template(write({"gateway": GATEWAY}), NO_ROUTER)

    @pytest.mark.parametrize(
        ("gateway", "problem"),
        [
            (None, "`gateway.nodes` is empty"),
            ({"nodes": []}, "expected a list of at least one gateway"),
            ({"nodes": ["n1"]}, "expected a list of at least one gateway"),
            ({"nodes": [{"inference": "http://x"}]}, r"nodes\[0\].inference is a str: expected a mapping"),
            ({"nodes": [{"inference": {"base_url": "x"}}]}, r"nodes\[0\].inference.base_url is 'x'"),
        ],
    )
    def test_errors(self, write, gateway, problem):
        """What cannot be pointed at the router is named."""
        with pytest.raises(ConfigError, match=problem):
            render_topology_template(write({} if gateway is None else {"gateway": gateway}), ROUTER)

    def test_a_placeholder_without_quotes(self, write):
        """The most likely mistake in YAML has an error that says what to write."""
        path = write("gateway:\n  nodes:\n    - inference: {base_url: {sglang.router_base_url}}\n")
        with pytest.raises(TemplateError, match="without quotes"):
            render_topology_template(path, ROUTER)
