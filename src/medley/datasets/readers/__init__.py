"""Readers of files: each turns a file into raw columns, and leaves to `table.Raw` what these mean."""
