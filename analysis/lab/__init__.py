"""The embedded stack on one machine: tiny policy, engine, router, Polar-compatible server, trainer."""
