"""Lists are converted to arrays that PostgreSQL reads."""

from datetime import UTC, datetime

import psycopg
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from horsies.db.statement import to_array

TEXT = st.text(st.characters(exclude_characters="\0", exclude_categories=["Cs"]))


@given(st.lists(st.none() | TEXT, max_size=8))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], deadline=None)
def test_any_text_arrives_as_it_was_sent(sql: psycopg.Connection, texts: list[str | None]) -> None:
    assert sql.execute("select %s::text[]", [to_array(texts)]).fetchone() == (texts,)


def test_numbers_booleans_and_times_arrive_as_they_were_sent(sql: psycopg.Connection) -> None:
    moment = datetime(2026, 11, 15, 9, 41, 40, 317141, tzinfo=UTC)
    found = sql.execute(
        "select %s::integer[], %s::float8[], %s::boolean[], %s::timestamptz[]",
        [to_array([1, None, -2]), to_array([0.1, 1e300]), to_array([True, False, None]), to_array([moment])],
    ).fetchone()
    assert found == ([1, None, -2], [0.1, 1e300], [True, False, None], [moment])


def test_an_element_of_an_unsupported_type_is_refused() -> None:
    with pytest.raises(TypeError, match="cannot hold a dict"):
        to_array([{}])
