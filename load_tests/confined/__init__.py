"""A server with a limit of memory, as in a container, under load: it must serve or refuse, and never be killed."""
