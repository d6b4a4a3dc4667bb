"""Many runs: compare methods, tune one, profile one.

Side: the server's, in simulations: it starts runs, in processes of their own if you ask for `jobs`, and saves their
folders.
"""
