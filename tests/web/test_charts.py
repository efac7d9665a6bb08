"""Charts and filters: paths, scales and texts, without a browser."""

from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from horsies.ops.statistics import MinutePoint
from horsies.web.charts import HEIGHT, latency_chart, throughput_chart, to_buckets
from horsies.web.filters import age, code_spans, duration, make_url, segment, short_id, visible

START = datetime(2026, 3, 1, 23, 57, tzinfo=UTC)

durations = st.none() | st.floats(0, 4e7)
counts = st.integers(0, 10**9)


@st.composite
def series(draw: st.DrawFn) -> list[MinutePoint]:
    """As `time_series` returns it: a point for each minute."""
    return [
        MinutePoint(
            START + timedelta(minutes=number),
            *(draw(counts) for _ in range(5)),
            *(draw(durations) for _ in range(4)),
            is_complete=draw(st.booleans()),
        )
        for number in range(draw(st.integers(1, 25)))
    ]


@given(series(), st.sampled_from([1, 10]))
def test_charts_stay_within_their_frame(points: list[MinutePoint], minutes: int) -> None:
    buckets = to_buckets(points, minutes)
    assert sum(bucket.minutes for bucket in buckets) == len(points)
    assert sum(bucket.completed for bucket in buckets) == sum(point.completed for point in points)
    for chart in (throughput_chart(buckets), latency_chart(buckets)):
        assert chart.columns == len(buckets)
        assert len(chart.labels) >= 2
        for line in chart.series:
            for piece in line.path.replace("z", "").replace("M", " M").replace("L", " L").split(" M")[1:]:
                x, y = piece.replace("h", " ").replace("v", " ").split(" L")[0].split()[:2]
                assert 0 <= float(x) <= len(buckets)
                assert -0.001 <= float(y) <= HEIGHT + 0.001


def test_a_line_is_interrupted_where_nothing_is_known() -> None:
    points = [
        MinutePoint(START + timedelta(minutes=number), 1, 0, 0, 0, 0, value, value, value, value, is_complete=True)
        for number, value in enumerate([1.0, 10.0, None, 100.0])
    ]
    chart = latency_chart(to_buckets(points, 1))
    assert chart.series[0].path == "M0.5 100h0L1.5 50M3.5 0h0"
    assert chart.labels == ["100 ms", "10 ms", "1 ms"]
    assert "100 ms" in chart.summary


@pytest.mark.parametrize(
    ("seconds", "text"),
    [
        (0, "0 ms"), (0.0004, "0.4 ms"), (0.35, "350 ms"), (0.9996, "1.0 s"), (1.24, "1.2 s"), (9.96, "10 s"), (59.7, "1 min"),
        (184, "3 min 4 s"), (3600, "1 h"), (7500, "2 h 5 min"), (187_200, "2 d 4 h"), (timedelta(minutes=2), "2 min"), (-3, "0 ms"),
    ],
)  # fmt: skip
def test_durations(seconds: float | timedelta, text: str) -> None:
    assert duration(seconds) == text


def test_ages_change_in_steps() -> None:
    now = datetime(2026, 3, 1, tzinfo=UTC)
    assert [age(now - timedelta(seconds=each), now) for each in (0, 9.9, 19, 61, 3700, 90_000)] == [
        "just now",
        "just now",
        "10 s ago",
        "1 min ago",
        "1 h 1 min ago",
        "1 d 1 h ago",
    ]
    assert age(now + timedelta(minutes=5), now) == "in 5 min"
    assert age(None) == "never"


def test_texts_show_what_is_invisible_and_nothing_else() -> None:
    assert (
        visible("a\x1b[31m \u202eb\u200b\n\u00e9\U0001f40e\x00\ud800")
        == "a\\x1b[31m \\u202eb\\u200b\\n\u00e9\U0001f40e\\x00\\ud800"
    )
    assert visible("a\n\tb\r", lines=True) == "a\n\tb\\r"
    assert code_spans("run `rm <x>` & `y`") == "run <code>rm &lt;x&gt;</code> &amp; <code>y</code>"
    assert code_spans("one ` only <b>") == "one ` only &lt;b&gt;"
    assert segment("a/b%\n..") == "a%2Fb%25%0A.."
    assert make_url("", "/tasks/\ud800", q="\ud800") == "/tasks/%3F?q=%3F"
    assert segment("..") == "%2E%2E"
    assert short_id("01a1f1e8-caa3-7cc2-b11b-6588b83e1cdf") == "01a1f1e8…1cdf"
