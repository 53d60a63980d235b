"""Python imports a module of this name at its start: child processes have no network either."""

import no_network

no_network.install()
