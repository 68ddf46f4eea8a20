"""From a term and a row's tokens to keys: one token of each of the term's fields at a time, walked in both tries.

`terms` is int64[terms, TERM_COLUMNS], one row for each term, with the columns below (`server/model/model.py` makes it).
`server/ranking/scoring_kernels.py` describes the groups of arrays. `choice` is int64[4], the token chosen for
each field.
"""

from __future__ import annotations

from typing import Any

from model_store.jit import bare_inline
from model_store.trie.trie_kernels import slot_at, walk
from server.model.ids_kernels import NO_HALF

# Columns of `terms`: how many fields it crosses and which; the variants that use it; for a cross of request and item,
# the group of item parts that its keys end in; and where its prefix ends in the base and in the fresh trie, as node,
# used and stop, with node -1 where no key lies there; and whether one of its fields is the user's, 0 or 1.
COUNT, FIELD, MASK, GROUP, BASE, FRESH, OF_USER = 0, 1, 5, 6, 7, 10, 13
TERM_COLUMNS = 14


@bare_inline
def first_choice(terms: Any, term: Any, values: Any, row: Any, value_start: Any, choice: Any) -> Any:
    """Set `choice` to the first token of each of the term's fields; False if one has none."""
    for i in range(terms[term, COUNT]):
        value = values[row, terms[term, FIELD + i]]
        if value < 0 or value_start[value] == value_start[value + 1]:
            return False
        choice[i] = value_start[value]
    return True


@bare_inline
def next_choice(terms: Any, term: Any, values: Any, row: Any, value_start: Any, choice: Any) -> Any:
    """Step `choice` to the next combination of tokens, the last field fastest; False after the last."""
    for i in range(terms[term, COUNT] - 1, -1, -1):
        value = values[row, terms[term, FIELD + i]]
        choice[i] += 1
        if choice[i] < value_start[value + 1]:
            return True
        choice[i] = value_start[value]
    return False


@bare_inline
def walk_choice(trie: Any, terms: Any, term: Any, layer: Any, tokens: Any, choice: Any, more: Any) -> Any:
    """Walk the chosen tokens, joined by `*`, from the end of the term's prefix; with `more`, a last `*` as well.

    `layer` is BASE or FRESH, the one that the trie is of. Returns the position and the product of the tokens' x.
    """
    nodes, first_byte, labels = trie
    _, _, begin, xs, text = tokens
    node, used, stop = terms[term, layer], terms[term, layer + 1], terms[term, layer + 2]
    count, x = terms[term, COUNT], 1.0
    for i in range(count):
        if node < 0:
            break
        token = choice[i]
        # In `text` a `*` stands after every token.
        end = begin[token + 1] - (0 if more or i + 1 < count else 1)
        node, used, stop = walk(nodes, first_byte, labels, node, used, stop, text, begin[token], end)
        x *= xs[token]
    return node, used, stop, x


@bare_inline
def chosen_x(terms: Any, term: Any, xs: Any, choice: Any) -> Any:
    """The product of the chosen tokens' x, whether a key of them exists or not."""
    x = 1.0
    for i in range(terms[term, COUNT]):
        x *= xs[choice[i]]
    return x


@bare_inline
def find_key(trie: Any, fresh_trie: Any, terms: Any, term: Any, tokens: Any, choice: Any) -> Any:
    """The key of the chosen tokens: its slots in the base and in the fresh layer, -1 where it is missing, and its x."""
    node, used, _, x = walk_choice(trie, terms, term, BASE, tokens, choice, False)
    slot = slot_at(trie[0], node, used)
    if slot >= 0 or terms[term, FRESH] < 0:
        return slot, -1, x
    node, used, _, x = walk_choice(fresh_trie, terms, term, FRESH, tokens, choice, False)
    return -1, slot_at(fresh_trie[0], node, used), x


FIRST_RUN = NO_HALF - 1  # in codes: FIRST_RUN - r stands for run r
