"""The text of single tokens, from whatever tokenizer there is."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from analysis.errors import LoadError
from analysis.token_text import TokenText, find_tokenizer

tokenizers = pytest.importorskip("tokenizers")


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A byte-level tokenizer in the folder that Slime saves it in."""
    from analysis.lab.tokenizer import build_tokenizer, save_tokenizer

    root = tmp_path_factory.mktemp("dump")
    made = build_tokenizer(["how many boxes are there? naïve 日本"] * 5, vocab_size=300, max_length=100)
    save_tokenizer(made, root / "tokenizer")
    return root


def test_texts_join_to_what_was_encoded(folder: Path) -> None:
    """Blanks in front of words survive; special tokens show as they are written."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    ids = tokenizer.encode("how many boxes<|im_end|> are there?").ids
    text = TokenText(folder)
    assert "".join(text.texts(np.array(ids))) == "how many boxes<|im_end|> are there?"
    assert text.source == str(folder)


def test_parts_of_characters_and_unknown_ids_show_a_mark(folder: Path) -> None:
    """One byte of three, an id of another vocabulary, padding: U+FFFD, never an error."""
    tokenizer = tokenizers.Tokenizer.from_file(str(folder / "tokenizer" / "tokenizer.json"))
    ids = tokenizer.encode("日").ids
    texts = TokenText(folder).texts(np.array([*ids, 10_000_000, -1]))
    assert texts[-2:] == ["\ufffd", "\ufffd"]
    assert len(texts) == len(ids) + 2


class Stripping:
    """A decoder that drops the blank in front of the first word, as sentencepiece's do."""

    def decode(self, ids: Any, **options: Any) -> str:
        return "".join({1: " the", 2: " end", 3: "s"}[token] for token in ids).lstrip()


def test_a_blank_that_the_decoder_strips_is_kept() -> None:
    """A word in the middle of a text begins with its blank."""
    assert TokenText(Stripping()).texts(np.array([1, 2, 3, 9])) == [" the", " end", "s", "\ufffd"]
    assert TokenText(Stripping()).source == "Stripping"


def test_what_is_no_tokenizer_is_said(tmp_path: Path) -> None:
    """An empty folder, and a file that is none."""
    assert find_tokenizer([tmp_path]) is None
    with pytest.raises(LoadError, match="no tokenizer"):
        TokenText(tmp_path).texts(np.array([1]))
    (tmp_path / "tokenizer.json").write_text("{}")
    with pytest.raises(LoadError, match="cannot be read"):
        TokenText(tmp_path).texts(np.array([1]))


def test_no_tokens_need_no_tokenizer(tmp_path: Path) -> None:
    """Nothing is loaded for nothing."""
    assert TokenText(tmp_path).texts(np.array([], dtype=np.int32)) == []
