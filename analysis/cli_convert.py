"""`workbench convert`: a run as a Parquet dataset for pandas, DuckDB, Polars and Spark."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

from analysis.cli_load import add_load_options, load_from, refuse_nothing, report_failure
from analysis.cli_words import in_options
from analysis.errors import AnalysisError

__all__ = ["add_arguments", "run"]


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the options of `workbench convert`."""
    add_load_options(parser)
    parser.add_argument("out", metavar="OUT", type=Path, help="folder of the dataset")
    parser.add_argument("--no-tokens", action="store_true", help="leave the token arrays out")
    parser.add_argument("--overwrite", action="store_true", help="replace a dataset that is there already")


def run(options: argparse.Namespace) -> int:
    """Load, write, and say what was written; return 0, or 1 if it cannot be done."""
    try:
        loaded = load_from(options)
        sys.stdout.write(f"{in_options(repr(loaded))}\n")
        refuse_nothing(loaded, options)
        sys.stdout.write(f"writing {options.out}\n")
        sys.stdout.flush()
        out = loaded.to_parquet(options.out, tokens=not options.no_tokens, overwrite=options.overwrite)
    except BrokenPipeError:
        raise
    except (AnalysisError, OSError, ValueError) as error:
        return report_failure("convert", error)
    size = sum(path.stat().st_size for path in out.rglob("*.parquet"))
    sys.stdout.write(f"{size / 2**20:,.1f} MiB in {out}\n")
    return 0
