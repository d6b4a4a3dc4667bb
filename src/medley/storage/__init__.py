"""A run on disk: checkpoints, run folders, results, and memories too large for RAM."""
