"""Checks that run inside real Slime, in a process of their own.

Slime's modules need packages that a machine without GPUs does not have. `host` puts stand-ins for them into
the child process, imports real Slime there and runs the ``check_*`` functions of one module; the test process
stays clean.
"""
