"""One adapter per system: the same jobs, and the same few ways to send them.

An adapter runs in its system's own virtual environment. It has tasks for the kinds of job that the system can run, and
a class `Sender` with those of these methods that the system has:

    send(job)         await one enqueue
    send_sync(job)    one enqueue from blocking code
    send_many(jobs)   await many, in the fastest documented way
    send_later(job, seconds)   await one that is due later
    open(), close(), audit()

and `kinds`, the names of the tasks it has. A system whose worker has no command has a function `work()` instead.
"""
