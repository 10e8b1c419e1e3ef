"""Load, explain and drive rollout runs: frames, statistics, figures, and a small embedded stack to run them on."""
