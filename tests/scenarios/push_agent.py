"""An agent whose whole turns all have the same length, so that a turn that was cut is known by its length."""

from __future__ import annotations

from typing import Any

from analysis.lab.polar_server.agents import AgentResult

TURN_TOKENS = 10
TURNS = (2, 4, 1, 6, 3, 5, 2, 7)


class EvenTurns:
    """Asks the model some times, more or less often by prompt, for exactly `TURN_TOKENS` tokens each."""

    def __init__(self, spec: Any) -> None:
        self.spec = spec

    async def run(self, instruction: str, context: Any, ask: Any) -> AgentResult:
        """Talk."""
        messages = [{"role": "user", "content": instruction}]
        for _ in range(TURNS[int(instruction.split()[-1]) % len(TURNS)]):
            answer = await ask(
                {"model": "any", "messages": messages, "max_tokens": TURN_TOKENS, "ignore_eos": True}
            )
            content = answer["choices"][0]["message"].get("content") or "."
            messages = [
                *messages,
                {"role": "assistant", "content": content},
                {"role": "user", "content": "go on"},
            ]
        return AgentResult("completed")
