"""The home page: everything on it is escaped, and it shows no secret."""

import httpx

from penstock import Penstock
from tests.http.harness import listening


async def test_the_page_shows_queues_workers_and_failures(app: Penstock, client: httpx.AsyncClient) -> None:
    @app.task(name="<b>bold</b>", retries=0)
    async def bold(password: str) -> None:
        raise ValueError(f"wrong {password}")

    job = await bold.using(id="<i>x</i>/1").enqueue("hunter2")
    async with app.worker() as worker:
        await worker.until_idle()
        response = await client.get("/")
    assert (response.status_code, response.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert "default-src 'none'" in response.headers["content-security-policy"]
    assert "&lt;b&gt;bold&lt;/b&gt;" in response.text
    assert "<b>" not in response.text
    assert "<i>" not in response.text
    assert "retries_exhausted ValueError" in response.text
    assert "hunter2" not in response.text
    assert (await client.get("/api/v1/jobs/%3Ci%3Ex%3C%2Fi%3E%2F1")).json()["id"] == job.id
    assert 'href="/api/v1/jobs/%3Ci%3Ex%3C%2Fi%3E%2F1"' in response.text


async def test_the_home_page_needs_credentials_like_everything_else(app: Penstock) -> None:
    async with listening(app.asgi(users={"ann": ("long-enough", "viewer")})) as port, httpx.AsyncClient() as client:
        refused = await client.get(f"http://127.0.0.1:{port}/")
        assert (refused.status_code, refused.headers["www-authenticate"][:5]) == (401, "Basic")
        shown = await client.get(f"http://127.0.0.1:{port}/", auth=("ann", "long-enough"))
        assert (shown.status_code, "none" in shown.text) == (200, True)
