"""Becoming the server: this process's place is taken by the engine's."""

import os
from typing import NoReturn

from neuron_pd.errors import UsageError
from neuron_pd.launcher import processes
from neuron_pd.launcher.serve import ServeSpec
from neuron_pd.launcher.tether import become_subreaper


def become_engine(spec: ServeSpec) -> NoReturn:
    """Replace this process by the engine; it keeps the pid, under which `neuron-pd cleanup server` finds it.

    Descendants of the engine that lose their parent come to it (a subreaper stays one across exec), so they are found.
    """
    argv = spec.argv()
    become_subreaper()
    started = processes.remember(os.getpid(), "server", spec.role, spec.port)
    try:
        os.execvpe(argv[0], argv, {**os.environ, **spec.environment()})
    except OSError as error:
        processes.forget(started)
        raise UsageError(f"cannot run {argv[0]}: {error.strerror}; check the instance profile's command") from error
