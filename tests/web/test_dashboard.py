"""The dashboard over HTTP, on a real server."""

from typing import Any

from horsies import Horsies


async def test_an_action_changes_something_says_so_and_is_recorded(app: Horsies, visit: Any) -> None:
    app.ops.pause_queue("mail")
    visitor = await visit()
    done = await visitor.post("/actions/resume-queue", name="mail", back="/?x=1")
    assert (done.status_code, done.headers["location"]) == (303, "/?x=1")
    assert "Queue mail is resumed" in (await visitor.get("/")).text
    assert "Queue mail is resumed" not in (await visitor.get("/")).text, "a message is shown once"
    newest = app.ops.list_audit(limit=1)[0]
    assert (newest.actor, newest.action, newest.target, newest.count) == ("local", "resume queue", "mail", 1)
