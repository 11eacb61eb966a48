"""Bytes in, bytes out. Knows nothing of feeds or gRPC."""
