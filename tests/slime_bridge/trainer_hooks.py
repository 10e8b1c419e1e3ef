"""Hooks as a trainer's users write them, for the tests of the filters."""

import threading
from types import SimpleNamespace

calls = []
threads = set()


def reset():
    calls.clear()
    threads.clear()


def keep_even_rows(args, samples, **kwargs):
    """A dynamic filter in the present form."""
    keep = samples[0].metadata["row"] % 2 == 0
    return SimpleNamespace(keep=keep, reason=None if keep else "odd_row")


def keep_none_silently(args, samples):
    """A dynamic filter in the old form: a plain bool."""
    return samples[0].metadata["row"] > 1


def keep_third_onwards(args, samples, **kwargs):
    """A dynamic filter that counts, and notes who calls it."""
    threads.add(threading.get_ident())
    calls.append(samples[0].metadata["row"])
    return SimpleNamespace(keep=len(calls) > 2, reason="too_early" if len(calls) < 3 else None)


def fail_at_second(args, samples, **kwargs):
    """A dynamic filter with a defect in one of its branches."""
    calls.append(samples[0].metadata["row"])
    if len(calls) == 2:
        raise ZeroDivisionError("a defect")
    return True


def remove_first(args, groups):
    """A sample filter."""
    calls.append(("sample_filter", [group[0].metadata["row"] for group in groups]))
    for group in groups:
        group[0].remove_sample = True


def process_all(args, all_groups, data_source):
    """An all-samples process."""
    threads.add(threading.get_ident())
    calls.append(("all_samples", [group[0].metadata["row"] for group in all_groups], data_source))


def last_first(args, rollout_id, buffer, num_samples):
    """A buffer filter: takes the last groups first."""
    taken = [buffer.pop() for _ in range(min(num_samples, len(buffer)))]
    return taken


def broken(*values):
    """A hook with a defect."""
    raise ZeroDivisionError("a defect")


not_a_function = 3
