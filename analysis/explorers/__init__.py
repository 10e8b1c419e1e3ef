"""Rollouts under one's hands: linked explorers for JupyterLab.

`analysis.explore` puts them together. Each explorer works alone too, and each has the same four things: a
``widget`` to show, a ``state`` that it shares with others, a ``selection`` that is a frame, and ``close()``.
"""
