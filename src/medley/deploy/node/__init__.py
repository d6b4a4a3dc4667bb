"""Runs on the client's own machine, beside its rows. What leaves it is an answer, recorded before it is sent.

Its owner's recipe says which requests get an answer.
"""
