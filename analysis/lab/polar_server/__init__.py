"""A Polar-compatible rollout server with its gateways: runs small agents, or plays a fault script for tests.

Layers, lowest first: `models`, `events`, `extraction`, `builders`, `evaluators`, `faults`, `synthetic`,
`state`, `persistence`, `agents`, `gateway`, `sessions`, `delivery`, `app`, `front`, `server`, and `testing`
or ``__main__`` on top.
"""
