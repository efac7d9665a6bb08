"""Order a comparison, and ask for its result.

$ uvicorn examples.celery_port.before.api:api
"""

from uuid import UUID

from fastapi import FastAPI, HTTPException, Response

from examples.celery_port.before.app import app
from examples.celery_port.before.tasks import compare

api = FastAPI()


@api.post("/comparisons", status_code=202)
def order(product: str):
    return {"id": compare(product).id}


@api.get("/comparisons/{comparison_id}")
def show(comparison_id: UUID, response: Response):
    result = app.AsyncResult(str(comparison_id))
    if not result.ready():  # also if the id is unknown
        response.status_code = 202
        return {"status": "not yet"}
    if result.failed():
        raise HTTPException(502, str(result.result))
    return result.result
