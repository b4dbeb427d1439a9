"""Scripts: how a verb's file becomes what the server runs."""

import re

import pytest

from penstock.engine.keys import KINDS, Keys
from penstock.engine.scripts import constants_in, load
from penstock.errors import BadOption
from penstock.model.header import Header

VERBS = sorted(load())


def test_a_full_server_refuses_only_scripts_that_make_jobs() -> None:
    refused = {name for name, script in load().items() if "allow-oom" not in script.text.splitlines()[0]}
    assert refused == {"enqueue", "open_batch", "revive", "tick", "run_cron"}


@pytest.mark.parametrize("verb", VERBS)
def test_a_script_declares_known_keys_each_once_and_meta_first(verb: str) -> None:
    keys = load()[verb].keys
    assert keys[0] == "meta"
    assert len(set(keys)) == len(keys)
    assert set(keys) <= set(KINDS)


@pytest.mark.parametrize("verb", VERBS)
def test_no_name_of_a_constant_is_left_in_a_script(verb: str) -> None:
    code = "\n".join(line.partition("--")[0] for line in load()[verb].text.splitlines())
    left = {name for name in (field.upper() for field in Header.__struct_fields__) if re.search(rf"\b{name}\b", code)}
    assert left == set()


@pytest.mark.parametrize("verb", VERBS)
def test_the_two_builds_differ_only_in_where_the_time_comes_from(verb: str) -> None:
    real, test = load()[verb], load(test=True)[verb]
    assert real.keys == test.keys
    assert real.sha != test.sha
    assert ("'TIME'" in real.text, "'TIME'" in test.text) == (True, False)


def test_init_makes_every_key_that_there_is() -> None:
    assert set(load()["init"].keys) == set(KINDS)


@pytest.mark.parametrize("name", ["", "a b", "a{b", "a}b", "ü", "a\n", "a" * 101, "a*"])
def test_a_namespace_with_other_characters_is_refused(name: str) -> None:
    with pytest.raises(BadOption, match="namespace"):
        Keys(name)


def test_the_keys_and_channels_of_a_namespace_have_one_hash_tag() -> None:
    keys = Keys("shop:eu/1")
    names = [keys(name).decode() for name in KINDS] + [keys.channel("w"), keys.timer]
    assert {name.partition("{")[2].partition("}")[0] for name in names} == {"shop:eu/1"}
    assert len(set(names)) == len(KINDS) + 2


def test_constants_are_put_where_code_names_them_and_not_into_strings_or_comments() -> None:
    assert constants_in("call('SEP', \"STATE\", h[STATE]) -- STATE") == "call('SEP', \"STATE\", h[1]) -- STATE"
    assert constants_in(r"f('it\'s STATE', STATE, 'a -- b', TASK)") == r"f('it\'s STATE', 1, 'a -- b', 2)"
