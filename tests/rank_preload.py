"""What the fork server of `ranks.run_ranks` imports once, so that ranks start in a tenth of a second."""

import contextlib
import importlib
import pkgutil

import meshwright

for module in pkgutil.walk_packages(meshwright.__path__, "meshwright."):
    # A broken module must fail the tests that import it, not the server of all of them.
    if not module.name.endswith("__main__"):
        with contextlib.suppress(Exception, SystemExit):
            importlib.import_module(module.name)
