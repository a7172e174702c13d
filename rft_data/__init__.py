"""The hub of rft-data: buffer, sampler, selectors, versions, recipes and the loop.

Importing this package loads neither torch nor vllm, trl, ray or data_juicer.
"""

__version__ = "0.5.0"
