"""A FastAPI endpoint that sends slow work to a worker, and another endpoint that returns the result.

$ horsies worker examples.fastapi_endpoint:app &
$ uvicorn examples.fastapi_endpoint:api
$ curl -X POST 'localhost:8000/reports?year=2026'
{"task_id":"01932f0e-..."}
$ curl 'localhost:8000/reports/01932f0e-...?wait_ms=5000'
{"status":"done","rows":52}
"""

from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager
from uuid import UUID

from fastapi import FastAPI, HTTPException, Response
from pydantic import BaseModel

from horsies import Horsies, RetrievalCode, TaskError, TaskResult

app = Horsies()

FIRST_YEAR = 2000


class Report(BaseModel):
    year: int
    rows: int


@app.task("make_report")
async def make_report(year: int) -> TaskResult[Report, TaskError]:
    if year < FIRST_YEAR:
        return TaskResult(err=TaskError(error_code="NO_DATA", message=f"nothing is known of {year}"))
    return TaskResult(ok=Report(year=year, rows=52))


@asynccontextmanager
async def lifespan(_: FastAPI) -> AsyncGenerator[None]:
    yield
    await app.close_async()  # closes the connections of this event loop


api = FastAPI(lifespan=lifespan)


@api.post("/reports", status_code=202)
async def order_report(year: int) -> dict[str, str]:
    handle = await make_report.send_async(year)
    return {"task_id": handle.task_id}


@api.get("/reports/{task_id}")
async def get_report(task_id: UUID, response: Response, wait_ms: int = 0) -> dict[str, str | int]:
    result = await app.handle(task_id, make_report).get_async(timeout_ms=wait_ms)
    if result.is_ok():
        return {"status": "done", "rows": result.ok_value.rows}
    match result.err_value.error_code:
        case RetrievalCode.WAIT_TIMEOUT:
            response.status_code = 202
            return {"status": "not yet"}
        case RetrievalCode.TASK_NOT_FOUND:
            raise HTTPException(404, "no such report")
        case code:
            raise HTTPException(422, f"{code}: {result.err_value.message}")
