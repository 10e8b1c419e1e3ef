"""The tiny policy's tokenizer: byte-level BPE, trained in a fraction of a second on texts of its task.

Any text round-trips exactly, since all 256 bytes are symbols. Digits are split one by one. The fixed
scaffold of a tool call (``{"name": "find", "arguments": {"item": "``) is one pre-token and merges into one
token, so that a call costs six tokens while its text stays ordinary Hermes-style JSON. The chat template is
ChatML with generation tags, which give the loss mask; tools are listed in the system message by name and
arguments.

Knows nothing about models, and about tasks only the texts it is given.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, trainers
from transformers import PreTrainedTokenizerFast

from analysis.lab.files import write_text

__all__ = [
    "CHAT_TEMPLATE",
    "END_OF_TEXT",
    "END_OF_TURN",
    "TAG_TOKENS",
    "build_tokenizer",
    "save_tokenizer",
]

END_OF_TEXT = "<|endoftext|>"
START_OF_TURN = "<|im_start|>"
END_OF_TURN = "<|im_end|>"
SPECIAL_TOKENS = (END_OF_TEXT, START_OF_TURN, END_OF_TURN)
TAG_TOKENS = ("<tool_call>", "</tool_call>", "<tool_response>", "</tool_response>")

# Order matters: a digit first, then the scaffold of a call, so that neither is swallowed by the general
# classes.
_PRE_TOKEN = (
    r'\d|\n|\{"name": "[a-z_]+", "arguments": \{"[a-z]+": "?|"?\}\}| ?[A-Za-z_]+:?|[^\sA-Za-z0-9]+|\s+'
)

CHAT_TEMPLATE = """\
{%- if tools or (messages and messages[0].role == 'system') %}
    {{- '<|im_start|>system\\n' }}
    {%- if messages and messages[0].role == 'system' %}
        {{- messages[0].content }}
        {%- if tools %}{{- '\\n' }}{%- endif %}
    {%- endif %}
    {%- if tools %}
        {{- 'Tools: ' }}
        {%- for tool in tools %}
            {%- set function = tool.function if tool.function is defined else tool %}
            {%- set parameters = function.parameters if function.parameters is defined else {} %}
            {{- function.name + '(' + (parameters.properties | default({}) | list | join(', ')) + ')' }}
            {%- if not loop.last %}{{- ', ' }}{%- endif %}
        {%- endfor %}
    {%- endif %}
    {{- '<|im_end|>\\n' }}
{%- endif %}
{%- for message in messages %}
    {%- if message.role == 'assistant' %}
        {{- '<|im_start|>assistant\\n' }}
        {%- generation %}
            {{- message.content or '' }}
            {%- for call in message.tool_calls or [] %}
                {%- set function = call.function if call.function is defined else call %}
                {{- '<tool_call>{"name": "' + function.name + '", "arguments": ' }}
                {{- function.arguments if function.arguments is string else function.arguments | tojson }}
                {{- '}</tool_call>' }}
            {%- endfor %}
            {{- '<|im_end|>' }}
        {%- endgeneration %}
        {{- '\\n' }}
    {%- elif message.role == 'tool' %}
        {%- if loop.first or messages[loop.index0 - 1].role != 'tool' %}{{- '<|im_start|>user\\n' }}{%- endif
        %} {{- '<tool_response>' + (message.content or '') + '</tool_response>' }}
        {%- if loop.last or messages[loop.index0 + 1].role != 'tool' %}{{- '<|im_end|>\\n' }}{%- endif %}
    {%- elif not (loop.first and message.role == 'system') %}
        {{- '<|im_start|>' + message.role + '\\n' + (message.content or '') + '<|im_end|>\\n' }}
    {%- endif %}
{%- endfor %}
{%- if add_generation_prompt %}
    {{- '<|im_start|>assistant\\n' }}
{%- endif %}
"""


def build_tokenizer(texts: Iterable[str], *, vocab_size: int, max_length: int) -> PreTrainedTokenizerFast:
    """Train a tokenizer; equal texts in equal order give an equal tokenizer.

    Parameters
    ----------
    texts
        Texts of the task, such as conversations in the form of `CHAT_TEMPLATE`. Special tokens and tags are
        cut out of them first: left in, they would glue themselves to the scaffold, which then never becomes
        one token.
    vocab_size
        Upper bound of the number of tokens, special and tag tokens included; at least 263.
    max_length
        Longest sequence of the model, in tokens.

    Returns
    -------
    PreTrainedTokenizerFast
        With ChatML template; ``<|im_end|>`` is the end-of-sequence token, ``<|endoftext|>`` pads. The four
        tag tokens are not special: they survive `skip_special_tokens=True`.
    """
    core = Tokenizer(models.BPE())
    core.pre_tokenizer = pre_tokenizers.Sequence(
        [
            pre_tokenizers.Split(Regex(_PRE_TOKEN), behavior="isolated"),
            pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
        ]
    )
    core.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(TAG_TOKENS),
        special_tokens=list(SPECIAL_TOKENS),
        initial_alphabet=pre_tokenizers.ByteLevel.alphabet(),
        show_progress=False,
    )
    tags = re.compile("|".join(map(re.escape, (*SPECIAL_TOKENS, *TAG_TOKENS))))
    core.train_from_iterator((part for text in texts for part in tags.split(text) if part), trainer)
    core.add_tokens([AddedToken(tag, normalized=False, special=False) for tag in TAG_TOKENS])
    tokenizer = PreTrainedTokenizerFast(
        tokenizer_object=core,
        eos_token=END_OF_TURN,
        pad_token=END_OF_TEXT,
        additional_special_tokens=[START_OF_TURN],
        model_max_length=max_length,
        clean_up_tokenization_spaces=False,
    )
    tokenizer.chat_template = CHAT_TEMPLATE
    return tokenizer


def save_tokenizer(tokenizer: PreTrainedTokenizerFast, folder: Path) -> None:
    """Write the tokenizer so that Transformers 4 and 5 both read it.

    Transformers 5 names a class that 4 does not know, renames the list of additional special tokens, and
    keeps the chat template in a file of its own; here the configuration carries the old names and the
    template beside them.
    """
    tokenizer.save_pretrained(folder)
    path = folder / "tokenizer_config.json"
    config: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
    config["tokenizer_class"] = "PreTrainedTokenizerFast"
    # Transformers 4 expects a mapping under the new name, and fails on the list that 5 writes there.
    config.pop("extra_special_tokens", None)
    config["additional_special_tokens"] = [START_OF_TURN]
    config["chat_template"] = CHAT_TEMPLATE
    write_text(path, json.dumps(config, indent=2, ensure_ascii=False) + "\n")
    write_text(folder / "chat_template.jinja", CHAT_TEMPLATE)
