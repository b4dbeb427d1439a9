"""A FastAPI app that answers at once and works afterwards.

    pip install 'penstock[http]' fastapi httpx
    python examples/fastapi_app.py                    # runs it and asks it a few things
    uvicorn --app-dir examples fastapi_app:web        # serves it

What was wanted: a request must not wait for what takes long. It is answered with the address at which the result will
be; asking there again gives the result once it is there, or waits for it a little.

How Penstock does it: `await task.enqueue(…)` stores the job before the request is answered. FastAPI's lifespan opens
the app, and runs a worker in the same process; take that line out and start `penstock worker fastapi_app:app` when
there is more to do. `app.asgi()` mounted beside it is the whole HTTP service: jobs, queues, events, metrics, and a
page for people. Without credentials it only lets this machine look.
"""

import asyncio
import socket
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager

import httpx
import uvicorn
from fastapi import FastAPI, HTTPException
from pydantic import BaseModel

from penstock import JobFailed, JobNotFound, Penstock

app = Penstock("fastapi-app")


@app.task(name="count-words", retries=0)
def count_words(text: str) -> dict[str, int]:
    words = text.lower().split()
    if not words:
        raise ValueError("there is no text")
    return {word: words.count(word) for word in dict.fromkeys(words)}


@asynccontextmanager
async def lifespan(_web: FastAPI) -> AsyncIterator[None]:
    async with app, app.worker():
        yield


web = FastAPI(lifespan=lifespan)
web.mount("/queue", app.asgi())


class Text(BaseModel):
    text: str


@web.post("/texts", status_code=202)
async def take(body: Text) -> dict[str, str]:
    job = await count_words.enqueue(body.text)
    return {"result": f"/texts/{job.id}"}


@web.get("/texts/{job_id}")
async def look(job_id: str, wait: float = 0) -> dict[str, int]:
    """The result; 202 while it is not there, after `wait` seconds."""
    try:
        return await (await count_words.get_job(job_id)).result(timeout=wait)
    except TimeoutError:
        raise HTTPException(202, "not yet") from None
    except JobNotFound:
        raise HTTPException(404, "no such text") from None
    except JobFailed as error:
        raise HTTPException(422, str(error).splitlines()[0]) from None


async def ask(client: httpx.AsyncClient) -> None:
    for text in ("to be or not to be", " "):
        taken = await client.post("/texts", json={"text": text})
        print(f"POST /texts {text!r} -> {taken.status_code}")
        response = await client.get(taken.json()["result"], params={"wait": 10})
        print(f"GET /texts/… -> {response.status_code} {response.json()}")
    none = await client.get("/texts/none")
    print(f"GET /texts/none -> {none.status_code} {none.json()}")
    tasks = await client.get("/queue/api/v1/tasks")
    print(f"GET /queue/api/v1/tasks -> {tasks.status_code} {[task['name'] for task in tasks.json()['items']]}")


async def main() -> None:
    with socket.create_server(("127.0.0.1", 0)) as door:
        server = uvicorn.Server(uvicorn.Config(web, log_level="warning"))
        serving = asyncio.create_task(server.serve([door]))
        async with httpx.AsyncClient(base_url=f"http://127.0.0.1:{door.getsockname()[1]}", timeout=60) as client:
            await ask(client)
        server.should_exit = True
        await serving


if __name__ == "__main__":
    asyncio.run(main())
