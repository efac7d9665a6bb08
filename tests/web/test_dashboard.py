"""The dashboard over HTTP, on a real server."""

import httpx

from horsies import AppConfig, Horsies
from horsies.web import dashboard


async def test_the_overview_lists_the_queues(database: str) -> None:
    app = Horsies(AppConfig.for_database_url(database))
    app.broker.migrate()
    app.ops.pause_queue("mail")
    transport = httpx.ASGITransport(dashboard(app))
    async with httpx.AsyncClient(transport=transport, base_url="http://localhost:8321") as client:
        page = await client.get("/")
        assert page.status_code == 200
        assert "mail" in page.text
        back = await client.post("/actions/resume-queue", data={"name": "mail", "back": "/"})
        assert back.status_code == 303
        assert "resumed" in (await client.get(back.headers["location"])).text
    await app.broker.close_async()
