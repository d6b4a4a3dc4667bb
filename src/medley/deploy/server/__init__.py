"""Runs on the operator's machine, which must not see a client's rows: what leaves it are requests and results.

Answers are read as foreign data; no file here reads rows.
"""
