"""Statistics over the frames of a run: pure functions of NumPy and pandas, no files, no pictures.

- `analysis.stats.advantages`: estimators on recorded rewards, autopsies, uncertainty, simulation;
- `analysis.stats.rejections`: what was thrown away, why, at what cost, and what other filters
  would have done;
- `analysis.stats.staleness`: policy lag, off-policy diagnostics, the scheduler replayed with other settings;
- `analysis.stats.fidelity`: whether tokens, masks, logprobs and metrics can be trusted;
- `analysis.stats.timing`: where the time went.

Every function takes a loaded run or a mapping of frames, changes neither, and gives frames with nullable
dtypes in which missing is missing.
"""

from __future__ import annotations
