"""Secure aggregation: the server learns the sum of the clients' replies, and no reply by itself."""

from .settings import SecureSum

__all__ = ["SecureSum"]
