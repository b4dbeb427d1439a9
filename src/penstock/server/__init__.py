"""Where the server is: URLs, topologies, the embedded server, and verified connections."""
