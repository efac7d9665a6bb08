"""Round trips and commits of a task from send to get, counted as in the benchmarks: on the wire and in the server's log.

On a server of its own, because other tests would write to the same log.
"""

from benchmarks.cost import cost_of_one, cost_of_two_nodes
from benchmarks.place import open_place


def test_one_task_costs_at_most_six_round_trips_and_three_durable_commits() -> None:
    with open_place() as place:
        cost = cost_of_one(place, 5)
    assert cost.round_trips <= 6, cost.trips
    assert cost.durable_commits <= 3, cost.trips
    assert cost.times("enqueue_tasks") == 1
    assert cost.times("finish_tasks") == 1


def test_a_workflow_of_two_nodes_costs_at_most_twelve_round_trips() -> None:
    with open_place() as place:
        cost = cost_of_two_nodes(place, 3)
    assert cost.round_trips <= 12, cost.trips
    assert cost.times("finish_tasks") == 2
