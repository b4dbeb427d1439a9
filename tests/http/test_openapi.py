"""OpenAPI: thousands of requests made from the description get only responses that it describes."""

import json
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import httpx
import pytest

from tests.conftest import namespace
from tests.http.processes import serve
from tests.servers import Server

CHECKS = (
    "not_a_server_error,status_code_conformance,content_type_conformance,"
    "response_headers_conformance,response_schema_conformance"
)


def run(document: dict[str, Any], folder: Path, url: str, name: str, phases: str, examples: int) -> int:
    """How many cases passed; all must. `coverage` tries each bound of each value, `fuzzing` is by chance."""
    file = folder / f"{name}.json"
    file.write_text(json.dumps(document))
    command = [sys.executable, "-m", "schemathesis.cli", "run", str(file), "--url", url, "--checks", CHECKS]
    options = ["--max-examples", str(examples), "--phases", phases, "--workers", "1", "--no-color"]
    completed = subprocess.run(
        [*command, *options], cwd=folder, capture_output=True, text=True, check=False, timeout=900
    )
    assert completed.returncode == 0, completed.stdout[-6000:] + completed.stderr[-2000:]
    passed = re.search(r"(\d+) generated, (\d+) passed", completed.stdout)
    assert passed is not None, completed.stdout[-2000:]
    assert passed[1] == passed[2]
    return int(passed[1])


def impatient(document: dict[str, Any]) -> dict[str, Any]:
    """The same without long waits, for nobody works here, and without events, which never end: test_events has them."""
    del document["paths"]["/api/v1/events"]
    for methods in document["paths"].values():
        for operation in methods.values():
            for parameter in operation["parameters"]:
                if parameter["name"] == "wait":
                    parameter["schema"]["maximum"] = 0.01
    return document


def pointed(document: dict[str, Any]) -> dict[str, Any]:
    """The same, but with names that exist, so that more than refusals is seen."""
    job = document["components"]["schemas"]["JobRequest"]["properties"]
    job["task"] = {"enum": ["add", "tick"]}
    job["args"] = {"type": "array", "items": {"type": "integer"}, "maxItems": 2}
    job["kwargs"] = {"type": "object", "maxProperties": 0}
    job["id"] = {"enum": ["a", "b", "c"]}
    batch = document["components"]["schemas"]["BatchRequest"]["properties"]
    batch["id"], batch["parent"] = {"enum": ["a", "b"]}, {"enum": ["", "a"]}
    batch["then"], batch["on_failure"] = {"enum": ["tell", "add"]}, {"enum": ["tell"]}
    names = {
        "jobs": ["a", "b", "c"],
        "batches": ["a", "b"],
        "queues": ["sums", "default"],
        "lanes": ["x"],
        "schedules": ["hourly"],
    }
    for path, methods in document["paths"].items():
        for operation in methods.values():
            for parameter in operation["parameters"]:
                if parameter["in"] == "path":
                    parameter["schema"] = {"enum": names[path.split("/")[3]]}
    return document


@pytest.mark.integration
@pytest.mark.timeout(400)  # thousands of requests
def test_requests_made_from_openapi_get_only_responses_that_it_describes(tmp_path: Path, single: Server) -> None:
    with serve(tmp_path, single.url, namespace(), "tasks:app", "--open") as process:
        document = impatient(httpx.get(f"{process.url}/openapi.json").json())
        cases = run(document, tmp_path, process.url, "as-it-is", "fuzzing", 6)
        pointed(document)
        del document["paths"]["/api/v1/batches/{id}/jobs"][
            "post"
        ]  # the same body as that of /jobs: a third of all cases
        cases += run(document, tmp_path, process.url, "pointed", "coverage", 1)
        assert "Traceback" not in process.output
    print(f"\n{cases:,} cases")
    assert cases >= 2_000


@pytest.mark.long
@pytest.mark.timeout(1800)
def test_many_more_requests_made_from_openapi_get_only_responses_that_it_describes(
    tmp_path: Path, single: Server
) -> None:
    with serve(tmp_path, single.url, namespace(), "tasks:app", "--open") as process:
        document = impatient(httpx.get(f"{process.url}/openapi.json").json())
        cases = run(document, tmp_path, process.url, "as-it-is", "coverage,fuzzing", 100)
        cases += run(pointed(document), tmp_path, process.url, "pointed", "coverage,fuzzing", 100)
        assert "Traceback" not in process.output
    print(f"\n{cases:,} cases")


async def test_every_route_is_described_with_its_role_and_its_problems(client: httpx.AsyncClient) -> None:
    document = (await client.get("/openapi.json")).json()
    assert document["openapi"].startswith("3.1")
    operations = [operation for methods in document["paths"].values() for operation in methods.values()]
    assert len({operation["operationId"] for operation in operations}) == len(operations) >= 45
    assert all(
        operation["x-role"] in {"viewer", "operator", "admin"} for operation in operations if "security" in operation
    )
    assert "Problem" in document["components"]["schemas"]
