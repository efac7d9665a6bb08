"""Order a comparison, and ask for its result.

$ uvicorn examples.celery_port.after.api:api
"""

from typing import Any
from uuid import UUID

from fastapi import FastAPI, HTTPException, Response

from examples.celery_port.after.app import app
from examples.celery_port.after.tasks import compare
from horsies import Err, Ok, RetrievalCode, TaskError

api = FastAPI()


@api.post("/comparisons", status_code=202)
def order(product: str) -> dict[str, str]:
    return {"id": compare(product).workflow_id}


@api.get("/comparisons/{comparison_id}")
def show(comparison_id: UUID, response: Response) -> Any:
    match app.workflow_handle(comparison_id).get(timeout_ms=0):
        case Ok(offer):
            return offer
        case Err(TaskError(error_code=RetrievalCode.WAIT_TIMEOUT)):
            response.status_code = 202
            return {"status": "not yet"}
        case Err(TaskError(error_code=RetrievalCode.WORKFLOW_NOT_FOUND)):
            raise HTTPException(404, "no such comparison")
        case Err(error):
            raise HTTPException(502, error.message)
