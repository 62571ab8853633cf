"""A config that was read, written as one file again: `extends` and overrides in it, some values replaced."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import yaml

from stages.contract.tree import Items, Table, Text


def one_file(tree: Table, values: Mapping[tuple[Any, ...], str]) -> bytes:
    """The tree as YAML, UTF-8, with the scalars at some paths replaced. Reading it gives the same values."""

    def node(value: Any, path: tuple[Any, ...]) -> yaml.Node:
        if isinstance(value, Table):
            pairs = [(yaml.ScalarNode("tag:yaml.org,2002:str", key, style='"'), node(value[key], (*path, key))) for key in value]
            return yaml.MappingNode("tag:yaml.org,2002:map", pairs, flow_style=False)
        if isinstance(value, Items):
            return yaml.SequenceNode("tag:yaml.org,2002:seq", [node(v, (*path, i)) for i, v in enumerate(value)], flow_style=False)
        if value is None:
            return yaml.ScalarNode("tag:yaml.org,2002:null", "null")
        text = values.get(path, str(value))
        plain = isinstance(value, Text) and not value.quoted and path not in values
        tag = yaml.resolver.Resolver().resolve(yaml.ScalarNode, text, (True, False)) if plain else "tag:yaml.org,2002:str"
        return yaml.ScalarNode(tag, text, style=None if plain else '"')

    return yaml.serialize(node(tree, ()), allow_unicode=True, width=10**6).encode()
