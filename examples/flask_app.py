"""A Flask app that answers at once; a worker process does the work.

    pip install penstock flask
    python examples/flask_app.py                      # runs it, with a worker, and asks it a few things
    flask --app examples/flask_app:web run            # serves it, beside:
    (cd examples && penstock worker flask_app:app)

What was wanted: code that knows nothing of event loops sends jobs and asks for their results, from any thread and
after any fork of its server, and the work is done elsewhere.

How Penstock does it: everything has a blocking twin, `enqueue_sync`, `get_job_sync`, `result_sync`, with connections
of its own in each process. `unique` makes one job of a form that was sent twice.
"""

import asyncio
import os
import subprocess
import sys
import tempfile
from pathlib import Path

from flask import Flask, abort, request
from flask.typing import ResponseReturnValue

from penstock import JobFailed, JobNotFound, Penstock

FOLDER = Path(os.environ.get("FLASK_APP_FOLDER") or tempfile.mkdtemp(prefix="flask-app-"))
os.environ["FLASK_APP_FOLDER"] = str(FOLDER)  # for its other processes

app = Penstock("flask-app", url=os.environ.get("PENSTOCK_URL", f"embedded://{FOLDER}/data"))
web = Flask(__name__)


@app.task(name="invoice", retries=0, unique="order:{order}")
def invoice(order: int, items: list[str]) -> str:
    """Rendered in the worker's process, as its number shows."""
    if not items:
        raise ValueError(f"order {order} is empty")
    return f"invoice for order {order}: {', '.join(items)} (by process {os.getpid()})"


@web.post("/orders/<int:order>/invoice")
def take(order: int) -> ResponseReturnValue:
    job = invoice.enqueue_sync(order, request.get_json()["items"])
    return {"result": f"/invoices/{job.id}", "created": job.created}, 202


@web.get("/invoices/<job_id>")
def look(job_id: str) -> ResponseReturnValue:
    try:
        job = invoice.get_job_sync(job_id)
        return {"invoice": job.result_sync(timeout=request.args.get("wait", 0.0, float))}
    except TimeoutError:
        return {"state": job.status_sync().state}, 202
    except JobNotFound:
        abort(404)
    except JobFailed as error:
        return {"error": str(error).splitlines()[0]}, 422


def main() -> None:
    client = web.test_client()
    ask = {"items": ["tea", "milk"]}
    first, again = (client.post("/orders/7/invoice", json=ask).get_json() for _ in range(2))
    print(f"POST /orders/7/invoice twice -> created: {first['created']}, {again['created']}")
    print(f"GET /invoices/… -> {client.get(first['result']).get_json()}, for there is no worker")
    worker = subprocess.Popen([sys.executable, __file__, "work"])  # noqa: S603  (ourselves)
    try:
        print(f"GET /invoices/… -> {client.get(first['result'] + '?wait=60').get_json()}")
        empty = client.post("/orders/8/invoice", json={"items": []}).get_json()
        print(f"GET /invoices/… -> {client.get(empty['result'] + '?wait=60').get_json()}")
    finally:
        worker.terminate()
        worker.wait()


if __name__ == "__main__":
    if sys.argv[1:] == ["work"]:
        asyncio.run(app.worker().run())  # in the same folder, by $FLASK_APP_FOLDER
    else:
        main()
