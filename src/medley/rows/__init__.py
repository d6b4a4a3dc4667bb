"""Rows of data: of several inputs, read when used, sparse, and of two objectives in one batch."""
