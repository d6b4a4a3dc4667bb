"""Methods: one paper, one file; no method imports another."""
