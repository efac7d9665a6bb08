"""Insert results into the JSON of arguments."""

import json
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from horsies.workflows.inputs import result_text, splice_results

JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(), inner, max_size=3),
    max_leaves=8,
)


def test_a_result_replaces_its_null_and_the_rest_is_unchanged() -> None:
    args = '{"pages":[null,{"deep":null},7],"width":800,"none":null}'
    done = splice_results(args, [(("pages", 0), '{"big":"text"}'), (("pages", 1, "deep"), "[1,2]")])
    assert done == '{"pages":[{"big":"text"},{"deep":[1,2]},7],"width":800,"none":null}'


def test_without_results_the_arguments_are_not_parsed() -> None:
    assert splice_results("{not json", []) == "{not json"
    assert splice_results(b'{"a":1}', []) == '{"a":1}'


def test_a_result_keeps_every_character() -> None:
    assert (
        splice_results('{"x":null}', [(("x",), '{ "n": 1.0e5, "z": "\\u0000" }')])
        == '{"x":{ "n": 1.0e5, "z": "\\u0000" }}'
    )


def test_a_result_is_written_as_ok_or_err() -> None:
    assert result_text("[1]", None) == '{"ok":[1]}'
    assert result_text(None, None) == '{"ok":null}'
    assert result_text(None, '{"error_code":"X"}') == '{"err":{"error_code":"X"}}'


@given(args=st.dictionaries(st.text(), JSON, max_size=4), data=st.data())
def test_any_arguments_accept_any_results(args: dict[str, Any], data: st.DataObject) -> None:
    expected = dict(args)
    pieces: list[tuple[tuple[str], str]] = []
    for name in data.draw(st.sets(st.sampled_from(sorted(args)))) if args else ():
        expected[name] = data.draw(JSON)
        pieces.append(((name,), json.dumps(expected[name])))
    blank = {name: None if (name,) in [path for path, _ in pieces] else value for name, value in args.items()}
    assert json.loads(splice_results(json.dumps(blank), pieces)) == expected
