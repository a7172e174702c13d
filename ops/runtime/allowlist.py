"""Data-Juicer operators that a recipe may name without `allow_unsafe_ops`.

Each works on text or scalar columns in this process, and neither evaluates, imports nor executes its
arguments, nor touches files or the network. Left out of the 228: those that do (lambdas, files of code,
shell commands, uploads), that fetch models or word lists, or that ask a language model; those that read
other than text; and those that multiply rows.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

NATIVE_OPERATORS = frozenset(
    {
        "alphanumeric_filter",
        "average_line_length_filter",
        "character_repetition_filter",
        "general_field_filter",
        "maximum_line_length_filter",
        "special_characters_filter",
        "specified_field_filter",
        "specified_numeric_field_filter",
        "text_length_filter",
        "word_repetition_filter",
        "words_num_filter",
        "chinese_convert_mapper",
        "clean_copyright_mapper",
        "clean_email_mapper",
        "clean_html_mapper",
        "clean_ip_mapper",
        "clean_links_mapper",
        "expand_macro_mapper",
        "extract_tables_from_html_mapper",
        "fix_unicode_mapper",
        "pii_redaction_mapper",
        "punctuation_normalization_mapper",
        "remove_bibliography_mapper",
        "remove_comments_mapper",
        "remove_header_mapper",
        "remove_long_words_mapper",
        "remove_non_chinese_character_mapper",
        "remove_specific_chars_mapper",
        "remove_table_text_mapper",
        "remove_words_with_incorrect_substrings_mapper",
        "replace_content_mapper",
        "whitespace_normalization_mapper",
        "document_deduplicator",
        "document_line_deduplicator",
        "document_minhash_deduplicator",
        "document_simhash_deduplicator",
        "frequency_specified_field_selector",
        "random_selector",
        "range_specified_field_selector",
        "tags_specified_field_selector",
        "topk_specified_field_selector",
    }
)

BACKTRACKING_OPERATORS = frozenset(
    {
        "clean_copyright_mapper",
        "clean_links_mapper",
        "expand_macro_mapper",
        "extract_tables_from_html_mapper",
        "pii_redaction_mapper",
    }
)
"""Operators of the list that need time with the square of some texts' length: 39 s for 60,000 characters.

All others took less than a second for each of 80 texts of that length, of one short piece repeated.
"""

_FETCHING: Mapping[str, tuple[object, ...]] = {"tokenization": (True, "sentencepiece")}
"""Argument to the values with which an operator of the list downloads a tokenizer that is missing."""

_IMPORTING: Mapping[str, str] = {"semantic_diversity_filter": "model"}
"""Operator of ours to the argument that makes it import code when its value is `package.module:name`."""


def is_own(operator: str) -> bool:
    """Whether a recipe names an operator by import path, as it names rewards and workflows: the user's code.

    A class of Data-Juicer's is not; it is named as the list names it, and allowed as the list allows it.
    """
    return ":" in operator and not operator.startswith("data_juicer.")


def unsafe_arguments(operator: str, args: Mapping[str, object]) -> Iterator[tuple[str, str]]:
    """(argument, what it does) for each argument value with which an operator of the list is not safe."""
    if operator in NATIVE_OPERATORS:
        for name, values in _FETCHING.items():
            if name in args and args[name] in values:
                yield name, "fetches a model from the network"
    elif ":" in str(args.get(argument := _IMPORTING.get(operator, ""), "")):
        yield argument, "imports code"
