"""A Polar-compatible rollout server with its gateway: runs small agents, or plays a fault script for the bridge's tests.

Layers, lowest first: `models`, `events`, `extraction`, `builders`, `evaluators`, `faults`, `synthetic`, `state`,
`persistence`, `agents`, `gateway`, `sessions`, `delivery`, `app`, `front`, `server`, and `testing` or ``__main__`` on top.
"""
