"""Rows of data: with several inputs, read lazily, sparse, and of two objectives in one batch."""
