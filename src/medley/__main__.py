"""`python -m medley`: the command line."""

from .cli import app

app(prog_name="medley")
