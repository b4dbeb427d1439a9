"""Testing code that enqueues jobs, and the jobs themselves, on the real engine.

    with Sandbox(app) as sandbox:                         # or the pytest fixture `penstock`
        sign_up("ada@example.org")                        # enqueues a job
        sandbox.assert_enqueued(welcome.call("ada@example.org"))
        sandbox.run_until_idle_sync()                     # in an async test: await sandbox.run_until_idle()
        sandbox.clock.advance("1d")                       # what is delayed until then is due

See docs/testing.md.
"""

from penstock.testing.clock import Clock
from penstock.testing.recorder import Enqueued
from penstock.testing.sandbox import Sandbox

__all__ = ["Clock", "Enqueued", "Sandbox"]
