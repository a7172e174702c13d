"""The version of this package, which stored runs and exported sets carry."""

__version__ = "0.10.0"
