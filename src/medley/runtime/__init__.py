"""The lowest room: named random streams, the virtual clock, meters, and tricks that affect the whole process."""
