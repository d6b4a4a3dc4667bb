"""Methods: one file a paper, or one package for the three large ones; no method imports another.

Side: both. `round` runs at the server and sees replies, never rows; a function marked `on_client` runs where the rows
are. A method opens no file and draws only from named streams.
"""
