"""The random modules of the builders, under the name they were known by."""

from tests.builders import (
    make_config,
    oracle_options,
    random_module,
    random_state_of,
    random_tokens,
    raw_tokens_and_layout,
)

__all__ = [
    "make_config",
    "oracle_options",
    "random_module",
    "random_state_of",
    "random_tokens",
    "raw_tokens_and_layout",
]
