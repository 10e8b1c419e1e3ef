"""A Polar-compatible rollout server with its gateways: runs small agents, or plays a fault script for tests.

From the bottom up: wire formats (`wire`, `models`, `node_models`, `results`, `events`), what a gateway does
with model calls (`http_client`, `extraction`, `proxy`, `builders`, `evaluators`, `agents`,
`training_filter`), the gateway (`gate`, `gateway_sessions`, `gateway`, `gateway_app`), faults
(`fault_kinds`, `synthetic`, `faults`, `mutations`, `interception`, `front`), the rollout server (`state`,
`persistence`, `completion_files`, `delivery`, `nodes`, `scripted`, `remote_node`, `placement`, `sessions`,
`app`), and what puts them together (`settings`, `topology`, `server`). Tests start it with
`testing.serve_polar`, a shell with ``python -m analysis.lab.polar_server``.
"""
