"""The text of single tokens, from a tokenizer folder; its libraries are imported when text is asked for.

A token's text is what it adds to the text before it, so that leading blanks survive. A token that holds only
a part of a character shows U+FFFD. Nothing is downloaded and no code of the folder is run.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from analysis.errors import LoadError

__all__ = ["Decoder", "TokenText", "find_tokenizer"]


class Decoder(Protocol):
    """What is needed of a tokenizer: Hugging Face's fast and slow ones have it."""

    def decode(self, ids: Any, **options: Any) -> str:
        """Return the text of token ids."""
        ...


class TokenText:
    """Texts of token ids, remembered.

    Parameters
    ----------
    tokenizer
        A folder with a tokenizer, or an object with ``decode``.
    """

    def __init__(self, tokenizer: str | os.PathLike[str] | Decoder) -> None:
        self._source = tokenizer
        self._decoder: Decoder | None = None
        self._texts: dict[int, str] = {}

    @property
    def source(self) -> str:
        """Where the tokenizer comes from, for people."""
        return (
            os.fspath(self._source)
            if isinstance(self._source, str | os.PathLike)
            else type(self._source).__name__
        )

    @property
    def decoder(self) -> Decoder:
        """The tokenizer, loaded.

        Raises
        ------
        LoadError
            If it cannot be loaded.
        """
        return self._load()

    def texts(self, ids: NDArray[Any]) -> list[str]:
        """Return the text of each token; U+FFFD where the tokenizer knows no such id.

        Raises
        ------
        LoadError
            If the tokenizer cannot be loaded.
        """
        distinct, inverse = np.unique(ids, return_inverse=True)
        known = [self._text(token) for token in distinct.tolist()]
        return [known[place] for place in inverse.reshape(-1).tolist()]

    def _text(self, token: int) -> str:
        found = self._texts.get(token)
        if found is None:
            decoder = self._load()
            try:
                alone = _decode(decoder, [token])
                twice = _decode(decoder, [token, token])
            except (KeyError, IndexError, ValueError, TypeError, OverflowError):
                # Ids of another vocabulary, and padding like -1.
                alone = twice = ""
            # Many decoders strip the blank that a first token begins with; the second one keeps it.
            found = twice[len(alone) :] if alone and twice.startswith(alone) else alone
            self._texts[token] = found = found or "\ufffd"
        return found

    def _load(self) -> Decoder:
        if self._decoder is None:
            if isinstance(self._source, str | os.PathLike):
                self._decoder = _open(Path(self._source))
            else:
                self._decoder = self._source
        return self._decoder


def find_tokenizer(folders: list[Path]) -> Path | None:
    """Return the first folder that holds a tokenizer: itself, or ``tokenizer/`` in it, as Slime saves it."""
    for folder in folders:
        for candidate in (folder / "tokenizer", folder):
            if (candidate / "tokenizer.json").is_file() or (candidate / "tokenizer_config.json").is_file():
                return candidate
    return None


def _decode(decoder: Decoder, ids: list[int]) -> str:
    return str(decoder.decode(ids, skip_special_tokens=False))


def _open(folder: Path) -> Decoder:
    found = find_tokenizer([folder])
    if found is None:
        raise LoadError(
            f"{folder}: no tokenizer", "neither tokenizer.json nor tokenizer_config.json", "pass an HF folder"
        )
    try:
        if (found / "tokenizer.json").is_file():
            from tokenizers import Tokenizer

            decoder: Any = Tokenizer.from_file(str(found / "tokenizer.json"))
            return decoder  # type: ignore[no-any-return]
        from transformers import AutoTokenizer

        decoder = AutoTokenizer.from_pretrained(str(found), local_files_only=True, trust_remote_code=False)
    except ImportError as error:
        raise LoadError(
            f"{found}: the tokenizer needs a library", str(error), "pip install tokenizers transformers"
        ) from error
    except Exception as error:  # the libraries raise bare Exception for files that they cannot read
        raise LoadError(
            f"{found}: the tokenizer cannot be read", f"{type(error).__name__}: {str(error)[:200]}"
        ) from error
    return decoder  # type: ignore[no-any-return]
