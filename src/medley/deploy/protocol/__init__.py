"""Runs on every machine of a deployment: the forms of what travels, and the settings on which both sides agree."""
