"""The contract: what a method, a client, a message, a transport and a result are."""
