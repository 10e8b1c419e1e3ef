"""A small inference engine with SGLang's HTTP interface, for a tiny Qwen3 policy on one CPU core.

`Engine` serves a checkpoint in-process, `create_app` puts it behind HTTP, ``python -m analysis.lab.engine``
runs it as a process. Requests are batched continuously, conversations and groups share what was computed for
them, weights are replaced between two steps, and every token is reported with the log-probability that it was
sampled with and the version of the weights that sampled it.

Of ``/generate`` these top-level keys are read: `text`, `input_ids`, `sampling_params`, `return_logprob`,
`logprob_start_len`, `top_logprobs_num`, `return_text_in_logprobs`, `rid`, `stream`.
"""

from analysis.lab.engine.app import create_app
from analysis.lab.engine.batch import BatchLimits
from analysis.lab.engine.core import Engine, EngineLoad
from analysis.lab.engine.request import GenerationRequest
from analysis.lab.engine.sampling import SamplingParams

__all__ = ["BatchLimits", "Engine", "EngineLoad", "GenerationRequest", "SamplingParams", "create_app"]
