import copy
import json
from types import SimpleNamespace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_bridge.errors import ConfigError, TemplateError
from slime_bridge.templates import render, to_text

CONTEXT = {
    "args": SimpleNamespace(model="m", limits={"a-b": {"c.d": 5}}, n=0),
    "instruction": "do {args.model} {{x}}",
    "rollout_id": 3,
    "sample": {
        "metadata": {
            "my-key": "v",
            "with space": 9,
            "image.name": "img",
            "tools": [{"name": "bash", "args": {"k": 1}}],
            "7": "seven",
            8: "eight",
        },
        "label": None,
        "index": 12,
    },
    "ratio": 0.5,
}


class TestGrammar:
    @pytest.mark.parametrize(
        ("template", "expected"),
        [
            ("plain", "plain"),
            ("", ""),
            ("{rollout_id}", 3),
            ("{ rollout_id }", 3),
            ("n={rollout_id}", "n=3"),
            ("{rollout_id}{sample.index}", "312"),
            ("[{sample.label}]", "[]"),
            ("{sample.label}", None),
            ("{args.n}", 0),
            ("{args.model}", "m"),
            ("{args.limits.a-b.c.d}", 5),
            ("{sample.metadata.my-key}", "v"),
            ("{sample.metadata.with space}", 9),
            ("{sample.metadata.image.name}", "img"),
            ("{sample.metadata.7}{sample.metadata.8}", "seveneight"),
            ("{sample.metadata.tools.0.args}", {"k": 1}),
            ("{sample.metadata.tools.-1.name}", "bash"),
            ("tools: {sample.metadata.tools}", 'tools: [{"name": "bash", "args": {"k": 1}}]'),
            ("{ratio}x", "0.5x"),
            # Escapes.
            ("{{rollout_id}}", "{rollout_id}"),
            ("{{{rollout_id}}}", "{3}"),
            ("${{rollout_id}}", "${rollout_id}"),
            ('{{"a": {{"b": {rollout_id}}}}}', '{"a": {"b": 3}}'),
            ("a }} b", "a } b"),
            # Braces that are text.
            ("${HOME} ${HOME:-x} ${#a} $(id)", "${HOME} ${HOME:-x} ${#a} $(id)"),
            ("awk '{print $1}'", "awk '{print $1}'"),
            ("{a,b} {} { x; }", "{a,b} {} { x; }"),
            ('{"a": {"b": 1}}', '{"a": {"b": 1}}'),
            ('{"a": {"b": {rollout_id}}}', '{"a": {"b": 3}}'),
            ('{"a": {}}', '{"a": {}}'),
            ("{e.g. this}", "{e.g. this}"),
            ("open { close }", "open { close }"),
            ("{", "{"),
            ("}", "}"),
            # After a dollar sign a name that the context has is still a placeholder.
            ("${rollout_id}", "$3"),
        ],
    )
    def test_table(self, template, expected):
        """The grammar as documented, by example."""
        result = render(template, CONTEXT)
        assert result == expected
        assert type(result) is type(expected)

    @pytest.mark.parametrize(
        ("template", "problem"),
        [
            ("{rolout_id}", r"template: \{rolout_id\} is unknown: .*did you mean 'rollout_id'\?"),
            ("run {nothing}", r"braces that are text are written \{\{nothing\}\}"),
            ("{ sampel.index }", r"\{sampel.index\} is unknown"),
            ("${sampel.index}", r"\{sampel.index\} is unknown"),
            (
                "{sample.metadata.my_key}",
                r"sample.metadata \(dict\) has no 'my_key' \(did you mean 'my-key'\?\)",
            ),
            ("{sample.label.x}", r"sample.label \(None\) has no 'x'"),
            ("{sample.metadata.tools.5}", r"sample.metadata.tools \(list of 1\) has no '5'"),
            ("{args.modell}", r"args \(SimpleNamespace\) has no 'modell' \(did you mean 'model'\?\)"),
            ("{args.zzz}", r"it has: limits, model, n"),
            ("{instruction.upper}", r"instruction \(str\) has no 'upper'"),
            ("{args.__class__}", "has no '__class__'"),
            ("{rollout_id:03d}", "format or conversion"),
            ("x{sample!r}", "format or conversion"),
        ],
    )
    def test_errors(self, template, problem):
        """An unknown name is an error that names the path and what was meant."""
        with pytest.raises(TemplateError, match=problem):
            render(template, CONTEXT)

    def test_the_error_says_where_in_the_template(self):
        """In a long template the faulty line can be found."""
        template = {"agent": {"env": [{"A": "{rollout_id}"}, {"B": "{oops}"}]}}
        with pytest.raises(TemplateError, match=r"polar_task_template.agent.env\[1\].B: \{oops\} is unknown"):
            render(template, CONTEXT, where="polar_task_template")

    @pytest.mark.parametrize("key", ["rollout_id", "sample.metadata.x", "args.model"])
    def test_a_placeholder_without_quotes(self, key):
        """YAML makes a mapping of an unquoted placeholder; the error tells to quote it."""
        with pytest.raises(TemplateError, match="without quotes"):
            render({"image": {key: None}}, CONTEXT)

    def test_lists_and_mappings_are_rendered_through(self):
        """Values at any depth are rendered; keys and other values stay."""
        template = {
            "a": ["{rollout_id}", {"{rollout_id}": ("x{rollout_id}", 1.5, None, True)}],
            5: "{args.model}",
        }
        assert render(template, CONTEXT) == {"a": [3, {"{rollout_id}": ["x3", 1.5, None, True]}], 5: "m"}

    def test_an_error_of_a_lazy_value_is_told(self):
        """A value that cannot be known yet raises its own error, not 'unknown name'."""

        class Lazy:
            @property
            def url(self):
                raise ConfigError("not started yet")

        with pytest.raises(ConfigError, match="not started yet"):
            render("{lazy.url}", {"lazy": Lazy()})

    @pytest.mark.parametrize(
        ("value", "text"),
        [(None, ""), ("a", "a"), (True, "True"), (1.5, "1.5"), ({"ä": [1]}, '{"ä": [1]}'), ((1,), "[1]")],
    )
    def test_text_of_values(self, value, text):
        """Nothing for none, JSON for containers, the value's text otherwise."""
        assert to_text(value) == text


hostile_text = st.text(st.sampled_from("{}$ .aglmnoprsu_id"), max_size=20) | st.text(max_size=10)
values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | hostile_text,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(hostile_text, inner, max_size=3),
    max_leaves=6,
)


class TestProperties:
    @given(values)
    def test_one_placeholder_keeps_the_type(self, value):
        """A value comes out as it went in, whatever it is and whatever its strings look like."""
        result = render({"x": ["{sample.value}"]}, {"sample": {"value": value}})["x"][0]
        assert result == value
        assert type(result) is type(value)

    @given(
        st.text(st.sampled_from("abc-/ "), max_size=8),
        hostile_text,
        st.text(st.sampled_from("abc "), max_size=8),
    )
    def test_values_are_never_scanned(self, before, value, after):
        """A prompt that contains placeholders and braces cannot reach any other value."""
        context = {"instruction": value, "args": SimpleNamespace(secret="SECRET")}
        assert render(before + "{instruction}" + after, context) == before + value + after

    @given(st.text(st.sampled_from('{}$a:" ')), st.text(max_size=12))
    def test_doubled_braces_write_any_text(self, first, second):
        """Every text can be written, by doubling its braces."""
        text = first + second
        assert render("." + text.replace("{", "{{").replace("}", "}}"), CONTEXT) == "." + text

    @given(
        st.recursive(
            st.none() | st.integers() | st.text(st.sampled_from('ab"\\\n'), max_size=4),
            lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text("ab"), inner, max_size=3),
        )
    )
    def test_json_in_a_command_survives(self, value):
        """JSON text needs no escapes, however deeply it nests."""
        command = f"run '{json.dumps(value)}'"
        assert render(command, CONTEXT) == command

    @given(values)
    def test_rendering_changes_and_shares_nothing(self, value):
        """Changing a payload later never changes a sample or the template."""
        context = {"sample": {"value": value}}
        before = copy.deepcopy(context)
        result = render({"v": "{sample.value}", "l": [["x"]]}, context)
        result["l"][0].append("y")
        if isinstance(result["v"], dict):
            result["v"]["new"] = 1
        if isinstance(result["v"], list):
            result["v"].append(1)
        assert context == before
