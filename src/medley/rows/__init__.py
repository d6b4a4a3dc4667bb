"""Rows of data: with several inputs, read lazily, sparse, and of two objectives in one batch.

Side: the client's. This is the data itself: nothing here sends it or writes it to a file.
"""
