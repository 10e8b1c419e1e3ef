"""Readers: one module per format, each a pure function from a file to tables, problems and token places."""
