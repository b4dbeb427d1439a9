"""What a sender may use. Each check raises a 403 that says what is missing."""

from msgspec import UnsetType

from penstock.engine.read.views import JobRecord
from penstock.http.principal import Principal
from penstock.http.problems import Refused
from penstock.http.route import RequestContext, Route
from penstock.http.schemas.requests import JobRequest
from penstock.model.durations import milliseconds, show


def authorize(principal: Principal, route: Route) -> None:
    """Check the role and the rights that a route needs."""
    assert route.role is not None
    if not principal.has_role(route.role) and not (route.enqueuer and principal.role == "enqueuer"):
        needed = f"{route.role} or enqueuer" if route.enqueuer else route.role
        raise Refused("role", f"this needs the role {needed}; {principal.name} has the role {principal.role}")
    if route.contents:
        require_contents(principal)
    if route.whole_queue and not principal.uses_all_tasks:
        raise Refused("scope", f"this concerns all tasks of a queue; {_bounds(principal)}")
    if route.whole_app and not principal.sees_whole_app:
        raise Refused("scope", f"this concerns the whole app; {_bounds(principal)}")


def require_contents(principal: Principal, what: str = "this") -> None:
    if not principal.reads_contents:
        raise Refused(
            "right",
            f"{what} needs the right to read contents (arguments, results, errors and logs); {principal.name} does not"
            " have it, contents=True gives it",
        )


def require_queue(principal: Principal, queue: str) -> None:
    if not principal.uses_queue(queue):
        raise Refused("scope", f"the queue {queue!r} is not among those to use here; {_bounds(principal)}")


def require_task(principal: Principal, task: str) -> None:
    if not principal.uses_task(task):
        raise Refused("scope", f"the task {task!r} is not among those to use here; {_bounds(principal)}")


def require_options(principal: Principal, request: JobRequest) -> None:
    """Check the options that a request gives; what the code says is the code's own business."""
    require_priority(principal, request.priority)
    retries, timeout = request.retries, request.timeout
    most, longest = principal.max_retries, principal.max_timeout
    if most is not None and not isinstance(retries, UnsetType) and retries > most:
        raise Refused("scope", f"retries={retries}: {principal.name} may give {most} at most")
    if longest is not None and not isinstance(timeout, UnsetType):
        limit = milliseconds(longest)
        if timeout is None or milliseconds(timeout, "timeout") > limit:
            raise Refused("scope", f"timeout={timeout}: {principal.name} may give {show(limit)} at most")


def require_priority(principal: Principal, priority: int | UnsetType | None) -> None:
    if isinstance(priority, int) and priority < principal.most_urgent:
        least = principal.most_urgent
        raise Refused("scope", f"priority={priority}: {principal.name} may give {least} or a larger number")


def require_filters(principal: Principal, queue: str, task: str) -> None:
    """Those who may use some queues or tasks name one of them when they act on many jobs."""
    if queue:
        require_queue(principal, queue)
    elif not principal.uses_all_queues:
        raise Refused("scope", f"name a queue with queue=: {_bounds(principal)}")
    if principal.uses_all_tasks:
        return
    if ":" not in task:  # a filter without a module takes all tasks that are called so, whatever their module
        raise Refused("scope", f"name a task with task=, as module:function: {_bounds(principal)}")
    require_task(principal, task)


def require_job(principal: Principal, record: JobRecord) -> None:
    if not principal.uses(record.header.queue, record.header.task):
        raise Refused("scope", f"the job {record.id} is not among those to use here; {_bounds(principal)}")


async def check_job_in_path(context: RequestContext) -> None:
    """Check the job that the path names; one that does not exist is the business of the handler."""
    if context.principal.sees_whole_app:
        return
    record = await context.program.client().views.job(context.path["id"])
    if record is not None:
        require_job(context.principal, record)


def _bounds(principal: Principal) -> str:
    return f"{principal.name} may use only {principal.scope}"
