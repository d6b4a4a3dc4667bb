"""Mathematics without clients."""
