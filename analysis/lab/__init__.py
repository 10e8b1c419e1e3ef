"""The embedded stack: a tiny policy, an engine, the router, a Polar-compatible server and a trainer on one machine."""
