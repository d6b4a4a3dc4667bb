"""The lowest room: named random streams, the virtual clock, meters, and tricks that affect the whole process.

Side: both. It knows nothing of clients, models or rows.
"""
