"""Checks of token arrays: what passes, what is named with its position, and which objects are shared."""

from __future__ import annotations

import math
import threading

import pytest
from hypothesis import given
from hypothesis import strategies as st

from slime_bridge.conversion.trace_tokens import checked_logprobs, checked_mask, joined_ids, trainable_spans
from slime_bridge.errors import ConversionError, RolloutLogprobError


class TestIds:
    @given(st.lists(st.integers(0, (1 << 32) - 1)), st.lists(st.integers(0, (1 << 32) - 1)))
    def test_ids_are_exactly_the_servers(self, prompt, response):
        """Nothing is added, dropped or changed, for ids of any size."""
        assert joined_ids(prompt, response) == prompt + response

    def test_int_objects_are_shared(self):
        """A token that occurs a thousand times is one int object; decoders make a thousand."""
        first = joined_ids([int("70001")], [int("70001"), 5])
        second = joined_ids([int("70001")], [])
        assert first[0] is first[1] is second[0]

    def test_ids_beyond_the_table_are_kept(self):
        """An absurdly large id costs no table of that size."""
        assert joined_ids([1 << 31], [3]) == [1 << 31, 3]

    @pytest.mark.parametrize(
        ("prompt", "response", "message"),
        [
            ([1, -1], [2], r"prompt_ids\[1\] is -1"),
            ([1], [2, 1 << 32], r"response_ids\[1\] is 4294967296"),
            ([1], [2, 3.5], r"response_ids\[1\] is 3.5"),
            ([1], [None], r"response_ids\[0\] is None"),
            (["7"], [1], r"prompt_ids\[0\] is '7'"),
        ],
    )
    def test_what_is_no_token_id_is_named(self, prompt, response, message):
        """A negative or fractional id would index the embedding somewhere else, or crash the trainer."""
        with pytest.raises(ConversionError, match=message) as caught:
            joined_ids(prompt, response)
        assert not isinstance(caught.value, RolloutLogprobError)

    def test_threads_share_without_harm(self):
        """Groups are converted in several threads at once."""
        results: list[list[int]] = []

        def convert(start: int) -> None:
            results.append([joined_ids([start], [i])[1] for i in range(start, start + 3000)])

        threads = [threading.Thread(target=convert, args=(base,)) for base in (0, 40_000, 90_000, 200_000)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        assert sorted(ids[0] for ids in results) == [0, 40_000, 90_000, 200_000]
        assert all(ids == list(range(ids[0], ids[0] + 3000)) for ids in results)


class TestMask:
    @given(st.lists(st.sampled_from([0, 1])))
    def test_masks_of_zeros_and_ones_pass(self, mask):
        """Every legal mask comes back as the same flags."""
        assert list(checked_mask(mask, len(mask))) == mask

    @pytest.mark.parametrize(
        ("mask", "length", "message"),
        [
            ([1], 2, "loss_mask has 1 entries for 2 response ids"),
            ([1, 0, 0], 2, "loss_mask has 3 entries for 2 response ids"),
            ([1, 2], 2, r"loss_mask\[1\] is 2"),
            ([0, -1], 2, r"loss_mask\[1\] is -1"),
            ([0, 256], 2, r"loss_mask\[1\] is 256"),
            ([0, 0.5], 2, r"loss_mask\[1\] is 0.5"),
            ([None], 1, r"loss_mask\[0\] is None"),
        ],
    )
    def test_everything_else_is_named(self, mask, length, message):
        """A shifted mask would train tool output as if the policy had written it."""
        with pytest.raises(RolloutLogprobError, match=message):
            checked_mask(mask, length)

    def test_spans(self):
        """Runs of ones, ends excluded."""
        assert trainable_spans(bytes([0, 1, 1, 0, 1])) == [(1, 3), (4, 5)]
        assert trainable_spans(b"") == []


class TestLogprobs:
    def test_good_values_are_kept_as_they_are(self):
        """Exact zeros and large negative values are real logprobs."""
        values = [-0.0, 0.0, -1e-300, -9998.9, 1e-7]
        assert checked_logprobs(values, b"\1" * 5) is values

    @pytest.mark.parametrize(
        "bad", [math.nan, math.inf, -math.inf, -9999.0, -10000.1, -1e5, -3.4028234663852886e38]
    )
    def test_an_unusable_value_on_a_trainable_token_is_named(self, bad):
        """The position is that of the token in the response."""
        with pytest.raises(RolloutLogprobError, match="at the trainable response position 2$"):
            checked_logprobs([-1.0, 0.0, bad], b"\1\0\1")

    @pytest.mark.parametrize("bad", [math.nan, math.inf, -math.inf, -9999.0, -1e30])
    def test_an_unusable_value_on_a_masked_token_becomes_zero(self, bad):
        """Nobody trains on it, but a NaN would spread through the trainer's sums all the same."""
        assert checked_logprobs([-1.0, bad, -2.0], b"\1\0\1") == [-1.0, 0.0, -2.0]

    @pytest.mark.parametrize("value", [-1e4, -9998.999, -9999.001])
    def test_neighbours_of_the_sentinels_pass(self, value):
        """Only what is below -1e4, and vLLM's exact -9999.0, stands for minus infinity."""
        assert checked_logprobs([value], b"\1") == [value]

    def test_the_number_of_unusable_values_is_told(self):
        """A whole response of NaN means broken logits, not one odd token."""
        with pytest.raises(RolloutLogprobError, match=r"position 0 \(and 2 more\)"):
            checked_logprobs([math.nan] * 3, b"\1\1\1")

    def test_none_at_all(self):
        """Without logprobs a response can be carried along, but not trained on."""
        assert checked_logprobs(None, b"\0\0") == [0.0, 0.0]
        with pytest.raises(RolloutLogprobError, match="no logprobs, but 1 trainable tokens .* position 1"):
            checked_logprobs(None, b"\0\1")
        assert checked_logprobs([], b"") == []

    def test_wrong_length(self):
        """One value per response token, no more, no fewer."""
        with pytest.raises(RolloutLogprobError, match="2 logprobs for 1 response ids"):
            checked_logprobs([0.0, 0.0], b"\0")

    def test_nulls_and_other_types(self):
        """A null is a missing value; text is no number."""
        assert checked_logprobs([None, -1.0], b"\0\1") == [0.0, -1.0]
        with pytest.raises(RolloutLogprobError, match="logprob nan at the trainable response position 0"):
            checked_logprobs([None, -1.0], b"\1\1")
        with pytest.raises(RolloutLogprobError, match="logprob 1 is a str"):
            checked_logprobs([0.0, "x"], b"\0\0")

    @given(st.data())
    def test_agrees_with_a_plain_loop(self, data):
        """The buffers decide as a loop over Python floats would."""
        value = st.sampled_from([0.0, -0.5, -9999.0, -1e4, -2e4, math.nan, math.inf, -math.inf, 2.0])
        values = data.draw(st.lists(value, max_size=40))
        flags = bytes(
            data.draw(st.lists(st.sampled_from([0, 1]), min_size=len(values), max_size=len(values)))
        )
        usable = [math.isfinite(v) and v >= -1e4 and v != -9999.0 for v in values]
        if any(flag and not good for flag, good in zip(flags, usable, strict=True)):
            with pytest.raises(RolloutLogprobError):
                checked_logprobs(values, flags)
        else:
            expected = [v if good else 0.0 for v, good in zip(values, usable, strict=True)]
            assert checked_logprobs(values, flags) == expected

    def test_zeros_of_tool_output_are_one_object(self):
        """A long masked stretch of zeros costs eight bytes a token; other values are left alone."""
        values = [-1.0] + [float("0.0") for _ in range(40)] + [-2.0] + [-0.25] * 20
        flags = b"\1" + bytes(40) + b"\1" + bytes(20)
        expected = list(values)
        result = checked_logprobs(values, flags)
        assert result == expected
        assert len({id(value) for value in result[1:41]}) == 1
