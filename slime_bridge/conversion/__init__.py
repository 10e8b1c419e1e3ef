"""From a session's traces to Slime samples: tokens, turns, samples of a trace, samples of a group."""
