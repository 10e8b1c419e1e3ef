from __future__ import annotations

import time

import pytest

from slime_bridge.redaction import excerpt, redact


@pytest.mark.parametrize(
    ("text", "secret"),
    [
        ("GET http://me:hunter2@polar/x", "hunter2"),
        ("https://onlyuser@polar/x", "onlyuser"),
        ("Authorization: Bearer abc.def-123456", "abc.def-123456"),
        ("authorization=Basic dXNlcjpwYXNz", "dXNlcjpwYXNz"),
        ("X-Polar-Control-Token: tok123", "tok123"),
        ('{"api_key": "va lue\\"x"}', "va lue"),
        ("{'OPENAI_API_KEY': 'va lue'}", "va lue"),
        ("url?token=abc&x=1", "abc"),
        ("password = pa55", "pa55"),
        ("client_secret:s3c", "s3c"),
        ("Cookie: session", "session"),
        ('"callback_url": "http://h/a/b"', "http://h/a/b"),
        ("key sk-proj-abcdefgh1234", "sk-proj-abcdefgh1234"),
        ("hf_abcdefghijkl", "hf_abcdefghijkl"),
        ("ghp_abcdefghijkl", "ghp_abcdefghijkl"),
        ("AKIAABCDEFGHIJKLMNOP", "AKIAABCDEFGHIJKLMNOP"),
        ("eyJhbGciOiJI.eyJzdWIiOiIx.SflKxwRJSMeKKF2QT4", "eyJzdWIiOiIx"),
        ('{"api_key": "cut off in the mid', "cut off"),
        (r'{"env": "{\"api_key\": \"va lue\"}"}', "va lue"),
        (r'{"a": "{\\\"password\\\": \\\"va \\\\\"lue\\\"}"}', "lue"),
        ("&quot;api_key&quot;: &quot;va lue&quot;", "va lue"),
        ('secret := "va lue"', "va lue"),
        ('"api_key" => "va lue"', "va lue"),
        ('if api_key == "va lue":', "va lue"),
        ("next=%2F&api_key%3Ds3cret", "s3cret"),
        ("agent --api-key s3cret", "s3cret"),
        ("agent -token 's3 cret'", "s3 cret"),
        ('[{"name": "OPENAI_API_KEY", "value": "va lue"}]', "va lue"),
        ("Cookie: session=one; other=two", "two"),
        ("-----BEGIN PGP PRIVATE KEY BLOCK-----\n\nlQPGBF\n-----END PGP PRIVATE KEY BLOCK-----", "lQPGBF"),
        ("sk_live_abcdefghijkl", "sk_live_abcdefghijkl"),
        ("npm_" + 36 * "a", 30 * "a"),
    ],
)
def test_credentials_are_removed(text: str, secret: str) -> None:
    """Whatever looks like a credential is masked, wherever it stands."""
    assert secret not in redact(f"before {text} after")


@pytest.mark.parametrize(
    "text",
    [
        "prompt_token_ids: [1, 2]",
        "max_tokens=5",
        "tokenizer: qwen",
        r"{\"token\": 17, \"logprob\": -0.5}",
        "run with --max-tokens 5 --tokenizer qwen",
        '{"name": "max_tokens", "value": 5}',
        "npm_config and pypi-publish",
        "http://polar:8080/rollout/task/t-1 was answered 503",
        "session sk-polar-11111111-2222-4333-8444-555555555555 failed",
        "task polar-slime-3-17 is already running",
        "",
    ],
)
def test_what_is_no_credential_stays(text: str) -> None:
    """Messages stay useful: addresses, ids and token counts are no secrets."""
    assert redact(text) == text


def test_known_values_go_first_and_longest_first() -> None:
    """A secret that contains another leaves no half behind."""
    assert redact("x abc abcdef y", secrets=["abc", "abcdef", ""]) == "x *** *** y"


def test_excerpt_is_one_printable_bounded_line() -> None:
    """Untrusted text cannot break a log line, colour a terminal or fill a disk."""
    assert excerpt("a\n\n b\x1b[31m\tc\u202e") == "a b [31m c"
    assert len(excerpt("x" * 10_000)) == 300
    assert excerpt("short") == "short"


def test_secret_at_the_cut_is_gone() -> None:
    """Cutting comes after masking, so half a secret never stays at the end."""
    text = "y" * 290 + " token=abcdefghijklmnop"
    assert "abc" not in excerpt(text)


@pytest.mark.parametrize(
    "text", ["a" * 4800, "token" * 960, '"' * 4800, "sk-" * 1600, "\\" * 4800, "a." * 2400]
)
def test_hostile_text_takes_no_time(text: str) -> None:
    """No pattern can be made to search for ever."""
    started = time.process_time()
    excerpt(text)
    assert time.process_time() - started < 2.0
