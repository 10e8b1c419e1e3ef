"""Hooks as a trainer's users write them, for the tests of the filters."""

from types import SimpleNamespace

calls = []


def reset():
    calls.clear()


def keep_even_rows(args, samples, **kwargs):
    """A dynamic filter in the present form."""
    keep = samples[0].metadata["row"] % 2 == 0
    return SimpleNamespace(keep=keep, reason=None if keep else "odd_row")


def keep_none_silently(args, samples):
    """A dynamic filter in the old form: a plain bool."""
    return samples[0].metadata["row"] > 1


def remove_first(args, groups):
    """A sample filter."""
    calls.append(("sample_filter", [group[0].metadata["row"] for group in groups]))
    for group in groups:
        group[0].remove_sample = True


def process_all(args, all_groups, data_source):
    """An all-samples process."""
    calls.append(("all_samples", [group[0].metadata["row"] for group in all_groups], data_source))


def broken(*values):
    """A hook with a defect."""
    raise ZeroDivisionError("a defect")


not_a_function = 3
