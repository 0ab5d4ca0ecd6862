"""What help() shows of the values."""

import pydoc
import re
from dataclasses import fields

import pytest

from gpumap.mapping.base import FrozenModel
from gpumap.mapping.devices import Device, Link, Node, Tenant
from gpumap.mapping.launch import Launch
from gpumap.mapping.placement import Conflict, Placement
from gpumap.mapping.plan import Plan, plan
from helpers.nodes import node

MODELS: list[type[FrozenModel]] = [
    Conflict,
    Device,
    Launch,
    Link,
    Node,
    Placement,
    Tenant,
]


def page(thing: type) -> str:
    """Return what help() prints of a class."""
    return pydoc.plain(pydoc.render_doc(thing))


def arguments(thing: type) -> set[str]:
    """Return the arguments on a class's page, which Python 3.13 puts on lines."""
    return set(re.findall(r"\w+: [^ ]+(?: = [^ ]+)?,", page(thing)))


def names(thing: type) -> list[str]:
    """Return the names of a class's public fields."""
    if issubclass(thing, FrozenModel):
        return list(thing.model_fields)
    return [field.name for field in fields(Plan) if not field.name.startswith("_")]


@pytest.mark.parametrize("thing", [*MODELS, Plan], ids=lambda thing: thing.__name__)
def test_help_is_a_page_that_says_what_each_field_means(thing: type) -> None:
    """help() of a value has at most 80 lines, and one on each field."""
    text = page(thing)
    assert len(text.splitlines()) <= 80
    for name in names(thing):
        assert re.search(rf"^ \|      {name}: \S", text, re.MULTILINE), name


@pytest.mark.parametrize("thing", MODELS, ids=lambda thing: thing.__name__)
def test_help_tells_nothing_of_pydantic(thing: type) -> None:
    """Neither pydantic's methods nor its words for a type are on the page."""
    text = page(thing)
    methods = re.findall(r"^ \|  (\w+)\(", text, re.MULTILINE)
    assert [name for name in methods if hasattr(FrozenModel, name)] == []
    assert "FieldInfo" not in text
    assert "__pydantic" not in text


def test_a_number_in_help_is_an_index_or_a_count() -> None:
    """In Link's arguments an index may be 0; both kinds of numbers have a name."""
    assert {"a: Index,", "b: Index,", "nvlinks: Index = 0,"} <= arguments(Link)
    assert "world_size: Count," in arguments(Launch)


def test_methods_of_a_value_are_on_its_page() -> None:
    """What a Node and a Plan can do besides is on their pages, in our words."""
    assert "Return this node with only these devices, in this order" in page(Node)
    assert "Return the devices that several ranks share" in page(Plan)
    assert [name for name in dir(Plan) if name != "bind"] == ["conflicts", "explain"]


def test_an_instance_still_offers_what_pydantic_and_sequence_bring() -> None:
    """Completion on an instance finds model_dump_json, and a plan's index()."""
    two = plan([node(2)], [2])
    assert {"model_dump_json", "model_copy"} <= set(dir(node(1)))
    assert {"count", "index"} <= set(dir(two))
    assert two.index(two[1]) == 1


def test_the_page_of_a_node_says_how_it_is_saved() -> None:
    """The two methods that write and read a node are named on its page."""
    assert "node.model_dump_json() writes it as JSON" in page(Node)
    assert "Node.model_validate_json(text) reads it" in page(Node)
